"""Build the documentation as a site, with a link that leads nowhere as an error."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from helpers.site import build_site, copy_sources, nav_pages, needs_builder, path_of

pytestmark = needs_builder


class Links(HTMLParser):
    """Gather what a page points to, and the places in it that others may point to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.places = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places.add(given.get("id"))
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return copy_sources(tmp_path_factory.mktemp("site") / "sources")


@pytest.fixture(scope="module")
def said(sources):
    code, said = build_site(sources)
    assert code == 0, said
    return said


@pytest.fixture(scope="module")
def pages(sources, said):
    """Return the links of each page of the navigation, by its file."""
    files = [sources / "site" / path_of(place) / "index.html" for place in nav_pages()]
    return {file: Links(file.read_text(encoding="utf-8")) for file in files}


def test_it_builds_without_a_warning(said):
    assert re.fullmatch(r"Build started\nNo issues found\nBuild finished in [\d.]+m?s\n", said)


def test_every_link_leads_somewhere(pages):
    lost = []
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            file = page if not url.path else (page.parent / unquote(url.path)).resolve()
            file = file / "index.html" if file.is_dir() else file
            known = pages[file].places if file in pages else {unquote(url.fragment)}
            if not url.scheme and (not file.is_file() or unquote(url.fragment) not in known):
                lost.append(f"{page.parent.name}: {target}")
    assert sum(len(links.targets) for links in pages.values()) > 1000
    assert lost == []


def test_the_reference_has_what_docstrings_say(sources, said):
    page = (sources / "site" / "api" / "similarity" / "index.html").read_text(encoding="utf-8")
    assert "Compute the centred kernel alignment of student" in page
    assert "total</span>" in page and "&gt;&gt;&gt; " in page, "an example is code"


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("index.md", "See [a page](nowhere.md)."),
        ("index.md", "See [a section](recipes.md#nowhere)."),
        ("api/index.md", "::: limbeck.nowhere"),
    ],
)
def test_what_is_not_there_ends_the_build(tmp_path, page, line):
    sources = copy_sources(tmp_path / "sources")
    with open(sources / "docs" / page, "a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    code, said = build_site(sources)
    assert code != 0 and "nowhere" in re.sub(r"\x1b\[[\d;]*m", "", said)

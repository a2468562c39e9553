"""The site has every page once, and its pages name every method and every public name."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter

import pytest
from helpers.site import DOCS, nav_pages
from helpers.source_tree import public_names

from limbeck import METHODS, similarity, stats

NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
# told of in the text, or on pages of their own
ELSEWHERE = {"METHODS", "similarity", "stats"}


def described_on(page, package):
    """Return the names below `package` on a page; where a module has the name of its function, both are written."""
    return re.findall(
        rf"^::: {package}\.(?:\w+\.)?(\w+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )


def is_public(name, value):
    return name[0] != "_" and not inspect.ismodule(value)


def test_every_page_is_in_the_navigation_once():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(nav_pages()) == sorted(pages)


def test_every_method_has_a_place_in_the_table_of_which_method_when():
    rows = [line for line in (DOCS / "which-method.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    advised = {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row.split(" | ")[2])}
    assert set(METHODS) - advised == set()


@pytest.mark.parametrize(
    ("page", "package", "names"),
    [
        ("api/index.md", "limbeck", public_names(DOCS.parent) - ELSEWHERE),
        ("api/similarity.md", "limbeck.similarity", similarity.__all__),
        ("api/stats.md", "limbeck.stats", [name for name, value in vars(stats).items() if is_public(name, value)]),
    ],
)
def test_every_public_name_is_described_once(page, package, names):
    assert Counter(described_on(page, package)) == Counter(names)


def test_every_notebook_is_linked():
    linked = re.findall(r"\((notebooks/[^)]+)\)", (DOCS / "notebooks.md").read_text(encoding="utf-8"))
    assert NOTEBOOKS and sorted(linked) == [path.relative_to(DOCS).as_posix() for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(path):
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)

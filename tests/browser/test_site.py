"""Walk through the site in a real browser, by its own links, without a network."""

from __future__ import annotations

import re

import pytest
from helpers.browser import background, chromium, contrasts, luminance, needs_browser, texts
from helpers.site import build_site, copy_sources, nav_pages, needs_builder, path_of, served

pytestmark = [pytest.mark.browser, needs_browser, needs_builder]
DESKTOP, PHONE = {"width": 1400, "height": 800}, {"width": 360, "height": 740}
LINKS = "nav.md-nav--primary a.md-nav__link"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Build the site and serve it on loopback."""
    sources = copy_sources(tmp_path_factory.mktemp("site") / "sources")
    code, said = build_site(sources)
    assert code == 0, said
    with served(sources / "site") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture()
def open_page(browser, address):
    """Open a page as somebody with these settings sees it; what goes wrong until the test ends fails it."""
    contexts, wrong = [], []

    def open_it(path="", **settings):
        contexts.append(browser.new_context(**{"viewport": DESKTOP} | settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: message.type == "info" or wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
        page.on("response", lambda found: found.status < 400 or wrong.append(f"{found.status}: {found.url}"))
        page.on("request", lambda request: is_ours(request.url, address) or wrong.append(f"outside: {request.url}"))
        page.goto(address + path)
        page.wait_for_load_state("networkidle")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def is_ours(url, address):
    return url.startswith((address, "data:", f"blob:{address}"))


def title(page):
    return page.locator("article h1").first.inner_text().rstrip("¶")


def test_every_page_is_reached_by_clicking(open_page, address):
    page = open_page()
    titles = {}
    for place in nav_pages():
        target = address + path_of(place)
        links = page.eval_on_selector_all(LINKS, "all => all.map(link => link.href)")
        link = page.locator(LINKS).nth(links.index(target))
        if not link.is_visible():  # in a section that is closed
            link.locator("xpath=ancestor::li[contains(@class, 'md-nav__item--nested')][1]/label").click()
        # each page loads it for its search; what is left before that has failed
        with page.expect_event("requestfinished", lambda request: request.url.endswith("/search.json")):
            link.click()
        assert page.url == target
        titles[place] = title(page)
    assert list(titles) == nav_pages() and len(set(titles.values())) == len(titles)


def test_a_search_finds_what_was_meant(open_page):
    page = open_page()
    page.keyboard.press("Control+k")
    page.keyboard.type("intra-class similarity")
    page.get_by_text("Saadi et al. 2023").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("papers/.*#saadi-et-al-2023"))
    page.wait_for_load_state("networkidle")
    assert title(page) == "The papers' tables and figures"


def test_links_inside_pages_lead_to_their_sections(open_page):
    page = open_page("shrink/")
    page.locator("article a[href$='recipes/#heads']").first.click()
    page.wait_for_url(re.compile("recipes/#heads$"))
    page.wait_for_load_state("networkidle")
    assert page.locator("#heads").is_visible()


def test_pictures_are_shown(open_page):
    page = open_page("evidence/")
    widths = page.eval_on_selector_all("article img", "all => all.map(image => image.naturalWidth)")
    assert len(widths) >= 4 and min(widths) > 0


@pytest.mark.parametrize("path", ["", "which-method/", "papers/", "evidence/", "api/"])
def test_no_page_is_wider_than_a_phone(open_page, path):
    page = open_page(path, viewport=PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [PHONE["width"]] * 2
    assert [text for text in texts(page) if text.size < 10] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(open_page, scheme):
    page = open_page("which-method/", color_scheme=scheme)
    painted = luminance(background(page))
    assert painted < 0.2 if scheme == "dark" else painted > 0.8
    article = page.locator("article").bounding_box()
    inside = range(round(article["x"]), round(article["x"] + article["width"]))
    # signs behind headings appear under the pointer alone
    words = [found for found in contrasts(page) if round(found[0].box[0]) in inside and found[0].text != "¶"]
    assert len(words) > 100
    assert [(text.text, round(contrast, 2)) for text, contrast in words if contrast < 4.5] == []

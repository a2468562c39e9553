"""Open the report of a real small study in a real browser."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from helpers.browser import background, chromium, contrasts, luminance, needs_browser, texts
from helpers.in_process import run_command
from helpers.real_data import needs_glue
from helpers.saved_runs import read_json
from helpers.wnli_study import write_wnli_study

pytestmark = [pytest.mark.browser, pytest.mark.real, needs_browser, needs_glue]
METHODS = {"ft": {}, "kd": {}, "fsd": {"method.memory": 20, "method.passes": 1}}
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
PAPER = {"width": 718, "height": 1046}  # A4 with margins of 1 cm, in pixels

# a text's box is a little higher than its letters
CUT = """drawing => {
  const whole = drawing.getBoundingClientRect();
  return [...drawing.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    const over = [whole.left - box.left, whole.top - box.top, box.right - whole.right, box.bottom - whole.bottom];
    return Math.max(...over) > 3;
  }).map(text => text.textContent);
}"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Do a study of 3 methods x 2 seeds on real WNLI."""
    folder = tmp_path_factory.mktemp("browser")
    train = {"max_steps": 20, "batch_size": 16, "learning_rate": 2e-3}
    # large weights: with the usual small ones every run answers what is most frequent, and all scores are equal
    file = write_wnli_study(folder, train, weights={"initializer_range": 0.2}, methods=METHODS, seeds=[1, 2])
    code, said = run_command("study", file, "-o", folder / "study", "--threads", "1")
    assert code == 0, said
    return folder / "study"


@pytest.fixture(scope="module")
def report(study):
    file = study.parent / "report.html"
    code, said = run_command("report", study, "-o", file)
    assert code == 0, said
    return file


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture()
def open_report(browser, report):
    """Open the report as somebody with these settings sees it."""
    contexts = []

    def open_it(listen=lambda page: None, **settings):
        contexts.append(browser.new_context(**{"viewport": DESKTOP} | settings))
        page = contexts[-1].new_page()
        listen(page)
        page.goto(report.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()


def open_details(page):
    page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")


def test_nothing_goes_wrong_and_nothing_is_fetched(open_report, report):
    wrong, requests = [], []

    def listen(page):
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on("request", lambda request: requests.append(request.url))

    page = open_report(listen)
    page.wait_for_load_state("networkidle")
    assert wrong == []
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]


def test_every_figure_is_drawn(open_report):
    page = open_report()
    open_details(page)
    figures = page.locator("figure svg").all()
    assert len(figures) >= 9, (
        "trade-off, curves, restoration, heat maps, layers, relations, classes, tokens, calibration"
    )
    for figure in figures:
        box = figure.bounding_box()
        assert box["width"] > 50 and box["height"] > 50
        assert box["x"] >= 0 and box["x"] + box["width"] <= DESKTOP["width"]
        assert figure.locator("text").count() > 2 and figure.locator("path, image").count() > 0
        assert figure.evaluate(CUT) == [], "text that the drawing's edge cuts"
    images = page.eval_on_selector_all(
        "figure svg image",
        """all => Promise.all(all.map(async image => {
          const decoded = new Image(), box = image.getBBox();
          decoded.src = image.href.baseVal;
          await decoded.decode();
          return Math.min(decoded.naturalWidth, decoded.naturalHeight, box.width, box.height);
        }))""",
    )
    assert images and min(images) > 0


def test_the_main_table_says_what_the_runs_measured(open_report, study):
    scores = defaultdict(list)
    for file in sorted(study.glob("runs/*/metrics.json")):
        run = read_json(file)
        for metric, value in run["metrics"].items():
            scores[run["task"], metric, run["method"]].append(value)
    assert {method for _, _, method in scores} == set(METHODS) and all(len(seeds) == 2 for seeds in scores.values())
    assert len({tuple(seeds) for seeds in scores.values()}) > 1, "equal scores everywhere would show nothing"
    page = open_report()
    shown = {}
    for row in page.locator("table.scores tbody tr").all():
        for cell in row.locator("[data-value]").all():
            place = tuple(cell.get_attribute(f"data-{name}") for name in ("task", "metric", "label"))
            assert place not in shown and place[2] in row.inner_text()
            shown[place] = float(cell.get_attribute("data-value")), cell.inner_text()
    for place, seeds in scores.items():
        value, text = shown[place]
        assert value == pytest.approx(fmean(seeds), rel=1e-12)
        # daggers may follow
        assert re.match(r"[\d.]+ ± [\d.]+", text).group() == f"{100 * fmean(seeds):.2f} ± {100 * stdev(seeds):.2f}"


def test_it_works_without_javascript(open_report):
    with_it, without = open_report(), open_report(java_script_enabled=False)
    for what in ("table.scores", "#summary", "#environment"):
        assert without.locator(what).inner_text() == with_it.locator(what).inner_text()
    drawn = [[svg.is_visible() for svg in page.locator("figure svg").all()] for page in (with_it, without)]
    assert drawn[0] == drawn[1] and any(drawn[1])
    details = without.locator("details").all()
    assert details
    for item in details:
        content = item.locator(":scope > :not(summary)").first
        if item.get_attribute("open") is None:
            assert not content.is_visible()
            item.locator("summary").click()
        assert content.is_visible()


def test_a_phone_shows_it_without_scrolling_sideways(open_report):
    page = open_report(viewport=PHONE, is_mobile=True, has_touch=True)
    open_details(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("innerWidth") == PHONE["width"], "the page was zoomed out to fit"
    words = [text for text in texts(page) if not text.drawing]
    assert len(words) > 50
    assert [text for text in words if text.size < 12] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(open_report, scheme):
    page = open_report(color_scheme=scheme)
    open_details(page)
    painted = luminance(background(page))
    assert painted < 0.2 if scheme == "dark" else painted > 0.8
    found = contrasts(page)
    assert sum(text.drawing for text, _ in found) > 50 and sum(not text.drawing for text, _ in found) > 50
    assert [(text.text, round(contrast, 2)) for text, contrast in found if contrast < 4.5] == []


def test_it_can_be_printed(open_report):
    page = open_report(viewport=PAPER, color_scheme="dark")  # paper is white all the same
    page.emulate_media(media="print")
    boxes = [item.bounding_box() for item in page.locator("figure, figure svg, table").all() if item.is_visible()]
    assert boxes and max(box["x"] + box["width"] for box in boxes) <= PAPER["width"]
    assert max(figure.bounding_box()["height"] for figure in page.locator("figure").all()) <= PAPER["height"]
    # nobody can open them on paper
    assert all(content.is_visible() for content in page.locator("details > :not(summary)").all())
    assert luminance(background(page)) > 0.95
    assert [(text.text, round(contrast, 2)) for text, contrast in contrasts(page) if contrast < 4.5] == []
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "1cm")
    printed = page.pdf(format="A4", margin=margin)
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) >= 1


def test_it_can_be_heard_and_walked_through(open_report):
    page = open_report()
    drawings = page.locator("figure svg").count()
    named = page.get_by_role("img", name=re.compile(r"\w+ \w+"), include_hidden=True)
    assert drawings and page.locator("svg[role=img]").count() == named.count() >= drawings
    tags = "all => all.map(element => element.tagName)"
    levels = [int(name[1]) for name in page.eval_on_selector_all("h1, h2, h3, h4, h5, h6", tags)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = page.eval_on_selector_all("[id]", "all => all.map(element => element.id)")
    assert len(ids) == len(set(ids))
    targets = page.eval_on_selector_all("a[href^='#']", "all => all.map(link => link.getAttribute('href').slice(1))")
    assert targets and set(targets) <= set(ids)
    captions = page.eval_on_selector_all("table", "all => all.map(table => table.caption?.textContent.trim() || '')")
    assert captions and all(captions)
    assert page.locator("html").get_attribute("lang") == "en"


def test_the_keyboard_begins_with_a_link_past_the_contents(open_report):
    page = open_report()
    page.keyboard.press("Tab")
    target, box = page.locator(":focus").get_attribute("href"), page.locator(":focus").bounding_box()
    assert target.startswith("#")
    assert box["x"] >= 0 and box["y"] >= 0 and box["width"] > 20
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"{target}$"))

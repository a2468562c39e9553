"""Try a model on its page in a real browser: with a mouse, with a keyboard, by night and on a phone."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from helpers.browser import background, chromium, contrasts, luminance, needs_browser, texts
from helpers.serving import serving
from helpers.tiny_onnx import tiny_onnx
from helpers.tiny_tables import sentences

from limbeck.runtime import load

pytest.importorskip("onnxruntime")
pytest.importorskip("uvicorn")
expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = [pytest.mark.browser, needs_browser]
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
HOSTILE = "<img src=x onerror=alert(1)> cat"
CARD = """---
license: mit
---

# tiny

It *guesses*.

| a | b |
|---|---:|
| one | 2 |

- a point

```python
print(1)
```
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory, tokenizer_folder):
    home = tmp_path_factory.mktemp("page")
    return lambda problem="classification": load(
        next(iter(home.glob(problem)), None) or tiny_onnx(home / problem, tokenizer_folder, problem), threads=1
    )


def other(model):
    """Return a model that often answers otherwise."""
    return type(model)(model.about, model.reader, lambda inputs: model._run(inputs)[:, ::-1].copy())


@pytest.fixture(scope="module")
def examples(models):
    student, teacher = models(), other(models())
    rows = []
    for text in [*(text for text, _ in sentences(70)), HOSTILE]:
        sides = []
        for model in (student, teacher):
            (label,), scores = model.predict([text])
            sides.append([{"label": label, "score": float(scores[0].max())}])
        rows.append({"texts": [text], "label": "yes", "student": sides[0], "teacher": sides[1], "difference": 0.5})
    return rows


@pytest.fixture(scope="module")
def service(models, examples):
    with serving(models(), teacher=other(models()), examples=examples, card=CARD) as client:
        yield f"http://127.0.0.1:{client.port}/"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture()
def open_page(browser, service):
    contexts = []

    def open_it(url=service, listen=lambda page: None, **settings):
        # some helpers look into the page, which its policy would not let them
        contexts.append(browser.new_context(**{"viewport": DESKTOP, "bypass_csp": True} | settings))
        page = contexts[-1].new_page()
        listen(page)
        page.goto(url)
        page.wait_for_load_state("networkidle")
        return page

    yield open_it
    for context in contexts:
        context.close()


def wait_for_answer(page):
    expect(page.locator("#verdict")).not_to_be_empty()


def ask(page, text):
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Answer").click()
    wait_for_answer(page)


def test_both_answer_side_by_side_and_nobody_else_is_asked(open_page, models, service):
    wrong, requests = [], []

    def listen(page):
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))

    page = open_page(listen=listen, bypass_csp=False)
    assert page.title() == "classification" and "chooses one of 3 labels" in page.locator("#about").inner_text()
    ask(page, "the cat sees a dog")
    for who, model in (("student", models()), ("teacher", other(models()))):
        (label,), scores = model.predict(["the cat sees a dog"])
        part = page.locator(f"#answer-{who}")
        assert part.locator("h3").inner_text().lower() == who and part.locator(".lead").inner_text() == label
        shown = part.locator(".scores li").all_inner_texts()
        assert shown[0].split()[-1] == f"{100 * scores[0].max():.1f}%" and len(shown) == 3
        assert re.search(r"[\d.]+ ms, 7 tokens", part.inner_text())
    said = page.locator("#verdict").inner_text()
    same = len({page.locator(f"#answer-{who} .lead").inner_text() for who in ("student", "teacher")}) == 1
    assert said.startswith("Both say" if same else "They disagree")
    assert wrong == [] and {url.startswith(service) or url.startswith("data:") for url in requests} == {True}


def test_disagreements_are_searched_and_tried(open_page, examples):
    page = open_page()
    assert page.locator("#count").inner_text() == "50 of 71 examples shown"
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#examples li")).to_have_count(71)
    assert not page.get_by_role("button", name="Show more").is_visible()
    page.get_by_label("Search texts and labels").fill("onerror")
    expect(page.locator("#examples li")).to_have_count(1)
    assert HOSTILE in page.locator("#examples li").inner_text() and page.locator("#examples img").count() == 0
    page.locator("#examples button").click()
    wait_for_answer(page)
    assert page.get_by_label("Text", exact=True).input_value() == HOSTILE
    page.get_by_label("Search texts and labels").fill("no such words")
    expect(page.locator("#count")).to_have_text("0 of 0 examples shown")


def test_the_card_and_a_command_are_shown(open_page, service):
    page = open_page()
    card = page.locator("#card")
    assert card.locator("h3").inner_text() == "tiny" and "license" not in card.inner_text()
    assert card.locator("th").all_inner_texts() == ["a", "b"] and card.locator("td").all_inner_texts() == ["one", "2"]
    assert card.locator("li").inner_text() == "a point" and card.locator("pre").inner_text() == "print(1)"
    assert page.locator("#use").inner_text() == f"""curl {service}predict -d '{{"inputs":"a text"}}'"""


def test_a_mistake_is_said_to_who_hears(open_page):
    page = open_page()
    page.get_by_label("Text", exact=True).fill("  ")
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("alert").wait_for()
    assert "A text is empty" in page.get_by_role("alert").inner_text()
    ask(page, "a cat")
    assert not page.locator("#problem").is_visible()


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "To the text field"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("id") == "text-0"
    page.keyboard.type("the dog")
    page.keyboard.press("Control+Enter")
    wait_for_answer(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(":focus").get_attribute("id") == "search":
            break
    else:
        raise AssertionError("the search cannot be reached")
    page.keyboard.type("cat")
    expect(page.locator("#count")).not_to_have_text("50 of 71 examples shown")


def test_it_can_be_heard(open_page):
    page = open_page()
    ask(page, "a cat")
    seen = "all => all.filter(one => one.checkVisibility()).map(one => one.tagName)"
    levels = [int(tag[1]) for tag in page.eval_on_selector_all("h1, h2, h3, h4", seen)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    for field in page.locator("input:visible, textarea:visible, button:visible").all():
        assert field.evaluate("one => (one.labels?.[0] || one).textContent.trim() || one.ariaLabel")
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids)) and page.locator("html").get_attribute("lang") == "en"
    assert page.locator("[role=status]").count() >= 2 and page.locator("section[aria-labelledby]").count() == 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(open_page, scheme):
    page = open_page(color_scheme=scheme)
    ask(page, "a cat sees a dog")
    painted = luminance(background(page))
    assert painted < 0.2 if scheme == "dark" else painted > 0.8
    found = contrasts(page)
    assert len(found) > 100 and [(text.text, round(one, 2)) for text, one in found if one < 4.5] == []


def test_a_phone_shows_it_without_scrolling_sideways(open_page):
    page = open_page(viewport=PHONE, is_mobile=True, has_touch=True)
    ask(page, "a cat " * 30)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"] == page.evaluate("innerWidth")
    assert [text for text in texts(page) if text.size < 12] == []


@pytest.mark.parametrize("problem", ["multi_label", "regression", "tokens", "span"])
def test_other_problems(problem, open_page, models):
    with serving(models(problem), teacher=models(problem)) as client:
        page = open_page(f"http://127.0.0.1:{client.port}/")
        fields = page.locator("textarea").all()
        assert len(fields) == (2 if problem == "span" else 1)
        for field, text in zip(fields, ("which one?", "the cat sees a dog")[-len(fields) :], strict=True):
            field.fill(text)
        page.get_by_role("button", name="Answer").click()
        wait_for_answer(page)
        assert page.locator("#verdict").inner_text().startswith("Both say: ")
        shown = page.locator("#answer-teacher").inner_text()
        if problem == "tokens":
            assert page.locator("#answer-teacher .words > span").count() == 5
        assert "undefined" not in shown and "NaN" not in shown


def test_a_key_is_asked_for(open_page, models, monkeypatch):
    monkeypatch.setenv("LIMBECK_KEY", "open sesame")
    with serving(models()) as client:
        page = open_page(f"http://127.0.0.1:{client.port}/")
        page.get_by_label("Key of this service").fill("wrong")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_load_state("networkidle")
        page.get_by_label("Key of this service").fill("open sesame")
        page.get_by_role("button", name="Use this key").click()
        expect(page).to_have_title("classification")
        ask(page, "a cat")
        assert page.locator("#verdict").inner_text().startswith("The answer: ")
        assert "authorization: Bearer KEY" in page.locator("#use").inner_text()

"""SQuAD: the official scores against an independent implementation, and files with everything that can be wrong."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from helpers.paths import SHARED
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import DataError
from limbeck.metrics import answer_scores, normalized_answer
from limbeck.tasks import load_task

SQUAD = SHARED / "data" / "squad"


# The official scores


def bag(text: str) -> list[str]:
    """Lower case, no ASCII punctuation, no articles, split at blanks."""
    kept = text.lower().translate({ord(mark): None for mark in r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"""})
    pieces = re.split(r"(\W+)", kept)
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def reference(prediction: str, answers: list[str], version: str) -> tuple[float, float]:
    """As the papers and the two official programs define exact match and F1."""
    if version == "2.0":
        answers = [answer for answer in answers if bag(answer)] or [""]
    pairs = [(bag(prediction), bag(answer)) for answer in answers]
    return max(float(ours == theirs) for ours, theirs in pairs), max(overlap(*pair, version) for pair in pairs)


def overlap(ours: list[str], theirs: list[str], version: str) -> float:
    if version == "2.0" and (not ours or not theirs):
        return 1.0 if ours == theirs else 0.0
    left, common = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


PIECES = [
    "a",
    "an",
    "the",
    "The",
    "A.",
    "then",
    "cat",
    "Cat",
    "cats",
    "...",
    "'s",
    "—",
    "1,000",
    "_",
    "the-cat",
    "don't",
]
PIECES += ["é", "e\u0301", "İ", "ß", "ẞ", "\u00a0", "\u200b", "\u2028", "the\u00a0cat", "“a”", "a\u0301", "😀"]
HOSTILE = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
    st.text(max_size=8),
)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@settings(max_examples=400, deadline=None)
@given(prediction=HOSTILE, answers=st.lists(HOSTILE, min_size=1, max_size=4))
def test_scores_equal_an_independent_implementation(version: str, prediction: str, answers: list[str]) -> None:
    assert normalized_answer(prediction) == " ".join(bag(prediction))
    expected = reference(prediction, answers, version)
    assert answer_scores(prediction, answers, version == "2.0") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "answers", "one", "two"),
    [
        ("the Cat!", ["cat"], (1, 1), (1, 1)),
        ("cat", ["dog", "A cat."], (1, 1), (1, 1)),
        ("big cat", ["cat"], (0, 2 / 3), (0, 2 / 3)),
        ("cat cat", ["cat"], (0, 2 / 3), (0, 2 / 3)),  # a repeated word counts once
        ("cat cat dog", ["cat cat"], (0, 4 / 5), (0, 4 / 5)),
        ("dog", ["cat"], (0, 0), (0, 0)),
        ("", ["cat"], (0, 0), (0, 0)),
        ("theatre", ["the atre"], (0, 0), (0, 0)),  # an article is a word of its own
        ("twenty-one", ["twentyone"], (1, 1), (1, 1)),
        ("twenty one", ["twenty-one"], (0, 0), (0, 0)),
        ("“cat”", ["cat"], (0, 0), (0, 0)),  # typographic quotes are no ASCII punctuation
        # nothing against nothing: right in both, but 1.1's F1 has no common words to count
        ("", ["the"], (1, 0), (1, 1)),
        ("the", ["..."], (1, 0), (1, 1)),
        ("", [""], (1, 0), (1, 1)),
        # 2.0 drops answers that are empty once normalised, as long as another is left
        ("", ["the", "cat"], (1, 0), (0, 0)),
        ("cat", ["the", "cat"], (1, 1), (1, 1)),
        ("cat", ["the"], (0, 0), (0, 0)),
    ],
)
def test_scores_by_hand(prediction: str, answers: list[str], one: Any, two: Any) -> None:
    assert answer_scores(prediction, answers, unanswerable=False) == pytest.approx(one)
    assert answer_scores(prediction, answers, unanswerable=True) == pytest.approx(two)


def test_a_question_without_an_answer_wants_nothing() -> None:
    assert answer_scores("", [], unanswerable=True) == (1, 1)
    assert answer_scores("The", [], unanswerable=True) == (1, 1)  # normalised, this is nothing
    assert answer_scores("cat", [], unanswerable=True) == (0, 0)


# Files

CONTEXT = "The cat sees the big dog. The dog likes the cat."


def entry(number: int = 0, text: str = "big dog", start: int = 17, **changes: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start}]
    return {"id": f"q{number}", "question": "Whom does it see?", "answers": answers} | changes


def content(*questions: dict[str, Any], context: Any = CONTEXT) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "Pets", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Load SQuAD from a training and a validation file with this content."""

    def run(train: Any, dev: Any = None, version: str = "1.1", **options: Any) -> Any:
        for stem, value in (("train", train), ("dev", content(entry()) if dev is None else dev)):
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            (tmp_path / f"{stem}-v{version}.json").write_bytes(raw)
        return load_task(f"squad/{version}", data_dir=str(tmp_path), **options)

    return run


def test_every_question_is_a_row(load: Callable[..., Any]) -> None:
    article = content(entry(0), entry(1, "cat", 4))["data"][0]
    task = load({"data": [article, {"title": "Empty", "paragraphs": []}, article]})
    assert task.problem == "span" and task.metrics == ("f1", "exact_match")
    assert task.split("train")[1] == {
        "id": 1,
        "question_id": "q1",
        "question": "Whom does it see?",
        "context": CONTEXT,
        "answers": ["cat"],
        "starts": [4],
    }
    assert task.split("train")["id"][:] == [0, 1, 2, 3]


def test_impossible_questions_have_no_answers(load: Callable[..., Any]) -> None:
    plausible = [{"text": "cat", "answer_start": 4}]
    none = {
        "id": "none",
        "question": "Who flies?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": plausible,
    }
    task = load(content(none, entry(is_impossible=False)), content(none, entry()), version="2.0")
    assert task.split("train")["answers"][:] == [[], ["big dog"]]
    assert task.unanswerable and "no_answer_f1" in task.metrics


def test_a_byte_order_mark_is_no_content(load: Callable[..., Any]) -> None:
    assert len(load(b"\xef\xbb\xbf" + json.dumps(content(entry())).encode()).split("train")) == 1


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"", "is not whole JSON"),
        (json.dumps(content(entry())).encode()[:-20], "is not whole JSON"),
        (b'{"data": "\xff"}', "is not whole JSON"),
        ([], "not in SQuAD's format"),
        ({"rows": []}, "not in SQuAD's format.*data.*KeyError"),
        ({"data": []}, "has no questions"),
        ({"data": [{"title": "no paragraphs"}]}, "not in SQuAD's format.*paragraphs"),
        ({"data": None}, "not in SQuAD's format"),
        ({"data": ["text"]}, "not in SQuAD's format"),
        (content({"id": "1", "question": "?"}), r"near data\[0\]\.paragraphs\[0\]\.qas\[0\].*answers"),
        (content(entry(), {"question": "?", "answers": []}), r"near data\[0\]\.paragraphs\[0\]\.qas\[1\].*id"),
        (content(entry(question=None)), "None is not a text"),
        (content(entry(), context=5), "5 is not a text"),
        (content(entry(answers=["big dog"])), "not in SQuAD's format"),
        (content(entry(answers={"text": ["big dog"], "answer_start": [17]})), "not in SQuAD's format"),
        (content(entry(answers=[{"text": None, "answer_start": 1}])), "None is not a text"),
        (content(entry(start="far")), "not in SQuAD's format.*far"),
        (content(entry(), entry(start=999)), r"qas\[1\]: answer_start is 999, but the context has 48 char.*not bytes"),
        (content(entry(start=-1)), r"qas\[0\]: answer_start is -1"),
    ],
)
def test_a_wrong_file_is_named_with_the_place(load: Callable[..., Any], train: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(train)
    assert "train-v1.1.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(load: Callable[..., Any], tmp_path: Path) -> None:
    load(content(entry()))
    with pytest.raises(DataError, match=r"train-v2\.0\.json does not exist.*train-v1\.1\.json"):
        load_task("squad/2.0", data_dir=str(tmp_path))


@pytest.mark.parametrize(("text", "given", "found"), [("cat", 3, 4), ("cat", 46, 44), ("The", 20, 26), ("dog", 30, 30)])
def test_an_answer_is_taken_where_the_context_has_it(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture, text: str, given: int, found: int
) -> None:
    """Offsets of converted data are often wrong by a little; a model must not learn the wrong words."""
    with caplog.at_level(logging.WARNING):
        task = load(content(entry(0), entry(1, text, given)))
    assert task.split("train")["starts"][:] == [[17], [found]]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (given != found)
    assert all("1 of 2 questions have an answer that is not at its answer_start (the first is q1)" in m for m in said)


def test_an_answer_that_the_context_lacks_is_not_learned_but_scored(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    both = entry(2, answers=[{"text": "horse", "answer_start": 2}, {"text": "cat", "answer_start": 4}])
    file = content(entry(0), entry(1, "horse", 2), both)
    with caplog.at_level(logging.WARNING):
        task = load(file, file)
    assert task.split("train")["question_id"][:] == ["q0", "q2"]
    assert task.split("train")["answers"][:] == [["big dog"], ["cat"]]
    assert task.split("validation")["answers"][:] == [["big dog"], ["horse"], ["horse", "cat"]]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "1 of 3 questions have answers that are not in their context (the first is q1); they were left out." in said
    assert "they are scored nevertheless" in said
    with pytest.raises(DataError, match="has no questions"):
        load(content(entry(1, "horse", 2)))


@pytest.mark.skipif(not SQUAD.is_dir(), reason="real SQuAD data are not at ../shared/data/squad")
@pytest.mark.parametrize(("version", "train", "dev", "none"), [("1.1", 4371, 10570, 0), ("2.0", 4719, 6078, 3168)])
def test_real_files(version: str, train: int, dev: int, none: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        task = load_task(f"squad/{version}", data_dir=str(SQUAD))
    assert not caplog.records  # every official answer is where it says
    rows = task.split("validation")
    assert (len(task.split("train")), len(rows)) == (train, dev)
    assert sum(not answers for answers in rows["answers"]) == none
    # the gold answers themselves score 100, and so does the official program with them
    scores = [answer_scores(answers[0] if answers else "", answers, version == "2.0") for answers in rows["answers"]]
    assert {score for score in scores} == {(1.0, 1.0)}


# The hub


@pytest.mark.parametrize(("version", "name"), [("1.1", "rajpurkar/squad"), ("2.0", "rajpurkar/squad_v2")])
def test_the_hub_gives_the_same_as_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, name: str
) -> None:
    context = "Bern is the capital. Basel is a city."
    asked = [("q1", "What is the capital?", ["Bern", "Bern"], [0, 0]), ("q2", "Which city?", ["Basel"], [21])]
    if version == "2.0":
        asked.append(("q3", "Which river?", [], []))

    def answers(texts: list[str], starts: list[int]) -> list[dict[str, Any]]:
        return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]

    questions = [
        {"id": key, "question": text, "answers": answers(texts, starts), "is_impossible": not texts}
        for key, text, texts, starts in asked
    ]
    content = {"version": version, "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    for stem in ("train", "dev"):
        (tmp_path / f"{stem}-v{version}.json").write_text(json.dumps(content))
    rows = [
        {"id": k, "title": "t", "context": context, "question": q, "answers": {"text": texts, "answer_start": starts}}
        for k, q, texts, starts in asked
    ]
    split = datasets.Dataset.from_list(rows)
    calls = []

    def load_dataset(path: str) -> datasets.DatasetDict:
        calls.append(path)
        return datasets.DatasetDict(train=split, validation=split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    there, here = load_task(f"squad/{version}"), load_task(f"squad/{version}", data_dir=str(tmp_path))
    assert calls == [name]
    for part in ("train", "validation"):
        assert there.split(part)[:] == here.split(part)[:]
        assert len(here.split(part)) == len(asked)


def test_offline_says_which_files_to_put_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(_: str) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        load_task("squad/2.0")
    text = str(caught.value)
    assert "Couldn't reach the Hub" in text and "rajpurkar/squad_v2" in text
    assert "train-v2.0.json and dev-v2.0.json" in text and "task.data_dir" in text

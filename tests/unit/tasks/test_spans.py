"""Answers as spans: windows over long texts, where their labels point, and how answers are decoded and scored."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers.paths import SHARED
from helpers.real_data import real_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from limbeck.errors import DataError, RecipeError
from limbeck.metrics import answer_scores
from limbeck.models.vocabulary import make_wordpiece
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.task import make_split

SQUAD = SHARED / "data" / "squad"
needs_squad = pytest.mark.skipif(not SQUAD.is_dir(), reason="real SQuAD data are not at ../shared/data/squad")
DROPPED = "\u0300\u0301\u200b\u00ad\ufeff \r\n\t"  # characters that some vocabularies leave out

LONG = " ".join(f"In {year} the museum of {place} bought {year % 37} paintings." for year, place in zip(
    range(1900, 1918), itertools.cycle(["Rome", "Zürich", "São Paulo"]), strict=False
))  # fmt: skip
CONTEXTS = [
    LONG,
    "One",
    "A cat.\r\nA dog,\n\n\ta tab\there  and   wide    gaps. ",
    "Smile 😀😀 at the family 👨‍👩‍👧‍👦 and the flag 🇨🇭, then go home again today.",
    "The cafe\u0301 in Sa\u0303o Paulo has pin\u0303a and cre\u0300me bru\u0302le\u0301e",
    "zero\u200bwidth \ufeffmark \u00adsoft hyphen and no\u00a0break here " * 3,
    "日本語の文章です。東京は大きい。",
    "İstanbul'a gitti; STRASSE, straße, ŉ and ﬁ are hard to lower. " * 3,
    "word" * 60 + " end",
    "Sign ± 3.14 (approx.) — “quoted” … done!",
]


@pytest.fixture(scope="module", params=["wordpiece", "gte-small", "roberta", "gpt2"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Word pieces, and byte-level vocabularies whose tokens include the blank before a word."""
    if request.param == "wordpiece":
        folder = tmp_path_factory.mktemp("tokenizer") / "words"
        make_wordpiece(CONTEXTS, folder, vocab_size=300)
        return AutoTokenizer.from_pretrained(folder)
    return real_tokenizer(request.param)


def make_task(rows: list[tuple[str, str, list[str], list[int]]], **options: Any) -> SpanTask:
    """Of (question, context, answers, starts)."""
    questions, contexts, answers, starts = (list(column) for column in zip(*rows, strict=True))
    ids = list(range(len(rows)))
    columns = {"id": ids, "question_id": [f"q{i}" for i in ids], "question": questions, "context": contexts}
    split = make_split("validation", columns | {"answers": answers, "starts": starts})
    return SpanTask("squad", "span", ("question", "context"), (), ("f1",), {"validation": split}, **options)


def words_of(context: str, size: int = 2) -> list[tuple[str, int]]:
    """Every run of ``size`` words, with its first character."""
    places = [match.span() for match in re.finditer(r"\S+", context)]
    runs = [(a[0], b[1]) for a, b in zip(places, places[size - 1 :], strict=False)]
    return [(context[start:stop], start) for start, stop in runs]


def rows_of(contexts: list[str]) -> list[tuple[str, str, list[str], list[int]]]:
    return [
        ("What is it?", context, [text], [start])
        for context in contexts
        for size in (1, 2)
        for text, start in words_of(context, size)
    ]


def one_hot(encoded: Any) -> list[np.ndarray]:
    """Logits that say what the labels say."""
    rows = []
    for ids, (start, end) in zip(encoded["input_ids"], encoded["labels"], strict=True):
        logits = np.zeros((len(ids), 2), dtype=np.float32)
        logits[start, 0] = logits[end, 1] = 9.0
        rows.append(logits)
    return rows


def spans_of(row: Any) -> list[tuple[int, int]]:
    """The characters of the context's tokens in a window."""
    return [(b, e) for b, e in zip(row["begins"], row["ends"], strict=True) if b >= 0]


# Windows


@pytest.mark.parametrize(("max_length", "stride"), [(16, 128), (16, 3), (32, 10), (64, 128), (384, 128)])
def test_windows_cover_the_context_and_overlap_by_the_stride(tokenizer: Any, max_length: int, stride: int) -> None:
    contexts = [*CONTEXTS, "", "   "]
    task = make_task([("What is it?", context, [], []) for context in contexts], stride=stride)
    encoded = task.encode("validation", tokenizer, max_length)
    assert sorted(set(encoded["example"])) == list(range(len(contexts)))
    assert max(len(ids) for ids in encoded["input_ids"]) <= max_length
    shared = min(stride, max_length // 3)
    for example, context in enumerate(contexts):
        whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        windows = [w for w, owner in enumerate(encoded["example"]) if owner == example]
        assert windows == list(range(windows[0], windows[-1] + 1))
        parts = [spans_of(encoded[w]) for w in windows]
        for before, after in itertools.pairwise(parts):
            assert before[-shared:] == after[:shared]
            assert len(after) > shared  # otherwise it has nothing new
        joined = parts[0] + [place for part in parts[1:] for place in part[shared:]]
        assert joined == [tuple(place) for place in whole]


def test_windows_begin_with_the_question(tokenizer: Any) -> None:
    task = make_task([("Which museum?", LONG, [], [])])
    encoded = task.encode("validation", tokenizer, 40)
    assert len(encoded) > 5
    alone = tokenizer("Which museum?", add_special_tokens=False)["input_ids"]
    for row in encoded:
        first = row["begins"].index(next(begin for begin in row["begins"] if begin >= 0))
        added = {tokenizer.cls_token_id, tokenizer.sep_token_id}
        assert [token for token in row["input_ids"][:first] if token not in added] == alone
        assert row["ends"][:first] == row["begins"][:first] == [-1] * first


@pytest.mark.parametrize("max_length", [16, 32, 96])
@pytest.mark.parametrize("question", ["why " * 200, "😀" * 200, "né" * 300, "東京" * 99, "x" * 999, "", " \n "])
def test_long_and_empty_questions_leave_room_for_the_context(
    tokenizer: Any, question: str, max_length: int, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task([(question, LONG, ["museum"], [LONG.index("museum")]), ("Why?", "Because.", [], [])])
    with caplog.at_level(logging.WARNING):
        encoded = task.encode("validation", tokenizer, max_length)
    assert max(len(ids) for ids in encoded["input_ids"]) <= max_length
    for row in encoded:
        if row["example"] == 0:
            assert sum(begin >= 0 for begin in row["begins"]) > max_length // 3
    assert task.best(one_hot(encoded), encoded)[0].text == "museum"
    tokens = len(tokenizer(question.strip(), add_special_tokens=False)["input_ids"])
    longest = min(64, max_length // 3)
    if tokens <= longest:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert f"1 of 2 questions have more than {longest} tokens and were cut" in record.getMessage()
        with pytest.raises(DataError, match=rf"1 questions have more than {longest} tokens.*Shorten"):
            task.encode("validation", tokenizer, max_length, "refuse")


def test_thousands_of_questions_keep_their_order(tokenizer: Any) -> None:
    task = make_task([("Which?", f"It is number {i}.", [str(i)], [13]) for i in range(2100)])
    encoded = task.encode("validation", tokenizer, 32)
    assert encoded["example"][:] == encoded["id"][:] == list(range(2100))
    assert [best.text.rstrip(".") for best in task.best(one_hot(encoded), encoded)] == [str(i) for i in range(2100)]


def test_too_short_a_window_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"max_length is 15.*at least 16"):
        make_task([("?", LONG, [], [])]).encode("validation", tokenizer, 15)


def test_unlabelled_questions_have_no_labels(tokenizer: Any) -> None:
    texts = make_split("predict", {"id": [0], "q": ["Which?"], "t": [LONG]})
    task = SpanTask.of_texts(texts, ["q", "t"])
    encoded = task.encode("predict", tokenizer, 64)
    assert "labels" not in encoded.column_names
    with pytest.raises(RecipeError, match="two columns"):
        SpanTask.of_texts(texts, ["q"])


# Labels


@pytest.mark.parametrize("max_length", [24, 384])
def test_labels_point_at_the_answer_and_nowhere_else(tokenizer: Any, max_length: int) -> None:
    rows = rows_of(CONTEXTS)
    task = make_task(rows)
    encoded = task.encode("validation", tokenizer, max_length)
    places = {
        context: tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        for context in CONTEXTS
    }
    found: dict[int, int] = dict.fromkeys(range(len(rows)), 0)
    for row in encoded:
        _, context, (answer,), (start,) = rows[row["example"]]
        stop = start + len(answer)
        first, last = row["labels"]
        if [first, last] == [0, 0]:
            continue
        begins, ends = row["begins"], row["ends"]
        assert 0 <= begins[first] <= begins[last] and first <= last
        # with these tokens, and not with fewer
        needed = [(b, e) for b, e in places[context] if b < stop and e > start]
        pointed = list(zip(begins[first : last + 1], ends[first : last + 1], strict=True))
        assert needed and characters(needed, start, stop) == characters(pointed, start, stop)
        assert ends[first] > start and begins[last] < stop
        found[row["example"]] += 1
    shared = min(128, max_length // 3)
    for example, (_, context, (answer,), (start,)) in enumerate(rows):
        needed = [(b, e) for b, e in places[context] if b < start + len(answer) and e > start]
        if needed and len(needed) <= shared:
            assert found[example], answer  # what fits into the overlap is whole in some window


def characters(places: list[tuple[int, int]], start: int, stop: int) -> set[int]:
    return {place for begin, end in places for place in range(max(begin, start), min(end, stop))}


def test_a_window_without_the_answer_says_so(tokenizer: Any) -> None:
    start = LONG.index("1915")
    task = make_task([("When?", LONG, ["1915"], [start]), ("When?", LONG, [], [])])
    encoded = task.encode("validation", tokenizer, 48)
    with_it = [row for row in encoded if row["labels"] != [0, 0]]
    assert 1 <= len(with_it) <= 2 < sum(row["example"] == 0 for row in encoded)
    assert all(row["example"] == 0 for row in with_it)
    for row in with_it:
        first, last = row["labels"]
        assert LONG[row["begins"][first] : row["ends"][last]].strip() == "1915"


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("Rome is old.", "Rome"),
        ("It is in Rome", "Rome"),
        ("It is Rome.", " Rome"),  # official answers have blanks around them now and then
        ("It is Rome then.", "Rome "),
        ("It is Rome then.", " Rome "),
        ("The cafe\u0301", "cafe\u0301"),  # its last character is in no token of an accent-stripping vocabulary
        ("A cafe\u0301 there", "cafe\u0301"),
        ("A \u200bword\u200b there", "\u200bword\u200b"),
        ("\ufeffRome is old", "\ufeffRome"),
        ("a\r\nb\tc", "b"),
        ("Rome", "Rome"),
        ("😀 and 😀", "😀"),
    ],
)
@pytest.mark.parametrize("max_length", [16, 64])
def test_answers_at_the_edges_are_found_again(tokenizer: Any, context: str, answer: str, max_length: int) -> None:
    start = context.rindex(answer)
    task = make_task([("Where?", context, [answer], [start])])
    encoded = task.encode("validation", tokenizer, max_length)
    assert any(row["labels"] != [0, 0] for row in encoded)
    text = task.best(one_hot(encoded), encoded)[0].text
    assert text == text.strip()
    assert text.strip(DROPPED) == answer.strip(DROPPED)


def test_decoded_labels_are_the_answers(tokenizer: Any) -> None:
    rows = rows_of(CONTEXTS)
    task = make_task(rows, max_answer=400)
    encoded = task.encode("validation", tokenizer, 384)
    for (_, context, (answer,), (start,)), best in zip(rows, task.best(one_hot(encoded), encoded), strict=True):
        if best.score < 18:  # no window has a label
            assert not tokenizer(answer, add_special_tokens=False)["input_ids"]
            continue
        # a token can be larger than the answer, but never reaches beyond its words
        assert best.text in widened(context, answer, start)
        assert answer.strip(DROPPED) in best.text


def widened(context: str, answer: str, start: int) -> str:
    """The answer with the rest of its first and last word."""
    left, right = re.search(r"\S*$", context[:start]), re.match(r"\S*", context[start + len(answer) :])
    assert left and right
    return left.group() + answer + right.group()


@needs_squad
@pytest.mark.parametrize("max_length", [384, 96])
def test_real_answers_survive_encoding_and_decoding(tokenizer: Any, max_length: int) -> None:
    data = load_task("squad/1.1", data_dir=str(SQUAD)).split("validation").select(range(0, 10570, 60))
    rows = [(row["question"], row["context"], row["answers"][:1], row["starts"][:1]) for row in data]
    task = make_task(rows, max_answer=200)
    encoded = task.encode("validation", tokenizer, max_length)
    best = task.best(one_hot(encoded), encoded)
    f1 = []
    for (_, context, (answer,), (start,)), found in zip(rows, best, strict=True):
        if len(tokenizer(answer)["input_ids"]) > max_length // 3:
            continue  # longer than what windows share, so that it can be cut in each of them
        assert answer.strip() in found.text and found.text in widened(context, answer, start)
        f1.append(answer_scores(found.text, [answer])[1])
    # only where a token is larger than the answer ("1990s" and "1990")
    assert len(f1) > 120 and np.mean(f1) > 0.985 and np.mean(np.array(f1) == 1.0) > 0.95


@pytest.mark.parametrize("pad_to", [None, 64])
def test_labels_move_with_padding_on_the_left(tokenizer: Any, pad_to: int | None) -> None:
    rows = [
        ("When?", LONG[:80], ["1900"], [3]),
        ("Why is it so?", "Because of Rome", ["Rome"], [11]),
        ("?", "x", [], []),
    ]
    task = make_task(rows)
    encoded = task.encode("validation", tokenizer, 64)
    side = tokenizer.padding_side
    batches = {}
    try:
        for tokenizer.padding_side in ("right", "left"):
            batches[tokenizer.padding_side] = Collator(tokenizer, pad_to, "span")([encoded[i] for i in range(3)])
    finally:
        tokenizer.padding_side = side
    right, left = batches["right"], batches["left"]
    assert right["labels"].dtype == torch.int64 and (right["labels"][2] == 0).all()
    for row in range(3):
        length = int(right["attention_mask"][row].sum())
        moved = len(left["input_ids"][row]) - length
        assert (left["labels"][row] == right["labels"][row] + moved).all()
        assert (left["input_ids"][row][left["labels"][row]] == right["input_ids"][row][right["labels"][row]]).all()
        assert (left["attention_mask"][row][left["labels"][row]] == 1).all()


# Decoding: windows made by hand, whose context is one character for each token


def by_hand(windows: list[tuple[int, int, int, int]], contexts: list[str], **options: Any) -> tuple[SpanTask, Any]:
    """Windows of (example, question tokens, first character, character after the last)."""
    task = make_task([("?", context, [], []) for context in contexts], **options)
    outside = [[-1] * question for _, question, _, _ in windows]
    columns = {
        "example": [window[0] for window in windows],
        "begins": [none + list(range(a, b)) + [-1] for none, (_, _, a, b) in zip(outside, windows, strict=True)],
        "ends": [none + list(range(a + 1, b + 1)) + [-1] for none, (_, _, a, b) in zip(outside, windows, strict=True)],
    }
    return task, make_split("validation", columns)


def logits(length: int, starts: dict[int, float], ends: dict[int, float]) -> np.ndarray:
    rows = np.zeros((length, 2), dtype=np.float32)
    for side, values in enumerate((starts, ends)):
        for place, value in values.items():
            rows[place, side] = value
    return rows


SCORES = st.floats(-5, 5, width=32)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_decoding_equals_a_search_over_everything(data: st.DataObject) -> None:
    n_best, max_answer = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    context = "abcdefghij"
    windows = []
    for _ in range(data.draw(st.integers(1, 3))):
        a = data.draw(st.integers(0, 8))
        windows.append((0, data.draw(st.integers(1, 4)), a, data.draw(st.integers(a, 10))))
    values = [np.array(data.draw(st.lists(st.tuples(SCORES, SCORES), min_size=n, max_size=n)), np.float32)
              for n in (q + b - a + 1 for _, q, a, b in windows)]  # fmt: skip
    task, encoded = by_hand(windows, [context], n_best=n_best, max_answer=max_answer)
    candidates: list[tuple[float, str]] = []
    for (_, q, a, b), scores in zip(windows, values.copy(), strict=True):
        tokens = range(q, q + b - a)
        firsts, lasts = (sorted(tokens, key=lambda t: (-scores[t, side], t))[:n_best] for side in (0, 1))
        candidates += [
            (float(scores[s, 0]) + float(scores[e, 1]), context[a + s - q : a + e - q + 1])
            for s in firsts
            for e in lasts
            if s <= e < s + max_answer
        ]
    (found,) = task.best(values, encoded)
    assert found.null_score == pytest.approx(min(float(scores[0, 0]) + float(scores[0, 1]) for scores in values))
    if not candidates:
        assert (found.text, found.score) == ("", -np.inf)
        return
    best = max(score for score, _ in candidates)
    assert found.score == pytest.approx(best, abs=1e-9)
    assert found.text in {text for score, text in candidates if score == pytest.approx(best, abs=1e-6)}
    assert task.best(values, encoded) == [found]


def test_the_question_is_never_the_answer() -> None:
    task, encoded = by_hand([(0, 4, 0, 5)], ["abcde"])
    scores = logits(10, {0: 50, 1: 40, 5: 1, 9: 30}, {2: 50, 3: 40, 6: 1, 9: 30})
    assert task.best([scores], encoded)[0][:2] == ("bc", 2.0)


def test_an_answer_never_ends_before_it_starts() -> None:
    task, encoded = by_hand([(0, 1, 0, 5)], ["abcde"])
    assert task.best([logits(7, {4: 9}, {2: 8})], encoded)[0].text in ("d", "de")
    task, encoded = by_hand([(0, 1, 0, 5)], ["abcde"], n_best=1)
    assert task.best([logits(7, {4: 9}, {2: 8})], encoded)[0][:2] == ("", -np.inf)


@pytest.mark.parametrize(("max_answer", "text"), [(5, "abcde"), (4, "e"), (1, "e")])
def test_the_longest_answer_is_respected(max_answer: int, text: str) -> None:
    task, encoded = by_hand([(0, 1, 0, 5)], ["abcde"], max_answer=max_answer)
    assert task.best([logits(7, {1: 9, 5: 3}, {5: 9, 1: 2})], encoded)[0].text == text


def test_the_best_of_all_windows_and_the_least_likely_nothing() -> None:
    windows = [(0, 1, 0, 4), (1, 1, 0, 3), (0, 1, 2, 6)]
    task, encoded = by_hand(windows, ["abcdef", "xyz"], unanswerable=True)
    first, other = logits(6, {0: 5, 1: 2}, {0: 4, 2: 2}), logits(5, {0: 1, 1: 7}, {0: 1, 1: 7})
    last = logits(6, {0: 1, 3: 3}, {0: 2, 4: 3})
    assert task.best([first, other, last], encoded) == [("ef", 6.0, 3.0), ("x", 14.0, 2.0)]
    task, encoded = by_hand([windows[2], windows[1], windows[0]], ["abcdef", "xyz"], unanswerable=True)
    assert task.best([last, other, first], encoded) == [("ef", 6.0, 3.0), ("x", 14.0, 2.0)]


@pytest.mark.parametrize(("threshold", "text"), [(-1.0, ""), (0.0, ""), (1.99, ""), (2.0, "b"), (2.01, "b")])
def test_the_threshold_of_no_answer(threshold: float, text: str) -> None:
    """Nothing is answered where its score is greater by more than the threshold, here by 2."""
    window, scores = [(0, 1, 0, 3)], logits(5, {0: 3, 2: 2}, {0: 3, 2: 2})
    task, encoded = by_hand(window, ["abc"], unanswerable=True, threshold=threshold)
    best = task.best([scores], encoded)
    assert task.texts(best) == [text] and best[0].text == "b"
    task, encoded = by_hand(window, ["abc"], threshold=threshold)
    assert task.texts(task.best([scores], encoded)) == ["b"]  # in 1.1 every question has an answer


def test_ties_are_decided_the_same_way_every_time() -> None:
    task, encoded = by_hand([(0, 1, 0, 5), (0, 1, 2, 5)], ["abcde"])
    assert {task.best([np.zeros((7, 2)), np.zeros((5, 2))], encoded)[0].text for _ in range(3)} == {"a"}


@pytest.mark.parametrize("value", [-np.inf, -3e38, 3e38, np.nan])
def test_extreme_logits_of_one_question_leave_the_others_alone(value: float) -> None:
    task, encoded = by_hand([(0, 1, 0, 3), (1, 1, 0, 3)], ["abc", "xyz"], unanswerable=True)
    broken = np.full((5, 2), value, dtype=np.float32)
    best = task.best([broken, logits(5, {2: 5}, {3: 5})], encoded)
    assert best[1][:2] == ("yz", 10.0)
    assert best[0].text in ("", "a")
    assert len(task.texts(best)) == 2


def test_tokens_without_characters_are_no_answers() -> None:
    """Some vocabularies have tokens for a blank alone, and trim it."""
    task = make_task([("?", "ab", [], [])])
    encoded = make_split("validation", {"example": [0], "begins": [[-1, 0, 1, 1]], "ends": [[-1, 1, 1, 2]]})
    assert task.best([logits(4, {2: 9, 3: 1}, {2: 9, 3: 1})], encoded)[0][:2] == ("b", 2.0)


def test_a_context_without_tokens_has_no_answer() -> None:
    task, encoded = by_hand([(0, 2, 0, 0)], [""], unanswerable=True)
    best = task.best([logits(3, {0: 1}, {0: 2})], encoded)
    assert best == [("", -np.inf, 3.0)] and task.texts(best) == [""]


# Scores


def scored(
    texts: list[str], odds: list[float], answers: list[list[str]], **options: Any
) -> tuple[SpanTask, list[np.ndarray], Any]:
    """A task whose questions are answered with these texts, nothing being likelier by ``odds``."""
    rows = [("?", text or "-", known, [0] * len(known)) for text, known in zip(texts, answers, strict=True)]
    task = make_task(rows, unanswerable=True, **options)
    columns = {
        "example": list(range(len(rows))),
        "begins": [[-1, 0]] * len(rows),
        "ends": [[-1, len(t)] for t in texts],
    }
    values = [logits(2, {0: odd}, {}) for odd in odds]
    return task, values, make_split("validation", columns)


TEXTS = st.sampled_from(["cat", "big cat", "dog", "the", "."])
QUESTIONS = st.lists(st.tuples(TEXTS, st.integers(-4, 4), st.lists(TEXTS, max_size=2)), min_size=1, max_size=8)


def total(questions: list[tuple[str, int, list[str]]], answered: list[bool], which: int) -> float:
    texts = [text if yes else "" for (text, _, _), yes in zip(questions, answered, strict=True)]
    return float(np.mean([answer_scores(text, q[2], True)[which] for text, q in zip(texts, questions, strict=True)]))


@settings(max_examples=80, deadline=None)
@given(questions=QUESTIONS, threshold=st.integers(-5, 5))
def test_scores_and_their_parts(questions: list[tuple[str, int, list[str]]], threshold: int) -> None:
    texts, odds, answers = (list(column) for column in zip(*questions, strict=True))
    task, values, encoded = scored(texts, odds, answers, threshold=float(threshold))
    scores = task.score(values, encoded)
    answered = [odd <= threshold for odd in odds]
    parts = {
        "": questions,
        "has_answer_": [q for q in questions if q[2]],
        "no_answer_": [q for q in questions if not q[2]],
    }
    for prefix, some in parts.items():
        assert (f"{prefix}f1" in scores) == (f"{prefix}exact_match" in scores) == bool(some)
        if some:
            yes = [odd <= threshold for _, odd, _ in some]
            assert scores[f"{prefix}exact_match"] == pytest.approx(total(some, yes, 0))
            assert scores[f"{prefix}f1"] == pytest.approx(total(some, yes, 1))
    saved = task.answers(values, encoded)
    assert saved["prediction"] == [text if yes else "" for text, yes in zip(texts, answered, strict=True)]
    assert saved["best_text"] == texts and saved["label"][:] == answers
    assert np.mean(saved["f1"]) == pytest.approx(scores["f1"])
    assert [null - score for null, score in zip(saved["null_score"], saved["score"], strict=True)] == odds


@settings(max_examples=80, deadline=None)
@given(questions=QUESTIONS.filter(lambda rows: all("the" not in r[2] and "." not in r[2] for r in rows)))
def test_the_best_threshold_equals_a_search(questions: list[tuple[str, int, list[str]]]) -> None:
    """Any number of the surest questions is answered; equal odds are taken in the order of the file, as officially."""
    questions = [(text if text not in ("the", ".") else "bird", odd, known) for text, odd, known in questions]
    texts, odds, answers = (list(column) for column in zip(*questions, strict=True))
    task, values, encoded = scored(texts, odds, answers)
    scores = task.score(values, encoded)
    order = sorted(range(len(odds)), key=lambda i: odds[i])
    for which, name in enumerate(("best_exact_match", "best_f1")):
        chances = [total(questions, [i in order[:n] for i in range(len(odds))], which) for n in range(len(odds) + 1)]
        assert scores[name] == pytest.approx(max(chances))
        thresholds = [total(questions, [odd <= t for odd in odds], which) for t in [-9, *odds]]
        assert scores[name] >= max(thresholds) - 1e-9
        if len(set(odds)) == len(odds):
            assert scores[name] == pytest.approx(max(thresholds))


def test_without_unanswerable_questions_there_are_two_scores() -> None:
    task, encoded = by_hand([(0, 1, 0, 3)], ["abc"])
    assert list(task.score([logits(5, {1: 1}, {1: 1})], encoded)) == ["f1", "exact_match"]


def test_agreement_compares_what_is_answered() -> None:
    task, values, encoded = scored(["The cat", "dog"], [-1, -1], [["cat"], []])
    _, others, _ = scored(["The cat", "dog"], [-1, 3], [["cat"], []])
    assert task.agreement(values, values, encoded) == 1.0
    assert task.agreement(values, others, encoded) == 0.5


def test_a_submission_has_an_answer_for_each_question() -> None:
    task, values, encoded = scored(["Zürich", "dog"], [-1, 3], [["cat"], []])
    files = task.submission("validation", values, encoded)
    assert json.loads(files["predictions.json"]) == {"q0": "Zürich", "q1": ""}
    assert json.loads(files["na_prob.json"]) == pytest.approx({"q0": 1 / (1 + math.e), "q1": 1 / (1 + math.e**-3)})

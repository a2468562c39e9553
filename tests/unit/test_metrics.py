"""Metrics against hand-computed values and against predictions made to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import DataError
from limbeck.metrics import METRICS, entities, entity_scores


def test_binary_values_by_hand() -> None:
    # tp 2, fp 1, fn 1, tn 1
    predictions, labels = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(3 / 5)
    assert METRICS["f1"](predictions, labels) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert METRICS["mcc"](predictions, labels) == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    # class 0: tp 1, fp 1, fn 1 -> 1/2; class 1: 2/3
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(3 / 5)


def test_f1_is_of_class_one_not_of_class_zero() -> None:
    assert METRICS["f1"]([0, 0, 0, 1], [0, 0, 0, 0]) == 0.0
    assert METRICS["f1"]([1, 1, 1, 0], [1, 1, 1, 1]) == pytest.approx(6 / 7)


def test_multi_label_by_hand() -> None:
    labels = [[1, 0, 1], [0, 1, 0]]
    predictions = [[1, 1, 0], [0, 1, 0]]
    # over all six cells: tp 2, fp 1, fn 1
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(4 / 6)
    # per label: 1, 2/3, 0
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(1 / 2)


def test_correlations_by_hand() -> None:
    predictions, labels = [1.0, 2.0, 3.0], [1.0, 2.0, 9.0]
    # deviations (-1, 0, 1) and (-3, -2, 5): 8 / sqrt(2 * 38)
    assert METRICS["pearson"](predictions, labels) == pytest.approx(8 / math.sqrt(76))
    assert METRICS["spearman"](predictions, labels) == pytest.approx(1.0)
    assert METRICS["mse"](predictions, labels) == pytest.approx(36 / 3)


def test_spearman_gives_ties_their_mean_rank() -> None:
    # ranks (1.5, 1.5, 3) and (1, 2, 3): deviations (-.5, -.5, 1) and (-1, 0, 1)
    assert METRICS["spearman"]([5, 5, 7], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


@pytest.mark.parametrize("metric", ["mcc", "pearson", "spearman"])
@pytest.mark.parametrize("constant", [0, 1])
def test_all_one_class_scores_zero_without_a_warning(metric: str, constant: int) -> None:
    mixed, same = [0, 1, 1, 0], [constant] * 4
    assert METRICS[metric](same, mixed) == 0.0
    assert METRICS[metric](mixed, same) == 0.0
    assert METRICS[metric](same, same) == 0.0


def test_nearly_constant_predictions_do_not_warn() -> None:
    predictions = 1.0 + np.array([0.0, 1.0, 2.0]) * 1e-16
    assert abs(METRICS["pearson"](predictions, [1.0, 2.0, 3.0])) <= 1.0
    predictions = 1e8 + np.array([0.0, 1.0, 2.0]) * 1e-7
    assert abs(METRICS["pearson"](predictions, [1.0, 2.0, 3.0])) <= 1.0


def test_never_predicted_class_counts_as_zero_without_a_warning() -> None:
    assert METRICS["f1"]([0, 0], [1, 0]) == 0.0
    assert METRICS["f1"]([0, 0], [0, 0]) == 0.0  # undefined: neither predicted nor present
    # class 0: 2/3, class 1: 0, class 2: 0
    assert METRICS["macro_f1"]([0, 0, 0, 0], [0, 0, 1, 2]) == pytest.approx((2 / 3) / 3)


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_and_single(metric: str) -> None:
    assert METRICS[metric]([0, 1, 1], [0, 1, 1]) == pytest.approx(0.0 if metric == "mse" else 1.0)
    assert math.isfinite(METRICS[metric]([1], [1]))


@pytest.mark.parametrize("metric", METRICS)
def test_values_are_python_floats(metric: str) -> None:
    assert type(METRICS[metric](np.array([0, 1, 1]), np.array([0, 1, 0]))) is float


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_to_score(metric: str) -> None:
    with pytest.raises(DataError, match="nothing to score"):
        METRICS[metric]([], [])


def test_diverged_predictions_are_named() -> None:
    with pytest.raises(DataError, match=r"2 of 3 predictions are not finite.*learning_rate"):
        METRICS["pearson"]([1.0, float("nan"), float("inf")], [1.0, 2.0, 3.0])


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        METRICS["accuracy"]([1, 0], [1, 0, 1])


# Against formulas, on predictions of any kind


def counts(predictions: list[int], labels: list[int], kind: int) -> tuple[int, int, int]:
    """How often the class was right, wrongly predicted and missed."""
    pairs = list(zip(predictions, labels, strict=True))
    right = sum(p == y == kind for p, y in pairs)
    return right, sum(p == kind for p, _ in pairs) - right, sum(y == kind for _, y in pairs) - right


def f1_of(right: int, wrong: int, missed: int) -> float:
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def by_formula(metric: str, predictions: list[int], labels: list[int]) -> float:
    kinds, n = sorted({*predictions, *labels}), len(labels)
    if metric == "f1":
        return f1_of(*counts(predictions, labels, 1))
    if metric == "macro_f1":
        return sum(f1_of(*counts(predictions, labels, kind)) for kind in kinds) / len(kinds)
    if metric in ("accuracy", "micro_f1"):  # one decision for each row: the same
        return sum(p == y for p, y in zip(predictions, labels, strict=True)) / n
    # Matthews' coefficient for any number of classes (Gorodkin, 2004): a correlation of the two one-hot matrices
    x, y = (np.array([[row == kind for kind in kinds] for row in rows], float) for rows in (predictions, labels))
    x, y = x - x.mean(0), y - y.mean(0)
    scale = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / scale) if scale > 1e-12 else 0.0


PAIRS = st.integers(2, 4).flatmap(
    lambda kinds: st.lists(st.tuples(st.integers(0, kinds - 1), st.integers(0, kinds - 1)), min_size=1, max_size=12)
)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "micro_f1", "mcc"])
@settings(max_examples=100, deadline=None)
@given(pairs=PAIRS)
def test_classes_by_formula(metric: str, pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (list(side) for side in zip(*pairs, strict=True))
    assert METRICS[metric](predictions, labels) == pytest.approx(by_formula(metric, predictions, labels), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_f1_of_two_classes_by_formula(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = (list(side) for side in zip(*pairs, strict=True))
    assert METRICS["f1"](predictions, labels) == pytest.approx(by_formula("f1", predictions, labels))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=3, max_size=3), st.lists(st.integers(0, 1), min_size=3, max_size=3)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_label_sets_by_formula(rows: list[tuple[list[int], list[int]]]) -> None:
    predictions, labels = (list(side) for side in zip(*rows, strict=True))
    flat = [value for row in predictions for value in row], [value for row in labels for value in row]
    per_label = [f1_of(*counts([p[i] for p in predictions], [y[i] for y in labels], 1)) for i in range(3)]
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(f1_of(*counts(*flat, 1)))
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx(sum(per_label) / 3)
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(np.mean([p == y for p, y in rows]))


def ranks(values: list[float]) -> list[float]:
    """From 1; equal values share their mean rank."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def correlation(a: list[float], b: list[float]) -> float:
    x, y = np.array(a) - np.mean(a), np.array(b) - np.mean(b)
    scale = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / scale) if scale > 0 else 0.0


NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([0.5, 1e6, -1e6, 1e-3]))


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=10))
def test_numbers_by_formula(pairs: list[tuple[float, float]]) -> None:
    predictions, labels = (list(side) for side in zip(*pairs, strict=True))
    assert METRICS["pearson"](predictions, labels) == pytest.approx(correlation(predictions, labels), abs=1e-6)
    assert METRICS["spearman"](predictions, labels) == pytest.approx(correlation(ranks(predictions), ranks(labels)))
    assert METRICS["mse"](predictions, labels) == pytest.approx(sum((p - y) ** 2 for p, y in pairs) / len(pairs))


@pytest.mark.parametrize("metric", METRICS)
def test_a_single_row(metric: str) -> None:
    wrong = METRICS[metric]([0], [1])
    assert wrong == (1.0 if metric == "mse" else 0.0)
    assert METRICS[metric]([1], [1]) == (0.0 if metric in ("mse", "mcc", "pearson", "spearman") else 1.0)


# Entities


def chunks(tags: list[str]) -> list[tuple[str, int, int]]:
    """The CoNLL evaluation's rules, one by one: when an entity ends before a tag, and when one starts at it."""
    found, start = [], 0
    last, last_kind = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        part, kind = tag.split("-", 1) if "-" in tag else (tag, "")
        ends = last != "O" and (part in ("O", "B", "S", "U") or last in ("E", "L", "S", "U") or kind != last_kind)
        starts = part != "O" and (part in ("B", "S", "U") or last in ("O", "E", "L", "S", "U") or kind != last_kind)
        if ends:
            found.append((last_kind, start, place))
        if starts:
            start = place
        last, last_kind = part, kind
    return found


TAG = st.one_of(st.just("O"), st.tuples(st.sampled_from("BIELSU"), st.sampled_from(["x", "y", "x-y"])).map("-".join))


@settings(max_examples=400, deadline=None)
@given(tags=st.lists(TAG, max_size=10))
def test_entities_by_the_rules(tags: list[str]) -> None:
    found = chunks(tags)
    assert len(set(found)) == len(found)
    assert entities(tags) == set(found)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-x", [("x", 0, 1)]),
        ("B-x I-x O", [("x", 0, 2)]),
        ("B-x B-x", [("x", 0, 1), ("x", 1, 2)]),
        ("I-x I-x", [("x", 0, 2)]),  # without a beginning
        ("O I-x", [("x", 1, 2)]),
        ("B-x I-y", [("x", 0, 1), ("y", 1, 2)]),  # another type
        ("I-x I-y I-x", [("x", 0, 1), ("y", 1, 2), ("x", 2, 3)]),
        ("B-x I-x B-x I-x", [("x", 0, 2), ("x", 2, 4)]),
        ("B-x E-x I-x", [("x", 0, 2), ("x", 2, 3)]),  # an end ends
        ("B-x I-x L-x U-y", [("x", 0, 3), ("y", 3, 4)]),
        ("S-x S-x", [("x", 0, 1), ("x", 1, 2)]),
        ("S-x I-x", [("x", 0, 1), ("x", 1, 2)]),
        ("E-x E-x", [("x", 0, 1), ("x", 1, 2)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
    ],
)
def test_entities_by_hand(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == set(expected)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(st.tuples(TAG, TAG), max_size=6), min_size=1, max_size=4))
def test_entity_scores_by_counting(rows: list[list[tuple[str, str]]]) -> None:
    ours, theirs = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    # entities of different sentences are different
    a, b = ({(i, *chunk) for i, row in enumerate(side) for chunk in chunks(row)} for side in (ours, theirs))
    scores = entity_scores(ours, theirs)
    assert scores["entity_precision"] == pytest.approx(len(a & b) / len(a) if a else 0)
    assert scores["entity_recall"] == pytest.approx(len(a & b) / len(b) if b else 0)
    assert scores["entity_f1"] == pytest.approx(f1_of(len(a & b), len(a - b), len(b - a)))
    assert all(type(value) is float for value in scores.values())


def test_no_sentences_and_other_sentences() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        entity_scores([], [])
    with pytest.raises(ValueError, match="zip"):
        entity_scores([["O"]], [["O"], ["O"]])

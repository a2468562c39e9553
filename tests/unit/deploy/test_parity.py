"""Check when an export counts as the same model."""

from __future__ import annotations

import numpy as np
import pytest

from limbeck.deploy.parity import ExampleLogits, Parity
from limbeck.models.trimming import TrimmedVocabulary
from limbeck.tasks.task import Task, make_split

ROWS = 400
LABELS = np.arange(ROWS) % 2
LOGITS = np.stack([1.0 - LABELS, LABELS], axis=1) * 4  # all right, with a margin of 4


def task(problem="classification", metrics=("accuracy",)):
    split = make_split("validation", {"id": list(range(ROWS)), "label": LABELS})
    names = ("no", "yes") if problem == "classification" else ()
    return Task("table", problem, ("text",), names, metrics, {"validation": split})


def parity(form, after, before=LOGITS, max_drop=0.01, tokens=1, **options):
    encoded = {"labels": LABELS.astype(float if options else int), "input_ids": [[1]] * ROWS}
    other = encoded | {"input_ids": [[1]] * (ROWS - 1) + [[tokens]]}
    sides = ExampleLogits(before, make_split("a", encoded)), ExampleLogits(after, make_split("b", other))
    return Parity.of(form, task(**options), "validation", *sides, max_drop)


def flipped(count):
    """Give so many wrong answers."""
    changed = LOGITS.copy()
    changed[:count] = changed[:count, ::-1]
    return changed


@pytest.mark.parametrize(
    ("form", "difference", "fails"),
    [
        ("hf", 3e-4, False),  # in units of the largest logit, 4
        ("hf", 5e-4, True),
        ("onnx", 3e-3, False),
        ("onnx", 5e-3, True),
        ("onnx", np.nan, True),
        ("onnx-int8", 1.0, False),
    ],
)
def test_differences_in_units_of_the_logits(form, difference, fails):
    shifted = LOGITS.copy()
    shifted[7, 0] += difference
    found = parity(form, shifted)
    assert bool(found.failures()) == fails
    np.testing.assert_allclose(found.max_difference, difference)


def test_small_logits_are_not_held_to_less_than_rounding():
    assert not parity("onnx", LOGITS / 400 + 9e-4, LOGITS / 400).failures()
    assert parity("onnx", LOGITS / 400 + 1.1e-3, LOGITS / 400).failures()


@pytest.mark.parametrize(
    ("wrong", "max_drop", "said"),
    [
        (4, 0.01, []),
        (5, 0.01, ["accuracy went from 100.00 to 98.75, a loss of more than 1.00"]),
        (5, 0.02, []),
        (40, 1.0, []),
        (41, 1.0, ["89.75% of the predictions are the same, fewer than 90.00%"]),
    ],
)
def test_int8_is_judged_by_its_answers(wrong, max_drop, said):
    assert parity("onnx-int8", flipped(wrong), max_drop=max_drop).failures() == said


def test_a_better_score_is_no_loss():
    assert not parity("onnx-int8", LOGITS, flipped(40)).failures()


def test_other_tokens_are_another_model():
    assert parity("hf", LOGITS, tokens=2).failures() == ["its tokenizer splits texts into other tokens"]


def test_numbers_need_not_correlate_where_all_are_the_same():
    constant = np.full((ROWS, 1), 0.5)
    options = {"problem": "regression", "metrics": ("mse",)}
    assert not parity("onnx", constant, constant, **options).failures()
    worse = parity("onnx-int8", constant + 0.2, constant, **options)
    assert worse.failures() == ["mse went from 0.25 to 0.29, a loss of more than 0.01"]


def trimmed_parity(after_ids, after, form="hf"):
    """Compare where the piece 5 of eight is gone, which the first quarter of the examples uses."""
    before_ids = [[1, 5]] * (ROWS // 4) + [[1, 6]] * (ROWS - ROWS // 4)
    sides = [
        ExampleLogits(logits, make_split("a", {"labels": LABELS, "input_ids": ids}))
        for logits, ids in ((LOGITS, before_ids), (after, after_ids))
    ]
    trimmed = TrimmedVocabulary(None, None, (0, 1, 2, 3, 4, 6, 7), range(8))
    return Parity.of(form, task(), "validation", *sides, 0.3, trimmed)


def test_a_trimmed_vocabulary_is_held_to_the_texts_it_covers():
    right = [[1, 2, 3]] * (ROWS // 4) + [[1, 5]] * (ROWS - ROWS // 4)  # 5 is the old 6
    other = flipped(ROWS // 4)
    found = trimmed_parity(right, other)
    assert not found.failures() and found.max_difference == 0 and found.agreement == 0.75
    assert found.vocabulary == (7, 8, 0.75) and "7 of 8 pieces" in found.describe()
    assert found.to_dict()["vocabulary"] == {"kept": 7, "of": 8, "unchanged": 0.75}
    other[-1] += 0.1
    assert "logits differ" in trimmed_parity(right, other).failures()[0]
    wrong = [[1, 2, 3]] * (ROWS // 4) + [[1, 6]] * (ROWS - ROWS // 4)
    assert trimmed_parity(wrong, LOGITS).failures() == ["its tokenizer splits texts into other tokens"]

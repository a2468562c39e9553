"""Check restoration, agreement and calibration of known predictions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from helpers.fake_runs import make_run

from limbeck.analysis.decisions import Calibration, Decisions, calibration, decisions_of, restoration
from limbeck.errors import DataError

NAMES = ("precision", "recall", "f1")


def counted(student, teacher):
    """Compute precision, recall and F1 of yes (1) answers from counts; 0 where there is nothing to divide by."""
    both = sum(s and t for s, t in zip(student, teacher, strict=True))
    found = both / max(sum(student), 1), both / max(sum(teacher), 1), 2 * both / max(sum(student) + sum(teacher), 1)
    return dict(zip(NAMES, found, strict=True))


def of_class(student, teacher, number):
    return counted(*([int(answer == number) for answer in side] for side in (student, teacher)))


def mean(rows):
    return {name: sum(row[name] for row in rows) / len(rows) for name in NAMES}


def run_of(folder, student, teacher=None, label=None, names=(), **columns):
    """Make a run directory with these answers."""
    answers = {"id": list(range(len(student))), "label": student if label is None else label, "prediction": student}
    answers |= {} if teacher is None else {"teacher_prediction": teacher}
    run = make_run(folder / "run", answers=answers | columns)
    if names:
        (run / "student").mkdir()
        (run / "student" / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    return run


# Restoration


def test_of_two_classes_the_second_counts():
    teacher, student = [0, 0, 0, 1, 1, 1, 1, 0], [0, 1, 0, 1, 1, 0, 1, 1]
    found = restoration(student, teacher, ["no", "yes"])
    assert found.scores == pytest.approx({"precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3})
    no = {"class": "no", "precision": 2 / 3, "recall": 2 / 4, "f1": 4 / 7, "teacher": 4}
    yes = {"class": "yes", "precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3, "teacher": 4}
    assert [row["class"] for row in found.per_class] == ["no", "yes"]
    for row, expected in zip(found.per_class, (no, yes), strict=True):
        assert row == pytest.approx(expected | {"class": row["class"]})


@pytest.mark.parametrize("names", [(), ("a", "b", "c", "never", "late")])
def test_more_classes_count_the_same_if_anybody_answers_them(names):
    teacher, student = [0, 0, 1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 2, 0, 2, 4]  # 4 is the student's alone, 3 nobody's
    found = restoration(student, teacher, names)
    assert found.scores == pytest.approx(mean([of_class(student, teacher, number) for number in (0, 1, 2, 4)]))
    assert [row["class"] for row in found.per_class] == list(names or "01234")
    for number, row in enumerate(found.per_class):
        assert {name: row[name] for name in NAMES} == pytest.approx(of_class(student, teacher, number))
        assert row["teacher"] == teacher.count(number)


def test_each_of_several_labels():
    teacher = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    student = [[1, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0], [1, 1, 0, 0]]
    found = restoration(student, teacher)
    columns = [counted(*([row[label] for row in side] for side in (student, teacher))) for label in range(4)]
    assert columns[0] == {"precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2}
    assert found.scores == pytest.approx(mean([columns[label] for label in (0, 1, 3)]))  # the third is nobody's
    assert [row["teacher"] for row in found.per_class] == [2, 2, 0, 0]


def test_two_labels_are_not_two_classes():
    teacher, student = [[1, 1], [1, 0], [0, 1]], [[1, 1], [0, 0], [0, 1]]
    found = restoration(student, teacher)
    assert found.scores == pytest.approx({"precision": 1, "recall": (1 / 2 + 1) / 2, "f1": (2 / 3 + 1) / 2})


def test_a_single_label_that_a_text_has_or_not():
    teacher, student = [[1], [1], [0], [0], [0]], [[1], [0], [1], [0], [0]]
    found = restoration(student, teacher, ["spam"])
    assert found.scores == pytest.approx({"precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2})
    assert [(row["class"], row["teacher"]) for row in found.per_class] == [("spam", 2)]


@pytest.mark.parametrize(
    "answers",
    [
        [0, 1, 1, 0],
        [0, 2, 1, 2],
        [2, 2, 2],
        [[1, 0], [0, 1]],
        [[1, 0, 1], [0, 0, 0]],
        [0, 0],
        [1, 1],
        [[0, 0], [0, 0]],
    ],
    ids=str,
)
def test_identical_answers_are_restored_in_whole(answers):
    """Include sides that give the same answer to everything, or no label to any text."""
    names = ("no", "yes") if answers in ([0, 0], [1, 1]) else ()
    assert restoration(answers, answers, names).scores == dict.fromkeys(NAMES, 1.0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_shuffled_answers_are_restored_by_chance_only(shuffle):
    chance = np.random.default_rng(0)
    teacher = chance.integers(0, 4, 2000)
    student = chance.permutation(teacher) if shuffle else np.where(chance.random(2000) < 0.9, teacher, 3 - teacher)
    assert restoration(student, teacher).scores["f1"] == pytest.approx(0.25 if shuffle else 0.9, abs=0.03)


# From a run directory


def test_classes_of_a_run(tmp_path):
    teacher, student, label = [0, 1, 2, 1, 0, 2], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 2]
    logits, of_teacher = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    columns = {"logits": logits.tolist(), "teacher_logits": of_teacher.tolist()}
    found = decisions_of(run_of(tmp_path, student, teacher, label, ["a", "b", "c"], **columns))
    assert found.agreement == pytest.approx(4 / 6)
    assert found.restoration == restoration(student, teacher, ["a", "b", "c"])
    for seen, side in ((found.calibration, logits), (found.teacher_calibration, of_teacher)):
        probabilities = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in side.astype(float).tolist()]
        assert_same(seen, calibration(probabilities, label))


def test_several_labels_of_a_run(tmp_path):
    teacher, student = [[1, 0], [1, 1], [0, 0]], [[1, 0], [0, 1], [0, 1]]
    label = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    found = decisions_of(run_of(tmp_path, student, teacher, label, logits=[[0.5, -1.0]] * 3))
    assert found.agreement == pytest.approx(4 / 6) and found.restoration == restoration(student, teacher)
    assert found.calibration is None and found.teacher_calibration is None


def test_numbers_of_a_run(tmp_path):
    student, teacher = [1.0, 2.0, 3.0, 4.0, 5.0], [0.9, 2.5, 2.4, 9.0, 7.0]
    found = decisions_of(run_of(tmp_path, student, teacher, logits=[[x] for x in student]))
    pearson = np.corrcoef(student, teacher)[0, 1]
    ranks = [1, 3, 2, 5, 4]
    spearman = 1 - 6 * sum((a - b) ** 2 for a, b in enumerate(ranks, start=1)) / (5 * 24)
    assert found.restoration.scores == pytest.approx({"pearson": pearson, "spearman": spearman})
    assert found.agreement == pytest.approx(pearson) and found.restoration.per_class == ()
    assert found.calibration is None


def test_tags_of_a_run(tmp_path):
    student, teacher = [[0, 1, 1], [2], [0, 0]], [[0, 1, 2], [2], [1, 0]]
    found = decisions_of(run_of(tmp_path, student, teacher, names=["O", "B-x", "I-x"]))
    assert found.agreement == pytest.approx(4 / 6)
    assert found.restoration == restoration([0, 1, 1, 2, 0, 0], [0, 1, 2, 2, 1, 0], ["O", "B-x", "I-x"])
    assert found.calibration is None


def test_answers_of_a_run(tmp_path):
    pairs = [("The big cat!", "big cat"), ("red big cat", "big cat"), ("", ""), ("dog", ""), ("", "dog")]
    student, teacher = map(list, zip(*pairs, strict=True))
    rated = {"exact_match": [0.0] * 5, "f1": [0.0] * 5}
    found = decisions_of(run_of(tmp_path, student, teacher, [["cat"]] * 5, **rated))
    assert found.restoration.scores == pytest.approx({"exact_match": 2 / 5, "f1": (1 + 2 * 2 / 5 + 1) / 5})
    assert found.agreement == pytest.approx(2 / 5)


def test_what_is_missing_is_none(tmp_path):
    assert decisions_of(make_run(tmp_path / "text")) == Decisions()
    found = decisions_of(run_of(tmp_path, [0, 1], logits=[[2.0, 1.0], [0.0, 1.0]]))
    assert found.calibration is not None
    assert found.agreement is found.restoration is found.teacher_calibration is None


def test_a_model_that_diverged_has_no_calibration(tmp_path):
    logits = [[math.nan, math.nan], [0.0, 1.0]]
    found = decisions_of(run_of(tmp_path, [0, 1], [1, 1], logits=logits, teacher_logits=[[0.0, 1.0]] * 2))
    assert found.calibration is None and found.teacher_calibration is not None and found.agreement == 0.5


def test_damaged_predictions_are_one_message(tmp_path):
    run = run_of(tmp_path, [0, 1], [0, 1])
    file = run / "predictions.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"predictions\.parquet does not hold predictions"):
        decisions_of(run)


# Calibration


def assert_same(ours: Calibration, theirs: Calibration):
    for name in Calibration.__dataclass_fields__:
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-9), name


def test_perfect_calibration():
    """Get eight of ten answers at 0.8 right, and three of five at 0.6."""
    probabilities = [[0.8, 0.2]] * 10 + [[0.4, 0.6]] * 5
    found = calibration(probabilities, [0] * 8 + [1] * 2 + [1] * 3 + [0] * 2)
    assert found.error == pytest.approx(0, abs=1e-12)
    assert found.counts.tolist() == [0, 0, 0, 0, 0, 5, 0, 10, 0, 0]
    assert found.confidence[[5, 7]] == pytest.approx([0.6, 0.8]) == found.accuracy[[5, 7]]
    assert found.brier == pytest.approx((8 * 0.08 + 2 * 1.28 + 3 * 0.32 + 2 * 0.72) / 15)


def test_overconfidence():
    found = calibration([[1.0, 0.0]] * 4, [0, 1, 0, 1])
    assert found.error == pytest.approx(0.5) and found.brier == pytest.approx((0 + 2 + 0 + 2) / 4)
    assert found.counts.tolist() == [0] * 9 + [4] and found.accuracy[9] == 0.5 and found.confidence[9] == 1.0


@pytest.mark.parametrize("tenths", range(1, 11))
def test_a_confidence_on_an_edge_is_in_the_bin_below(tenths):
    confidence = tenths / 10
    probabilities = [confidence, *[(1 - confidence) / 9] * 9]
    found = calibration([probabilities], [0])
    assert found.counts.tolist() == [int(place == tenths - 1) for place in range(10)]


def test_calibration_against_loops():
    chance = np.random.default_rng(0)
    raw = np.exp(2 * chance.normal(size=(300, 4)))
    probabilities, labels = raw / raw.sum(1, keepdims=True), chance.integers(0, 4, 300)
    found = calibration(probabilities, labels)
    assert found.edges == pytest.approx([place / 10 for place in range(11)]) and found.counts.sum() == 300
    error = brier = 0.0
    for row, label in zip(probabilities, labels, strict=True):
        brier += sum((p - (number == label)) ** 2 for number, p in enumerate(row)) / 300
    for place in range(10):
        inside = [(max(row), np.argmax(row) == label) for row, label in zip(probabilities, labels, strict=True)]
        inside = [pair for pair in inside if place / 10 < pair[0] <= (place + 1) / 10]
        assert found.counts[place] == len(inside)
        if inside:
            sure, right = np.mean(inside, axis=0)
            assert (found.confidence[place], found.accuracy[place]) == pytest.approx((sure, right))
            error += len(inside) / 300 * abs(sure - right)
        else:
            assert found.confidence[place] == found.accuracy[place] == 0
    assert found.error == pytest.approx(error) and found.brier == pytest.approx(brier)

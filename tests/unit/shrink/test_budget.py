"""Check shrinking without a model: budgets, the choice of layers from made-up timings, scores, the summary."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from limbeck.errors import ModelError, RecipeError, RunError
from limbeck.metrics import METRICS
from limbeck.shrink.budget import Budget, choose_depth
from limbeck.shrink.plan import Request, Workspace, epochs_that_fit
from limbeck.shrink.scores import TEACHER_NAME, ModelScores, halves
from limbeck.shrink.summary import findings, summary_page

# Budgets


@pytest.mark.parametrize(
    ("text", "ratio", "milliseconds"),
    [("0.5x", 0.5, None), (" 0.25 X ", 0.25, None), (".9x", 0.9, None), ("20ms", None, 20.0), ("7.5 ms", None, 7.5)],
)
def test_a_budget_is_a_share_or_milliseconds(text, ratio, milliseconds):
    assert Budget.parse(text) == Budget(ratio, milliseconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "'abc' is not understood"),
        ("", "'' is not understood"),
        ("0.5", "'0.5' is not understood"),
        ("-1x", "'-1x' is not understood"),
        ("nanms", "'nanms' is not understood"),
        ("20 s", "'20 s' is not understood"),
        ("0x", "'0x' leaves no time"),
        ("0.0ms", "'0.0ms' leaves no time"),
        ("2x", "'2x' is no less than the teacher's own latency. For a student that is 2 times as fast, write 0.5x"),
        ("1x", "'1x' is the teacher's own latency"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(text, message):
    with pytest.raises(RecipeError) as caught:
        Budget.parse(text)
    assert message in str(caught.value) and ("such as 0.5x" in str(caught.value) or "write 0.5x" in str(caught.value))


def test_a_share_has_some_tolerance_and_milliseconds_have_none():
    assert Budget.parse("0.5x").met(52.4, 100.0) and not Budget.parse("0.5x").met(52.6, 100.0)
    assert Budget.parse("20ms").met(20.0, 100.0) and not Budget.parse("20ms").met(20.01, 100.0)


# Layers


class Timer:
    """Give made-up milliseconds by depth, and remember what was measured together."""

    def __init__(self, milliseconds):
        self.milliseconds, self.asked = milliseconds, []

    def __call__(self, depths):
        self.asked.append(list(depths))
        return {depth: self.milliseconds(depth) for depth in depths}


def affine(depth):
    return 2.0 + 4.0 * depth  # 50 of 12 layers


@pytest.mark.parametrize(
    ("budget", "layers", "met"),
    [
        ("0.5x", 6, True),  # 26 of 25, within the tolerance
        ("0.49x", 5, True),
        ("0.2x", 2, True),
        ("0.99x", 11, True),
        ("30ms", 7, True),
        ("29.9ms", 6, True),
        ("6ms", 1, True),
        ("5ms", 1, False),
        ("0.01x", 1, False),
        ("1000ms", 11, True),  # a student is never the teacher itself
    ],
)
def test_the_deepest_student_within_the_budget_is_taken(budget, layers, met):
    timer = Timer(affine)
    chosen = choose_depth(12, Budget.parse(budget), timer)
    assert (chosen.layers, chosen.met) == (layers, met)
    assert (chosen.milliseconds, chosen.teacher_milliseconds) == (affine(layers), affine(12))
    assert all(asked[0] == 12 for asked in timer.asked)  # the teacher is measured beside the others each time
    assert len(timer.asked) <= 2


def test_a_choice_is_measured_before_it_is_believed():
    """Make nine layers far slower than those before and after them let one expect."""
    timer = Timer(lambda depth: 100.0 if depth in (8, 9) else affine(depth))
    chosen = choose_depth(12, Budget.parse("40ms"), timer)
    assert chosen.layers == 7 and chosen.met
    assert timer.asked == [[12, 11, 1], [12, 9], [12, 8], [12, 7]]


def test_a_share_is_of_the_teacher_as_it_was_measured_beside_the_student():
    """Make the machine twice as slow after the first measurement, for both."""
    calls = []

    def timer(depths):
        calls.append(depths)
        return {depth: affine(depth) * (1 if len(calls) == 1 else 2) for depth in depths}

    chosen = choose_depth(12, Budget.parse("0.3x"), timer)
    assert chosen.layers == 3 and chosen.met and chosen.teacher_milliseconds == 100.0


@pytest.mark.parametrize(("depth", "layers"), [(2, 1), (3, 1), (4, 2)])
def test_shallow_teachers(depth, layers):
    assert choose_depth(depth, Budget.parse("0.5x"), Timer(lambda n: 10.0 * n)).layers == layers


def test_a_single_layer_cannot_be_cut():
    with pytest.raises(ModelError, match="single layer"):
        choose_depth(1, Budget.parse("0.5x"), Timer(affine))


@pytest.mark.parametrize(
    ("seconds", "of_one", "epochs"), [(100, 40, 2.5), (1000, 1, 10.0), (10, 1000, 0.01), (90, 270, 0.33)]
)
def test_training_lasts_as_long_as_there_is_time(seconds, of_one, epochs):
    assert epochs_that_fit(seconds, of_one) == epochs


# What was asked for


def request(folder, **changes):
    data = folder / "data.csv"
    if not data.exists():
        data.write_text("text,label\na,b\n")
    values = {"model": "m", "data": str(data), "text": ("text",), "label": "label", "budget": "0.5x"}
    return Request(**(values | changes))


def test_a_plan_is_found_again(tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {"epochs": 2.0})
    assert Workspace(tmp_path / "out", request(tmp_path)).plan["teacher"] == {"epochs": 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "0.3x"}, r"differs in: budget \('0.5x' there, '0.3x' now\)"),
        ({"seed": 1, "minutes": 5.0}, r"differs in: minutes \(10.0 there, 5.0 now\), seed \(0 there, 1 now\)"),
    ],
)
def test_a_folder_made_for_something_else_is_refused(changes, message, tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {})
    with pytest.raises(RunError, match=message):
        Workspace(tmp_path / "out", request(tmp_path, **changes))


def test_data_that_have_changed_are_noticed(tmp_path):
    Workspace(tmp_path / "out", request(tmp_path)).decide("teacher", {})
    (tmp_path / "data.csv").write_text("text,label\na,c\n")
    with pytest.raises(RunError, match="differs in: content of the files"):
        Workspace(tmp_path / "out", request(tmp_path))


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something else"):
        Workspace(tmp_path / "out", request(tmp_path))


# Scores


def texts_of(labels):
    return [f"text {row}" for row in range(len(labels))]


@pytest.mark.parametrize("labels", [[0, 1] * 20, [0] * 30 + [1] * 10 + [2] * 5, list(range(9))])
def test_both_halves_have_the_same_share_of_each_class(labels):
    choosing, reported = halves(labels, texts_of(labels))
    assert sorted([*choosing, *reported]) == list(range(len(labels)))
    ours, theirs = (Counter(np.array(labels)[rows].tolist()) for rows in (choosing, reported))
    assert all(abs(ours[label] - theirs[label]) <= 1 for label in set(labels))
    assert list(choosing) == sorted(choosing) and list(reported) == sorted(reported)


def test_halves_of_label_sets():
    labels = np.array([[0, 1], [1, 0]] * 10)
    for rows in halves(labels, texts_of(labels)):
        assert labels[rows].sum(axis=0).tolist() == [5, 5]


def scores_of(shares, rows=400, seed=0):
    """Make models that are right on about these shares of the rows."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    made = {name: np.where(generator.random(rows) < share, labels, (labels + 1) % 3) for name, share in shares.items()}
    return ModelScores("accuracy", labels, made, texts_of(labels))


def test_scores_are_of_the_rows_that_did_not_choose():
    scores = scores_of({"ft": 0.7, TEACHER_NAME: 0.9})
    choosing, reported = scores.halves
    lucky = np.array((scores.labels + 1) % 3)
    lucky[choosing] = scores.labels[choosing]
    scores = scores.with_predictions({"lucky": lucky})
    assert scores.best(["ft", "lucky"]) == "lucky" and scores.choosing_score("lucky") == 1.0
    assert scores.score("lucky")["value"] == 0.0
    assert scores.difference("lucky", "ft")["value"] == pytest.approx(-scores.score("ft")["value"])
    right = scores.predictions["ft"][reported] == scores.labels[reported]
    assert scores.score("ft")["value"] == pytest.approx(right.mean())
    assert scores.counts() == {"choosing": 200, "reported": 200}


def test_of_equals_the_first_is_taken():
    scores = scores_of({"ft": 0.8, TEACHER_NAME: 0.9})
    scores = scores.with_predictions({"kd": scores.predictions["ft"]})
    assert scores.best(["ft", "kd"]) == "ft" and scores.best(["kd", "ft"]) == "kd"


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_intervals_are_those_of_a_plain_bootstrap(metric):
    scores = scores_of({"kd": 0.8, TEACHER_NAME: 0.9}, rows=120)
    scores = ModelScores(metric, scores.labels, scores.predictions, scores.texts)
    rows, generator = scores.halves.reported, np.random.default_rng(1)
    labels, ours, theirs = scores.labels[rows], scores.predictions["kd"][rows], scores.predictions[TEACHER_NAME][rows]
    drawn = [generator.integers(len(rows), size=len(rows)) for _ in range(500)]
    drawn_scores = [METRICS[metric](ours[draw], labels[draw]) for draw in drawn]
    score = scores.score("kd")
    assert score["value"] == pytest.approx(METRICS[metric](ours, labels))
    assert [score["low"], score["high"]] == pytest.approx(np.percentile(drawn_scores, [2.5, 97.5]), abs=0.04)
    differences = [
        METRICS[metric](ours[draw], labels[draw]) - METRICS[metric](theirs[draw], labels[draw]) for draw in drawn
    ]
    found = scores.difference("kd", TEACHER_NAME)
    assert [found["low"], found["high"]] == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=0.04)


def test_agreement_is_with_the_teacher():
    scores = scores_of({"kd": 0.8, TEACHER_NAME: 0.9})
    rows = scores.halves.reported
    assert scores.agreement("kd") == (scores.predictions["kd"][rows] == scores.predictions[TEACHER_NAME][rows]).mean()
    assert scores.agreement(TEACHER_NAME) == 1.0


# What is said


def score(value, half=0.02):
    return {"value": value, "low": value - half, "high": value + half}


def model(name, value, p50, ratio, met, form="torch"):
    return {
        "name": name,
        "form": form,
        "score": score(value),
        "agreement": 0.95,
        "parameters": 22_700_000,
        "disk_bytes": 91_000_000,
        "p50_ms": p50,
        "p95_ms": 2 * p50,
        "latency_ratio": ratio,
        "batch_ms": 20 * p50,
        "within_budget": met,
    }


def summary(**changes):
    entry = {"run": "study/runs/x", "chosen_by": 0.9, "score": score(0.9), "agreement": 0.95}
    return {
        "asked": {"data": "intents.csv", "budget": "0.5x"},
        "metric": "accuracy",
        "rows": {"train": 900, "choosing": 50, "reported": 50},
        "majority": 0.1,
        "teacher": {"about": "gte-small, as it was given", "epochs": None, "score": score(0.92)},
        "student": {"method": "kd", "parameters": 22_700_000, "layers": 6, "of_layers": 12, "epochs": 2.0},
        "methods": [{"method": "ft", **entry}, {"method": "kd", **entry}],
        "against_teacher": {"value": -0.012, "low": -0.025, "high": 0.001},
        "against_ft": {"value": 0.004, "low": -0.01, "high": 0.02},
        "not_exported": {},
        "models": [model("teacher", 0.92, 24.0, 1.0, False), model("student", 0.9, 12.0, 0.5, True)],
        "budget": {"length": 15, "limit_ms": 12.0, "teacher_ms": 24.0, "p50_ms": 12.0, "form": "torch", "met": True},
        "conditions": {"processor": "a processor", "threads": 2, "versions": {}},
    } | changes


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ((-0.012, -0.025, 0.001), "lost 1.2 points against the teacher, within noise (95% interval -2.5 to +0.1)"),
        ((-0.03, -0.05, -0.01), "lost 3.0 points against the teacher (95% interval -5.0 to -1.0)"),
        ((0.03, 0.01, 0.05), "gained 3.0 points against the teacher (95% interval +1.0 to +5.0)"),
        ((0.0, -0.01, 0.01), "lost nothing against the teacher, within noise"),
    ],
)
def test_a_loss_is_said_with_its_noise(difference, words):
    said = findings(summary(against_teacher=dict(zip(("value", "low", "high"), difference, strict=True))))
    assert words in said[0] and "(kd; 6 of 12 layers, 22.7 M parameters)" in said[0]


@pytest.mark.parametrize(
    ("method", "difference", "words"),
    [
        ("ft", None, "No method (kd) beat plain fine-tuning, so its student was taken."),
        (
            "kd",
            (0.004, -0.01, 0.02),
            "kd was chosen, but is no better than plain fine-tuning beyond noise (+0.4 points).",
        ),
        ("kd", (0.04, 0.01, 0.07), "kd beat plain fine-tuning of the same layers by 4.0 points."),
        (
            "kd",
            (-0.04, -0.07, -0.01),
            "kd was chosen, but on the other rows plain fine-tuning is better by 4.0 points.",
        ),
    ],
)
def test_plain_fine_tuning_is_what_a_method_must_beat(method, difference, words):
    against = difference and dict(zip(("value", "low", "high"), difference, strict=True))
    student = summary()["student"] | {"method": method}
    assert words in findings(summary(student=student, against_ft=against))


def test_a_budget_that_was_missed_is_said_to_be():
    missed = summary()["budget"] | {"met": False, "p50_ms": 15.0}
    said = " ".join(findings(summary(budget=missed)))
    assert "The budget of 0.5x could not be met. The nearest takes 15.0 ms for one text of 15 tokens as torch" in said
    assert "(0.62x); 12.0 ms were allowed" in said and "is met" not in said


def test_a_teacher_that_needs_no_student_is_mentioned():
    models = [*summary()["models"], model("teacher, onnx-int8", 0.915, 9.0, 0.38, True, "onnx-int8")]
    said = " ".join(findings(summary(models=models)))
    assert "The teacher itself meets the budget as int8, without a student: 9.0 ms (0.38x)" in said
    models[-1]["within_budget"] = False
    assert "The teacher itself" not in " ".join(findings(summary(models=models)))


def test_doubts_are_not_kept_back():
    methods = [*summary()["methods"], {"method": "fcd", "failed": "out of memory"}]
    student = summary()["student"] | {"epochs": 0.4}
    said = " ".join(findings(summary(methods=methods, student=student, majority=0.95, not_exported={"ONNX": "why."})))
    for words in ("The teacher is no better than", "The student is no better than", "fcd failed: out of memory"):
        assert words in said
    assert "0.4 of a pass" in said and "Not exported as ONNX: why." in said and "one seed" in said


def test_the_page_has_every_sentence_and_every_model():
    made = json.loads(json.dumps(summary()))  # as it is read again
    text = summary_page(made)
    assert all(f"- {sentence}" in text for sentence in findings(made))
    assert "| student | 90.00 [88.0, 92.0] | 95.0% | 22,700,000 | 91.0 MB | 12.0 ms (0.50x) | 240 ms |" in text
    assert "| kd | 90.00 | 90.00 [88.0, 92.0] | 95.0% |" in text

# ruff: noqa: RUF001 - the tables that are expected hold dashes and signs
"""Check tables made from run directories: grouping, means, marks, notes, and every test behind a mark."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from helpers.fake_runs import classes, make_run, make_runs, make_study
from scipy import stats

from limbeck.compare.comparison import compare, compare_paths
from limbeck.compare.details import detail_tables
from limbeck.compare.entries import read_entries
from limbeck.compare.tables import render
from limbeck.errors import DataError, LimbeckError, RecipeError, RunError
from limbeck.metrics import METRICS, entity_scores
from limbeck.runs.reader import read_run

FT, KD, FSD = [0.60, 0.61, 0.62], [0.70, 0.71, 0.72], [0.705, 0.715, 0.725]
N = 200


@pytest.fixture()
def runs(tmp_path):
    for method, scores in (("ft", FT), ("kd", KD), ("fsd", FSD)):
        make_runs(tmp_path / "runs", method, scores)
    return tmp_path / "runs"


def ordered(folder, *methods):
    return [path for method in methods for path in sorted(folder.glob(f"{method}-s*"))]


def cells(result, label):
    return next([cell.text + cell.marks for cell in row] for row in result.table.rows if row[0].text == label)


def bold(result):
    return {
        (row[0].text, name)
        for row in result.table.rows
        for name, cell in zip(result.table.head, row, strict=True)
        if cell.bold
    }


def test_the_table_of_three_methods(runs):
    result = compare_paths(ordered(runs, "ft", "kd", "fsd"), baselines=["ft"])
    assert render(result.table, "markdown") == (
        "**glue/rte, validation data**\n\n"
        "| method         | parameters |          accuracy |\n"
        "| -------------- | ---------: | ----------------: |\n"
        "| majority class |            |             52.71 |\n"
        "| teacher        |    109.5 M |             75.00 |\n"
        "| ft             |     67.0 M |      61.00 ± 1.00 |\n"
        "| kd             |     67.0 M |     71.00 ± 1.00† |\n"
        "| fsd            |     67.0 M | **71.50 ± 1.00**† |\n\n"
        "- Mean ± standard deviation over 3 seeds.\n"
        "- What linear models score on glue/rte is not known: 'limbeck rivals', with the same paths, adds it.\n"
        "- †: better than ft; ↓ behind a mark: worse "
        "(p < 0.05, Welch t-test over seeds, two-sided, Holm over 2 tests).\n"
        f"- {result.warnings[0]}\n"
    )
    assert result.table.rules == {2}
    assert "3 seeds" in result.warnings[0] and len(result.warnings) == 1


def test_the_tests_are_those_of_scipy_with_holm_over_all(runs):
    tests = compare_paths(ordered(runs, "ft", "kd", "fsd"), baselines=["ft", "kd"]).tests
    assert [(test["ours"], test["theirs"]) for test in tests] == [("kd", "ft"), ("fsd", "ft"), ("fsd", "kd")]
    p = [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in ((KD, FT), (FSD, FT), (FSD, KD))]
    assert [test["p"] for test in tests] == pytest.approx(p)
    # by hand: the smallest counts three times, the next twice unless that is less, the last once
    assert [test["p_holm"] for test in tests] == pytest.approx([max(3 * p[1], 2 * p[0]), 3 * p[1], p[2]])
    assert tests[0]["difference"] == pytest.approx(0.1) and tests[0]["low"] < 0.1 < tests[0]["high"]
    assert set(tests[0]) == {
        *("task", "metric", "ours", "theirs", "difference", "low", "high", "p", "p_holm", "test", "p_by_seed"),
    }


def test_holm_takes_marks_away_and_can_be_left_out(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", [0.60, 0.61, 0.62, 0.63]),
        *make_runs(tmp_path, "kd", [0.63, 0.64, 0.65, 0.64]),
        *make_runs(tmp_path, "rkd", [0.63, 0.64, 0.65, 0.63]),
        *make_runs(tmp_path, "pkd", [0.60, 0.62, 0.61, 0.62]),
    ]
    corrected, plain = (compare_paths(paths, baselines=["ft"], correction=name) for name in ("holm", "none"))
    assert [test["p"] < 0.05 for test in plain.tests] == [True, True, False]
    assert [test["p_holm"] < 0.05 for test in corrected.tests] == [False, False, False]
    assert cells(plain, "kd")[2].endswith("†") and not cells(corrected, "kd")[2].endswith("†")
    assert any("not corrected for 3 tests" in note for note in plain.table.notes)


def test_the_best_baseline_of_each_column_by_a_right_tail(tmp_path):
    scores = {
        "vkd": [(0.80, 0.61), (0.82, 0.62), (0.81, 0.60), (0.83, 0.63)],
        "rkd": [(0.79, 0.66), (0.81, 0.65), (0.80, 0.67), (0.80, 0.64)],
        "fsd": [(0.84, 0.64), (0.83, 0.66), (0.85, 0.65), (0.86, 0.63)],
    }
    paths = [
        path
        for name, pairs in scores.items()
        for path in make_runs(tmp_path, name, [{"accuracy": a, "f1": b} for a, b in pairs])
    ]
    result = compare_paths(paths, baselines=["vkd", "rkd"], against="best", sided="greater", correction="none")
    assert [(test["metric"], test["ours"], test["theirs"]) for test in result.tests] == [
        ("accuracy", "fsd", "vkd"),
        ("f1", "fsd", "rkd"),  # which is ahead of fsd: its right tail is above one half
    ]
    columns = {name: np.array(pairs).T for name, pairs in scores.items()}
    expected = [
        stats.ttest_ind(columns["fsd"][at], columns[best][at], equal_var=False, alternative="greater").pvalue
        for at, best in ((0, "vkd"), (1, "rkd"))
    ]
    assert [test["p"] for test in result.tests] == pytest.approx(expected, abs=1e-12)
    assert expected[0] < 0.05 and expected[1] > 0.5
    assert cells(result, "fsd")[2:] == ["84.50 ± 1.29†", "64.50 ± 1.29"]
    assert any(
        note == "†: better than the best of vkd, rkd in the column "
        "(p < 0.05, Welch t-test over seeds, one-sided, not corrected for 2 tests)."
        for note in result.table.notes
    )


def test_a_study_says_how_its_tests_are_corrected(tmp_path):
    entries = [{"label": "ft", "scores": FT}, {"label": "kd", "scores": KD}, {"label": "fsd", "scores": FSD}]
    plain = make_study(tmp_path / "plain", entries, correction="none")
    assert any("not corrected for 2 tests" in note for note in compare_paths([plain]).table.notes)
    assert any("Holm over 2 tests" in note for note in compare_paths([plain], correction="holm").table.notes)
    with pytest.raises(RecipeError, match="bonferroni"):
        compare_paths([plain], correction="bonferroni")


def test_marks_of_two_baselines_in_both_directions(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", FT),
        *make_runs(tmp_path, "kd", [0.80, 0.81, 0.82]),
        *make_runs(tmp_path, "fsd", KD),
    ]
    result = compare_paths(paths, baselines=["ft", "kd"])
    assert [cells(result, name)[2] for name in ("ft", "kd", "fsd")] == [
        "61.00 ± 1.00",
        "81.00 ± 1.00†",
        "71.00 ± 1.00†‡↓",
    ]
    one_sided = compare_paths(paths, baselines=["ft", "kd"], sided="greater")
    assert cells(one_sided, "fsd")[2] == "71.00 ± 1.00†"
    assert not any("↓" in note for note in one_sided.table.notes)
    assert next(test["p"] for test in one_sided.tests if test["theirs"] == "kd") > 0.99


def test_a_small_loss_is_better(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", [{"loss": loss, "perplexity": np.exp(loss)} for loss in (2.5, 2.6, 2.7)]),
        *make_runs(tmp_path, "kd", [{"loss": loss, "perplexity": np.exp(loss)} for loss in (2.0, 2.1, 2.2)]),
    ]
    result = compare_paths(paths, baselines=["ft"], sided="greater", metric="loss")
    assert bold(result) == {("kd", "loss")} and cells(result, "kd")[2] == "2.1 ± 0.1†"
    (test,) = result.tests
    assert test["difference"] == pytest.approx(-0.5) and test["low"] < -0.5 < test["high"] < 0


def test_ties_after_rounding_are_all_bold_and_teachers_never(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", [0.70001]),
        *make_runs(tmp_path, "kd", [0.70004]),
        *make_runs(tmp_path, "fsd", [0.69]),
    ]
    assert bold(compare_paths(paths)) == {("ft", "accuracy"), ("kd", "accuracy")}
    assert bold(compare_paths(paths[:1])) == set()


def test_a_diverged_run_is_shown_and_not_compared(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", [{"loss": 2.0}, {"loss": 2.1}]),
        *make_runs(tmp_path, "kd", [{"loss": 1.0}, {"loss": float("nan")}]),
        *make_runs(tmp_path, "fsd", [{"loss": 1.9}, {"loss": 1.8}]),
    ]
    result = compare_paths(paths, baselines=["ft"])
    assert cells(result, "kd")[2] == "nan" and bold(result) == {("fsd", "loss")}
    assert [test["ours"] for test in result.tests] == ["fsd"]
    assert "kd and ft on glue/rte: loss is not a finite number" in result.warnings[0]


def test_one_seed_makes_no_test(tmp_path):
    paths = [*make_runs(tmp_path, "ft", [0.6]), *make_runs(tmp_path, "kd", [0.7]), *make_runs(tmp_path, "fsd", [0.8])]
    result = compare_paths(paths, baselines=["ft"])
    assert result.tests == [] and cells(result, "kd")[2] == "70.00"
    assert result.warnings == [
        "Not compared: kd and ft on glue/rte; fsd and ft on glue/rte: a t-test needs at least 2 seeds of each; "
        "--test mcnemar and --test bootstrap compare single runs."
    ]
    assert result.table.notes[0] == "One run of each, which tells nothing about other seeds."


def test_a_paired_test_uses_the_seeds_that_both_have(tmp_path):
    paths = [
        *make_runs(tmp_path, "ft", [0.60, 0.62, 0.61, 0.50]),
        *(make_run(tmp_path / f"kd-{seed}", "kd", seed, score) for seed, score in ((3, 0.66), (1, 0.64), (2, 0.67))),
    ]
    result = compare_paths(paths, baselines=["ft"], test="paired")
    assert result.tests[0]["p"] == pytest.approx(stats.ttest_rel([0.64, 0.67, 0.66], [0.60, 0.62, 0.61]).pvalue)
    assert result.table.notes[0] == (
        "Mean ± standard deviation over seeds; the seeds differ: 1, 2, 3, 4 (ft); 1, 2, 3 (kd)."
    )
    assert result.warnings[0].startswith("With 3 seeds")
    other = [make_run(tmp_path / f"fsd-{seed}", "fsd", seed, 0.6 + seed / 1000) for seed in (7, 8)]
    refused = compare_paths([*paths[:4], *other], baselines=["ft"], test="paired")
    assert refused.tests == [] and "2 seeds that both have" in refused.warnings[0]


def predicted(accuracy, seed):
    """Draw labels of N examples, and predictions of which about so many are right."""
    labels = np.arange(N) % 2
    wrong = np.random.default_rng(seed).random(N) > accuracy
    return classes(labels.tolist(), np.where(wrong, 1 - labels, labels).tolist())


def with_answers(folder, method, accuracies, metrics=("accuracy", "f1")):
    paths = []
    for seed, accuracy in enumerate(accuracies, start=1):
        answers = predicted(accuracy, hash_of(method) + seed)
        scores = {name: METRICS[name](answers["prediction"], answers["label"]) for name in metrics}
        paths.append(make_run(folder / f"{method}-s{seed}", method, seed, scores, answers=answers, examples=N))
    return paths


def hash_of(name):
    return sum(map(ord, name))


def test_mcnemar_is_about_decisions_and_marks_the_first_metric(tmp_path):
    paths = [*with_answers(tmp_path, "ft", [0.6, 0.6]), *with_answers(tmp_path, "kd", [0.9, 0.9])]
    result = compare_paths(paths, baselines=["ft"], test="mcnemar")
    (test,) = result.tests
    share = [np.mean([read_run(path).scores["accuracy"] for path in paths[start : start + 2]]) for start in (0, 2)]
    assert test["metric"] == "accuracy" and test["p"] < 1e-6
    assert test["difference"] == pytest.approx(share[1] - share[0])
    assert cells(result, "kd")[2].endswith("†") and not cells(result, "kd")[3].endswith("†")
    assert any("only in a task's first column" in note for note in result.table.notes)
    # one run against one run, as a paper with one run of each makes it, beside the combination of both
    by_hand = []
    for seed in (1, 2):
        theirs, ours = (predicted(accuracy, hash_of(name) + seed) for name, accuracy in (("ft", 0.6), ("kd", 0.9)))
        right = [np.equal(answers["prediction"], answers["label"]) for answers in (ours, theirs)]
        only = [int((a & ~b).sum()) for a, b in (right, right[::-1])]
        by_hand.append(stats.chi2.sf((abs(only[0] - only[1]) - 1) ** 2 / sum(only), 1))
    assert test["p_by_seed"] == pytest.approx(by_hand, rel=1e-9)
    details = detail_tables(result.scores, result.tests)[-1]
    assert details.head[-1] == "p of single runs, by seed" and details.rows[0][-1].text == "0.0000, 0.0000"


def test_bootstrap_tests_every_metric(tmp_path):
    paths = [*with_answers(tmp_path, "ft", [0.6, 0.6]), *with_answers(tmp_path, "kd", [0.8, 0.8])]
    result = compare_paths(paths, baselines=["ft"], test="bootstrap")
    assert [test["metric"] for test in result.tests] == ["accuracy", "f1"]
    runs = [read_run(path) for path in paths]
    for test in result.tests:
        ours, theirs = (np.mean([run.scores[test["metric"]] for run in side]) for side in (runs[2:], runs[:2]))
        assert test["difference"] == pytest.approx(ours - theirs)
        assert test["low"] < test["difference"] < test["high"] and test["p"] < 0.01


def test_mismatched_data_have_predictions_of_their_own(tmp_path):
    paths = []
    for method, matched, mismatched in (("ft", 0.7, 0.6), ("kd", 0.7, 0.9)):
        here, there = predicted(matched, 1), predicted(mismatched, 2)
        scores = {
            "accuracy": METRICS["accuracy"](here["prediction"], here["label"]),
            "accuracy_mismatched": METRICS["accuracy"](there["prediction"], there["label"]),
        }
        folder = tmp_path / method
        paths.append(make_run(folder, method, 1, scores, answers=here, mismatched=there, examples=N))
    tests = {test["metric"]: test for test in compare_paths(paths, baselines=["ft"], test="bootstrap").tests}
    scores = [read_run(path).scores["accuracy_mismatched"] for path in paths]
    assert tests["accuracy"]["difference"] == 0 and tests["accuracy"]["p"] == 1
    assert tests["accuracy_mismatched"]["difference"] == pytest.approx(scores[1] - scores[0])


def questions(right):
    texts = ["the answer" if yes else "nonsense" for yes in right]
    return {
        "id": [f"q{number}" for number in range(len(right))],
        "label": [["answer"]] * len(right),
        "prediction": texts,
        "exact_match": [float(yes) for yes in right],
        "f1": [1.0 if yes else 0.25 for yes in right],
    }


def tags(wrong):
    labels = [[0, 1, 2, 0], [0, 0, 1]] * (N // 2)
    predictions = [row[::-1] if number < wrong else row for number, row in enumerate(labels)]
    return {"id": list(range(N)), "label": labels, "prediction": predictions}


def label_sets(wrong):
    labels = [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]] * (N // 2)
    predictions = [[1, 1, 0] if number < wrong else [int(x) for x in row] for number, row in enumerate(labels)]
    return {"id": list(range(N)), "label": labels, "prediction": predictions}


def numbers(noise):
    labels = np.linspace(0, 5, N)
    spread = np.random.default_rng(0).normal(size=N)
    return {"id": list(range(N)), "label": labels.tolist(), "prediction": (labels + noise * spread).tolist()}


def scored(answers, kind):
    predictions, labels = answers["prediction"], answers["label"]
    if kind == "questions":
        return {"f1": np.mean(answers["f1"]), "exact_match": np.mean(answers["exact_match"])}
    if kind == "tags":
        named = [[["O", "B-X", "I-X"][tag] for tag in row] for rows in (predictions, labels) for row in rows]
        flat = [[tag for row in rows for tag in row] for rows in (predictions, labels)]
        return entity_scores(named[:N], named[N:]) | {"token_accuracy": METRICS["accuracy"](*flat)}
    if kind == "labels":
        rows = np.array(predictions), np.array(labels).astype(int)
        return {name: METRICS[name](*rows) for name in ("micro_f1", "macro_f1")}
    return {name: METRICS[name](predictions, labels) for name in ("pearson", "spearman", "mse")}


KINDS = {
    "questions": (questions([True] * 80 + [False] * 120), questions([True] * 140 + [False] * 60)),
    "tags": (tags(120), tags(30)),
    "labels": (label_sets(120), label_sets(30)),
    "numbers": (numbers(2.0), numbers(0.5)),
}


@pytest.fixture(params=KINDS)
def two_runs(request, tmp_path):
    """Make a worse run and a better one of each kind of task, with the scores that a run would have written."""
    paths = []
    for method, answers in zip(("ft", "kd"), KINDS[request.param], strict=True):
        scores = {name: float(score) for name, score in scored(answers, request.param).items()}
        path = make_run(tmp_path / method, method, 1, scores, answers=answers, examples=N)
        (path / "student").mkdir()
        names = {"0": "O", "1": "B-X", "2": "I-X"}
        (path / "student" / "config.json").write_text(json.dumps({"id2label": names}))
        paths.append(path)
    return request.param, paths


def test_bootstrap_of_every_kind_of_task(two_runs):
    _, paths = two_runs
    runs = [read_run(path) for path in paths]
    result = compare_paths(paths, baselines=["ft"], test="bootstrap")
    assert [test["metric"] for test in result.tests] == list(runs[0].scores) and result.warnings == []
    for test in result.tests:
        ours, theirs = (run.scores[test["metric"]] for run in reversed(runs))
        assert test["difference"] == pytest.approx(ours - theirs, abs=1e-9), test["metric"]
        assert test["p"] < 0.01
    assert all(cell.endswith("†") for cell in cells(result, "kd")[2:])


def test_mcnemar_of_every_kind_of_task(two_runs):
    kind, paths = two_runs
    if kind == "numbers":
        with pytest.raises(DataError, match="--test bootstrap"):
            compare_paths(paths, baselines=["ft"], test="mcnemar")
        return
    (test,) = compare_paths(paths, baselines=["ft"], test="mcnemar").tests
    assert test["difference"] == pytest.approx({"questions": 60 / N, "tags": 90 / N, "labels": 90 / N}[kind])
    assert test["p"] < 1e-6


def test_two_runs_alone_are_compared_example_by_example(two_runs):
    kind, paths = two_runs
    result = compare_paths(reversed(paths))
    runs = [read_run(path) for path in paths]
    assert result.table.head == ("metric", "kd", "ft", "difference", "95% interval", "p")
    assert [row[0].text for row in result.table.rows] == list(runs[0].scores)
    first = result.tests[0]
    assert first["difference"] == pytest.approx(
        next(iter(runs[1].scores.values())) - next(iter(runs[0].scores.values()))
    )
    notes = " ".join(result.table.notes)
    same = {
        "questions": "predict the same in 70.00%",
        # in 90 sentences, 2 of 4 or 2 of 3 words differ
        "tags": f"predict the same in {100 * (1 - (45 * 2 + 45 * 2) / (N // 2 * 7)):.2f}%",
        # in 90 rows, 2 of 3 or 1 of 3 labels differ
        "labels": f"predict the same in {100 * (1 - (45 * 2 + 45 * 1) / (N * 3)):.2f}%",
        "numbers": "correlate with",
    }[kind]
    assert same in notes and ("McNemar" in notes) == (kind != "numbers")


def test_the_page_of_two_runs(tmp_path):
    right, wrong = classes([0, 1] * 10, [0, 1] * 10), classes([0, 1] * 10, [0, 1] * 7 + [1, 0] * 3)
    a = make_run(tmp_path / "kd-s1", "kd", 1, 1.0, answers=right, examples=20)
    b = make_run(tmp_path / "ft-s1", "ft", 1, 0.7, answers=wrong, examples=20)
    result = compare_paths([a, b])
    row = [cell.text for cell in result.table.rows[0]]
    assert row[:4] == ["accuracy", "100.00", "70.00", "+30.00"] and row[4].startswith("+10.00 to +50.00")
    mcnemar = stats.binomtest(6, 6).pvalue
    assert any(note.startswith("McNemar, exact, 6 and 0 of 20 differ: p = 0.031") for note in result.table.notes)
    assert [test["metric"] for test in result.tests] == ["accuracy", "accuracy"]
    assert result.tests[1]["p"] == pytest.approx(mcnemar)
    # with a baseline it is a table like any other
    assert compare_paths([a, b], baselines=["ft"]).table.head == ("method", "parameters", "accuracy")
    # and so are runs on different tasks
    other = make_run(tmp_path / "mrpc", "kd", 1, 0.8, task="glue/mrpc")
    assert compare_paths([a, other]).table.head == ("method", "parameters", "glue/rte accuracy", "glue/mrpc accuracy")


def test_runs_without_predictions(tmp_path):
    paths = [make_run(tmp_path / name, name, 1, {"loss": loss}) for name, loss in (("ft", 2.5), ("kd", 2.0))]
    result = compare_paths(paths)
    assert [cell.text for cell in result.table.rows[0]] == ["loss", "2.5", "2", "+0.5", "–", "–"]
    assert result.tests == [] and "keep no predictions" in result.warnings[0]
    with pytest.raises(DataError, match="keep no predictions"):
        compare_paths(paths, baselines=["ft"], test="bootstrap")


def test_what_the_bootstrap_cannot_know_is_said(tmp_path):
    paths = []
    for method, wrong in (("ft", 50), ("kd", 10)):
        answers = tags(wrong)
        paths.append(make_run(tmp_path / method, method, 1, scored(answers, "tags"), answers=answers, examples=N))
    result = compare_paths(
        paths, baselines=["ft"], test="bootstrap"
    )  # without a config nothing tells which tag is which
    assert [test["metric"] for test in result.tests] == ["token_accuracy"]
    assert any("entity_f1" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        ({"answers": classes([0, 1, 1], [0, 1, 1])}, "other labels"),
        ({"answers": {"id": [0, 1, 7], "label": [0, 1, 0], "prediction": [0, 1, 0]}}, "other examples"),
        ({"examples": 300}, "3 and 300 examples"),
    ],
)
@pytest.mark.parametrize("test", ["welch", "bootstrap"])
def test_runs_on_different_data_are_not_compared(tmp_path, other, seen, test):
    same = {"answers": classes([0, 1, 0], [0, 1, 1]), "examples": 3}
    paths = [*make_runs(tmp_path, "ft", [0.5, 0.6], **same), *make_runs(tmp_path, "kd", [0.6, 0.7], **(same | other))]
    with pytest.raises(DataError, match=f"different validation data .*{seen}"):
        compare_paths(paths, baselines=["ft"], test=test)


def test_options_that_differ_are_part_of_the_label(tmp_path):
    for temperature in (5, 10.0):
        make_runs(tmp_path / str(temperature), "kd", KD, options={"temperature": temperature, "alpha": 0.5})
    make_runs(tmp_path / "mrpc", "kd", KD, task="glue/mrpc", options={"temperature": 5.0, "alpha": 0.5})
    make_runs(tmp_path / "ft", "ft", FT)
    found = read_entries([tmp_path / "5", tmp_path / "10.0", tmp_path / "mrpc", tmp_path / "ft"])
    assert [(entry.task, entry.label, len(entry.runs)) for entry in found.entries] == [
        ("glue/rte", "kd temperature=5", 3),
        ("glue/rte", "kd temperature=10", 3),
        ("glue/mrpc", "kd temperature=5", 3),
        ("glue/rte", "ft", 3),
    ]


def test_options_of_the_same_name_keep_their_place(tmp_path):
    shared = {"name": "x"}
    make_run(tmp_path / "a", settings={"method": shared | {"epochs": 1}, "train": {"epochs": 1, "learning_rate": 3e-5}})
    make_run(tmp_path / "b", settings={"method": shared | {"epochs": 2}, "train": {"epochs": 2, "learning_rate": 5e-5}})
    assert [entry.label for entry in read_entries([tmp_path]).entries] == [
        "kd method.epochs=1 train.epochs=1 learning_rate=3e-05",
        "kd method.epochs=2 train.epochs=2 learning_rate=5e-05",
    ]


def test_seeds_places_and_reports_do_not_tell_settings_apart(tmp_path):
    report = [{"metric": "accuracy", "value": 65.4, "where": "Jung et al. 2023"}]
    make_run(tmp_path / "a", seed=2, settings={"reported": report, "grid": {"method.alpha": [1]}})
    make_run(tmp_path / "b", seed=1, settings={"teacher": {"model": "elsewhere", "cache": "off"}})
    (entry,) = read_entries([tmp_path]).entries
    assert [run.seed for run in entry.runs] == [1, 2] and entry.reported[0].value == 65.4


def test_stages_are_settings_too(tmp_path):
    def stages(epochs, cache):
        first = {"method": {"name": "minilm"}, "train": {"epochs": epochs}, "teacher": {"model": "t", "cache": cache}}
        return {"stages": [first, {"method": {"name": "kd"}, "teacher": {"model": "t", "cache": cache}}]}

    make_run(tmp_path / "a", seed=1, settings=stages(1, "auto"))
    make_run(tmp_path / "b", seed=2, settings=stages(1, "off"))
    make_run(tmp_path / "c", seed=1, settings=stages(2, "auto"))
    entries = read_entries([tmp_path]).entries
    assert [(entry.label, len(entry.runs)) for entry in entries] == [("kd epochs=1", 2), ("kd epochs=2", 1)]
    assert entries[0].runs[0].teacher == "t"


def test_several_teachers_are_said(tmp_path):
    paths = []
    for number, score in enumerate((0.7, 0.8), start=1):
        teacher = {"parameters": 1000, "metrics": {"accuracy": score}}
        settings = {"teacher": {"model": f"teacher-{number}", "cache": "auto"}}
        paths.append(make_run(tmp_path / f"{number}", seed=number, settings=settings, teacher=teacher))
    result = compare(read_entries(paths))
    assert cells(result, "teacher")[1:] == ["1.0 k", "75.00 ± 7.07"]
    assert "The runs on glue/rte have 2 teachers, whose mean is shown: teacher-1, teacher-2." in result.table.notes


def test_the_teacher_in_a_folder_of_runs_is_no_student(tmp_path):
    alone = {"teacher": None, "student": {"model": "bert"}}
    teacher = make_run(tmp_path / "teacher", "ft", 0, 0.9, settings=alone, teacher=None, parameters=110_000_000)
    settings = {"teacher": {"model": str(teacher)}}
    for method, score in (("ft", 0.6), ("kd", 0.7)):
        make_run(tmp_path / method, method, 0, score, settings=settings)
    # a student that taught another one remains a student
    make_run(tmp_path / "pkd", "pkd", 0, 0.5, settings={"teacher": {"model": str(tmp_path / "ft")}}, teacher=None)
    result = compare_paths([tmp_path])
    assert [row[0].text for row in result.table.rows] == ["majority class", "teacher", "ft", "kd", "pkd"]
    assert cells(result, "teacher")[2] == "90.00" and bold(result) == {("kd", "accuracy")}


def test_a_seed_counts_once(tmp_path):
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    with pytest.raises(RunError, match=r"a and .*b are the same setting \(kd on glue/rte\) with the same seed 1"):
        read_entries([a, b])
    assert len(read_entries([a, tmp_path / "b" / ".." / "a"]).entries[0].runs) == 1


def test_unfinished_runs(tmp_path):
    make_run(tmp_path / "done")
    (make_run(tmp_path / "half", seed=2) / "metrics.json").unlink()
    found = read_entries([tmp_path])
    assert len(found.entries[0].runs) == 1
    assert compare(found).table.notes[1] == f"Left out of {tmp_path}, because they are not finished: half."
    with pytest.raises(RunError, match=r"half is no finished run: it has no metrics\.json yet"):
        read_entries([tmp_path / "half"])


@pytest.mark.parametrize("what", ["nothing", "file", "empty"])
def test_paths_without_runs(tmp_path, what):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=f"{what} (is no folder|holds neither a run)"):
        read_entries([tmp_path / what])


STUDY = (
    {"label": "ft", "scores": FT},
    {
        "label": "kd",
        "scores": KD,
        "reported": [{"metric": "accuracy", "value": 65.4, "sd": 1.56, "where": "Jung et al. 2023, table 2"}],
    },
    {"label": "fsd", "scores": FSD[:2], "missing": 1, "why": "seed 3: out of memory"},
    {"label": "ics", "scores": [], "missing": 3, "why": "out of memory"},
)


def test_a_study_brings_its_own_settings(tmp_path):
    make_runs(tmp_path / "teachers", "ft", [{"accuracy": 0.81}], parameters=110_000_000)
    study = make_study(tmp_path, STUDY, teachers={"glue/rte": "teachers/ft-s1"})
    result = compare_paths([study])
    assert result.table.title == "rte-small, validation data"
    assert result.table.head == ("method", "parameters", "accuracy", "reported")
    assert [cells(result, name)[1:] for name in ("majority class", "teacher", "ft", "kd", "fsd", "ics")] == [
        ["", "52.71", ""],
        ["109.5 M to 110.0 M", "81.00", ""],
        ["67.0 M", "61.00 ± 1.00", "–"],
        ["67.0 M", "71.00 ± 1.00†", "65.40 ± 1.56"],
        ["67.0 M", "71.00 ± 0.71†", "–"],
        ["", "–", "–"],
    ]
    assert bold(result) == {("kd", "accuracy"), ("fsd", "accuracy")}
    notes = result.table.notes
    assert notes[0] == "Mean ± standard deviation over seeds; the seeds differ: 1, 2, 3 (ft, kd); 1, 2 (fsd)."
    assert notes[1:4] == (
        "fsd: 2 of 3 runs finished (seed 3: out of memory).",
        "ics: 0 of 3 runs finished (out of memory).",
        "Nothing was searched.",
    )
    assert notes[-1] == "reported: Jung et al. 2023, table 2."
    assert {test["theirs"] for test in result.tests} == {"ft"}
    assert compare_paths([study], baselines=[]).tests == []
    assert {test["theirs"] for test in compare_paths([study], baselines=["kd"]).tests} == {"kd"}


def test_a_table_of_several_tasks(tmp_path):
    entries = [
        {"label": "ft", "scores": FT},
        {"label": "kd", "scores": KD},
        {"label": "ft", "task": "glue/cola", "scores": [{"mcc": 0.4}, {"mcc": 0.5}]},
        {"label": "fsd", "task": "glue/sst2", "scores": [], "missing": 1, "why": "disk full"},
    ]
    study = make_study(tmp_path, entries)
    result = compare_paths([study])
    assert result.table.head == ("method", "parameters", "glue/rte accuracy", "glue/cola mcc", "glue/sst2 score")
    assert cells(result, "ft")[2:] == ["61.00 ± 1.00", "45.00 ± 7.07", "–"]
    assert cells(result, "fsd")[1:] == ["", "–", "–", "–"]
    assert "fsd on glue/sst2: 0 of 1 runs finished (disk full)." in result.table.notes
    only = compare_paths([study], metric="mcc")
    assert only.table.head == ("method", "parameters", "mcc")
    assert "Not shown, because they have no mcc: glue/rte, glue/sst2." in only.table.notes


def test_a_study_without_a_finished_run_shows_what_papers_report(tmp_path):
    reported = [{"metric": "accuracy", "value": 65.4, "where": "Jung et al. 2023"}]
    study = make_study(tmp_path, [{"label": "ft", "scores": [], "missing": 2, "reported": reported}])
    result = compare_paths([study])
    assert result.table.head == ("method", "parameters", "accuracy", "reported")
    assert [cell.text for cell in result.table.rows[0]] == ["ft", "", "–", "65.40"] and not result.table.rules


def test_two_studies_with_the_same_label(tmp_path):
    studies = [make_study(tmp_path / name, [{"label": "kd", "scores": KD}], baselines=[name]) for name in "ab"]
    with pytest.raises(RunError, match="two sets of runs called 'kd' on glue/rte"):
        read_entries(studies)


def test_settings_that_studies_do_not_share_are_not_taken(tmp_path):
    a = make_study(tmp_path / "a", [{"label": "ft", "scores": FT}], baselines=["ft"], level=0.01)
    b = make_study(tmp_path / "b", [{"label": "kd", "scores": KD}], baselines=["kd"], level=0.01)
    found = read_entries([a, b])
    assert found.settings == {"test": "welch", "sided": "two", "level": 0.01}


DAMAGES = {
    "metrics.json cut off": ("metrics.json", '{"task": "glue/rte", "metr'),
    "metrics.json of something else": ("metrics.json", "[1, 2]"),
    "metrics.json without scores": ("metrics.json", '{"task": "glue/rte", "method": "kd", "seed": 1}'),
    "a score that is no number": ("metrics.json", '{"metrics": {"f1": "high"}, "metric": "f1"}'),
    "no main metric": ("metrics.json", '{"task": "t", "method": "kd", "seed": 1, "metrics": {}, "metric": "f1"}'),
    "metrics.json of bytes": ("metrics.json", "\x00\x01"),
    "recipe.yaml broken": ("recipe.yaml", "task: {name: ["),
    "recipe.yaml empty": ("recipe.yaml", ""),
    "recipe.yaml with odd stages": ("recipe.yaml", "stages: [1]"),
    "recipe.yaml with an odd report": ("recipe.yaml", "reported: [{metric: accuracy}]"),
    "predictions cut off": ("predictions.parquet", "PAR1 and no more"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_one_clear_error(tmp_path, damage):
    name, text = DAMAGES[damage]
    good = make_run(tmp_path / "good", "ft", answers=classes([0, 1], [0, 1]))
    bad = make_run(tmp_path / "bad", answers=classes([0, 1], [0, 1]))
    (bad / name).write_text(text)
    with pytest.raises(LimbeckError) as caught:
        compare_paths([good, bad], baselines=["ft"])
    message = str(caught.value)
    assert f"{bad / name} " in message and "repeat the run" in message and "\n" not in message


def test_predictions_without_their_columns(tmp_path):
    paths = [make_run(tmp_path / name, name, answers={"id": [1], "text": ["x"]}) for name in ("ft", "kd")]
    with pytest.raises(DataError, match="does not hold predictions"):
        compare_paths(paths)


def test_a_run_without_its_recipe(tmp_path):
    (make_run(tmp_path / "run") / "recipe.yaml").unlink()
    with pytest.raises(RunError, match=r"run has no recipe\.yaml"):
        read_entries([tmp_path / "run"])


@pytest.mark.parametrize("text", ["{", "[]", '{"study": "x"}', '{"study": "x", "entries": [{"task": "t"}]}'])
def test_damaged_studies_are_one_clear_error(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RunError, match=r"results\.json"):
        read_entries([tmp_path])


def test_a_study_whose_run_is_gone(tmp_path):
    study = make_study(tmp_path, [{"label": "kd", "scores": [0.7], "runs": ["runs/gone"]}])
    with pytest.raises(RunError, match="gone is no finished run: there is no such folder"):
        read_entries([study])


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"baselines": ["kdd"]}, "Unknown baseline 'kdd'. Did you mean 'kd'"),
        ({"metric": "acuracy"}, "Unknown metric 'acuracy'. Did you mean 'accuracy'"),
        ({"test": "welsh"}, "Unknown test 'welsh'. Did you mean 'welch'"),
        ({"sided": "tow"}, "Unknown side 'tow'. Did you mean 'two'"),
        ({"level": 5}, "between 0 and 1"),
    ],
)
def test_wishes_that_cannot_be_met(runs, wish, message):
    with pytest.raises(RecipeError, match=message):
        compare_paths([runs], **wish)


def test_there_are_marks_for_four_baselines(tmp_path):
    for number in range(6):
        make_runs(tmp_path, f"m{number}", [0.5 + number / 10, 0.501 + number / 10])
    result = compare_paths([tmp_path], baselines=["m0", "m1", "m2", "m3", "m0"], correction="none")
    assert cells(result, "m5")[2].endswith("†‡§¶")
    with pytest.raises(RecipeError, match="5 baselines were named; a table has marks for 4"):
        compare_paths([tmp_path], baselines=[f"m{number}" for number in range(5)])


def test_older_runs_know_no_majority_and_no_teacher(tmp_path):
    path = make_run(tmp_path / "run", majority=None, teacher=None)
    result = compare_paths([path])
    assert [row[0].text for row in result.table.rows] == ["kd"] and not result.table.rules


def test_hostile_labels_survive_the_table(tmp_path):
    label = "a|b, [bold]_x_ 蒸留 \\ 50%"
    make_study(tmp_path, [{"label": "ft", "scores": FT}, {"label": "kd", "scores": KD}], baselines=[label])
    results = json.loads((tmp_path / "results.json").read_text())
    results["entries"][0]["label"] = label
    (tmp_path / "results.json").write_text(json.dumps(results))
    table = compare_paths([tmp_path]).table
    assert r"a\|b, \[bold\]\_x\_ 蒸留 \\ 50%" in render(table, "markdown")
    assert f'"{label}",67.0 M,61.00 ± 1.00' in render(table, "csv")
    assert label in render(table, "terminal")
    assert r"a$|$b, {[}bold{]}\_x\_ 蒸留 \textbackslash{} 50\%" in render(table, "latex")


def test_tables_need_neither_torch_nor_transformers(runs):
    code = (
        "import sys; from limbeck.compare.comparison import compare_paths; from limbeck.compare.tables import render\n"
        f"print(render(compare_paths([{str(runs)!r}], baselines=['ft']).table, 'markdown'))\n"
        "assert not {'torch', 'transformers', 'datasets', 'pandas'} & set(sys.modules), 'too much was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "71.50 ± 1.00" in done.stdout, done.stderr


def test_reported_losses_are_not_in_percent(tmp_path):
    settings = {"reported": [{"metric": "loss", "value": 2.345, "where": "Huang et al. 2023"}]}
    path = make_run(tmp_path / "run", "kd", 1, {"loss": 2.5}, settings=settings)
    recipe = yaml.safe_load((path / "recipe.yaml").read_text())
    assert recipe["reported"] and [cell.text for cell in compare_paths([path]).table.rows[-1]][2:] == ["2.5", "2.345"]


def test_a_task_that_a_test_is_not_for_does_not_spoil_the_others(tmp_path):
    labels = np.arange(N) % 2
    for method, wrong in (("ft", 60), ("kd", 5)):
        right = classes(labels, np.where(np.arange(N) < wrong, 1 - labels, labels))
        numbers = {"id": list(range(N)), "label": [float(n) for n in range(N)], "prediction": [0.5] * N}
        make_run(tmp_path / method, method, answers=right)
        make_run(tmp_path / f"{method}-n", method, scores={"pearson": 0.5}, task="glue/stsb", answers=numbers)
    result = compare_paths(sorted(tmp_path.iterdir()), baselines=["ft"], test="mcnemar")
    (test,) = result.tests
    assert test["task"] == "glue/rte" and test["p"] < 1e-6
    (warning,) = result.warnings
    assert "kd and ft on glue/stsb" in warning and "not right or wrong" in warning


def test_a_study_without_results_says_what_can_be_compared(tmp_path):
    (tmp_path / "study.yaml").touch()
    with pytest.raises(RunError, match=r"has no results yet.*runs"):
        compare_paths([tmp_path])


def test_settings_without_a_score_are_counted(tmp_path):
    searched = [{"point": {"a.b": 1}, "score": 0.7}, {"point": {"a.b": 2}, "score": None}]
    entries = [{"label": "ft", "scores": FT}, {"label": "kd", "scores": KD, "chosen": {"a.b": 1}, "searched": searched}]
    assert (
        "Chosen: kd: b 1 (1 of 2 settings have no score)." in compare_paths([make_study(tmp_path, entries)]).table.notes
    )


def test_the_teacher_of_a_study_that_was_moved_is_one(tmp_path):
    entries = [{"label": "ft", "scores": FT}, {"label": "kd", "scores": KD}]
    study = make_study(tmp_path, entries, teachers={"glue/rte": "teachers/ft-s0-1a2b"})
    make_run(tmp_path / "teachers" / "ft-s0-1a2b", "ft", 0, 0.8)
    for number, file in enumerate(sorted(tmp_path.glob("runs/*/*/recipe.yaml"))):
        place = "before" if number % 2 else tmp_path
        file.write_text(file.read_text().replace("runs/teacher", f"{place}/teachers/ft-s0-1a2b"))
    result = compare_paths([study])
    assert cells(result, "teacher")[-1] == "80.00" and not any("2 teachers" in note for note in result.table.notes)

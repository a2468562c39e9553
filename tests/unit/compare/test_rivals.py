"""Check the rows of trivial rivals, and that a student which is not better is called that."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.fake_runs import classes, make_run, make_study

from limbeck.compare.comparison import compare_paths
from limbeck.compare.tables import render
from limbeck.stats import paired_bootstrap

LABELS = [number % 2 for number in range(200)]


def answering(right, seed=0):
    """Return predictions of which so many are right."""
    wrong = set(np.random.default_rng(seed).permutation(len(LABELS))[right:].tolist())
    return [1 - label if row in wrong else label for row, label in enumerate(LABELS)]


def keep_rivals(owner, rivals, task="glue/rte", left_out=None, splits=("train", "validation")):
    """Write what 'limbeck rivals' keeps, for rivals by name with their predictions."""
    folder = owner / "rivals" / task.replace("/", "-")
    folder.mkdir(parents=True)
    rows = []
    for number, (name, predictions) in enumerate(rivals.items()):
        score = float(np.mean(np.array(predictions) == LABELS))
        rows.append({"name": name, "about": f"about {name}", "metrics": {"accuracy": score}, "parameters": 1000})
        pq.write_table(pa.table(classes(LABELS, predictions)), folder / f"{number}-validation.parquet")
    digest = {"rows": 200, "texts": "t", "labels": "l", "content": "c"}
    data = {"labels": ["no", "yes"], "splits": dict.fromkeys(splits, digest)}
    record = {"asked": {}, "data": data, "model": "", "rivals": rows, "left_out": left_out or {}}
    (folder / "rivals.json").write_text(json.dumps(record))
    return folder


def student(folder, right, method="kd", seed=1):
    answers = classes(LABELS, answering(right, seed=seed + 10))
    return make_run(folder, method, seed, right / 200, answers=answers, examples=200)


def test_rows_stand_between_the_majority_and_the_teacher_and_a_student_that_loses_is_called_that(tmp_path):
    runs = [student(tmp_path / "kd1", 150, "kd", 1), student(tmp_path / "kd2", 154, "kd", 2)]
    runs += [student(tmp_path / "fsd1", 196, "fsd", 1), student(tmp_path / "fsd2", 198, "fsd", 2)]
    rival = answering(168)
    keep_rivals(runs[0], {"linear on TF-IDF": rival, "linear on frozen tiny, 3 layers": answering(120)})
    result = compare_paths(runs)
    names = [row[0].text for row in result.table.rows]
    assert names == [
        "majority class", "linear on TF-IDF", "linear on frozen tiny, 3 layers", "teacher", "kd", "fsd"
    ]  # fmt: skip
    assert result.table.rows[1][2].text == "84.00" and result.table.rows[1][1].text == "1.0 k"
    assert [verdict.label for verdict in result.verdicts] == ["kd"]
    both = [np.array(answering(150, 11)), np.array(answering(154, 12))]
    test = paired_bootstrap("accuracy", both, [np.array(rival)], np.array(LABELS), resamples=2000)
    said = result.table.notes[0]
    assert said == (
        "kd is not better than a linear model on TF-IDF (76.00 against 84.00, 95% interval of the difference "
        f"{100 * test.low:.2f} to {100 * test.high:.2f})."
    )
    assert "linear on TF-IDF: about linear on TF-IDF." in result.table.notes
    assert "not better than" in render(result.table, "markdown") and "84.00" in render(result.table, "csv")
    assert not any("limbeck rivals" in note for note in result.table.notes)


def test_ahead_within_noise_is_not_better_and_beyond_it_is(tmp_path):
    near, far = student(tmp_path / "near", 170), student(tmp_path / "far", 199, "fsd")
    keep_rivals(near, {"linear on TF-IDF": answering(168)})
    assert [verdict.label for verdict in compare_paths([near, far], test="welch").verdicts] == ["kd"]
    result = compare_paths([near, far])  # example by example
    assert [verdict.label for verdict in result.verdicts] == ["near"]
    assert any(
        note.startswith("near is not better than a linear model on TF-IDF (85.00") for note in result.table.notes
    )


def test_where_none_are_kept_one_line_says_how_to_get_them(tmp_path):
    run = student(tmp_path / "kd", 150)
    notes = [note for note in compare_paths([run]).table.notes if "limbeck rivals" in note]
    assert notes == [
        "What linear models score on glue/rte is not known: 'limbeck rivals', with the same paths, adds it."
    ]
    text = make_run(tmp_path / "text", "kd", 1, {"perplexity": 9.0}, task="text", majority={})
    assert not any("limbeck rivals" in note for note in compare_paths([text]).table.notes)


def test_what_was_left_out_is_said_and_damage_is_too(tmp_path):
    run = student(tmp_path / "kd", 150)
    folder = keep_rivals(run, {}, left_out={"linear on TF-IDF": "the texts are empty"})
    assert "No row for linear on TF-IDF on glue/rte: the texts are empty." in compare_paths([run]).table.notes
    (folder / "rivals.json").write_text("{")
    assert any("rivals.json does not hold" in note for note in compare_paths([run]).table.notes)


def test_rivals_of_other_data_are_not_shown(tmp_path):
    run = student(tmp_path / "kd", 150)
    keep_rivals(run, {"linear on TF-IDF": answering(168)})
    split = {"rows": 200, "texts": "other", "labels": "l", "content": "other"}
    (run / "data.json").write_text(json.dumps({"labels": ["no", "yes"], "splits": {"validation": split}}))
    result = compare_paths([run])
    assert not result.verdicts and any("limbeck rivals" in note for note in result.table.notes)


def test_a_study_has_its_own(tmp_path):
    study = make_study(tmp_path / "study", [{"label": "ft", "scores": [0.6, 0.61]}, {"label": "kd", "scores": [0.9]}])
    keep_rivals(study, {"linear on TF-IDF": answering(140)})
    result = compare_paths([study])
    assert [row[0].text for row in result.table.rows][1] == "linear on TF-IDF"
    # these runs keep no predictions: the means alone are compared
    assert [(verdict.label, verdict.low) for verdict in result.verdicts] == [("ft", None)]
    assert "not tested" in result.table.notes[0]


@pytest.mark.parametrize("many", [False, True])
def test_a_report_opens_with_it(tmp_path, many):
    pytest.importorskip("jinja2")
    from limbeck.report.page import write_report

    methods = ["kd", "fsd", "cka", "pkd"] if many else ["kd"]
    runs = [student(tmp_path / method, 150, method) for method in methods]
    keep_rivals(runs[0], {"linear on TF-IDF": answering(168)})
    write_report(runs, tmp_path / "page.html")
    page = " ".join((tmp_path / "page.html").read_text().split())
    opening = page[page.index("<h2>Summary</h2>") : page.index("<table")]
    said = (
        "4 of 4 students are not better than a linear model on TF-IDF (84.00): kd, fsd, cka and pkd."
        if many
        else "kd is not better than a linear model on TF-IDF (75.00 against 84.00, 95% interval"
    )
    assert "The dashed line is a linear model on TF-IDF." in page
    assert said in opening and '<th scope="row">linear on TF-IDF</th>' in page

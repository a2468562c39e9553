"""Check the tables that papers print of the same scores, against sums by hand and the papers' own numbers."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.fake_runs import make_study

from limbeck.compare.comparison import compare_paths

TASKS = ("wnli", "rte", "cola", "sst2", "qnli")
# Jung et al. 2023, table 4, FSD (w/o IG): the change of each number, and the average that is printed below
PRINTED = [-1.02, -0.45, -8.14, -0.57, -0.56, -0.03, -0.08, -0.10, -0.24, 0.00, 0.01, -0.08, -0.47]


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_changes_relative_to_a_method_and_their_average(tmp_path):
    numbers = [(f"t{number}", 0.5 + number / 40, change) for number, change in enumerate(PRINTED)]
    entries = [
        {"task": task, "label": label, "scores": [score * (1 + change / 100 * (label != "FSD"))] * 2}
        for task, score, change in numbers
        for label in ("FSD", "w/o IG")
    ]
    (table,) = compare_paths([make_study(tmp_path / "s", entries, baselines=[], relative_to="FSD")]).further
    assert table.head == ("score", "w/o IG") and table.rules == {len(PRINTED)}
    assert [row[1] for row in texts(table)[:-1]] == [f"{change:+.2f}%" for change in PRINTED]
    assert texts(table)[-1] == ["average", "-0.90%"]


def test_changes_are_of_means_over_seeds(tmp_path):
    entries = [{"label": "FSD", "scores": [0.7, 0.9]}, {"label": "kd", "scores": [0.5, 0.7, 0.6]}]
    (table,) = compare_paths([make_study(tmp_path / "s", entries, baselines=[], relative_to="FSD")]).further
    assert texts(table) == [["accuracy", "-25.00%"], ["average", "-25.00%"]]


def test_the_deviation_over_pooled_runs(tmp_path):
    rng = np.random.default_rng(0)
    scores = {f"L, batch {size}": list(rng.normal(0.8 + size / 1000, 0.01, 6)) for size in (8, 16, 32)}
    entries = [{"label": label, "scores": values} for label, values in scores.items()]
    study = make_study(tmp_path / "s", entries, baselines=[], pooled={"L": list(scores)})
    (table,) = compare_paths([study]).further
    expected = 100 * np.std(np.concatenate(list(scores.values())), ddof=1)
    assert texts(table) == [["L", f"{expected:.2f}"]]
    assert "over 18 runs" in table.notes[0]


def test_the_average_over_tasks_names_what_is_missing(tmp_path):
    entries = [{"task": f"glue/{task}", "label": "kd", "scores": [0.5]} for task in TASKS]
    (table,) = compare_paths([make_study(tmp_path / "s", entries, baselines=[], average="fcd")]).further
    assert texts(table) == [["kd", "missing mnli, qqp, stsb, mrpc, cola (mcc)"]]


@pytest.mark.parametrize("settings", [{}, {"relative_to": None, "pooled": {}, "average": None}])
def test_a_study_without_wishes_has_one_table(tmp_path, settings):
    study = make_study(tmp_path / "s", [{"label": "kd", "scores": [0.5, 0.6]}], baselines=[], **settings)
    assert compare_paths([study]).further == []

"""Run ``limbeck compare`` as a user does, on run directories and studies that were written by hand."""

from __future__ import annotations

import csv
import io

import pytest
from helpers.fake_runs import classes, make_run, make_runs, make_study

FT, KD = [0.60, 0.61, 0.62], [0.70, 0.71, 0.72]


@pytest.fixture()
def runs(tmp_path):
    make_runs(tmp_path / "runs", "ft", FT)
    make_runs(tmp_path / "runs", "kd", KD)
    return tmp_path / "runs"


def test_a_folder_of_runs(command, runs):
    status, shown = command("compare", runs, "--baseline", "ft")
    assert status == 0
    assert "glue/rte, validation data" in shown and "61.00 ± 1.00" in shown and "71.00 ± 1.00†" in shown
    assert "majority class" in shown and "teacher" in shown and "†: better than ft" in shown
    assert "†" not in command("compare", runs)[1]


def test_csv_can_be_piped(limbeck, runs):
    shown = limbeck("compare", runs, "--baseline", "ft", "--format", "csv").stdout
    assert list(csv.reader(io.StringIO(shown)))[-1] == ["kd", "67.0 M", "71.00 ± 1.00†"]


@pytest.mark.parametrize(
    ("name", "part"), [("t.md", "| kd  "), ("t.tex", r"\begin{tabular}{lrr}"), ("t.csv", "kd,67.0 M,")]
)
def test_the_output_file_tells_the_form(command, runs, tmp_path, name, part):
    status, shown = command("compare", runs, "-o", tmp_path / "out" / name)
    text = (tmp_path / "out" / name).read_text(encoding="utf-8")
    assert status == 0 and "Written" in shown and part in text and text.endswith("\n") and not text.endswith("\n\n")


def test_format_wins_over_the_file_name(command, runs, tmp_path):
    assert command("compare", runs, "-o", tmp_path / "t.txt", "--format", "markdown")[0] == 0
    assert "| kd " in (tmp_path / "t.txt").read_text(encoding="utf-8")


def test_two_runs(command, tmp_path):
    labels = [0, 1] * 10
    a = make_run(tmp_path / "kd-s1", "kd", 1, 1.0, answers=classes(labels, labels), examples=20)
    b = make_run(tmp_path / "ft-s1", "ft", 1, 0.7, answers=classes(labels, labels[:14] + [1, 0] * 3), examples=20)
    status, shown = command("compare", a, b)
    assert status == 0 and "+30.00" in shown and "McNemar, exact, 6 and 0 of 20 differ: p = 0.031" in shown
    assert "The two predict the same in 70.00%" in shown


def test_a_study_brings_its_baselines_and_options_replace_them(command, tmp_path):
    entries = [{"label": "ft", "scores": FT}, {"label": "kd", "scores": KD}, {"label": "fsd", "scores": KD}]
    study = make_study(tmp_path / "study", entries, baselines=["ft", "kd"], sided="observed")
    shown = command("compare", study)[1]
    assert "‡: better than kd" in shown and "one-sided towards the side that is ahead" in shown
    shown = command("compare", study, "--baseline", "kd", "--sided", "two", "--level", "0.01", "--no-holm")[1]
    assert "†: better than kd" in shown and "p < 0.01" in shown and "two-sided, not corrected for 2 tests" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--baseline", "kdd"), "Unknown baseline 'kdd'. Did you mean 'kd'?"),
        (("--test", "ttest"), "Unknown test 'ttest'."),
        (("--sided", "left"), "Unknown side 'left'."),
        (("--metric", "f1"), "Unknown metric 'f1'."),
        (("--level", "5"), "between 0 and 1"),
        (("--format", "html"), "Unknown format 'html'."),
        (("-o", "table.doc"), "table.doc: which form?"),
        (("--baseline", "ft", "--test", "mcnemar"), "keep no predictions"),
    ],
)
def test_mistakes_are_one_message(command, runs, words, message):
    status, shown = command("compare", runs, *words)
    assert status == 1 and message in shown and shown.count("Error:") == 1


def test_no_runs(command, tmp_path):
    assert "is no folder" in command("compare", tmp_path / "nothing")[1]
    (tmp_path / "empty").mkdir()
    assert "holds neither a run, nor runs" in command("compare", tmp_path / "empty")[1]


def test_details_show_intervals_and_p(command, runs, tmp_path):
    words = ("compare", runs, "--baseline", "ft", "--details")
    status, _ = command(*words, "-o", tmp_path / "all.csv")
    tables = (tmp_path / "all.csv").read_text(encoding="utf-8").split("\n\n")
    assert status == 0 and len(tables) == 3
    # the interval is 1.00 x 4.303 / sqrt(3) to both sides; t = 10 / (1.00 x sqrt(2 / 3)) with 4 degrees of freedom
    assert "glue/rte,accuracy,kd,3,71.00,1.00,68.52 to 73.48" in tables[1]
    assert tables[2].splitlines()[1].startswith("glue/rte,accuracy,kd and ft,")
    assert tables[2].splitlines()[1].endswith(",10.00,7.73 to 12.27,0.0003,0.0003")
    assert "Scores over seeds" in command(*words)[1]

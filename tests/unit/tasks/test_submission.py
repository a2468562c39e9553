"""What GLUE's server takes, byte for byte; the archive; the averages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from helpers.glue_files import SCORES, write_glue
from helpers.paths import SHARED

from limbeck.compare.glue_table import AVERAGES, glue_average, mean_scores, missing_scores, read_glue_scores
from limbeck.errors import DataError, RecipeError, RunError
from limbeck.tasks import load_task
from limbeck.tasks.glue import GLUE, GlueTask
from limbeck.tasks.submission import GLUE_FILES, check_folder, glue_files, write_submission

REAL = SHARED / "data" / "glue"
FIRST, SECOND, THIRD = [5.0, 0.0, -1.0], [0.0, 5.0, 1.0], [0.0, 1.0, 9.0]


def submit(task, split, logits, ids=None):
    return task.submission(split, np.array(logits), {"id": ids or list(range(len(logits)))})


def load(tmp_path, name, **options) -> GlueTask:
    return load_task(f"glue/{name}", data_dir=str(write_glue(tmp_path, name, **options)))


@pytest.mark.parametrize(
    ("name", "file", "first", "second"),
    [
        ("cola", "CoLA.tsv", "0", "1"),
        ("sst2", "SST-2.tsv", "0", "1"),
        ("mrpc", "MRPC.tsv", "0", "1"),
        ("qqp", "QQP.tsv", "0", "1"),
        ("qnli", "QNLI.tsv", "entailment", "not_entailment"),
        ("rte", "RTE.tsv", "entailment", "not_entailment"),
        ("wnli", "WNLI.tsv", "0", "1"),
    ],
)
def test_two_classes(tmp_path, name, file, first, second):
    task = load(tmp_path, name)
    files = submit(task, "test", [FIRST[:2], SECOND[:2], SECOND[:2], FIRST[:2]])
    assert files == {file: f"index\tprediction\n0\t{first}\n1\t{second}\n2\t{second}\n3\t{first}\n"}
    # what is written is what a labelled file of the task would say
    assert task.split("train")["label"][:2] == [GLUE[name].written.index(label) for label in GLUE[name].written]


def test_wnli_writes_1_for_entailment(tmp_path):
    task = load(tmp_path, "wnli")
    assert task.label_names[1] == "entailment"
    assert submit(task, "test", [[0.0, 1.0]])["WNLI.tsv"].endswith("\t1\n")


@pytest.mark.parametrize(
    ("split", "file"), [("test", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv"), ("diagnostic", "AX.tsv")]
)
def test_mnli_and_its_diagnostic_set(tmp_path, split, file):
    files = submit(load(tmp_path, "mnli"), split, [THIRD, FIRST, SECOND])
    assert files == {file: "index\tprediction\n0\tcontradiction\n1\tentailment\n2\tneutral\n"}


def test_stsb_is_clipped_and_has_three_decimals(tmp_path):
    logits = np.array([[2.34567], [-0.7], [5.2], [4.9996], [-0.0], [-0.0001], [3.0]], dtype=np.float32)
    files = submit(load(tmp_path, "stsb"), "test", logits)
    cells = ["2.346", "0.000", "5.000", "5.000", "0.000", "0.000", "3.000"]
    assert files == {"STS-B.tsv": "index\tprediction\n" + "".join(f"{i}\t{cell}\n" for i, cell in enumerate(cells))}


@pytest.mark.parametrize(("name", "logits"), [("rte", [[1.0, 0.0], [np.nan, 1.0]]), ("stsb", [[1.0], [np.inf]])])
def test_a_diverged_model_submits_nothing(tmp_path, name, logits):
    with pytest.raises(DataError, match=rf"1 predictions for glue/{name} test are not finite"):
        submit(load(tmp_path, name), "test", logits)


def test_what_is_submitted_together(tmp_path, caplog):
    (tmp_path / "diagnostic").mkdir()
    (tmp_path / "diagnostic" / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tA\tB\n")
    task = load(tmp_path, "mnli")
    assert task.submission_splits("test") == ("test", "test_mismatched", "diagnostic")
    assert task.submission_splits("test_mismatched") == ("test_mismatched",)
    assert task.submission_splits("diagnostic") == ("diagnostic",)
    assert not caplog.records
    assert task.submission_splits("validation") == ("validation",)
    assert "add --split test" in caplog.text
    assert load(tmp_path / "other", "rte").submission_splits("test") == ("test",)


def test_mnli_with_one_of_its_test_files_or_none(tmp_path):
    assert load(tmp_path / "a", "mnli", without=("test_matched",)).submission_splits("test") == ("test_mismatched",)
    (tmp_path / "b" / "AX").mkdir(parents=True)
    (tmp_path / "b" / "AX" / "AX.tsv").write_text("index\tsentence1\tsentence2\n0\tA\tB\n")
    task = load(tmp_path / "b", "mnli", without=("test_matched", "test_mismatched"))
    with pytest.raises(DataError, match="no split 'test'"):  # the diagnostic set alone is no submission of MNLI
        task.submission_splits("test")


@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_damaged_test_row_is_never_left_out_in_silence(tmp_path, place, caplog):
    file = write_glue(tmp_path, "qqp", rows=4) / "QQP" / "test.tsv"
    lines = file.read_text().splitlines()
    lines.insert(3 if place == "middle" else len(lines), "4\thalf a row")
    file.write_text("".join(f"{line}\n" for line in lines))
    task = load_task("glue/qqp", data_dir=str(tmp_path))
    assert "1 damaged rows" in caplog.text
    assert len(task.split("test")) == 4  # training is possible
    with pytest.raises(DataError, match="Rows of glue/qqp test are damaged"):
        task.submission_splits("test")
    file.write_text("".join(f"{line}\n" for line in lines if "half" not in line))
    assert load_task("glue/qqp", data_dir=str(tmp_path)).submission_splits("test") == ("test",)


def test_the_index_is_the_rows_id(tmp_path):
    """Whatever order the rows come in, each prediction stays with its row."""
    files = submit(load(tmp_path, "sst2"), "test", [FIRST[:2], SECOND[:2]], ids=[7, 3])
    assert files["SST-2.tsv"] == "index\tprediction\n7\t0\n3\t1\n"


def test_a_task_without_an_official_evaluation(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\nc,x\nd,y\n")
    task = load_task("table", train=str(tmp_path / "train.csv"), text="text", label="label")
    with pytest.raises(RecipeError, match="table has no official evaluation to submit to"):
        task.submission("validation", [], [])


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="real GLUE data are not at ../shared/data/glue")
@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("cola", "CoLA.tsv", 1063),
        ("sst2", "SST-2.tsv", 1821),
        ("mrpc", "MRPC.tsv", 1725),
        ("stsb", "STS-B.tsv", 1379),
        ("rte", "RTE.tsv", 3000),
        ("wnli", "WNLI.tsv", 146),
    ],
)
def test_real_test_files(name, file, rows):
    task = load_task(f"glue/{name}", data_dir=str(REAL))
    assert task.submission_splits("test") == ("test",)
    logits = np.random.default_rng(0).normal(size=(rows, task.num_labels))
    content = task.submission("test", logits, task.split("test"))[file]
    table = [line.split("\t") for line in content.splitlines()]
    assert table[0] == ["index", "prediction"]
    lines = (REAL / GLUE[name].folder / "test.tsv").read_text(encoding="utf-8").rstrip().split("\n")
    official = [line.split("\t")[0] for line in lines]
    assert [row[0] for row in table[1:]] == official[1:]  # its own column 'index'
    assert content.endswith("\n") and "\r" not in content


# The folder and its archive


def test_the_archive_is_flat_sorted_complete_and_the_same_every_time(tmp_path):
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_submission(folder, {"RTE.tsv": "rte\n", "AX.tsv": "ax\n"})
        write_submission(folder, {"CoLA.tsv": "cola\n"})
        (folder / "notes.txt").write_text("mine")
        write_submission(folder, {"RTE.tsv": "rte again\n"})
    with ZipFile(tmp_path / "one" / "submission.zip") as archive:
        assert archive.namelist() == ["AX.tsv", "CoLA.tsv", "RTE.tsv"]
        assert archive.read("RTE.tsv") == b"rte again\n"
        assert archive.testzip() is None
    digests = {
        hashlib.sha256((tmp_path / folder / "submission.zip").read_bytes()).hexdigest() for folder in ("one", "two")
    }
    assert len(digests) == 1
    there, missing = glue_files(tmp_path / "one")
    assert there == ["CoLA.tsv", "RTE.tsv", "AX.tsv"] and len(missing) == 8 and "MNLI-mm.tsv" in missing
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        *("AX.tsv", "CoLA.tsv", "RTE.tsv", "notes.txt", "submission.zip")
    ]


def test_other_evaluations_get_no_archive_and_a_file_is_no_folder(tmp_path):
    write_submission(tmp_path / "squad", {"predictions.json": "{}"})
    assert [path.name for path in (tmp_path / "squad").iterdir()] == ["predictions.json"]
    check_folder(tmp_path / "squad")
    check_folder(tmp_path / "new")
    with pytest.raises(RecipeError, match="must be a folder"):
        check_folder(tmp_path / "squad" / "predictions.json")


def test_the_server_takes_eleven_files(tmp_path):
    assert len(set(GLUE_FILES)) == 11
    written = [f"{spec.folder}.tsv" for name, spec in GLUE.items() if name != "mnli"]
    assert set(GLUE_FILES) == {*written, "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"}


# Averages


def test_averages_by_hand():
    nine = 0.1 + 0.9 + 0.85 + 0.7 + 0.62 + 0.82 + 0.75 + 0.65 + 0.4
    assert glue_average(SCORES, "glue") == pytest.approx(nine / 9)
    eight = 0.9 + 0.84 + 0.75 + 0.54 + 0.65 + 0.8 + 0.9 + 0.1
    assert glue_average(SCORES, "fcd") == pytest.approx(eight / 8)
    without_wnli = {task: values for task, values in SCORES.items() if task != "wnli"}
    assert glue_average(without_wnli, "fcd") == pytest.approx(eight / 8)


@pytest.mark.parametrize(
    ("row", "printed"),
    [  # SST-2, MNLI-m, QNLI, QQP, RTE, STS-B, MRPC, CoLA and AVG of Huang et al. 2023, table 1
        ((93.4, 84.5, 91.5, 72.3, 66.8, 85.2, 88.3, 52.8), 79.3),
        ((92.0, 81.5, 89.0, 70.7, 65.5, 81.6, 85.0, 43.5), 76.1),
        ((92.8, 83.8, 91.3, 72.0, 71.7, 84.8, 89.1, 52.0), 79.6),
        ((93.8, 85.6, 92.0, 73.5, 72.5, 88.3, 89.6, 60.3), 81.9),
    ],
)
def test_the_average_of_huang_2023_is_the_one_they_print(row, printed):
    scores = {
        task: dict.fromkeys(names, value) for (task, names), value in zip(AVERAGES["fcd"].items(), row, strict=True)
    }
    assert printed - 0.01 <= glue_average(scores, "fcd") < printed + 0.1  # the paper cuts, it does not round


def test_missing_tasks_and_metrics_are_named():
    scores = {task: values for task, values in SCORES.items() if task not in ("cola", "wnli")}
    scores["mnli"] = {"accuracy": 0.8}
    assert missing_scores(scores, "glue") == ["cola", "mnli (accuracy_mismatched)", "wnli"]
    assert missing_scores(scores, "fcd") == ["cola"]
    with pytest.raises(DataError, match=r"'glue' cannot be computed: cola, mnli \(accuracy_mismatched\), wnli missing"):
        glue_average(scores, "glue")
    with pytest.raises(RecipeError, match=r"Unknown average 'fdc'. Did you mean 'fcd'"):
        glue_average(SCORES, "fdc")


def finished(folder: Path, task: str, method: str = "kd", **metrics: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"task": task, "method": method, "metrics": metrics}))
    return folder


def test_seeds_of_a_task_are_averaged(tmp_path):
    runs = [
        finished(tmp_path / "rte-0", "glue/rte", accuracy=0.6),
        finished(tmp_path / "cola", "glue/cola", mcc=0.5),
        finished(tmp_path / "rte-1", "glue/rte", accuracy=0.7),
        finished(tmp_path / "mnli-0", "glue/mnli", accuracy=0.8, accuracy_mismatched=0.9),
        finished(tmp_path / "mnli-1", "glue/mnli", accuracy=0.6),
    ]
    found = read_glue_scores(runs)
    assert {task: len(each) for task, each in found.items()} == {"cola": 1, "mnli": 2, "rte": 2}
    assert list(found) == ["cola", "mnli", "rte"]  # GLUE's order
    scores = mean_scores(found)
    assert scores["rte"] == {"accuracy": pytest.approx(0.65)}
    assert scores["mnli"] == {"accuracy": pytest.approx(0.7)}  # only one of them has the other


def test_folders_that_are_no_finished_runs_of_glue(tmp_path):
    good = finished(tmp_path / "good", "glue/rte", accuracy=0.6)
    with pytest.raises(RunError, match="nothing is no finished run: there is no such folder"):
        read_glue_scores([good, tmp_path / "nothing"])
    (tmp_path / "half").mkdir()
    with pytest.raises(RunError, match=r"half is no finished run: it has no metrics\.json"):
        read_glue_scores([tmp_path / "half"])
    for content in ("{}", "[1]", '{"task'):
        (tmp_path / "half" / "metrics.json").write_text(content)
        with pytest.raises(RunError, match=r"metrics\.json does not hold the results of a run"):
            read_glue_scores([tmp_path / "half"])
    with pytest.raises(RunError, match="other is a run of table, which is no GLUE task"):
        read_glue_scores([good, finished(tmp_path / "other", "table", accuracy=0.6)])
    with pytest.raises(RunError, match=r"good \(kd\) and .*ft \(ft\) are runs of glue/rte by different methods"):
        read_glue_scores([good, finished(tmp_path / "ft", "glue/rte", "ft", accuracy=0.6)])

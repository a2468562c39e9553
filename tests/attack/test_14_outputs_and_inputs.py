"""Line 14: a file that appeared meanwhile is not replaced, and no command writes over what it reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from helpers.fake_runs import make_run
from helpers.tiny_tables import sentences, write_csv

import limbeck.inference.predict as predict_module
from limbeck.errors import RecipeError
from limbeck.inference.predict import predict_file
from limbeck.tasks.submission import check_folder

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture()
def texts(tmp_path):
    return write_csv(tmp_path / "texts.csv", sentences(6))


@pytest.fixture()
def meanwhile(monkeypatch):
    """Write a file while predictions are made."""

    def meanwhile(file: Path) -> None:
        real = predict_module.logits_in_order

        def slow(*given, **options):
            file.write_text("mine")
            return real(*given, **options)

        monkeypatch.setattr(predict_module, "logits_in_order", slow)

    return meanwhile


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appeared_meanwhile_stays(links, meanwhile, command, teacher_folder, texts, tmp_path, monkeypatch):
    if not links:  # as on FAT

        def refused(*_, **__):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    output = tmp_path / "out.csv"
    (tmp_path / "out-1.csv").write_text("mine, too")
    meanwhile(output)
    code, said = command("predict", teacher_folder, texts, "--text", "text", "-o", "out.csv")
    assert code == 1 and "out.csv appeared meanwhile and was not replaced" in said and "out-2.csv" in said
    assert output.read_text() == "mine" and (tmp_path / "out-1.csv").read_text() == "mine, too"
    assert len((tmp_path / "out-2.csv").read_text().splitlines()) == 7  # hours of work are not thrown away
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1.csv", "out-2.csv", "out.csv", "texts.csv"]


def test_force_replaces_it(meanwhile, command, teacher_folder, texts, tmp_path):
    meanwhile(tmp_path / "out.csv")
    assert command("predict", teacher_folder, texts, "--text", "text", "-o", "out.csv", "--force")[0] == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", ["texts.csv", "./texts.csv", "symbolic.csv", "hard.csv"])
def test_predictions_never_replace_their_texts(name, force, command, teacher_folder, texts, tmp_path, monkeypatch):
    (tmp_path / "symbolic.csv").symlink_to(texts)
    os.link(texts, tmp_path / "hard.csv")
    before = texts.read_bytes()
    monkeypatch.setattr(predict_module, "load_served", lambda *_: pytest.fail("asked before any work"))
    words = ["predict", teacher_folder, texts, "--text", "text", "-o", name, *(["--force"] if force else [])]
    code, said = command(*words)
    assert code == 1 and "which is read here and would be lost" in said
    assert texts.read_bytes() == before and (tmp_path / "symbolic.csv").is_symlink()


def test_nor_does_the_function(teacher_folder, texts):
    before = texts.read_bytes()
    with pytest.raises(Exception, match="which is read here"):
        predict_file(teacher_folder, texts, texts, text=["text"])
    assert texts.read_bytes() == before


@pytest.fixture()
def run(tmp_path):
    folder = make_run(tmp_path / "runs" / "kd", "kd", 1, 0.5)
    (folder / "history.jsonl").write_text("{}\n")
    (folder / "student").mkdir()
    (folder / "student" / "config.json").write_text("{}")
    return folder


COMMANDS = {
    "compare": ("compare", "runs/kd", "--format", "csv", "-o", "runs/kd/metrics.json"),
    "compare, the recipe": ("compare", "runs", "--format", "csv", "-o", "runs/kd/recipe.yaml"),
    "compare, a link": ("compare", "runs/kd", "-o", "link.csv"),
    "report": ("report", "runs/kd", "--no-analyze", "-o", "runs/kd/recipe.yaml"),
    "bench": ("bench", "runs/kd", "-o", "runs/kd/metrics.json"),
    "bench, the model": ("bench", "runs/kd", "-o", "runs/kd/student/config.json"),
    "predict": ("predict", "runs/kd", "texts.csv", "--text", "text", "-o", "runs/kd/history.jsonl", "--force"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_over_a_run(name, command, run, texts, tmp_path):
    (tmp_path / "link.csv").symlink_to(run / "metrics.json")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    code, said = command(*COMMANDS[name])
    assert code == 1 and "would be lost. Choose another file" in said
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_older_outputs_are_replaced_also_inside_a_run(command, run):
    for _ in range(2):
        assert command("compare", "runs/kd", "-o", "runs/kd/table.csv")[0] == 0
        assert command("report", "runs/kd", "--no-analyze", "-o", "runs/kd/report.html")[0] == 0


def test_a_submission_never_replaces_data(tmp_path):
    """Know AX/AX.tsv of the diagnostic data, which has the name of a submitted file, from an older submission."""
    (tmp_path / "AX.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    with pytest.raises(RecipeError, match=r"AX\.tsv is no earlier submission"):
        check_folder(tmp_path)
    (tmp_path / "AX.tsv").write_text("index\tprediction\n0\tentailment\n")
    check_folder(tmp_path)

"""Run studies and the command with tiny models: rows for linear models in results, tables and the page."""

from __future__ import annotations

import json

import pytest
import yaml
from helpers.tiny_recipes import distill_words, table_task
from helpers.tiny_tables import write_csv

from limbeck.compare.entries import read_entries

NAMES = ["linear on TF-IDF", "linear on frozen teacher, 2 layers", "linear on frozen teacher, 4 layers"]


@pytest.fixture()
def study(tmp_path, table_files, teacher_folder):
    """Write a study of one method on a tiny table; its students learn too little to beat anything."""
    task = {key: value for key, value in table_task(table_files).items() if key != "name"}
    train = {"max_steps": 2, "batch_size": 16}
    values = {
        "tasks": ["table"],
        "task": task,
        "teacher": {"model": str(teacher_folder), "train": train, "confirmed": True, "cache": "off"},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": train,
        "methods": ["kd"],
        "seeds": [0, 1],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "study.yaml"


def test_a_study_has_them_in_results_table_and_page_and_makes_them_once(study, command, tmp_path, monkeypatch):
    status, said = command("study", "study.yaml", "--dry-run")
    assert status == 0 and "Linear models on TF-IDF and frozen features" in said and not (tmp_path / "studies").exists()
    status, said = command("study", "study.yaml", "-o", "out")
    assert status == 0, said
    results = json.loads((tmp_path / "out/results.json").read_text())["rivals"]["table"]
    assert [row["label"] for row in results["rows"]] == NAMES and results["why"] == ""
    assert all(name in said for name in NAMES)
    found = read_entries([tmp_path / "out"]).rivals["table"]
    assert [rival.scores for rival in found] == [row["metrics"] for row in results["rows"]]
    assert found[0].scores["accuracy"] > 0.85
    assert "kd is not better than a linear model on TF-IDF" in " ".join(said.split())
    assert "linear on TF-IDF" in (tmp_path / "out/table.md").read_text()
    status, said = command("report", "out", "--no-analyze", "-o", "page.html")
    assert status == 0 and "kd is not better than a linear model" in (tmp_path / "page.html").read_text()

    def refuse(*given, **options):
        raise AssertionError("made again")

    monkeypatch.setattr("limbeck.study.rivals_job.make_rivals", refuse)
    monkeypatch.setattr("limbeck.rivals.of_runs.make_rivals", refuse)
    runs = sorted(path.name for path in (tmp_path / "out/runs").iterdir())
    assert command("study", "study.yaml", "-o", "out")[0] == 0
    assert command("rivals", "out")[0] == 0  # knows the same task, encoder, depths and data
    assert runs == sorted(path.name for path in (tmp_path / "out/runs").iterdir())


def test_a_study_does_not_fail_with_its_rivals(study, command, monkeypatch, tmp_path):
    def fail(*given, **options):
        raise RuntimeError("something broke")

    monkeypatch.setattr("limbeck.study.rivals_job.make_rivals", fail)
    status, said = command("study", "study.yaml", "-o", "out", "seeds=[0]")
    assert status == 0, said
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["entries"][0]["missing"] == 0 and "something broke" in results["rivals"]["table"]["why"]
    assert "limbeck rivals" in said
    assert command("study", "study.yaml", "-o", "without", "seeds=[0]", "rivals=false")[0] == 0
    assert not (tmp_path / "without/rivals").exists()


def test_the_command_keeps_them_beside_runs(command, table_files, teacher_folder, tmp_path):
    assert command("distill", "--method", "kd", *distill_words(table_files, teacher_folder, "-o", "kd"))[0] == 0
    status, said = command("compare", "kd")
    assert status == 0 and "limbeck rivals" in said
    status, said = command("rivals", "kd")
    assert status == 0 and "linear on TF-IDF" in said and "linear on the frozen teacher, 2 layers" in said, said
    kept = tmp_path / "kd/rivals/table/rivals.json"
    before = kept.stat().st_mtime_ns
    assert command("rivals", "kd")[0] == 0 and kept.stat().st_mtime_ns == before
    assert command("rivals", "kd", "--model", teacher_folder)[0] == 0
    assert "linear on frozen teacher, 4 layers" in command("compare", "kd")[1]
    kept.write_text("{")  # damaged: made again
    assert command("rivals", "kd")[0] == 0 and json.loads(kept.read_text())["rivals"]


def test_mistakes_are_one_message(command, table_files, teacher_folder, tmp_path):
    status, said = command("rivals", "nothing-here")
    assert status == 1 and "nothing-here is no folder" in said
    train, dev = (tmp_path / name for name in ("train.csv", "dev.csv"))
    train.write_text(table_files[0].read_text())
    dev.write_text(table_files[1].read_text())
    words = distill_words((train, dev), teacher_folder, "-o", "kd")
    assert command("distill", "--method", "kd", *words)[0] == 0
    status, said = command("rivals", "kd", "--model", "no-such-model")
    assert status == 0 and "has no row for linear on frozen features" in said and "no-such-model" in said
    write_csv(dev, [("a cat", "positive"), ("a dog", "negative")])
    status, said = command("rivals", "kd")
    assert status == 1 and "other data than there are now" in said and "Traceback" not in said

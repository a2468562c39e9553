"""Studies through the command line: every engine comes to the same numbers, and kills cost time and nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.paths import SHARED
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from pyarrow import parquet

from limbeck.models.vocabulary import make_wordpiece
from limbeck.tasks import load_task

GLUE = SHARED / "data" / "glue"
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="real GLUE data are not at ../shared/data/glue")
KILLS = 10


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    """3 methods x 2 settings x 3 seeds on real WNLI, with a model so small that a run takes a second."""
    folder = tmp_path_factory.mktemp("wnli")
    task = load_task("glue/wnli", data_dir=str(GLUE))
    some = task.split("train").select(range(500))
    make_wordpiece((text for column in task.text_columns for text in some[column]), folder / "model", 800)
    tiny_model("bert", depth=4, vocab_size=800).save_pretrained(folder / "model")
    train = {"max_steps": 6, "batch_size": 16, "learning_rate": 1e-3}
    study = {
        "tasks": ["glue/wnli"],
        "task": {"data_dir": str(GLUE), "max_length": 48},
        "teacher": {"model": str(folder / "model"), "train": train},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": train,
        "methods": ["ft", "kd", "fsd"],
        "grid": {"train.learning_rate": [1e-3, 4e-3]},
        "seeds": [1, 2, 3],
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    return folder / "study.yaml"


@pytest.fixture(scope="module")
def done_alone(small_study, tmp_path_factory):
    """The study's folder after one process did all of it."""
    folder = tmp_path_factory.mktemp("alone") / "study"
    process = start(small_study, folder)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return folder


def start(study, folder, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "limbeck", "study", str(study), "-o", str(folder), "--threads", "1", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results_of(folder):
    """What every run found, by its key, without what it cost."""
    found = {}
    for file in sorted(folder.glob("*/*/metrics.json")):
        metrics = read_json(file)
        metrics.pop("train_seconds")
        # the logits too: scores on so few examples are often the same by chance
        logits = parquet.read_table(file.parent / "predictions.parquet").column("logits").to_pylist()
        found[file.parent.name] = (metrics, logits)
    return found


@needs_glue
@pytest.mark.real
def test_one_process_does_it_all(done_alone):
    results = read_json(done_alone / "results.json")
    assert [entry["label"] for entry in results["entries"]] == ["ft", "kd", "fsd"]
    assert all(entry["missing"] == 0 and len(entry["runs"]) == 3 for entry in results["entries"])
    assert len(results_of(done_alone)) == 1 + 3 * 2 * 3
    table = (done_alone / "table.md").read_text()
    for word in ("majority", "teacher", "ft", "kd", "fsd", "±"):
        assert word in table
    assert (done_alone / "table.tex").read_text().count("\\\\") >= 5
    assert len((done_alone / "table.csv").read_text().splitlines()) == 6


@needs_glue
@pytest.mark.real
@pytest.mark.distributed
@pytest.mark.parametrize("engine", [("--workers", "2"), ("--ray", "local")], ids=["workers", "ray"])
def test_every_engine_comes_to_the_same_numbers(small_study, done_alone, tmp_path, engine):
    if "--ray" in engine:
        pytest.importorskip("ray")
    folder = tmp_path / "study"
    process = start(small_study, folder, *engine)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert results_of(folder) == results_of(done_alone)
    assert read_json(folder / "results.json")["entries"] == read_json(done_alone / "results.json")["entries"]
    assert (folder / "table.md").read_text() == (done_alone / "table.md").read_text()


@needs_glue
@pytest.mark.real
@pytest.mark.chaos
@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_a_study_killed_again_and_again_finishes_as_if_it_had_not_been(kills, small_study, done_alone, tmp_path):
    folder, draw = tmp_path / "study", random.Random(0)
    snapshots = {}
    for _ in range(kills):
        kill_after(start(small_study, folder, "--workers", "2"), draw.uniform(1, 10))
        remember(folder, snapshots)
    process = start(small_study, folder)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    remember(folder, snapshots)
    assert results_of(folder) == results_of(done_alone)
    assert read_json(folder / "results.json")["entries"] == read_json(done_alone / "results.json")["entries"]


@pytest.mark.chaos
@pytest.mark.slow
def test_quick_runs_killed_ten_times_are_each_done_once(tmp_path):
    study = {
        "tasks": ["glue/rte", "glue/cola", "glue/mrpc"],
        "teacher": {"model": "big"},
        "student": {"from": "teacher", "keep": "first:3"},
        "methods": {"ft": {}, "kd": {"grid": {"method.temperature": [2, 5]}}, "cka": {}},
        "seeds": [1, 2, 3, 4],
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(study))
    folder, draw, snapshots = tmp_path / "out", random.Random(1), {}
    words = [sys.executable, "-m", "helpers.fake_training", str(tmp_path / "my.yaml"), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "FAKE_SECONDS": "0.25"}

    def begin(workers):
        return subprocess.Popen([*words, workers], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    for _ in range(KILLS):
        process = begin("1")
        begun = len(snapshots)
        while process.poll() is None and len(list(folder.glob("*/*/metrics.json"))) <= begun:
            time.sleep(0.02)
        kill_after(process, draw.uniform(0, 0.5))
        remember(folder, snapshots)
    assert len(snapshots) < 3 + 3 * 4 * 4, "the kills came too late to show anything"
    process = begin("1")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    remember(folder, snapshots)
    assert len(snapshots) == 3 + 3 * 4 * 4
    assert all(entry["missing"] == 0 for entry in read_json(folder / "results.json")["entries"])


def remember(folder, snapshots):
    """A result that is there stays as it is: the run is not done again."""
    for file in folder.glob("*/*/metrics.json"):
        seen = (file.read_text(), file.stat().st_mtime_ns)
        assert snapshots.setdefault(file.parent.name, seen) == seen


def kill_after(process, seconds):
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@needs_glue
@pytest.mark.real
def test_interrupting_says_how_to_go_on(small_study, tmp_path):
    folder = tmp_path / "study"
    process = start(small_study, folder, "--workers", "2")
    deadline = time.monotonic() + 120
    while not list(folder.glob("runs/*/recipe.yaml")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "The same command continues" in said and "Traceback" not in said


@needs_glue
@pytest.mark.real
def test_a_dry_run_shows_the_runs_and_writes_nothing(small_study, done_alone, tmp_path):
    process = start(small_study, tmp_path / "study", "--dry-run")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and not (tmp_path / "study").exists()
    lines = {words[1]: words for line in said.splitlines() if len(words := line.replace("│", " ").split()) >= 6}
    assert lines["kd"][2:5] == ["2", "6", "0"] and lines["teacher"][2:5] == ["1", "1", "0"]
    process = start(small_study, done_alone, "--dry-run")
    said, _ = process.communicate(timeout=120)
    lines = {words[1]: words for line in said.splitlines() if len(words := line.replace("│", " ").split()) >= 6}
    assert lines["kd"][2:5] == ["2", "6", "6"] and lines["teacher"][2:5] == ["1", "1", "1"]


@needs_glue
@pytest.mark.real
def test_a_study_that_cannot_be_finished_says_what_failed(small_study, tmp_path):
    values = yaml.safe_load(small_study.read_text())
    values |= {"methods": ["ft", "cka"], "grid": {}, "seeds": [1]}
    values["methods"] = {"ft": {}, "cka": {"method.layers": [[9, 9]]}}
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(values))
    process = start(file, tmp_path / "study")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "1 runs failed, the first of cka on glue/wnli" in " ".join(said.split())
    assert "Traceback" not in said
    assert len(list((tmp_path / "study" / "failures").iterdir())) == 1
    assert "ft" in (tmp_path / "study" / "table.md").read_text()
    missing = {entry["label"]: entry["missing"] for entry in read_json(tmp_path / "study" / "results.json")["entries"]}
    assert missing == {"ft": 0, "cka": 1}


def test_studies_are_listed(command):
    status, said = command("studies")
    assert status == 0 and "alignment" in said and "alignment/small" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("study", "nothing"), "Unknown study 'nothing'"),
        (("study", "alignment/smal"), "Did you mean 'small'"),
        (("study", "alignment", "seeds=7"), "seeds"),
        (("study", "alignment", "--ray", "local", "--workers", "2"), "exclude each other"),
    ],
)
def test_mistakes_are_one_message(command, words, message):
    status, said = command(*words)
    assert status == 1 and message in said


@pytest.mark.parametrize(
    ("source", "folder"), [("alignment/small", "studies/alignment-small"), ("mine.yaml", "studies/mine")]
)
def test_each_study_has_a_folder_of_its_own(command, tmp_path, monkeypatch, source, folder):
    seen = []
    monkeypatch.setattr("limbeck.study.conduct.conduct", lambda study, where, *_: seen.append(where) or {"entries": []})
    monkeypatch.setattr("limbeck.cli.main.show_study", lambda where: None)
    (tmp_path / "mine.yaml").write_text(
        "tasks: [glue/rte]\nteacher: {model: m}\nstudent: {model: s}\nmethods: [ft]\nseeds: [1]\n"
    )
    status, said = command("study", source)
    assert status == 0 and seen == [Path(folder)], said


def test_ray_refuses_more_threads_than_it_has(command):
    pytest.importorskip("ray")
    status, said = command("study", "alignment", "--ray", "local", "--threads", "10000")
    assert status == 1 and "has" in said and "CPUs in all" in said

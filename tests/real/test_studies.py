"""Do a study on real data: every engine comes to the same numbers, and kills cost time and nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from helpers.in_process import run_command
from helpers.killing import kill_in, remember
from helpers.real_data import needs_glue
from helpers.saved_runs import read_json
from helpers.wnli_study import write_wnli_study
from pyarrow import parquet

pytestmark = [pytest.mark.real, needs_glue]


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    """Write a study of 3 methods x 2 settings x 3 seeds."""
    train = {"max_steps": 6, "batch_size": 16, "learning_rate": 1e-3}
    grid = {"train.learning_rate": [1e-3, 4e-3]}
    folder = tmp_path_factory.mktemp("wnli")
    return write_wnli_study(folder, train, methods=["ft", "kd", "fsd"], grid=grid, seeds=[1, 2, 3])


@pytest.fixture(scope="module")
def done_alone(small_study, tmp_path_factory):
    """Return the study's folder after one process, this one, did all of it."""
    folder = tmp_path_factory.mktemp("alone") / "study"
    code, said = here(small_study, folder)
    assert code == 0, said
    return folder


def here(study, folder, *words):
    return run_command("study", study, "-o", folder, "--threads", "1", *words)


def start(study, folder, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "limbeck", "study", str(study), "-o", str(folder), "--threads", "1", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results_of(folder):
    """Return what every run found, by its key, without what it cost."""
    found = {}
    for file in sorted(folder.glob("*/*/metrics.json")):
        metrics = read_json(file)
        metrics.pop("train_seconds")
        # the logits too: scores on so few examples are often the same by chance
        logits = parquet.read_table(file.parent / "predictions.parquet").column("logits").to_pylist()
        found[file.parent.name] = (metrics, logits)
    return found


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


@pytest.mark.slow  # of studies of quick runs, the usual run tests the workers
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


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 10])
def test_a_study_killed_again_and_again_finishes_as_if_it_had_not_been(kills, small_study, done_alone, tmp_path):
    folder, draw = tmp_path / "study", random.Random(0)
    snapshots = {}
    for _ in range(kills):
        kill_in(draw.uniform(1, 10), start(small_study, folder, "--workers", "2"))
        remember(folder, snapshots)
    code, said = here(small_study, folder)
    assert code == 0, said
    remember(folder, snapshots)
    assert results_of(folder) == results_of(done_alone)
    assert read_json(folder / "results.json")["entries"] == read_json(done_alone / "results.json")["entries"]


@pytest.mark.slow  # a real study is started twice; tests/chaos interrupts quick ones
def test_interrupting_says_how_to_go_on(small_study, tmp_path):
    folder = tmp_path / "study"
    process = start(small_study, folder, "--workers", "2")
    deadline = time.monotonic() + 300
    while not list(folder.glob("runs/*/recipe.yaml")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "The same command continues" in said and "Traceback" not in said


def test_a_dry_run_shows_the_runs_and_writes_nothing(small_study, done_alone, tmp_path):
    code, said = here(small_study, tmp_path / "study", "--dry-run")
    assert code == 0 and not (tmp_path / "study").exists()
    assert "glue/wnli kd 2 6 0" in said and "glue/wnli teacher 1 1 0" in said
    code, said = here(small_study, done_alone, "--dry-run")
    assert code == 0 and "glue/wnli kd 2 6 6" in said and "glue/wnli teacher 1 1 1" in said


def test_a_study_that_cannot_be_finished_says_what_failed(small_study, tmp_path):
    values = yaml.safe_load(small_study.read_text())
    values |= {"methods": ["ft", "cka"], "grid": {}, "seeds": [1]}
    values["methods"] = {"ft": {}, "cka": {"method.layers": [[9, 9]]}}
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(values))
    code, said = here(file, tmp_path / "study")
    assert code == 1 and "1 runs failed, the first of cka on glue/wnli" in said
    assert len(list((tmp_path / "study" / "failures").iterdir())) == 1
    assert "ft" in (tmp_path / "study" / "table.md").read_text()
    missing = {entry["label"]: entry["missing"] for entry in read_json(tmp_path / "study" / "results.json")["entries"]}
    assert missing == {"ft": 0, "cka": 1}

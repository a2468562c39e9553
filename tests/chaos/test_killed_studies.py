"""Kill studies again and again: no finished run is done twice, and none is left out."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest
import yaml
from helpers.killing import kill_in, remember
from helpers.saved_runs import read_json

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(("kills", "seconds"), [(1, 0.05), pytest.param(10, 0.25, marks=pytest.mark.slow)])
def test_quick_runs_that_are_killed_are_each_done_once(kills, seconds, tmp_path):
    study = {
        "tasks": ["glue/rte", "glue/cola", "glue/mrpc"],
        "teacher": {"model": "big"},
        "student": {"from": "teacher", "keep": "first:3"},
        "methods": {"ft": {}, "kd": {"grid": {"method.temperature": [2, 5]}}, "cka": {}},
        "rivals": False,
        "seeds": [1, 2, 3, 4],
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(study))
    folder, draw, snapshots = tmp_path / "out", random.Random(1), {}
    words = [sys.executable, "-m", "helpers.fake_training", str(tmp_path / "my.yaml"), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FAKE_SECONDS": str(seconds)}

    def begin(workers):
        return subprocess.Popen([*words, workers], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    for _ in range(kills):
        process = begin("1")
        begun = len(snapshots)
        while process.poll() is None and len(list(folder.glob("*/*/metrics.json"))) <= begun:
            time.sleep(0.02)
        kill_in(draw.uniform(0, 0.5), process)
        remember(folder, snapshots)
    assert len(snapshots) < 3 + 3 * 4 * 4, "the kills came too late to show anything"
    process = begin("1")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    remember(folder, snapshots)
    assert len(snapshots) == 3 + 3 * 4 * 4
    assert all(entry["missing"] == 0 for entry in read_json(folder / "results.json")["entries"])

"""A study's folder goes on elsewhere: another root, another user, another home; what is done stays done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.in_process import run_command
from helpers.tiny_tables import sentences, write_csv

import limbeck

SHARED_GROUP = 12_000  # of two users who do not exist otherwise
STUDY = {
    "tasks": {"table": {}},
    "task": {
        "train": "data/train.csv",
        "validation": "data/dev.csv",
        "text": "text",
        "label": "label",
        "max_length": 16,
    },
    "teacher": {"model": "models/teacher", "train": {"max_steps": 2, "batch_size": 16}, "cache": "auto"},
    "student": {"from": "teacher", "keep": "first:2"},
    "train": {"max_steps": 2, "batch_size": 16},
    "rivals": False,
    "seeds": [1, 2],
}


def furnish(root: Path, teacher: Path) -> Path:
    """Put a study with all that it names under one root; its paths are relative."""
    (root / "data").mkdir(parents=True)
    write_csv(root / "data/train.csv", sentences(48))
    write_csv(root / "data/dev.csv", sentences(24, seed=1))
    shutil.copytree(teacher, root / "models/teacher")
    describe(root, "kd")
    return root


def describe(root: Path, *methods: str) -> None:
    (root / "mine.yaml").write_text(yaml.safe_dump(STUDY | {"methods": list(methods)}))


def outcome(root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results without times, and the scores of every run."""
    study = root / "studies/mine"
    results = json.loads((study / "results.json").read_text())
    scores = {file.parent.name: json.loads(file.read_text()) for file in (study / "runs").glob("*/metrics.json")}
    kept = ("score", "metrics", "teacher", "majority", "seed", "steps")
    return results, {name: {key: found.get(key) for key in kept} for name, found in scores.items()}


def done_when(root: Path) -> dict[str, int]:
    runs = (root / "studies/mine").glob("*/*/metrics.json")
    return {file.parent.name: file.stat().st_mtime_ns for file in runs}


@pytest.mark.slow
def test_a_study_under_another_root_goes_on(teacher_folder, tmp_path, monkeypatch):
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    furnish(first, teacher_folder)
    monkeypatch.chdir(first)
    assert run_command("study", "mine.yaml")[0] == 0
    leave_unfinished(first)
    shutil.copytree(first, second)
    shutil.rmtree(first)
    done = done_when(second)
    assert len(done) == 2, "the teacher and one of two runs"

    describe(second, "kd", "pkd")
    monkeypatch.chdir(second)
    status, said = run_command("study", "mine.yaml")
    assert status == 0, said
    assert {name: when for name, when in done_when(second).items() if name in done} == done
    assert str(first) not in "".join(file.read_text() for file in second.rglob("*.json*"))

    describe(furnish(whole, teacher_folder), "kd", "pkd")
    monkeypatch.chdir(whole)
    assert run_command("study", "mine.yaml")[0] == 0
    assert outcome(second) == outcome(whole) and len(outcome(whole)[1]) == 4


def leave_unfinished(root: Path) -> None:
    """Make the second run and the study look as they do when a machine is taken away before the end."""
    *_, last = sorted((root / "studies/mine/runs").iterdir())
    (last / "metrics.json").unlink()
    (root / "studies/mine/results.json").unlink()


@pytest.fixture()
def shared_root() -> Iterator[Path]:
    """Give a folder that both users may write: outside of pytest's, which is for its own user alone."""
    root = Path(tempfile.mkdtemp(prefix="limbeck-shared-"))
    yield root
    shutil.rmtree(root)


AS_USER = """
import os, sys
from helpers.in_process import run_command
number, root, own = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.chdir(own)
assert run_command("study", "mine.yaml", "-o", f"studies/{number}")[0] == 0
os.setgroups([])
os.setgid(12000)
os.setuid(number)
os.umask(0o002)
os.environ["HOME"] = f"{root}/home-{number}"
os.chdir(root)
status, said = run_command("study", "mine.yaml")
print(said)
sys.exit(status)
"""


def continue_as(number: int, root: Path, own: Path) -> None:
    """Run the study in ``root`` as another user; one in ``own`` first, as Python may be out of that user's reach."""
    (root / f"home-{number}").mkdir()
    os.chown(root / f"home-{number}", number, SHARED_GROUP)
    path = [str(Path(limbeck.__file__).parents[1]), str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(number), str(root), str(own)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_another_user_of_the_group_goes_on(teacher_folder, tmp_path, shared_root):
    own = furnish(tmp_path / "own", teacher_folder)
    furnish(shared_root, teacher_folder)
    for path in (shared_root, *shared_root.rglob("*")):
        os.chown(path, 12_001, SHARED_GROUP)
        path.chmod(0o2775 if path.is_dir() else 0o664)
    continue_as(12_001, shared_root, own)
    leave_unfinished(shared_root)
    done = done_when(shared_root)
    describe(shared_root, "kd", "pkd")
    continue_as(12_002, shared_root, own)
    assert {name: when for name, when in done_when(shared_root).items() if name in done} == done
    assert len(outcome(shared_root)[1]) == 4


def test_locks_can_be_taken_by_whoever_may_write_the_folder(tmp_path):
    """The umask decides, as for every other file: a lock of mode 0644 would keep the rest of a group out."""
    script = (
        "import os, pathlib; os.umask(0o002)\n"
        "from limbeck._internal.locks import locked, wait_for_lock\n"
        "folder = pathlib.Path('locked')\n"
        "with locked(folder): print(oct((folder / '.lock').stat().st_mode & 0o777))\n"
        "with wait_for_lock(folder): print(oct((folder / '.lock').stat().st_mode & 0o777))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(limbeck.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["0o664", "0o664"], done.stderr

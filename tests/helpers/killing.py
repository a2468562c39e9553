"""Kill a command at a chosen moment, with methods that take their time so that there is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Methods that sleep in every step; the first trains weights of its own, the second brings the stages that it has.
_SLOW = """
import time
from typing import Literal
import torch
from limbeck import METHODS, Objective, SoftLogits, TaskLoss, Term, projector
class Slow(SoftLogits):
    def __init__(self, pair):
        super().__init__(pair.problem, 2.0)
        self.project = projector(pair.num_labels, 3)
    def forward(self, student, teacher, batch):
        time.sleep(0.03)
        return super().forward(student, teacher, batch) + self.project(student.logits).square().mean()
class Sleep(Term):
    def forward(self, student, teacher, batch):
        time.sleep(0.03)
        return torch.zeros(())
def slowly(objective):
    own = {name: (weight, objective.terms[name]) for name, weight in objective.weights.items()}
    return Objective(**own, sleep=(1.0, Sleep()))
def kd(pair):
    return Objective(task=(1.0, TaskLoss(pair)), slow=(1.0, Slow(pair)))
def tinybert(pair, *, stage: Literal["intermediate", "prediction"] = "intermediate"):
    return slowly(METHODS["tinybert"](pair, stage=stage))
def distilbert(pair):
    return slowly(METHODS["distilbert"](pair))
"""


def write_slow_methods(folder: Path) -> None:
    """Write a module with ``slow:kd``, ``slow:tinybert`` and ``slow:distilbert`` into the folder of a command."""
    (folder / "slow.py").write_text(_SLOW)


def kill_after(path: Path, *words: Any, cwd: Path) -> bool:
    """Start ``limbeck words`` and SIGKILL it shortly after ``path`` has appeared; False if it ended before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "limbeck", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(path, process)
    time.sleep(0.05)  # one or two steps further, so that work is lost
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    """Return when ``path`` exists, or the process has ended."""
    deadline = time.monotonic() + 300
    while process.poll() is None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def kill_in(seconds: float, process: subprocess.Popen[Any]) -> None:
    """Let a process go on for so long, and then SIGKILL it."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def remember(study: Path, snapshots: dict[str, tuple[str, int]]) -> None:
    """Note the results that a study has, and check that those noted before are as they were: no run is done again."""
    for file in study.glob("*/*/metrics.json"):
        seen = (file.read_text(), file.stat().st_mtime_ns)
        assert snapshots.setdefault(file.parent.name, seen) == seen

"""Kill a command at a chosen moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


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
    deadline = time.monotonic() + 120
    while process.poll() is None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)

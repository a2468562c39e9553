"""Check that the tables of docs/scale.md are those that follow from the shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_what_large_jobs_cost_are_computed():
    words = [sys.executable, str(ROOT / "benchmarks" / "at_scale.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

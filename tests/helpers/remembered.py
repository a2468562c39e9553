"""Forget what runs of this process remember of each other."""

from __future__ import annotations

import sys


def forget() -> None:
    """Forget fitted heads and teachers' answers, where the modules that keep them are loaded."""
    for module, name in (("head_start", "_FITS"), ("teacher_outputs", "_ANSWERS")):
        if loaded := sys.modules.get(f"limbeck.training.{module}"):
            getattr(loaded, name).clear()

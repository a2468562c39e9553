"""Show progress: a bar with an estimate on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from limbeck._internal.console import plain_console

QUIET = "LIMBECK_QUIET"
_SECONDS_BETWEEN_LINES = 10.0
_hidden = ContextVar("hidden", default=False)


class Steps:
    """Count the finished steps of one job; this class shows nothing, its subclasses show a bar or lines."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count ``steps`` more as done; ``note`` replaces the text shown beside them."""


class _Bar(Steps):
    def __init__(self, progress: Progress, job: str, total: int) -> None:
        self._progress, self._note = progress, ""
        self._task = progress.add_task(job, total=total, note="")

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._note = note or self._note
        self._progress.update(self._task, advance=steps, note=self._note)


class _Lines(Steps):
    def __init__(self, job: str, total: int) -> None:
        self._job, self._total, self._done, self._note = job, total, 0, ""
        self._start = self._last = time.monotonic()

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._done += steps
        self._note = note or self._note
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES or self._done >= self._total:
            return
        self._last = now
        left = (now - self._start) / self._done * (self._total - self._done)
        print(
            f"{self._job}: {self._done}/{self._total}, about {left:.0f} s left {self._note}".rstrip(),
            file=sys.stderr,
        )


@contextmanager
def progress(job: str, total: int) -> Iterator[Steps]:
    """Show the progress of a job: ``with progress("train", 100) as steps: steps.advance()``."""
    console = plain_console(stderr=True)
    if os.environ.get(QUIET) or _hidden.get():
        yield Steps()
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as bars:
            yield _Bar(bars, job, total)
    else:
        yield _Lines(job, total)


@contextmanager
def hidden_progress() -> Iterator[None]:
    """Hide the progress of the jobs inside the block, which are parts of one that is shown."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def muted_messages() -> Iterator[None]:
    """Drop limbeck's log messages inside the block, for what is read again or only tried out; errors are raised."""
    logger = logging.getLogger("limbeck")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before

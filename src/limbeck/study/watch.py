"""Show a study's progress: a live table on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from limbeck._internal.console import plain_console
from limbeck._internal.progress import QUIET
from limbeck.metrics import readable_score
from limbeck.runs.directory import StudyDirectory
from limbeck.study.jobs import Job, TrainJob
from limbeck.study.runner import Watcher


class _LineProgress(Watcher):
    """Count jobs and say how each ended. ``total`` is how many there are to do."""

    def __init__(self, total: int, console: Console) -> None:
        self._total, self._console = total, console
        self._begin = time.monotonic()
        self._started: dict[str, float] = {}
        self._done: set[tuple[str, float]] = set()  # keys, and how far runs that wait have come
        self._first_run = 0.0  # when the first run of a method began
        self._runs_done = 0

    def started(self, job: Job) -> None:
        self._started[job.key] = time.monotonic()
        if _is_run(job) and not self._first_run:
            self._first_run = time.monotonic()

    def ended(self, job: Job, error: str) -> None:
        self._done.add((job.key, job.until if isinstance(job, TrainJob) else 1.0))
        self._total = max(self._total, len(self._done))  # runs of other settings may have been taken for done ones
        self._runs_done += _is_run(job)
        begin = self._started.pop(job.key, self._begin)
        took = readable_duration(time.monotonic() - begin)
        self._say(f"{len(self._done)}/{self._total} {job.title}: {_outcome(job, error)}, {took}")

    def _say(self, line: str) -> None:
        left = self.seconds_left()
        about = f" (about {readable_duration(left)} left)" if left else ""
        self._console.print(f"{line}{about}", highlight=False, soft_wrap=True)

    def seconds_left(self) -> float:
        """Return how long the rest takes if its runs are like those before; teachers and caches are not."""
        if not self._runs_done:
            return 0.0
        return (time.monotonic() - self._first_run) / self._runs_done * max(0, self._total - len(self._done))


class _LiveProgress(_LineProgress):
    """Show beside the lines what runs now and for how long."""

    def __init__(self, total: int, console: Console) -> None:
        super().__init__(total, console)
        self._titles: dict[str, str] = {}

    def started(self, job: Job) -> None:
        super().started(job)
        self._titles[job.key] = job.title

    def __rich__(self) -> Group:
        table = Table("running", "for", box=None)
        for key, begin in list(self._started.items()):
            table.add_row(self._titles[key], readable_duration(time.monotonic() - begin))
        left = self.seconds_left()
        about = f", about {readable_duration(left)} left" if left else ""
        return Group(table, Text(f"{len(self._done)} of {self._total} jobs are done{about}"))


@contextmanager
def watching(total: int) -> Iterator[Watcher]:
    """Give a watcher that shows a study's progress while the block runs."""
    console = plain_console(stderr=True)
    if os.environ.get(QUIET):
        yield Watcher()
    elif console.is_terminal:
        table = _LiveProgress(total, console)
        with Live(table, console=console, refresh_per_second=2, transient=True):
            yield table
    else:
        yield _LineProgress(total, console)


def _is_run(job: Job) -> bool:
    return isinstance(job, TrainJob) and Path(job.folder).parent == StudyDirectory(Path(job.study)).runs


def _outcome(job: Job, error: str) -> str:
    if error:
        return f"failed ({error.splitlines()[0]})"
    if not isinstance(job, TrainJob):
        return "done"
    if job.until < 1 and (score := job.score_so_far()) is not None:
        return f"{score:.4f} after {job.until:.0%}"
    if not job.directory.finished:
        return "not worth finishing"
    metrics = job.directory.metrics()
    return f"{metrics['metric']} {readable_score(metrics['metric'], metrics['score'])}"


def readable_duration(seconds: float) -> str:
    """Write a time for people: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

"""Describe the jobs that a study is made of as plain data, which can be sent to another process, and run them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from limbeck._internal.files import write_text
from limbeck._internal.machine import disk_full
from limbeck._internal.progress import QUIET
from limbeck.errors import LimbeckError, RunError
from limbeck.recipes.recipe import load_recipe
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import read_mapping
from limbeck.runs.reader import read_history, read_recipe
from limbeck.study.search import falls_behind
from limbeck.training.cache_building import cache_for_runs
from limbeck.training.checkpoint_folders import last_epoch
from limbeck.training.execute import execute

logger = logging.getLogger("limbeck")

# What becomes of a student's weights. "needed": a finished run which has lost them is done again.
WeightsPolicy = Literal["removed", "kept", "needed"]
Failures = dict[str, str]  # why a job failed, by its key
_ROUNDING = 1e-3  # of the epochs in a log


@dataclass(frozen=True)
class Job(ABC):
    """Describe a piece of a study's work. ``key`` names it in the study, ``title`` for people."""

    key: str
    title: str
    study: str  # the study's folder

    @abstractmethod
    def finished(self) -> bool:
        """Tell whether there is nothing left to do."""

    @abstractmethod
    def run(self) -> None:
        """Do the work, going on with what an earlier attempt left."""

    @property
    def log(self) -> Path:
        """Point to the file with the job's messages."""
        return Path(self.study) / "logs" / f"{self.key}.txt"

    @property
    def failure(self) -> Path:
        """Point to the file that tells why the job failed, where it did."""
        return Path(self.study) / "failures" / f"{self.key}.txt"


@dataclass(frozen=True)
class TrainJob(Job):
    """Describe one run into ``folder``; with ``earlier``, it may end early where it falls behind those scores.

    ``until``, a share of its epochs, is where it waits, scored by ``metric``, for another job of the same run to go on.
    """

    values: dict[str, Any]
    folder: str
    weights: WeightsPolicy = "needed"
    earlier: tuple[tuple[float, ...], ...] | None = None
    until: float = 1.0
    metric: str = ""

    @property
    def directory(self) -> RunDirectory:
        """Return the run directory that the job writes."""
        return RunDirectory(Path(self.folder))

    def finished(self) -> bool:
        if self.earlier is not None and self.directory.was_pruned:
            return True
        if self.until < 1 and self.score_so_far() is not None:
            return True
        return self.directory.finished and not self._student_is_missing()

    def run(self) -> None:
        folder, earlier = self.directory.path, self.earlier
        if self._student_is_missing() or self._recipe_is_damaged() or _teacher_has_moved(folder, self.values):
            shutil.rmtree(folder)
        stop = partial(falls_behind, earlier) if earlier is not None else None
        pause = self.until if self.until < 1 else None
        choices = StudyDirectory(Path(self.study)).layer_choices
        recipe = load_recipe(values=self.values)
        execute(recipe, folder, resume=True, stop=stop, pause_after=pause, layer_choices=choices)
        if self.weights == "removed":
            self.delete_students()

    def score_so_far(self) -> float | None:
        """Return the score where the run waits or waited, else its last one; None where it has not come so far."""
        finished = self.directory.finished
        if self.until < 1 and (score := self._score_where_it_waited(finished)) is not None:
            return score
        return float(self.directory.metrics()["score"]) if finished else None

    def _score_where_it_waited(self, finished: bool) -> float | None:
        """Return the first score since the pause: a run that went on since must not be judged by what it became.

        It counts once the checkpoint that follows it is there: a run that goes on from an earlier one forgets it.
        """
        if not self.directory.history.is_file():
            return None
        least = self.until * load_recipe(values=self.values).train.epochs - _ROUNDING
        if not finished and (last_epoch(self.directory.checkpoints) or 0.0) < least:
            return None
        name = f"eval_{self.metric}"
        scores = (
            float(entry[name])
            for entry in read_history(self.directory)
            if entry.get(name) is not None and entry["epoch"] >= least
        )
        return next(scores, None)

    def delete_students(self) -> None:
        """Delete the weights of a finished run and of its stages, with which an unfinished one would go on."""
        if self.directory.finished:
            for student in (self.directory.student, *(stage.student for stage in self.directory.stages())):
                shutil.rmtree(student, ignore_errors=True)

    def _student_is_missing(self) -> bool:
        return self.weights == "needed" and self.directory.finished and not self.directory.student.is_dir()

    def _recipe_is_damaged(self) -> bool:
        """Tell whether a run holds no recipe that could be compared with this job's; its key says what it was."""
        try:
            return self.directory.recipe.is_file() and not read_recipe(self.directory)
        except RunError:
            return True


@dataclass(frozen=True)
class CacheJob(Job):
    """Describe one pass of a teacher for all methods of a task, where that pays.

    ``recipes`` holds by label the recipe, and how many runs it has.
    """

    recipes: dict[str, tuple[dict[str, Any], int]]
    folder: str

    @property
    def marker(self) -> Path:
        """Point to the file that says which methods the cache serves."""
        return Path(f"{self.folder}.json")

    def finished(self) -> bool:
        """Tell whether it was decided for each of these methods: a study may have got others since."""
        asked = self._decided()["asked"]
        return all(asked.get(label) == _asked(values) for label, (values, _) in self.recipes.items())

    def run(self) -> None:
        recipes = {label: (load_recipe(values=values), runs) for label, (values, runs) in self.recipes.items()}
        self.decide(cache_for_runs(recipes, Path(self.folder)))

    def decide(self, served: Sequence[str]) -> None:
        """Write down which of the methods the cache serves, beside those that it served before."""
        before = self._decided()
        asked = before["asked"] | {label: _asked(values) for label, (values, _) in self.recipes.items()}
        others = [label for label in before["serves"] if label not in self.recipes]
        write_text(self.marker, json.dumps({"serves": [*others, *served], "asked": asked}) + "\n")

    def serves(self, label: str, values: dict[str, Any]) -> bool:
        """Tell whether the cache fits what this run asks for: a grid or a changed study may ask for other texts."""
        decided = self._decided()
        return label in decided["serves"] and decided["asked"].get(label) == _asked(values)

    def _decided(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"serves": [], "asked": {}}  # older files have no second part
        try:
            return nothing | (read_mapping(self.marker) if self.marker.is_file() else {})
        except RunError as error:
            logger.warning("%s It is decided again.", error)
            return nothing


@dataclass(frozen=True)
class JobOutcome:
    """Tell how a job ended: ``error`` is empty, or what went wrong; where ``final``, trying again changes nothing.

    ``halts``: no other job would fare better, as on a full disk.
    """

    key: str
    error: str = ""
    final: bool = False
    halts: bool = False


def execute_job(job: Job) -> None:
    """Run a job unless an earlier attempt finished it, with its messages in its log."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    # a process that lost its parent may still be at it for a moment
    with FileLock(job.log.with_suffix(".lock")), _logging_to(job.log):
        if not job.finished():
            job.run()


def attempt(work: Callable[[Job], None], job: Job) -> JobOutcome:
    """Run a job by ``work``; an error becomes part of the outcome and is written beside the study's runs."""
    try:
        work(job)
    except Exception as error:
        with suppress(OSError):  # the disk may be full, which is then the error
            job.failure.parent.mkdir(parents=True, exist_ok=True)
            write_text(job.failure, f"{job.title}\n\n{''.join(traceback.format_exception(error))}")
        if disk_full(error):
            where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
            return JobOutcome(job.key, f"No space left on device{where}", halts=True)
        final = isinstance(error, LimbeckError)
        return JobOutcome(job.key, str(error) if final else f"{type(error).__name__}: {error}", final)
    with suppress(OSError):  # where nothing can be written down, nothing was
        job.failure.unlink(missing_ok=True)
    return JobOutcome(job.key)


def _asked(values: dict[str, Any]) -> list[Any]:
    """Return what decides whether a cache fits: the texts, the method (some cannot use one), how numbers are kept."""
    blocks = [values, *(values.get("stages") or [])]
    methods = [block.get("method") or {} for block in blocks]
    names = [[method.get(key) for key in ("name", "mask_padding")] for method in methods]
    return [[block.get("task") for block in blocks], names, values["teacher"]["cache_dtype"]]


def _teacher_has_moved(folder: Path, values: dict[str, Any]) -> bool:
    """Tell whether an unfinished run names its teacher by another path; all else is the same, as its key says."""
    try:
        recipe = read_recipe(RunDirectory(folder))
        first = (recipe.get("stages") or [recipe])[0]
        return bool(first.get("teacher", {}).get("model") != values.get("teacher", {}).get("model"))
    except OSError:
        return False


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Write limbeck's messages to a file and draw no bars: many runs share one terminal."""
    logger, handler = logging.getLogger("limbeck"), _LogFile(file, encoding="utf-8")
    handlers, level, quiet = logger.handlers, logger.level, os.environ.get(QUIET)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    os.environ[QUIET] = "1"
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
        if quiet is None:
            del os.environ[QUIET]
        handler.close()


class _LogFile(logging.FileHandler):
    """Raise what keeps a line from being written, as a full disk does; the base class prints a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # logging calls this while it handles the error

"""Race students of several depths: candidates by layers and methods, the worse half of which stops again and again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limbeck.errors import RunError
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.recipes.files import set_value
from limbeck.runs.directory import StudyDirectory
from limbeck.shrink.schedule import RaceSchedule
from limbeck.shrink.trainings import Candidate, Trainings, field_of
from limbeck.study.engines import InProcess
from limbeck.study.halving import RaceResult, race, race_starts
from limbeck.study.jobs import CacheJob, TrainJob
from limbeck.study.runner import run_workflows
from limbeck.study.watch import watching
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")


def run_race(
    schedule: RaceSchedule,
    layer_sets: Mapping[int, Sequence[Sequence[int]]],
    trainings: Trainings,
    teacher: str,
    task: Task,
    folder: Path,
) -> dict[int, RaceResult]:
    """Train the candidates of each depth until one is left; return the results by depth.

    All that is known of a race is in its runs: started again, it comes to the same decisions.
    """
    fields = {depth: field_of(layer_sets[depth], schedule.candidates) for depth in schedule.depths}
    epochs = dict(zip(schedule.depths, schedule.epochs, strict=True))
    cache = _cache_job(fields, trainings, teacher, epochs, folder)
    if not cache.finished():
        with watching(1) as watcher:
            run_workflows({"cache": _only(cache)}, InProcess(), watcher)
    metric = task.metrics[0]
    jobs = {
        depth: [_job(candidate, trainings, teacher, epochs[depth], metric, cache, folder) for candidate in field]
        for depth, field in fields.items()
    }
    larger = metric not in SMALLER_IS_BETTER
    with watching(sum(race_starts(len(field)) for field in jobs.values())) as watcher:
        results: dict[int, RaceResult] = run_workflows(
            {depth: race(field, larger) for depth, field in jobs.items()}, InProcess(), watcher
        )
    if not any(result.winner for result in results.values()):
        reasons = [why for result in results.values() for why in result.failed.values()]
        raise RunError(f"No student could be trained: {reasons[0]} See {folder / 'failures'}.")
    return results


def _only(job: CacheJob) -> Any:
    """Make a workflow of one job; where it fails, the runs ask the teacher itself."""
    yield [job]


def _cache_job(
    fields: Mapping[int, Sequence[Candidate]],
    trainings: Trainings,
    teacher: str,
    epochs: Mapping[int, float],
    folder: Path,
) -> CacheJob:
    """Return the job that asks the teacher once for all candidates."""
    candidates = [candidate for field in fields.values() for candidate in field]
    recipes = {
        candidate.key: (trainings.student(candidate, teacher, epochs[candidate.depth]), 1) for candidate in candidates
    }
    return CacheJob("features", "the teacher's features", str(folder), recipes, str(folder / "caches" / "teacher"))


def _job(
    candidate: Candidate,
    trainings: Trainings,
    teacher: str,
    epochs: float,
    metric: str,
    cache: CacheJob,
    folder: Path,
) -> TrainJob:
    values = trainings.student(candidate, teacher, epochs)
    if cache.serves(candidate.key, values):
        set_value(values, "teacher.cache", cache.folder)
    run = StudyDirectory(folder).runs / candidate.key
    return TrainJob(candidate.key, candidate.title, str(folder), values, str(run), metric=metric)

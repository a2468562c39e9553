"""Race students of several depths: candidates by layers and methods, the worse half of which stops again and again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.errors import RunError
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.models.kept_layers import layers_to_keep
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


@dataclass(frozen=True)
class Source:
    """Name the model that students are cut from, and which of the teacher's layers its own come from."""

    model: str
    layers: tuple[int, ...]

    @classmethod
    def of_winner(cls, winner: TrainJob, source: Source) -> Source:
        """Name a trained student, which was cut from ``source``."""
        kept = winner.values["student"]["keep"]
        return cls(winner.folder, tuple(source.layers[layer - 1] for layer in kept))


def run_race(
    schedule: RaceSchedule,
    first_sets: Sequence[Sequence[int]],
    trainings: Trainings,
    teacher: str,
    task: Task,
    folder: Path,
) -> tuple[dict[int, RaceResult], dict[int, list[int]]]:
    """Train the candidates of each depth until one is left; return the results, and the teacher's layers, by depth.

    The deepest students are cut from the teacher, those of each further depth from the winner of the one before: it
    has got over the loss of its layers already. All that is known of a race is in its runs: started again, it comes to
    the same decisions.
    """
    whole = source = Source(teacher, tuple(range(1, trainings.depth + 1)))
    metric = task.metrics[0]
    larger = metric not in SMALLER_IS_BETTER
    epochs = dict(zip(schedule.depths, schedule.epochs, strict=True))
    cache = _cache_job(schedule, first_sets, trainings, teacher, epochs, folder)
    if not cache.finished():
        with watching(1) as watcher:
            run_workflows({"cache": _only(cache)}, InProcess(), watcher)
    results: dict[int, RaceResult] = {}
    layers: dict[int, list[int]] = {}
    with watching(len(schedule.depths) * race_starts(schedule.candidates)) as watcher:
        for depth in schedule.depths:
            sets = first_sets if depth == schedule.depths[0] else [even_set(depth, len(source.layers))]
            field = field_of(sets, schedule.candidates, len(source.layers))
            jobs = [_job(one, source, trainings, teacher, epochs[depth], metric, cache, folder) for one in field]
            results |= run_workflows({depth: race(jobs, larger)}, InProcess(), watcher)
            if (winner := results[depth].winner) is not None:
                source = Source.of_winner(winner, source)
                layers[depth] = list(source.layers)
    if source is whole:
        reasons = [why for result in results.values() for why in result.failed.values()]
        raise RunError(f"No student could be trained: {reasons[0]} See {folder / 'failures'}.")
    return results, layers


def even_set(count: int, depth: int) -> list[int]:
    """Return the layers that suit a student cut from a trained one: evenly spread ones, whatever a first look says."""
    return layers_to_keep(f"spread:{count}", depth)


def _only(job: CacheJob) -> Any:
    """Make a workflow of one job; where it fails, the runs ask the teacher itself."""
    yield [job]


def _cache_job(
    schedule: RaceSchedule,
    first_sets: Sequence[Sequence[int]],
    trainings: Trainings,
    teacher: str,
    epochs: Mapping[int, float],
    folder: Path,
) -> CacheJob:
    """Return the job that asks the teacher once for all candidates; which layers they keep does not matter to it."""
    recipes = {}
    for above, depth in zip((trainings.depth, *schedule.depths), schedule.depths, strict=False):
        sets = first_sets if above == trainings.depth else [even_set(depth, above)]
        layers = tuple(even_set(depth, trainings.depth))
        for method in dict.fromkeys(one.method for one in field_of(sets, schedule.candidates, above)):
            like = Candidate(layers, trainings.depth, method)
            recipes[_served_as(like)] = trainings.student(like, teacher, teacher, epochs[depth]), 1
    return CacheJob("features", "the teacher's features", str(folder), recipes, str(folder / "caches" / "teacher"))


def _served_as(candidate: Candidate) -> str:
    return f"{candidate.depth} {candidate.method}"


def _job(
    candidate: Candidate,
    source: Source,
    trainings: Trainings,
    teacher: str,
    epochs: float,
    metric: str,
    cache: CacheJob,
    folder: Path,
) -> TrainJob:
    values = trainings.student(candidate, source.model, teacher, epochs)
    if cache.serves(_served_as(candidate), values):
        set_value(values, "teacher.cache", cache.folder)
    run = StudyDirectory(folder).runs / candidate.key
    return TrainJob(candidate.key, candidate.title, str(folder), values, str(run), metric=metric)

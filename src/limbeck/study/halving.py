"""Race runs against each other: all begin, and after each part of the training the worse half stops."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from limbeck.study.jobs import Failures, Job, TrainJob


@dataclass(frozen=True)
class Rung:
    """Hold what the runs had scored, by their keys, when so large a share of their training was done."""

    until: float
    scores: dict[str, float]
    survivors: tuple[str, ...]


@dataclass
class RaceResult:
    """Hold the run that won, the decisions in their order, and why others failed."""

    winner: TrainJob | None = None
    rungs: list[Rung] = field(default_factory=list)
    failed: Failures = field(default_factory=dict)

    def decisions(self) -> list[dict[str, Any]]:
        """Return every decision as plain data."""
        return [{"until": rung.until, "scores": rung.scores, "go on": list(rung.survivors)} for rung in self.rungs]


def rung_shares(candidates: int) -> list[float]:
    """Return after which shares of the training the worse half of so many stops: a third of it for two of them.

    Of more, each rung has twice the share of the one before, and half as many runs: all rungs cost the same.
    """
    if candidates <= 1:
        return [1.0]
    if candidates == 2:
        return [1 / 3, 1.0]
    rungs = math.ceil(math.log2(candidates))
    return [1 / 2**number for number in range(rungs, 0, -1)] + [1.0]


def race_cost(candidates: int) -> float:
    """Return what such a race costs in whole trainings."""
    left, done, cost = candidates, 0.0, 0.0
    for share in rung_shares(candidates):
        cost += left * (share - done)
        left, done = math.ceil(left / 2), share
    return cost


def race_starts(candidates: int) -> int:
    """Count how often runs of such a race begin or go on: one for each that is left, in each rung."""
    starts, left = 0, candidates
    for _ in rung_shares(candidates):
        starts, left = starts + left, math.ceil(left / 2)
    return starts


def race(jobs: Sequence[TrainJob], larger_is_better: bool) -> Generator[Sequence[Job], Failures, RaceResult]:
    """Yield the jobs of each rung to wait for, for the study's scheduler; return who won. Ties go to the first."""
    result, alive = RaceResult(), list(jobs)
    for share in rung_shares(len(jobs)):
        asked = [replace(job, until=share) for job in alive]
        failed = yield asked
        result.failed |= failed
        scores = {
            job.key: score for job in asked if job.key not in failed and (score := job.score_so_far()) is not None
        }
        alive = sorted(
            (job for job in alive if job.key in scores),
            key=lambda job: _rank(scores[job.key], larger_is_better),
        )
        alive = alive[: 1 if share == 1 else math.ceil(len(asked) / 2)]
        result.rungs.append(Rung(share, scores, tuple(job.key for job in alive)))
    result.winner = alive[0] if alive else None
    return result


def _rank(score: float, larger_is_better: bool) -> float:
    """Return what sorts the best score first; NaN, which is neither more nor less than any other, is last."""
    return math.inf if math.isnan(score) else -score if larger_is_better else score

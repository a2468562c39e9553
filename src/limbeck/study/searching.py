"""Search among a method's settings, after the searches whose choices it takes. Each is a part of a study's workflow.

A search asks for runs and is told which failed. Two methods that need the same search ask for the same runs, which are
done once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from statistics import fmean

from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import read_history
from limbeck.study.chains import all_points, resolve_space, settings_taken, waits_for
from limbeck.study.description import GridPoint, SearchSpace
from limbeck.study.jobs import Failures, Job, TrainJob
from limbeck.study.plan import Plan
from limbeck.study.search import Trial, best_trial, propose

_TrialWorkflow = Generator[Sequence[Job], Failures, list[Trial]]


def settle(
    plan: Plan, task: str, label: str
) -> Generator[Sequence[Job], Failures, tuple[GridPoint | None, list[Trial]]]:
    """Yield the runs of a method's search; return what it chose, and all that was tried.

    What it takes from others is searched first. Each step starts from the best of all before it. Nothing is chosen
    where no setting was tried to the end.
    """
    study, settled = plan.study, {}
    for other in waits_for(study, task, label):
        chosen, tried = yield from settle(plan, task, other)
        if chosen is None:
            return None, tried
        settled[other] = chosen
    point = settings_taken(study, task, label, settled)
    trials: list[Trial] = []
    for step in study.steps(task, label):
        space = resolve_space(study, task, step, settled)
        if not plan.searches(space):
            point |= all_points(space)[0]
            continue
        trials += yield from _search(plan, task, label, space, point)
        best = best_trial(trials, _maximise(plan, task, label, trials))
        if best is None:
            return None, trials
        point = dict(best.point)
    return point, trials


def _search(plan: Plan, task: str, label: str, space: SearchSpace, point: GridPoint) -> _TrialWorkflow:
    """Yield the runs of a search around a point, and return what each setting scored."""
    if plan.study.search.sampler == "tpe":
        return (yield from _search_with_optuna(plan, task, label, space, point))
    points = [point | choice for choice in all_points(space)]
    jobs = [jobs_of(plan, task, label, point) for point in points]
    failed = yield [job for of_point in jobs for job in of_point]
    return [_trial(point, of_point, failed) for point, of_point in zip(points, jobs, strict=True)]


def _search_with_optuna(plan: Plan, task: str, label: str, space: SearchSpace, point: GridPoint) -> _TrialWorkflow:
    """Yield one trial after the other, because each proposal rests on all before it."""
    search = plan.study.search
    proposed: list[Trial] = []  # with what was proposed alone
    trials: list[Trial] = []
    # by seed: one that does badly with every setting says nothing about this one
    histories: list[list[tuple[float, ...]]] = [[] for _ in plan.study.choosing_seeds]
    for _ in range(search.trials):
        choice = propose(space, proposed, search.seed, _maximise(plan, task, label, trials))
        jobs = jobs_of(plan, task, label, point | choice)
        if search.prune:
            jobs = [replace(job, earlier=tuple(earlier)) for job, earlier in zip(jobs, histories, strict=True)]
        failed = yield jobs
        trials.append(_trial(point | choice, jobs, failed))
        proposed.append(replace(trials[-1], point=choice))
        if trials[-1].score is not None:
            for job, earlier in zip(jobs, histories, strict=True):
                earlier.append(_history(job.directory))
    return trials


def jobs_of(plan: Plan, task: str, label: str, point: GridPoint) -> list[TrainJob]:
    """Return the runs that show how good a setting is. Their students stay where they may be reported."""
    study = plan.study
    reported = study.seeds if study.has_row(label) else []
    kept = {"all": study.choosing_seeds, "reported": reported, "none": []}[study.keep]
    return [
        plan.train_job(task, label, point, seed, "kept" if seed in kept else "removed") for seed in study.choosing_seeds
    ]


def _trial(point: GridPoint, jobs: Sequence[TrainJob], failed: Failures) -> Trial:
    return Trial(point, _score(jobs, failed), next((failed[job.key] for job in jobs if job.key in failed), ""))


def _score(jobs: Sequence[TrainJob], failed: Failures) -> float | None:
    """Return the mean over the seeds that choose; None where one failed, diverged or was not worth finishing."""
    if any(job.key in failed or not job.directory.finished for job in jobs):
        return None
    score = fmean(job.directory.metrics()["score"] for job in jobs)
    return score if math.isfinite(score) else None  # NaN is neither more nor less than any other


def _history(run: RunDirectory) -> tuple[float, ...]:
    """Return the score after each evaluation during a run's training."""
    metric = run.metrics()["metric"]
    return tuple(entry[f"eval_{metric}"] for entry in read_history(run) if f"eval_{metric}" in entry)


def _maximise(plan: Plan, task: str, label: str, trials: Sequence[Trial]) -> bool:
    """Tell whether more is better, which any finished run knows."""
    for trial in trials:
        if trial.score is not None:
            job = jobs_of(plan, task, label, trial.point)[0]
            return job.directory.metrics()["metric"] not in SMALLER_IS_BETTER
    return True

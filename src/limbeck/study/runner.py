"""Carry out a study: which job waits for which, what was chosen, and the results as one file.

Every method on every task is a strand of work: its teacher, the teacher's features, the search among its settings, the
reported runs. Strands wait for their own jobs only, and share those that are the same. All state is in the runs
themselves: started again, a study passes over what is done and comes to the same choices.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout

from limbeck._internal.files import write_text
from limbeck.compare.entries import STUDY_RESULTS
from limbeck.errors import RunError
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.runs.directory import RunDirectory
from limbeck.study.description import GridPoint, Study
from limbeck.study.engines import Engine
from limbeck.study.jobs import Job, TrainJob, WeightsPolicy
from limbeck.study.plan import Plan
from limbeck.study.search import Trial, propose, require_optuna

_LOCK = ".lock"  # all that is left of a study killed at once
_ATTEMPTS = 2  # of a job that crashes; one that is wrong in itself is not tried again
Failures = dict[str, str]  # why a job failed, by its key
Strand = Generator[Sequence[Job], Failures, dict[str, Any]]
Search = Generator[Sequence[Job], Failures, list[Trial]]


class Watcher:
    """Who is told of a study's progress; this one does nothing about it."""

    def started(self, job: Job) -> None:
        """A job begins."""

    def ended(self, job: Job, error: str) -> None:
        """A job ended; ``error`` is empty where all went well."""


def run_study(study: Study, folder: Path, engine: Engine, watcher: Watcher | None = None) -> dict[str, Any]:
    """Do all that is missing, and write ``results.json``."""
    if study.search.sampler == "tpe":
        require_optuna()
    plan = Plan(study, folder)
    watcher = watcher or Watcher()
    engine.started = watcher.started
    names = [(task, label) for task in study.tasks for label in study.labels(task)]
    strands = {(task, label): _strand(plan, task, label) for task, label in names}
    with _own(folder, study):
        try:
            entries = _drive(strands, engine, watcher)
        finally:
            engine.close()
        if study.keep == "reported":
            for task, label in names:
                if _has_twin(plan, task, label):
                    _delete_unreported_students(plan, entries[task, label], entries.values())
        results = _results(plan, [entries[name] for name in strands])
        write_text(folder / STUDY_RESULTS, json.dumps(results, indent=1) + "\n")
    return results


def _strand(plan: Plan, task: str, label: str) -> Strand:
    """The jobs of one method on one task, in their order; sent back is which of them failed, and why."""
    study = plan.study
    reported = study.reported(task, label)
    entry: dict[str, Any] = {"task": task, "label": label, "chosen": {}, "searched": [], "runs": []}
    entry |= {"missing": len(study.seeds), "why": "", "reported": reported}
    teacher, cache = plan.teacher_job(task), plan.cache_job(task)
    if teacher is not None and (failed := (yield [teacher])):
        return entry | {"why": f"no teacher: {failed[teacher.key]}"}
    if cache is not None:
        yield [cache]  # where it fails, the runs ask the teacher itself
    trials = yield from _search(plan, task, label)
    chosen = _best(trials, _maximise(plan, task, label, trials)) if trials else plan.first_point(task, label)
    if chosen is None:
        first = next((trial.why for trial in trials if trial.why), "")
        return entry | {"why": f"no setting of the search was tried to the end{first and ': '}{first}"}
    fate: WeightsPolicy = "removed" if study.keep == "none" else "needed"
    jobs = [plan.train_job(task, label, chosen, seed, fate) for seed in study.seeds]
    failed = yield jobs
    done = [job for job in jobs if job.key not in failed]
    entry |= {
        "chosen": chosen,
        "searched": [{"point": trial.point, "score": trial.score} for trial in trials],
        "runs": [Path(job.folder).relative_to(plan.folder).as_posix() for job in done],
        "missing": len(jobs) - len(done),
        "why": next(iter(failed.values()), ""),
    }
    if study.keep != "all" and not _has_twin(plan, task, label):
        _delete_unreported_students(plan, entry, [entry])
    return entry


def _search(plan: Plan, task: str, label: str) -> Search:
    study = plan.study
    if not plan.searches(task, label):
        return []
    if study.search.sampler == "tpe":
        return (yield from _proposals(plan, task, label))
    points = study.points(task, label)
    jobs = [_jobs_of(plan, task, label, point) for point in points]
    failed = yield [job for of_point in jobs for job in of_point]
    return [_trial(point, of_point, failed) for point, of_point in zip(points, jobs, strict=True)]


def _proposals(plan: Plan, task: str, label: str) -> Search:
    """One trial after the other, because each proposal rests on all before it."""
    search, space = plan.study.search, plan.study.search_space(task, label)
    trials: list[Trial] = []
    # by seed: one that does badly with every setting says nothing about this one
    histories: list[list[tuple[float, ...]]] = [[] for _ in plan.study.choosing_seeds]
    for _ in range(search.trials):
        point = propose(space, trials, search.seed, _maximise(plan, task, label, trials))
        jobs = _jobs_of(plan, task, label, point)
        if search.prune:
            jobs = [replace(job, earlier=tuple(earlier)) for job, earlier in zip(jobs, histories, strict=True)]
        failed = yield jobs
        trials.append(_trial(point, jobs, failed))
        if trials[-1].score is not None:
            for job, earlier in zip(jobs, histories, strict=True):
                earlier.append(_history(job.directory))
    return trials


def _jobs_of(plan: Plan, task: str, label: str, point: GridPoint) -> list[TrainJob]:
    """The runs that show how good a setting is. Their students stay where they may be reported."""
    study = plan.study
    kept = {"all": study.choosing_seeds, "reported": study.seeds, "none": []}[study.keep]
    return [
        plan.train_job(task, label, point, seed, "kept" if seed in kept else "removed") for seed in study.choosing_seeds
    ]


def _trial(point: GridPoint, jobs: Sequence[TrainJob], failed: Failures) -> Trial:
    return Trial(point, _score(jobs, failed), next((failed[job.key] for job in jobs if job.key in failed), ""))


def _score(jobs: Sequence[TrainJob], failed: Failures) -> float | None:
    """The mean over the seeds that choose; None where one failed, diverged or was not worth finishing."""
    if any(job.key in failed or not job.directory.finished for job in jobs):
        return None
    score = fmean(job.directory.metrics()["score"] for job in jobs)
    return score if math.isfinite(score) else None  # NaN is neither more nor less than any other


def _history(run: RunDirectory) -> tuple[float, ...]:
    """The score after each evaluation during a run's training."""
    metric = run.metrics()["metric"]
    entries = map(json.loads, (run.path / "history.jsonl").read_text().splitlines())
    return tuple(entry[f"eval_{metric}"] for entry in entries if f"eval_{metric}" in entry)


def _maximise(plan: Plan, task: str, label: str, trials: Sequence[Trial]) -> bool:
    """Whether more is better, which any finished run knows."""
    for trial in trials:
        if trial.score is not None:
            job = _jobs_of(plan, task, label, trial.point)[0]
            return job.directory.metrics()["metric"] not in SMALLER_IS_BETTER
    return True


def _best(trials: Sequence[Trial], maximise: bool) -> GridPoint | None:
    """The point with the best score, the first of several."""
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        return None
    return max(scored, key=lambda trial: (1 if maximise else -1) * trial.score).point  # type: ignore[operator]


def _has_twin(plan: Plan, task: str, label: str) -> bool:
    """Whether another entry is the same method, so that it may report a run with which this one only chose."""
    methods = Counter(plan.study.method(task, other) for other in plan.study.labels(task))
    return methods[plan.study.method(task, label)] > 1


def _delete_unreported_students(plan: Plan, entry: dict[str, Any], reporting: Iterable[dict[str, Any]]) -> None:
    """The weights of an entry's runs that only served to choose."""
    reported = {plan.folder / run for other in reporting for run in other["runs"]}
    for trial in entry["searched"]:
        for job in _jobs_of(plan, entry["task"], entry["label"], trial["point"]):
            if job.directory.path not in reported:
                job.delete_students()


def _drive(strands: Mapping[Any, Strand], engine: Engine, watcher: Watcher) -> dict[Any, dict[str, Any]]:
    """Keep every strand going until all have returned what came of them."""
    waiting: dict[Any, dict[str, Job]] = {}  # what each strand asked for last
    running: dict[str, Job] = {}
    attempts: dict[str, int] = {}
    failed: Failures = {}
    entries: dict[Any, dict[str, Any]] = {}

    def go_on(name: Any, reply: Failures | None) -> None:
        """Submit what the strand asks for next, until there is something to wait for."""
        while True:
            try:
                jobs = {job.key: job for job in strands[name].send(reply)}  # type: ignore[arg-type]
            except StopIteration as end:
                entries[name] = end.value
                waiting.pop(name, None)
                return
            for key, job in jobs.items():
                if key not in running and key not in failed and not job.finished():
                    running[key] = job
                    engine.submit(job)
            waiting[name] = jobs
            if running.keys() & jobs.keys():
                return
            reply = {key: failed[key] for key in jobs if key in failed}

    for name in strands:
        go_on(name, None)
    while running:
        outcome = engine.next()
        job = running.pop(outcome.key)
        attempts[job.key] = attempts.get(job.key, 0) + 1
        watcher.ended(job, outcome.error)
        if outcome.error and not outcome.final and attempts[job.key] < _ATTEMPTS:
            running[job.key] = job
            engine.submit(job)
            continue
        if outcome.error:
            failed[job.key] = outcome.error
        for name, jobs in list(waiting.items()):
            if job.key in jobs and not running.keys() & jobs.keys():
                go_on(name, {key: failed[key] for key in jobs if key in failed})
    return entries


def _results(plan: Plan, entries: list[dict[str, Any]]) -> dict[str, Any]:
    study = plan.study
    teachers = {task: job for task in study.tasks if (job := plan.teacher_job(task)) is not None}
    return {
        "study": plan.folder.name,
        "baselines": study.present_baselines,
        "test": study.test,
        "sided": study.sided,
        "level": study.level,
        "selection": study.selection_note(),
        "entries": entries,
        "teachers": {task: Path(job.folder).relative_to(plan.folder).as_posix() for task, job in teachers.items()},
    }


@contextmanager
def _own(folder: Path, study: Study) -> Iterator[None]:
    """One process at a time works on a study; its settings are written there before anything runs."""
    others = [file for file in folder.iterdir() if file.name != _LOCK] if folder.is_dir() else []
    if folder.is_file() or (others and not (folder / "study.yaml").is_file()):
        raise RunError(f"{folder} holds other files and is no study. Choose another --output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}. Choose another --output.") from error
    lock = FileLock(folder / _LOCK)
    try:
        with lock.acquire(timeout=0):
            write_text(folder / "study.yaml", study.to_yaml())
            yield
    except Timeout as error:
        raise RunError(f"Another process is at work on {folder}. Wait for it, or choose another --output.") from error

"""Run a study: submit jobs when those they wait for are done, choose settings, and write the results as one file.

Every method on every task has a workflow: its teacher, the teacher's features, the search among its settings, the
reported runs. Workflows wait for their own jobs only, and share those that are the same. All state is in the runs
themselves: started again, a study passes over what is done and comes to the same choices.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from limbeck._internal.files import make_folder, remove_leftovers, write_text
from limbeck._internal.links import refuse_links
from limbeck._internal.locks import LOCK, holds_nothing
from limbeck.errors import RunError
from limbeck.runs.directory import StudyDirectory
from limbeck.study.description import Study
from limbeck.study.engines import Engine
from limbeck.study.jobs import Failures, Job, WeightsPolicy
from limbeck.study.known_data import KnownData
from limbeck.study.plan import Plan
from limbeck.study.rivals_job import rivals_workflow
from limbeck.study.search import require_optuna
from limbeck.study.searching import jobs_of, settle

_ATTEMPTS = 2  # of a job that crashes; one that is wrong in itself is not tried again
_Entry = dict[str, Any]  # a method on a task in results.json
# Generators that yield the jobs to wait for and are sent which of them failed.
Workflow = Generator[Sequence[Job], Failures, Any]


class Watcher:
    """Follow a study's progress; this base class ignores it."""

    def started(self, job: Job) -> None:
        """Take note that a job begins."""

    def ended(self, job: Job, error: str) -> None:
        """Take note that a job ended; ``error`` is empty where all went well."""


def run_study(study: Study, folder: Path, engine: Engine, watcher: Watcher | None = None) -> dict[str, Any]:
    """Do all that is missing in ``folder``, write ``results.json`` there, and return what it holds."""
    if study.search.sampler == "tpe":
        require_optuna()
    plan = Plan(study, folder)
    watcher = watcher or Watcher()
    names = [(task, label) for task in study.tasks for label in study.labels(task)]
    workflows = {(task, label): _workflow(plan, task, label) for task, label in names}
    with _own(folder, study):
        try:
            entries = run_workflows(workflows, engine, watcher)
            # of no use where there is no student to compare
            tasks = [task for task in study.tasks if any(e["runs"] for (at, _), e in entries.items() if at == task)]
            made = {task: rivals_workflow(task, plan.rivals_job(task)) for task in tasks}
            rivals = run_workflows(made, engine, watcher)
        finally:
            engine.close()
        if study.keep == "reported":
            for task, label in names:
                if _has_twin(plan, task, label):
                    _delete_unreported_students(plan, entries[task, label], entries.values())
        results = _results(plan, [entries[name] for name in workflows]) | {"rivals": rivals}
        write_text(StudyDirectory(folder).results, json.dumps(results, indent=1) + "\n")
    return results


def run_workflows(workflows: Mapping[Any, Workflow], engine: Engine, watcher: Watcher) -> dict[Any, Any]:
    """Advance workflows until each has returned, and give what they returned, by their names."""
    engine.on_start = watcher.started
    return _Scheduler(workflows, engine, watcher).run()


def _workflow(plan: Plan, task: str, label: str) -> Workflow:
    """Yield the jobs of one method on one task, in their order, and return its entry in the results."""
    study = plan.study
    reported = study.reported(task, label)
    entry: _Entry = {"task": task, "label": label, "chosen": {}, "searched": [], "runs": []}
    entry |= {"missing": len(study.seeds) if study.has_row(label) else 0, "why": "", "reported": reported}
    if why := (yield from _make_teacher(plan, task)):
        return entry | {"why": f"no teacher: {why}"}
    cache = plan.cache_job(task)
    if cache is not None:
        yield [cache]  # where it fails, the runs ask the teacher itself
    chosen, trials = yield from settle(plan, task, label)
    if chosen is None:
        first = next((trial.why for trial in trials if trial.why), "")
        return entry | {"why": f"no setting of the search was tried to the end{first and ': '}{first}"}
    weights: WeightsPolicy = "removed" if study.keep == "none" else "needed"
    jobs = [plan.train_job(task, label, chosen, seed, weights) for seed in (study.seeds if entry["missing"] else [])]
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


def _make_teacher(plan: Plan, task: str) -> Generator[Sequence[Job], Failures, str]:
    """Yield the trainings of a task's teacher, of which the best is chosen; return why there is none, else nothing."""
    candidates = plan.teacher_jobs(task)
    if len(candidates) > 1:
        failed = yield candidates
        plan.choose_teacher(task)
        if len(failed) == len(candidates):
            return failed[candidates[0].key]
        if plan.study.keep != "all":
            for job in candidates:
                if job is not plan.teacher_job(task):
                    job.delete_students()
    chosen = plan.teacher_job(task)
    if chosen is None:
        return ""
    chosen = replace(chosen, weights="needed")
    return (yield [chosen]).get(chosen.key, "")


def _has_twin(plan: Plan, task: str, label: str) -> bool:
    """Tell whether another entry is the same method, so that it may report a run with which this one only chose."""
    methods = Counter(plan.study.method(task, other) for other in plan.study.labels(task))
    return methods[plan.study.method(task, label)] > 1


def _delete_unreported_students(plan: Plan, entry: _Entry, reporting: Iterable[_Entry]) -> None:
    """Delete the weights of an entry's runs that only served to choose."""
    reported = {plan.folder / run for other in reporting for run in other["runs"]}
    for trial in entry["searched"]:
        for job in jobs_of(plan, entry["task"], entry["label"], trial["point"]):
            if job.directory.path not in reported:
                job.delete_students()


class _Scheduler:
    """Keep every workflow going until all have returned their entries. Each job runs once, whoever asks for it."""

    def __init__(self, workflows: Mapping[Any, Workflow], engine: Engine, watcher: Watcher) -> None:
        self._workflows, self._engine, self._watcher = workflows, engine, watcher
        self._waiting: dict[Any, dict[str, Job]] = {}  # what each workflow asked for last
        self._running: dict[str, Job] = {}
        self._attempts: Counter[str] = Counter()
        self._failed: Failures = {}
        self._entries: dict[Any, Any] = {}
        self._data = KnownData()

    def run(self) -> dict[Any, Any]:
        """Return the entry of each workflow, by its name."""
        for name in self._workflows:
            self._advance(name, None)
        while self._running:
            self._finish_one()
        return self._entries

    def _advance(self, name: Any, reply: Failures | None) -> None:
        """Submit what the workflow asks for next, until there is something to wait for."""
        while True:
            # what ended meanwhile must be of the data of what was there
            self._data.check(job for key, job in self._waiting.get(name, {}).items() if key not in self._failed)
            try:
                jobs = {job.key: job for job in self._workflows[name].send(reply)}  # type: ignore[arg-type]
            except StopIteration as end:
                self._entries[name] = end.value
                self._waiting.pop(name, None)
                return
            self._data.check(job for key, job in jobs.items() if key not in self._running)
            for key, job in jobs.items():
                if key not in self._running and key not in self._failed and not job.finished():
                    self._submit(job)
            self._waiting[name] = jobs
            if self._running.keys() & jobs.keys():
                return
            reply = self._failures_among(jobs)

    def _submit(self, job: Job) -> None:
        self._running[job.key] = job
        self._engine.submit(job)

    def _failures_among(self, jobs: Iterable[str]) -> Failures:
        return {key: self._failed[key] for key in jobs if key in self._failed}

    def _finish_one(self) -> None:
        """Wait for a job to end, and advance the workflows that waited for it alone."""
        outcome = self._engine.next_outcome()
        job = self._running.pop(outcome.key)
        self._attempts[job.key] += bool(outcome.error)  # a run that waited and goes on has the same key
        if outcome.halts:
            raise RunError(
                f"{job.title}: {outcome.error}. Nothing finished was lost. Make room. The same command continues "
                f"{job.study}."
            )
        self._watcher.ended(job, outcome.error)
        if outcome.error and not outcome.final and self._attempts[job.key] < _ATTEMPTS:
            self._submit(job)
            return
        if outcome.error:
            self._failed[job.key] = outcome.error
        for name, jobs in list(self._waiting.items()):
            if job.key in jobs and not self._running.keys() & jobs.keys():
                self._advance(name, self._failures_among(jobs))


def _results(plan: Plan, entries: list[_Entry]) -> dict[str, Any]:
    study = plan.study
    teachers = {task: job for task in study.tasks if (job := plan.teacher_job(task)) is not None}
    rows = [entry for entry in entries if study.has_row(entry["label"])]
    searches = [
        {"task": entry["task"], "label": entry["label"], "chosen": entry["chosen"], "searched": entry["searched"]}
        for entry in entries
        if entry not in rows
    ]
    return {
        "study": plan.folder.name,
        "baselines": study.present_baselines,
        "test": study.test,
        "sided": study.sided,
        "level": study.level,
        "correction": study.correction,
        "against": study.against,
        "relative_to": study.relative_to,
        "pooled": study.pooled,
        "average": study.average,
        "selection": study.selection_note(),
        "entries": rows,
        "searches": [*_teacher_searches(plan), *searches],  # of what has no row in the table
        "teachers": {task: Path(job.folder).relative_to(plan.folder).as_posix() for task, job in teachers.items()},
    }


def _teacher_searches(plan: Plan) -> list[dict[str, Any]]:
    found = []
    for task in plan.study.tasks:
        trials = plan.choose_teacher(task)
        if len(trials) > 1:
            searched = [{"point": trial.point, "score": trial.score} for trial in trials]
            found.append({"task": task, "label": "teacher", "chosen": plan.teacher_point(task), "searched": searched})
    return found


@contextmanager
def _own(folder: Path, study: Study) -> Iterator[None]:
    """Lock a study's folder, so that one process at a time works on it, and write the study's settings there."""
    others = folder.is_dir() and not holds_nothing(folder)
    if folder.is_file() or (others and not StudyDirectory(folder).exists):
        raise RunError(f"{folder} holds other files and is no study. Choose another --output.")
    refuse_links(folder)
    try:
        make_folder(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}. Choose another --output.") from error
    lock = FileLock(folder / LOCK)
    try:
        with lock.acquire(timeout=0):
            write_text(StudyDirectory(folder).description, study.to_yaml())
            remove_leftovers(folder)  # which is a study's now
            yield
    except Timeout as error:
        raise RunError(f"Another process is at work on {folder}. Wait for it, or choose another --output.") from error

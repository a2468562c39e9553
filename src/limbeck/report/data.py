"""Read all that runs say about themselves, once for every figure and table."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from limbeck.analysis.decisions import Decisions, decisions_of
from limbeck.analysis.record import Record, is_timed, read_record, session_of, without_latency
from limbeck.compare.entries import Entry, EntrySet
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.runs.rivals import KeptRival


class Spread(NamedTuple):
    """Hold a mean over seeds, with its deviation where there are several."""

    mean: float
    sd: float | None


@dataclass(frozen=True, eq=False)
class StudentData:
    """Hold what is known of one label on one task."""

    entry: Entry
    number: int  # among all labels: it looks the same in every figure
    records: tuple[Record, ...]  # of the seeds that were measured
    decisions: tuple[Decisions, ...]  # of every seed

    @property
    def label(self) -> str:
        """Name the student."""
        return self.entry.label

    def values(self, *place: str) -> list[float]:
        """List the number at this place of each record that has one."""
        return [value for value in (_number(record.values, place) for record in self.records) if value is not None]

    def spread(self, *place: str) -> Spread | None:
        """Summarise the number at this place over seeds."""
        return spread(self.values(*place))

    def sessions(self) -> set[str]:
        """Name the sessions in which this student was timed, of whatever seed."""
        return {session for record in self.records if (session := session_of(record)) is not None}

    def only_timed_in(self, session: str | None) -> StudentData:
        """Return the same without latencies of other sessions, and of none."""
        records = [
            record if session is not None and session_of(record) == session else without_latency(record)
            for record in self.records
        ]
        return replace(self, records=tuple(records))

    def array(self, name: str) -> np.ndarray | None:
        """Find an array in the first record that has it."""
        return next((record.arrays[name] for record in self.records if name in record.arrays), None)

    def scores(self, metric: str) -> Spread | None:
        """Summarise a metric over seeds; None too where a run diverged: a mean without it would flatter."""
        found = [run.scores[metric] for run in self.entry.runs if metric in run.scores]
        return spread(found) if all(map(math.isfinite, found)) else None

    def parameters(self) -> float | None:
        """Average the number of parameters over seeds."""
        known = [run.parameters for run in self.entry.runs if run.parameters is not None]
        return fmean(known) if known else None


@dataclass(frozen=True)
class TaskData:
    """Hold what is known of all students on one task, and of their teachers."""

    task: str
    students: tuple[StudentData, ...]
    teacher_scores: dict[str, float]
    teacher_parameters: float | None
    untimed: tuple[str, ...] = ()  # labels whose latency is not shown: it is of another session, or of none
    rivals: tuple[KeptRival, ...] = ()

    @property
    def best_rival(self) -> KeptRival | None:
        """Find the linear model with the best score; None where none is known."""
        known = [rival for rival in self.rivals if self.metric in rival.scores]
        sign = -1 if self.metric in SMALLER_IS_BETTER else 1
        return max(known, key=lambda rival: sign * rival.scores[self.metric], default=None)

    @property
    def metric(self) -> str:
        """Name the main metric; empty where no run is finished."""
        return next((name for student in self.students for run in student.entry.runs for name in run.scores), "")

    def shared(self, *place: str) -> float | None:
        """Average a number that does not depend on the label, such as the teacher's, over all records."""
        found = [value for student in self.students for value in student.values(*place)]
        return fmean(found) if found else None


@dataclass(frozen=True)
class ReportData:
    """Hold what is known of all labels on all tasks; every latency in it is of one session."""

    labels: tuple[str, ...]
    tasks: tuple[TaskData, ...]
    session: Mapping[str, Any] = field(default_factory=dict)  # when and where that was; empty where nothing was timed

    @property
    def several(self) -> bool:
        """Tell whether there is more than one task."""
        return len(self.tasks) > 1

    def on(self, task: str) -> str:
        """Say what a title needs to name its task."""
        return f" on {task}" if self.several else ""


def gather(found: EntrySet) -> ReportData:
    """Read everything about the entries of a table."""
    labels = list(dict.fromkeys(entry.label for entry in found.entries))
    tasks = dict.fromkeys(entry.task for entry in found.entries)
    return _of_one_session(ReportData(tuple(labels), tuple(_task(found, task, labels) for task in tasks)))


def _of_one_session(results: ReportData) -> ReportData:
    """Keep the latencies of the session that timed most students: others cannot be compared with them."""
    students = [student for task in results.tasks for student in task.students]
    covered = Counter(session for student in students for session in student.sessions())
    session = max(covered, key=lambda session: (covered[session], session), default=None)
    tasks = [
        replace(
            task,
            students=tuple(student.only_timed_in(session) for student in task.students),
            untimed=tuple(
                student.label
                for student in task.students
                if any(map(is_timed, student.records)) and session not in student.sessions()
            ),
        )
        for task in results.tasks
    ]
    return replace(results, tasks=tuple(tasks), session=json.loads(session) if session else {})


def spread(values: Sequence[float]) -> Spread | None:
    """Summarise values by mean and deviation; None where there are none."""
    if not values:
        return None
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def finite(values: Iterable[Any]) -> list[float]:
    """Keep those that are numbers: files of measurements may hold null and NaN."""
    return [float(value) for value in values if _is_number(value)]


def _task(found: EntrySet, task: str, labels: Sequence[str]) -> TaskData:
    entries = [entry for entry in found.entries if entry.task == task]
    runs = [run for entry in entries for run in entry.runs]
    teachers = {run.teacher: run.teacher_scores for run in runs if run.teacher_scores}
    sizes = [run.teacher_parameters for run in runs if run.teacher_parameters is not None]
    if task in found.teachers:
        teachers = teachers or {"": found.teachers[task].scores}
        sizes = sizes or [size for size in [found.teachers[task].parameters] if size is not None]
    names = dict.fromkeys(name for scores in teachers.values() for name in scores)
    return TaskData(
        task=task,
        students=tuple(_student(entry, labels.index(entry.label)) for entry in entries),
        teacher_scores={n: fmean(scores[n] for scores in teachers.values() if n in scores) for n in names},
        teacher_parameters=fmean(sizes) if sizes else None,
        rivals=found.rivals.get(task, ()),
    )


def _student(entry: Entry, number: int) -> StudentData:
    records = [record for record in (read_record(run.path) for run in entry.runs) if record is not None]
    return StudentData(entry, number, tuple(records), tuple(decisions_of(run.path) for run in entry.runs))


def _number(values: Any, place: Sequence[str]) -> float | None:
    for name in place:
        values = values.get(name) if isinstance(values, dict) else None
    return float(values) if _is_number(values) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""Write the rows of a table of scores, and the notes below it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from limbeck.compare.entries import Entry, EntrySet
from limbeck.compare.significance import MARKS, Column, Tested, TestPlan, mark_of
from limbeck.compare.tables import Cell
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.runs.reader import Reported
from limbeck.stats import summary

NONE = Cell("\N{EN DASH}")  # not known
_BLANK = Cell("")
_Row = tuple[Cell, ...]


def score_rows(
    found: EntrySet, labels: Sequence[str], columns: Sequence[Column], plan: TestPlan, tested: Sequence[Tested]
) -> tuple[tuple[str, ...], tuple[_Row, ...], int]:
    """Return the head, the rows, and how many of them come before the students."""
    entries = {(entry.task, entry.label): entry for entry in found.entries}
    several = len({column.task for column in columns}) > 1
    head = ["method", "parameters"]
    students = [[Cell(label), _size(_sizes(found, label))] for label in labels]
    majority, teacher = [Cell("majority class"), _BLANK], [Cell("teacher"), _size(_teacher_sizes(found))]
    rivals = {name: [Cell(name), _size(_rival_sizes(found, name))] for name in _rival_names(found)}
    for column in columns:
        here = [entries.get((column.task, label)) for label in labels]
        head.append(f"{column.task} {column.metric}" if several else column.metric)
        guessed = [run.majority for entry in here if entry for run in entry.runs]
        majority.append(_mean(column.metric, _known(column.metric, guessed)[:1]))
        teacher.append(_mean(column.metric, _known(column.metric, _teachers(found, column.task).values())))
        for name, row in rivals.items():
            of_task = [rival.scores for rival in found.rivals.get(column.task, ()) if rival.name == name]
            row.append(_mean(column.metric, _known(column.metric, of_task)))
        for row, cell in zip(
            students, _scores(column, dict(zip(labels, here, strict=True)), plan, tested), strict=True
        ):
            row.append(cell)
        printed = [_reported(entry, column) for entry in here]
        if any(printed):
            head.append("reported")
            majority.append(_BLANK)
            teacher.append(_BLANK)
            for row in rivals.values():
                row.append(_BLANK)
            for row, item in zip(students, printed, strict=True):
                row.append(_printed(item))
    background = [
        row for row in (majority, *rivals.values(), teacher) if any(cell not in (NONE, _BLANK) for cell in row[1:])
    ]
    return tuple(head), tuple(tuple(row) for row in [*background, *students]), len(background)


def notes_below(
    found: EntrySet, columns: Sequence[Column], plan: TestPlan, tested: Sequence[Tested], warnings: Sequence[str]
) -> list[str]:
    """Write what a reader must know about seeds, teachers, marks and papers."""
    tasks = dict.fromkeys(entry.task for entry in found.entries)
    left_out = [task for task in tasks if task not in {column.task for column in columns}]
    without = f"Not shown, because they have no {columns[0].metric}: {', '.join(left_out)}."
    return [
        *_about_seeds(found.entries),
        *_about_missing(found.entries),
        *_about_diverged(found.entries, columns),
        *found.notes,
        *_about_teachers(found, tasks),
        *_about_rivals(found, tasks),
        *([without] if left_out else []),
        *_about_marks(plan, tested, columns),
        *warnings,
        *_about_reported(found.entries, columns),
    ]


def _scores(
    column: Column, entries: Mapping[str, Entry | None], plan: TestPlan, tested: Sequence[Tested]
) -> list[Cell]:
    """Make the students' cells of one column."""
    scores = {
        label: _known(column.metric, [run.scores for run in entry.runs]) if entry else []
        for label, entry in entries.items()
    }
    means = {label: fmean(values) for label, values in scores.items() if values and all(map(math.isfinite, values))}
    best = ""
    if len(means) > 1:
        best = readable_score(column.metric, (min if column.metric in SMALLER_IS_BETTER else max)(means.values()))
    marks: dict[str, str] = {}
    for test in tested:
        if test.column == column and test.significant:
            marks[test.ours] = marks.get(test.ours, "") + mark_of(test, plan) + ("" if test.better else "↓")
    return [
        Cell(
            _mean(column.metric, values).text,
            bold=label in means and readable_score(column.metric, means[label]) == best,
            marks=marks.get(label, ""),
        )
        for label, values in scores.items()
    ]


def _known(metric: str, scores: Iterable[Mapping[str, float]]) -> list[float]:
    return [values[metric] for values in scores if metric in values]


def _mean(metric: str, scores: Sequence[float]) -> Cell:
    if not scores:
        return NONE
    if not all(map(math.isfinite, scores)):
        return Cell(readable_score(metric, fmean(scores)))
    found = summary(scores)
    deviation = "" if found.sd is None else f" ± {readable_score(metric, found.sd)}"
    return Cell(readable_score(metric, found.mean) + deviation)


def _reported(entry: Entry | None, column: Column) -> Reported | None:
    if entry is None or entry.task != column.task:
        return None
    return next((item for item in entry.reported if item.metric == column.metric), None)


def _printed(item: Reported | None) -> Cell:
    if item is None:
        return NONE
    scale = 1 if item.metric in SMALLER_IS_BETTER else 100  # papers print hundredths
    values = [value for value in (item.value, item.sd) if value is not None]
    return Cell(" ± ".join(readable_score(item.metric, value / scale) for value in values))


def _sizes(found: EntrySet, label: str) -> list[int | None]:
    return [run.parameters for entry in found.entries if entry.label == label for run in entry.runs]


def _teacher_sizes(found: EntrySet) -> list[int | None]:
    seen = [run.teacher_parameters for entry in found.entries for run in entry.runs]
    return [*seen, *(run.parameters for run in found.teachers.values())]


def _rival_names(found: EntrySet) -> list[str]:
    return list(dict.fromkeys(rival.name for rivals in found.rivals.values() for rival in rivals))


def _rival_sizes(found: EntrySet, name: str) -> list[int | None]:
    return [rival.parameters for rivals in found.rivals.values() for rival in rivals if rival.name == name]


def _size(numbers: Iterable[int | None]) -> Cell:
    """Write ``66.4 M``, or ``66.4 M to 67.0 M`` where tasks or runs differ."""
    known = sorted({number for number in numbers if number is not None})
    texts = dict.fromkeys(readable_count(number) for number in known[:1] + known[-1:])
    return Cell(" to ".join(texts))


def readable_count(number: float) -> str:
    """Write a large number for people: ``66.4 M``."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:g}"


def _teachers(found: EntrySet, task: str) -> dict[str, dict[str, float]]:
    """Find the scores of each teacher that runs on a task had; one that a study fine-tuned is scored on more data."""
    runs = [run for entry in found.entries if entry.task == task for run in entry.runs if run.teacher_scores]
    teachers = {run.teacher: run.teacher_scores for run in runs}
    if task not in found.teachers:
        return teachers
    # a study names its teacher by its content: where it lay before the study was moved, it was the same
    place = found.teachers[task].path.parts[-2:]
    same = bool(found.title) and all(Path(name).parts[-2:] == place for name in teachers)
    return {"": found.teachers[task].scores} if same or len(teachers) < 2 else teachers


def _about_seeds(entries: Sequence[Entry]) -> list[str]:
    seeds: dict[tuple[int, ...], list[str]] = {}
    for entry in entries:
        if entry.runs:
            seeds.setdefault(tuple(run.seed for run in entry.runs), []).append(_name(entry, entries))
    counts = {len(numbers) for numbers in seeds}
    text = "Mean ± standard deviation over seeds"
    if counts == {1}:
        text = "One run of each, which tells nothing about other seeds"
    elif len(counts) == 1:
        text = f"Mean ± standard deviation over {counts.pop()} seeds"
    if len(seeds) > 1:
        different = "; ".join(f"{_listed(numbers)} ({_listed(names)})" for numbers, names in seeds.items())
        text += f"; the seeds differ: {different}"
    return [f"{text}."] if seeds else []


def _about_missing(entries: Sequence[Entry]) -> list[str]:
    notes = []
    for entry in entries:
        if entry.missing or not entry.runs:
            why = f" ({entry.why})" if entry.why else ""
            of_all = f"{len(entry.runs)} of {len(entry.runs) + entry.missing} runs" if entry.missing else "no run"
            notes.append(f"{_name(entry, entries)}: {of_all} finished{why}.")
    return notes


def _about_diverged(entries: Sequence[Entry], columns: Sequence[Column]) -> list[str]:
    notes = []
    for column in columns:
        for entry in entries:
            scores = _known(column.metric, [run.scores for run in entry.runs]) if entry.task == column.task else []
            if bad := sum(not math.isfinite(score) for score in scores):
                runs = f"{bad} of {len(scores)} runs"
                notes.append(
                    f"{_name(entry, entries)}: {column.metric} is no finite number in {runs}, so it is not ranked."
                )
    return notes


def _about_teachers(found: EntrySet, tasks: Iterable[str]) -> list[str]:
    notes = []
    for task in tasks:
        teachers = _teachers(found, task)
        if len(teachers) > 1:
            notes.append(f"The runs on {task} have {len(teachers)} teachers, whose mean is shown: {_listed(teachers)}.")
    return notes


def _about_rivals(found: EntrySet, tasks: Iterable[str]) -> list[str]:
    """Say what the rivals are; of several tasks they differ in no more than the number of their rows."""
    rivals = next((found.rivals[task] for task in tasks if found.rivals.get(task)), ())
    return [f"{rival.name}: {rival.about}." for rival in rivals]


def _about_marks(plan: TestPlan, tested: Sequence[Tested], columns: Sequence[Column]) -> list[str]:
    if not tested:
        return []
    names = _listed(plan.baselines)
    marks = ", ".join(f"{mark}: better than {name}" for mark, name in zip(MARKS, plan.baselines, strict=False))
    if plan.against == "best":
        marks = f"{MARKS[0]}: better than the best of {names} in the column"
    worse = "" if plan.sided == "greater" else "; ↓ behind a mark: worse"
    first = "; only in a task's first column" if plan.test == "mcnemar" and not all(c.main for c in columns) else ""
    return [f"{marks}{worse} ({plan.describe(len(tested))}{first})."]


def _about_reported(entries: Sequence[Entry], columns: Sequence[Column]) -> list[str]:
    items = [_reported(entry, column) for column in columns for entry in entries]
    places = dict.fromkeys(item.where for item in items if item is not None)
    return [f"reported: {'; '.join(places)}."] if places else []


def _name(entry: Entry, entries: Sequence[Entry]) -> str:
    several = len({other.task for other in entries}) > 1
    return f"{entry.label} on {entry.task}" if several else entry.label


def _listed(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items))

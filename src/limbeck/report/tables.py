"""Make the tables beside the one of scores, as papers print them. Numbers are means over the seeds measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from limbeck.compare.score_table import NONE, readable_count
from limbeck.compare.tables import Cell, Table
from limbeck.report.bars import restored
from limbeck.report.data import ReportData, Spread, StudentData, TaskData, finite, spread
from limbeck.report.layout import DASH, TIMES_100
from limbeck.report.lines import RELATION_TITLES

CKA, RANKS, COST = "CKA on the diagonal", "Relation difference, ranks", "Cost"
RESTORATION, BY_CLASS = "Restoration", "Restoration by class"
CALIBRATION, SIMILARITY, POOLED = "Calibration", "Intra-class similarity", "Intra-class similarity, all examples"
_SIMILARITIES = (
    (SIMILARITY, "intra_class_similarity", "in its mini-batch; values are higher in smaller ones"),
    (POOLED, "intra_class_similarity_pooled", "among all that was measured"),
)
_MEAN = "mean over tasks"
_Row = tuple[str, list[float | None]]  # a name, and a value for each task


def all_tables(results: ReportData) -> list[Table]:
    """Make the tables for which anything was measured."""
    tables = [_diagonals(results), _ranks(results)]
    tables += [_cost(task, results.on(task.task), results.session) for task in results.tasks]
    tables += [_restoration(results), *(_by_class(task, results.on(task.task)) for task in results.tasks)]
    tables += [_calibration(results)]
    tables += [_similarity(results, title, place, among) for title, place, among in _SIMILARITIES]
    return [table for table in tables if any(cell not in (NONE, Cell("")) for row in table.rows for cell in row[1:])]


def _diagonals(results: ReportData) -> Table:
    """Make table 6 of Jung et al. 2023."""
    of_teacher: _Row = (f"teacher {DASH} teacher", [task.shared("cka_diagonal", "teacher") for task in results.tasks])
    before: _Row = (f"teacher {DASH} student before", [task.shared("cka_diagonal", "before") for task in results.tasks])
    after = _each(results, lambda student: _mean(student.spread("cka_diagonal", "after")))
    rows = [of_teacher, before, *((f"teacher {DASH} {label}", values) for label, values in after)]
    note = "Mean CKA of teacher and student on the same mini-batches; 1 where both have the same structure."
    return _over_tasks(CKA, results, rows, "models", 3, note)


def _similarity(results: ReportData, title: str, place: str, among: str) -> Table:
    """Make what figure 2 of Saadi et al. 2023 draws."""
    of_teacher: _Row = ("teacher", [task.shared(place, "teacher") for task in results.tasks])
    before: _Row = ("student before", [task.shared(place, "before") for task in results.tasks])
    after = _each(results, lambda student: _mean(student.spread(place, "after")))
    note = f"Mean cosine of an example's representation with those of its class, its own included, {among}."
    return _over_tasks(title, results, [of_teacher, before, *after], "model", 3, note)


def _ranks(results: ReportData) -> Table:
    """Make table 7 of Jung et al. 2023."""
    by_task = [_ranks_on(task) for task in results.tasks]
    rows: list[_Row] = [(label, [ranks.get(label) for ranks in by_task]) for label in results.labels]
    note = (
        "Mean of four ranks among the methods of a task: by the relation difference between samples and between "
        "tokens, Euclidean and cosine, after training. 1 is closest to the teacher; equal values share their mean rank."
    )
    return _over_tasks(RANKS, results, rows, "method", 2, note)


def _ranks_on(task: TaskData) -> dict[str, float]:
    """Rank the labels for which all four differences are known."""
    from scipy.stats import rankdata

    final = {student.label: _final_differences(student) for student in task.students}
    known = {label: values for label, values in final.items() if values}
    if not known:
        return {}
    ranks = rankdata(list(known.values()), axis=0).mean(axis=1)
    return dict(zip(known, ranks.tolist(), strict=True))


def _final_differences(student: StudentData) -> list[float]:
    """Average the four differences after training over seeds; nothing where one is missing."""
    last = [rows[-1] for record in student.records if (rows := record.values.get("relation_difference"))]
    found = [finite(row.get(name) for row in last) for name in RELATION_TITLES]
    return [fmean(values) for values in found] if all(found) else []


def _cost(task: TaskData, where: str, session: Mapping[str, Any]) -> Table:
    """Make table 8 of Jung et al. 2023."""
    head = (
        "model",
        "parameters",
        "trained",
        "on disk",
        "training / kd",
        "inference / kd",
        "ms per text",
        "speed-up",
    )
    shared = {
        name: task.shared("cost", name) for name in ("teacher_parameters", "teacher_disk_bytes", "teacher_milliseconds")
    }
    size, disk, time = shared.values()
    teacher = [_cell(size, readable_count), NONE, _cell(disk, _bytes), NONE, NONE, _cell(time, "{:.3g}".format), NONE]
    rows = [(Cell("teacher"), *teacher)] if any(value is not None for value in shared.values()) else []
    for student in task.students:
        values = {name: _mean(student.spread("cost", name)) for name in _COSTS}
        if any(value is not None for value in values.values()):
            rows.append((Cell(student.label), *(_cell(values[name], words) for name, words in _COSTS.items())))
    notes = [
        "trained: with what a method trains beside the student, which is not kept. training / kd and inference / kd: "
        "time of a step and of a prediction as a multiple of kd's. speed-up: how many times faster than the teacher."
        f"{_how_timed(task, session)}"
    ]
    if task.untimed:
        notes.append(
            f"Without latency, because it was not measured in turns with the others: {', '.join(task.untimed)}. "
            "'limbeck analyze' with all of these runs measures them together."
        )
    return Table(f"{COST}{where}", head, tuple(rows), notes=tuple(notes))


def _how_timed(task: TaskData, session: Mapping[str, Any]) -> str:
    """Say what the milliseconds are of; nothing where there are none."""
    tokens = task.shared("cost", "tokens")
    if tokens is None:
        return ""
    threads = session.get("threads")
    where = f"{session.get('processor')}, {threads} thread{'s' * (threads != 1)}"
    return (
        f" ms: the fastest 5% of calls take no longer, for one text of {tokens:.0f} tokens on {where}; all models took "
        "turns, and those of one architecture were timed as one."
    )


def _restoration(results: ReportData) -> Table:
    head, columns = ["method"], []
    for task in results.tasks:
        found = {student.label: restored(student) for student in task.students}
        names = dict.fromkeys(name for scores in found.values() for name in scores)
        head += [f"{task.task} {name}" if results.several else name for name in names]
        columns += [{label: scores.get(name) for label, scores in found.items()} for name in names]
    rows = tuple(
        (Cell(label), *(_with_deviation(column.get(label), 100, 2) for column in columns))
        for label in results.labels
        if any(column.get(label) for column in columns)
    )
    notes = (
        f"The student's answers scored as if the teacher's were the truth, {TIMES_100}; mean ± standard deviation over "
        "seeds. Of two classes precision, recall and f1 are of the second, of more their mean. agreement: the share "
        "of equal answers, of numbers their correlation.",
    )
    return Table(RESTORATION, tuple(head), rows, notes=notes)


def _by_class(task: TaskData, where: str) -> Table:
    names = ("precision", "recall", "f1")
    rows = []
    for student in task.students:
        found: dict[str, list[dict[str, float]]] = {}
        for decisions in student.decisions:
            for row in decisions.restoration.per_class if decisions.restoration else ():
                found.setdefault(str(row["class"]), []).append(row)
        for label, seeds in found.items():
            scores = [_with_deviation(spread([row[name] for row in seeds]), 100, 2) for name in names]
            rows.append(
                (Cell(student.label), Cell(label), *scores, Cell(f"{round(fmean(r['teacher'] for r in seeds), 1):g}"))
            )
    head = ("method", "class", *names, "teacher's answers")
    notes = ("teacher's answers: how often the teacher gives this one.",)
    return Table(f"{BY_CLASS}{where}", head, tuple(rows), notes=notes)


def _calibration(results: ReportData) -> Table:
    head, columns = ["model"], []
    for task in results.tasks:
        for name, words in (("error", "ECE"), ("brier", "Brier")):
            teacher = [
                getattr(d.teacher_calibration, name)
                for s in task.students
                for d in s.decisions
                if d.teacher_calibration
            ]
            column: dict[str | None, Spread | None] = {None: Spread(fmean(teacher), None) if teacher else None}
            for student in task.students:
                known = [getattr(d.calibration, name) for d in student.decisions if d.calibration]
                column[student.label] = spread(known)
            if any(column.values()):
                head.append(f"{task.task} {words}" if results.several else words)
                columns.append(column)
    models: list[tuple[str, str | None]] = [("teacher", None), *((label, label) for label in results.labels)]
    rows = tuple(
        (Cell(name), *(_with_deviation(column.get(key), 1, 4) for column in columns))
        for name, key in models
        if any(column.get(key) for column in columns)
    )
    notes = (
        "ECE: expected calibration error over 10 bins of confidence. Brier: mean squared difference between the "
        "probabilities and the truth, summed over classes. Lower is better; mean ± standard deviation over seeds.",
    )
    return Table(CALIBRATION, tuple(head), rows, notes=notes)


def _each(results: ReportData, value: Callable[[StudentData], float | None]) -> list[_Row]:
    """Make a row for each label, with a value or None for each task."""
    by_task = [{student.label: value(student) for student in task.students} for task in results.tasks]
    return [(label, [values.get(label) for values in by_task]) for label in results.labels]


def _over_tasks(title: str, results: ReportData, rows: Sequence[_Row], first: str, digits: int, note: str) -> Table:
    """Make a column for each task, and their mean, which is told only of what was measured on every task."""
    shown = [place for place in range(len(results.tasks)) if any(values[place] is not None for _, values in rows)]
    several = len(shown) > 1
    head = (first, *(results.tasks[place].task for place in shown), *([_MEAN] if several else []))
    cells = []
    for name, values in rows:
        some = [values[place] for place in shown]
        known = [value for value in some if value is not None]
        if known:
            mean = [fmean(known) if len(known) == len(some) else None] if several else []
            cells.append((Cell(name), *(_cell(value, f"{{:.{digits}f}}".format) for value in [*some, *mean])))
    return Table(title, head, tuple(cells), notes=(note,))


def _cell(value: float | None, words: Callable[[float], str]) -> Cell:
    return NONE if value is None else Cell(words(value))


def _with_deviation(value: Spread | None, factor: float, digits: int) -> Cell:
    if value is None:
        return NONE
    return Cell(" ± ".join(f"{factor * number:.{digits}f}" for number in value if number is not None))


def _mean(value: Spread | None) -> float | None:
    return None if value is None else value.mean


def _bytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


_COSTS: dict[str, Callable[[float], str]] = {
    "parameters": readable_count,
    "trained_parameters": readable_count,
    "disk_bytes": _bytes,
    "training": "{:.2f}".format,
    "inference": "{:.2f}".format,
    "milliseconds": "{:.3g}".format,
    "speedup": "{:.2f}".format,
}

"""Write what a report says first, in sentences that are true of these runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from limbeck.compare.rivals import Verdict
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.report.data import ReportData, StudentData, TaskData
from limbeck.report.layout import listed

_FEW = 2  # verdicts that are told one by one; the notes below the table have each
_ONE_SEED = "has one run only, which says nothing about other seeds: differences may be chance."


def title_of(study: str, results: ReportData) -> str:
    """Write the title of a report."""
    names = [study] if study else [task.task for task in results.tasks]
    return f"Distillation report: {listed(names) if len(names) < 4 else f'{len(names)} tasks'}"


def sentences(results: ReportData, verdicts: Sequence[Verdict] = ()) -> list[str]:
    """Describe the best student beside its teacher, which students no linear model is worse than, how much was run."""
    best = _best_on_average(results) if results.several else ""
    first = [best] if best else [_best_on(task) for task in results.tasks]
    return [*first, *_not_better(results, verdicts), _amount(results)]


def warning(results: ReportData) -> str:
    """Warn of methods with one seed; empty where every method has several."""
    entries = [student.entry for task in results.tasks for student in task.students if student.entry.runs]
    single = [entry for entry in entries if len(entry.runs) == 1]
    if not single:
        return ""
    if len(single) == len(entries):
        return f"Every method {_ONE_SEED}"
    names = [f"{entry.label}{results.on(entry.task)}" for entry in single]
    each = [f"{name} {_ONE_SEED}" for name in names]
    return each[0] if len(each) == 1 else f"Each of {listed(names)} {_ONE_SEED}"


def _not_better(results: ReportData, verdicts: Sequence[Verdict]) -> list[str]:
    """Name the students that are not better than a linear model, one by one or, where they are many, together."""
    found = []
    for task in results.tasks:
        here = [verdict for verdict in verdicts if verdict.task == task.task]
        if len(here) <= _FEW:
            found += [verdict.sentence(results.on(task.task)) for verdict in here]
            continue
        score = readable_score(here[0].metric, here[0].rival.scores[here[0].metric])
        found.append(
            f"{len(here)} of {len(task.students)} students{results.on(task.task)} are not better than "
            f"{here[0].rival.in_words} ({score}): {listed([verdict.label for verdict in here])}."
        )
    return found


def _best_on(task: TaskData) -> str:
    scores = {student: found.mean for student in task.students if (found := student.scores(task.metric)) is not None}
    if not scores:
        return f"On {task.task} no student has a score yet."
    value = (min if task.metric in SMALLER_IS_BETTER else max)(scores.values())
    best = [
        student
        for student, score in scores.items()
        if readable_score(task.metric, score) == readable_score(task.metric, value)
    ]
    who = _who(f"On {task.task}", [student.label for student in best], len(scores))
    teacher = task.teacher_scores.get(task.metric)
    parts = [
        f"{task.metric} {readable_score(task.metric, value)}{_over_seeds(best)}",
        *_beside(task.metric, value, teacher),
    ]
    if len(best) == 1:
        parts += _smaller([(best[0], task)])
    return f"{who}: {', '.join(parts)}."


def _best_on_average(results: ReportData) -> str:
    """Name the best; empty where a mean would compare students by different tasks, or add up different things."""
    if any(task.metric in SMALLER_IS_BETTER for task in results.tasks):
        return ""
    pairs = {label: _everywhere(results, label) for label in results.labels}
    scores = {
        label: fmean(found.mean for student, task in on if (found := student.scores(task.metric)) is not None)
        for label, on in pairs.items()
        if on and all(student.scores(task.metric) is not None for student, task in on)
    }
    if not scores:
        return ""
    value = max(scores.values())
    best = [label for label, score in scores.items() if readable_score("", score) == readable_score("", value)]
    who = _who(f"On average over {len(results.tasks)} tasks", best, len(scores))
    teachers = [task.teacher_scores.get(task.metric) for task in results.tasks]
    known = [score for score in teachers if score is not None]
    teacher = fmean(known) if len(known) == len(teachers) else None
    parts = [f"main score {readable_score('', value)}", *_beside("", value, teacher)]
    if len(best) == 1:
        parts += _smaller(pairs[best[0]])
    return f"{who}: {', '.join(parts)}."


def _everywhere(results: ReportData, label: str) -> list[tuple[StudentData, TaskData]]:
    """Find a label on every task; nothing where it is missing on one."""
    found = [(student, task) for task in results.tasks for student in task.students if student.label == label]
    return found if len(found) == len(results.tasks) else []


def _who(where: str, best: Sequence[str], among: int) -> str:
    if among == 1:
        return f"{where} the student is {best[0]}"
    if len(best) == 1:
        return f"{where} the best student is {best[0]}"
    return f"{where} {listed(best)} are equal and the best students"


def _over_seeds(best: Sequence[StudentData]) -> str:
    seeds = len(best[0].entry.runs)
    return f" (mean of {seeds} seeds)" if len(best) == 1 and seeds > 1 else ""


def _beside(metric: str, value: float, teacher: float | None) -> list[str]:
    if teacher is None:
        return []
    if metric in SMALLER_IS_BETTER or teacher <= 0:
        return [f"where the teacher has {readable_score(metric, teacher)}"]
    return [f"{100 * value / teacher:.1f}% of the teacher's {readable_score(metric, teacher)}"]


def _smaller(pairs: Sequence[tuple[StudentData, TaskData]]) -> list[str]:
    """Say how much smaller and faster than the teacher, as means over tasks."""
    sizes = [
        (size, task.teacher_parameters)
        for student, task in pairs
        if (size := student.parameters()) is not None and task.teacher_parameters
    ]
    speeds = [found.mean for student, _ in pairs if (found := student.spread("cost", "speedup")) is not None]
    parts = []
    if len(sizes) == len(pairs):
        share = fmean(ours / theirs for ours, theirs in sizes)
        parts.append("with as many parameters" if share == 1 else f"with {100 * share:.1f}% of the parameters")
    if len(speeds) == len(pairs):
        parts.append(f"{fmean(speeds):.2f} times as fast")
    return parts


def _amount(results: ReportData) -> str:
    entries = [student.entry for task in results.tasks for student in task.students]
    runs, seeds = sum(len(entry.runs) for entry in entries), sorted({len(entry.runs) for entry in entries})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"{_count(runs, 'run')}: {_count(len(results.labels), 'method')} on {_count(len(results.tasks), 'task')}, "
        f"{each} {'seed' if seeds == [1] else 'seeds'} each."
    )


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"

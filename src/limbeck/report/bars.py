"""Draw single numbers of each label, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from limbeck.report.data import Spread, StudentData, TaskData, spread
from limbeck.report.drawing import INK, ReportFigure
from limbeck.report.layout import GREY, TIMES_100, Room, look, panels, short, task_figure

_THICK = 0.15  # inches, of a bar
_HATCHES = ("", "///", "...")
_COLOURS = tuple(look(number).colour for number in (0, 4, 2))


def restoration_bars(task: TaskData) -> list[ReportFigure]:
    """Draw how far each student gives its teacher's answers."""
    found = {student.label: restored(student) for student in task.students}
    found = {label: scores for label, scores in found.items() if scores}
    names = list(dict.fromkeys(name for scores in found.values() for name in scores if name != "agreement"))
    if not names:
        return []
    group = _THICK * len(names) + 0.12
    height = group * len(found)
    foot = 0.35
    figure, (axes,) = panels(1, 5.2, height, Room(1.9, 0.5, 0.1, 0.5), foot=foot)
    # rows are counted from above
    for place, name in enumerate(names):
        rows = [number * group + place * _THICK for number in range(len(found))]
        values = [scores.get(name) for scores in found.values()]
        _bars(axes, rows, values, 100.0, color=_COLOURS[place], hatch=_HATCHES[place], label=name)
    axes.set_yticks(
        [number * group + _THICK * (len(names) - 1) / 2 for number in range(len(found))],
        [short(label, 1.8) for label in found],
    )
    axes.set_ylim(height - 0.06 - _THICK / 2, -0.06 - _THICK / 2)
    axes.set_xlabel(f"against the teacher's answers as the truth ({TIMES_100})")
    axes.set_ylabel("method")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=len(names), borderaxespad=0.2)
    words = [
        f"{label} {', '.join(f'{name} {100 * score.mean:.1f}' for name, score in scores.items())}"
        for label, scores in found.items()
    ]
    return [
        task_figure(
            task.task,
            "restoration",
            "Restoration of the teacher's answers",
            caption=(
                "The student's answers on the validation data, scored as if the teacher's were the truth. Bars are "
                "means over seeds, with their standard deviation."
            ),
            alt=f"Restoration of the teacher's answers on {task.task}: {'; '.join(words)}.",
            figure=figure,
        )
    ]


def restored(student: StudentData) -> dict[str, Spread]:
    """Summarise the scores of restoration and the agreement over seeds."""
    found: dict[str, list[float]] = {}
    for decisions in student.decisions:
        for name, value in (decisions.restoration.scores if decisions.restoration else {}).items():
            found.setdefault(name, []).append(value)
        if decisions.agreement is not None:
            found.setdefault("agreement", []).append(decisions.agreement)
    return {name: over for name, values in found.items() if (over := spread(values)) is not None}


def intra_class_bars(task: TaskData) -> list[ReportFigure]:
    """Draw how similar examples of one class are to each model."""
    place = "intra_class_similarity"
    students = {student: student.spread(place, "after") for student in task.students}
    known = {student: value for student, value in students.items() if value is not None}
    if not known:
        return []
    shared = {"teacher": task.shared(place, "teacher"), "student before": task.shared(place, "before")}
    colours = {"teacher": INK, "student before": GREY}
    bars = [(name, Spread(value, None), colours[name]) for name, value in shared.items() if value is not None]
    bars += [(student.label, value, look(student.number).colour) for student, value in known.items()]
    figure, (axes,) = panels(1, 5.2, 0.26 * len(bars), Room(1.9, 0.6, 0.1, 0.5))
    for row, (_, value, colour) in enumerate(bars):
        _bars(axes, [row], [value], 1.0, height=0.62, color=colour)
    axes.set_yticks(range(len(bars)), [short(name, 1.8) for name, *_ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel("intra-class similarity (mean cosine, at most 1)")
    axes.set_ylabel("model")
    words = [f"{name} {value.mean:.2f}" for name, value, _ in bars]
    return [
        task_figure(
            task.task,
            "intra-class similarity",
            "Intra-class similarity",
            caption=(
                "How similar the representations of examples of one class are: the teacher, the student before "
                "training, and after it with each method (means over seeds, with their standard deviation)."
            ),
            alt=f"Intra-class similarity on {task.task}: {', '.join(words)}.",
            figure=figure,
        )
    ]


def _bars(
    axes: Any, rows: Sequence[float], values: Sequence[Spread | None], factor: float, height: float = _THICK, **how: Any
) -> None:
    """Draw bars horizontally, so that names are read without turning the head; each with its number."""
    known = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
    means = np.array([factor * value.mean for _, value in known])
    deviations = np.array([factor * (value.sd or 0) for _, value in known])
    places = [row for row, _ in known]
    axes.barh(places, means, height=height * 0.92, linewidth=0, edgecolor="white", **how)
    if deviations.any():
        axes.errorbar(means, places, xerr=deviations, fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
    for place, mean, deviation in zip(places, means, deviations, strict=True):
        text = f"{mean:.1f}" if factor > 1 else f"{mean:.2f}"
        axes.annotate(text, (max(mean, 0) + deviation, place), (4, 0), textcoords="offset points", va="center", size=7)
    axes.grid(True, axis="x")

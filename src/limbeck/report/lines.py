"""Draw what changes with training or with confidence: lines over steps, and reliability curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from limbeck.analysis.decisions import Calibration
from limbeck.metrics import readable_score
from limbeck.report.data import StudentData, TaskData, finite, spread
from limbeck.report.drawing import INK, ReportFigure
from limbeck.report.history import Curve, History, histories
from limbeck.report.layout import (
    TEACHER_LOOK,
    Look,
    Room,
    draw_legend,
    in_parts,
    legend_for,
    look,
    panels,
    scale,
    short,
    task_figure,
    with_unit,
)

RELATION_TITLES = {
    "inter_euclidean": "inter, Euclidean",
    "inter_cosine": "inter, cosine",
    "intra_euclidean": "intra, Euclidean",
    "intra_cosine": "intra, cosine",
}
_LINES_A_PANEL = 4  # of calibration, beside the teacher's


class _Series(NamedTuple):
    label: str
    look: Look
    history: History


def training_curves(task: TaskData) -> list[ReportFigure]:
    """Draw a panel for each loss term, and one for the score on the validation data."""
    series = [found for student in task.students for found in _series(student, task.metric)]
    terms = list(dict.fromkeys(name for found in series for name in found.history.terms))
    scored = any(found.history.scores for found in series)
    if not series:
        return []
    drawn = [{s.label: s.history.terms[term] for s in series if term in s.history.terms} for term in terms]
    if scored:
        drawn.append({s.label: s.history.scores for s in series if s.history.scores})
    looks = {found.label: found.look for found in series}
    figure, grid = _over_steps(drawn, looks)
    for axes, term in zip(grid, terms, strict=False):
        axes.set_title(short(term, 1.8), loc="left")
        axes.set_ylabel("unweighted value")
    if scored:
        for line in grid[-1].get_lines():
            line.set_ydata(scale(task.metric) * np.asarray(line.get_ydata()))
        grid[-1].relim()
        grid[-1].autoscale_view()
        grid[-1].set_title("validation data", loc="left")
        grid[-1].set_ylabel(with_unit(task.metric))
    words = [f"{term}: {_ends(lines)}" for term, lines in zip(terms, drawn, strict=False)]
    if scored:
        last = [f"{label} {readable_score(task.metric, line.values[-1])}" for label, line in drawn[-1].items()]
        words.append(f"{task.metric} on the validation data ends at {', '.join(last)}")
    return [
        task_figure(
            task.task,
            "curves",
            "Training",
            caption=(
                "Every term of the loss over the steps of training, before it is weighted; terms of one name share a "
                "panel. The first seed of each method; long logs are averaged to 200 points."
            ),
            alt=f"Lines over training steps on {task.task}. {'; '.join(words)}.",
            figure=figure,
        )
    ]


def relation_difference(task: TaskData) -> list[ReportFigure]:
    """Draw how far relations are from the teacher's over training."""
    found = {student.label: _relations(student) for student in task.students}
    drawn = [{label: lines[name] for label, lines in found.items() if name in lines} for name in RELATION_TITLES]
    if not any(drawn):
        return []
    looks = {student.label: look(student.number) for student in task.students if found[student.label]}
    figure, grid = _over_steps(drawn, looks, every_point=True)
    for axes, title in zip(grid, RELATION_TITLES.values(), strict=True):
        axes.set_title(title, loc="left")
        axes.set_ylabel("relation difference")
    words = [f"{title}: {_ends(lines)}" for title, lines in zip(RELATION_TITLES.values(), drawn, strict=True) if lines]
    return [
        task_figure(
            task.task,
            "relation difference",
            "Relation difference",
            caption=(
                "How far the relations between samples (inter) and between the tokens of a sample (intra) are from the "
                "teacher's, by Euclidean distance and by cosine, over training. Lower is closer. The first measured "
                "seed of each method."
            ),
            alt=f"Relation difference to the teacher over training steps on {task.task}. {'; '.join(words)}.",
            figure=figure,
        )
    ]


def reliability(task: TaskData) -> list[ReportFigure]:
    """Draw how many answers are right at each confidence."""
    teacher = _pooled([d.teacher_calibration for student in task.students for d in student.decisions])
    students = [(student, _pooled([d.calibration for d in student.decisions])) for student in task.students]
    known = [(student, found) for student, found in students if found is not None]
    if not known:
        return []
    parts = in_parts(known, _LINES_A_PANEL)
    legend_height = 0.2 * (min(len(known), _LINES_A_PANEL) + (teacher is not None) + 1) + 0.1
    figure, grid = panels(len(parts), 2.5, 2.5, Room(0.65, 0.15, 0.15, 0.5 + legend_height), columns=3)
    for axes, part in zip(grid, parts, strict=True):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, alpha=0.5, label="as sure as right")
        lines = [("teacher", TEACHER_LOOK, teacher)] if teacher else []
        for label, looks, curve in [*lines, *((s.label, look(s.number), found) for s, found in part)]:
            _reliability_line(axes, f"{short(label, 1.2)}, ECE {curve.error:.3f}", looks, curve)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of right answers")
        axes.grid(True)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), handlelength=2.5, borderaxespad=0)
    words = [f"{student.label} {found.error:.3f}" for student, found in known]
    taught = f"teacher {teacher.error:.3f}, " if teacher else ""
    return [
        task_figure(
            task.task,
            "calibration",
            "Calibration",
            caption=(
                "How many of the answers given with some confidence are right; on the diagonal a model is as sure as "
                "it is right. The area of a marker grows with the number of answers. ECE: expected calibration error, "
                "the mean over seeds; 0 is best."
            ),
            alt=f"Reliability curves on {task.task}. Expected calibration error: {taught}{', '.join(words)}.",
            figure=figure,
        )
    ]


def _series(student: StudentData, metric: str) -> list[_Series]:
    if not student.entry.runs:
        return []
    first = look(student.number)
    found = histories(student.entry.runs[0].directory, metric)
    dashes = (first.dashes, (0, (1, 1)), (0, (5, 1, 1, 1)))  # stages of one run share colour and marker
    return [
        _Series(
            f"{student.label}, {history.stage}" if history.stage else student.label,
            Look(first.colour, first.marker, dashes[place % len(dashes)]),
            history,
        )
        for place, history in enumerate(found)
    ]


def _relations(student: StudentData) -> dict[str, Curve]:
    measured = [record.values.get("relation_difference") for record in student.records]
    rows: list[dict[str, Any]] = next(filter(None, measured), [])
    lines = {}
    for name in RELATION_TITLES:
        points = [point for point in (finite((row.get("step"), row.get(name))) for row in rows) if len(point) == 2]
        if points:
            steps, values = np.array(sorted(points)).T
            lines[name] = Curve(steps, values)
    return lines


def _over_steps(
    drawn: Sequence[dict[str, Curve]], looks: dict[str, Look], every_point: bool = False
) -> tuple[Any, list[Any]]:
    """Draw a panel for each set of lines, with one legend below all of them."""
    names = [short(label) for label in looks]
    room = Room(0.65, 0.1, 0.3, 0.5)
    width = 1.75 if len(drawn) > 2 else 3.2
    legend = legend_for(names, min(4, len(drawn)) * (width + room.left + room.right))
    figure, grid = panels(len(drawn), width, 1.6, room, foot=legend.height)
    for axes, lines in zip(grid, drawn, strict=True):
        for number, (label, line) in enumerate(lines.items()):
            every = 1 if every_point else max(1, len(line.steps) // 6)
            axes.plot(
                line.steps,
                line.values,
                color=looks[label].colour,
                linestyle=looks[label].dashes,
                marker=looks[label].marker,
                markersize=4,
                # markers of lines that lie on each other stay visible beside each other
                markevery=every if every == 1 else (number % every, every),
            )
        axes.set_xlabel("step")
        axes.grid(True)
        axes.locator_params(nbins=4)
    draw_legend(figure, names, list(looks.values()), legend)
    return figure, grid


def _ends(lines: dict[str, Curve]) -> str:
    return ", ".join(f"{label} from {line.values[0]:.3g} to {line.values[-1]:.3g}" for label, line in lines.items())


def _pooled(found: Sequence[Calibration | None]) -> Calibration | None:
    """Pool seeds: all answers of a bin together; the errors' mean."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    counts = np.sum([one.counts for one in known], axis=0)
    filled = np.maximum(counts, 1)
    confidence, accuracy = (
        np.sum([one.counts * getattr(one, name) for one in known], axis=0) / filled
        for name in ("confidence", "accuracy")
    )
    errors, briers = (spread([getattr(one, name) for one in known]) for name in ("error", "brier"))
    return Calibration(known[0].edges, counts, confidence, accuracy, errors.mean, briers.mean)  # type: ignore[union-attr]


def _reliability_line(axes: Any, label: str, looks: Look, curve: Calibration) -> None:
    filled = curve.counts > 0
    x, y, counts = (values[filled] for values in (curve.confidence, curve.accuracy, curve.counts))
    axes.plot(x, y, color=looks.colour, linestyle=looks.dashes, marker=looks.marker, markersize=3, label=label)
    axes.scatter(x, y, s=8 + 90 * counts / counts.sum(), color=looks.colour, marker=looks.marker, linewidths=0)

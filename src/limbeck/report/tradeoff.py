"""Draw what a score costs: each student and its teacher by score, time and size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limbeck.compare.score_table import readable_count
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.report.data import TaskData
from limbeck.report.drawing import INK, ReportFigure
from limbeck.report.layout import TEACHER_LOOK, Look, Room, look, panels, scale, short, task_figure, with_unit

_LARGEST, _SMALLEST, _UNKNOWN = 320.0, 24.0, 70.0  # areas of markers
_LINE = 11.0  # points from one label to the next
_NICE = np.array([1, 1.5, 2, 3, 4, 5, 6, 7, 8])


@dataclass(frozen=True)
class _Point:
    label: str
    x: float
    y: float
    ends: tuple[float, float]  # of its bar
    size: float | None
    look: Look


class Mark(NamedTuple):
    """Describe a point of a picture: where it is, its interval, its size, and the number of its look."""

    label: str
    milliseconds: float
    score: float
    interval: tuple[float, float]
    size: float | None
    number: int


class _Box(NamedTuple):
    left: float
    right: float
    low: float
    high: float

    def meets(self, other: _Box) -> bool:
        """Tell whether two boxes overlap."""
        apart = self.right < other.left or other.right < self.left or self.high < other.low or other.high < self.low
        return not apart


def trade_off(task: TaskData) -> list[ReportFigure]:
    """Draw scores against milliseconds where they were measured, else against parameters."""
    timed = any(student.values("cost", "milliseconds") for student in task.students)
    points, without = _points(task, timed)
    if not points:
        return []
    figure, (axes,) = panels(1, 6.6, max(3.4, 0.19 * len(points) + 1.2), Room(0.7, 0.2, 0.15, 0.55))
    rival = task.best_rival
    _draw(axes, points, task.metric, rival.scores[task.metric] if rival else None)
    axes.set_ylabel(with_unit(task.metric))
    axes.set_xlabel("latency of one text (ms, logarithmic)" if timed else "parameters (logarithmic)")
    _ticks(axes, "{:g}".format if timed else readable_count)
    across = "latency" if timed else "parameters"
    better = "low" if task.metric in SMALLER_IS_BETTER else "high"
    left_out = f" Left out, because their score or {across} is not known: {', '.join(without)}." if without else ""
    line = f" The dashed line is {rival.in_words}." if rival else ""
    unit = "{:.3g} ms".format if timed else lambda value: f"{readable_count(value)} parameters"
    words = [f"{point.label} {readable_score(task.metric, point.y)} at {unit(point.x)}" for point in points]
    if rival:
        words.append(f"{rival.name} {readable_score(task.metric, rival.scores[task.metric])}")
    return [
        task_figure(
            task.task,
            "trade-off",
            f"Score against {across}",
            caption=(
                f"The {task.metric} against {across}: best is {better} and to the left. The area of a marker grows "
                f"with the number of parameters; bars are the standard deviation over seeds; the star is the teacher."
                f"{line}{left_out}"
            ),
            alt=f"{task.metric} against {across} on {task.task}: {'; '.join(words)}.",
            figure=figure,
        )
    ]


def draw_marks(marks: Sequence[Mark], *, metric: str, across: str, name: str, title: str, caption: str) -> ReportFigure:
    """Draw models by score and time, a larger marker for a larger size; marks of one number share their look."""
    looks = [TEACHER_LOOK, *(look(number) for number in range(max(mark.number for mark in marks)))]
    points = [
        _Point(mark.label, mark.milliseconds, mark.score, mark.interval, mark.size, looks[mark.number])
        for mark in marks
    ]
    figure, (axes,) = panels(1, 6.6, max(3.8, 0.19 * len(points) + 1.2), Room(0.7, 0.2, 0.15, 0.55))
    _draw(axes, points, metric)
    axes.set_ylabel(with_unit(metric))
    axes.set_xlabel(across)
    _ticks(axes, "{:g}".format)
    words = [f"{mark.label} {readable_score(metric, mark.score)} at {mark.milliseconds:.3g} ms" for mark in marks]
    alt = f"{metric} against {across}: {'; '.join(words)}."
    return ReportFigure(name, title, caption, alt, "", "trade-off", figure)


def _points(task: TaskData, timed: bool) -> tuple[list[_Point], list[str]]:
    """Return what can be shown, the teacher last, and the labels of what cannot."""
    points, without = [], []
    for student in task.students:
        score, parameters = student.scores(task.metric), student.parameters()
        time = student.spread("cost", "milliseconds")
        x = (time and time.mean) if timed else parameters
        if score is None or not x:
            without.append(student.label)
        else:
            ends = (score.mean - (score.sd or 0), score.mean + (score.sd or 0))
            points.append(_Point(student.label, x, score.mean, ends, parameters, look(student.number)))
    x = task.shared("cost", "teacher_milliseconds") if timed else task.teacher_parameters
    if points and x and task.metric in task.teacher_scores:
        y = task.teacher_scores[task.metric]
        points.append(_Point("teacher", x, y, (y, y), task.teacher_parameters, TEACHER_LOOK))
    return points, without


def _draw(axes: Any, points: Sequence[_Point], metric: str, rival: float | None = None) -> None:
    hundredths = scale(metric)
    largest = max((point.size or 0 for point in points), default=0)
    areas = [max(_SMALLEST, _LARGEST * point.size / largest) if point.size else _UNKNOWN for point in points]
    _limit(axes, points, hundredths, [] if rival is None else [hundredths * rival])
    if rival is not None:
        axes.axhline(hundredths * rival, color=INK, linestyle="--", linewidth=0.9, alpha=0.6, zorder=0)
    for point, area in zip(points, areas, strict=True):
        y, (low, high) = hundredths * point.y, (hundredths * end for end in point.ends)
        if low < high:
            bar = [[max(0.0, y - low)], [max(0.0, high - y)]]
            axes.errorbar(point.x, y, yerr=bar, fmt="none", ecolor=point.look.colour, capsize=3, linewidth=1)
        axes.scatter(point.x, y, s=area, marker=point.look.marker, color=point.look.colour, linewidths=0)
    _label(axes, points, areas, hundredths)


def _limit(axes: Any, points: Sequence[_Point], hundredths: float, lines: Sequence[float]) -> None:
    """Set limits before anything is drawn: matplotlib finds none where all points have one time."""
    axes.set_xscale("log")
    axes.grid(True)
    low, high = min(point.x for point in points), max(point.x for point in points)
    room = max(high / low, 2.0) ** 0.25  # for labels beside the outermost points
    axes.set_xlim(low / room, high * room**2)
    ends = [*(hundredths * end for point in points for end in point.ends), *lines]
    margin = 0.12 * (max(ends) - min(ends)) or max(1.0, 0.05 * abs(ends[0]))
    axes.set_ylim(min(ends) - margin, max(ends) + margin)


def _label(axes: Any, points: Sequence[_Point], areas: Sequence[float], hundredths: float) -> None:
    """Write each name beside its marker, moved where it would cover another."""
    inside = axes.get_window_extent()
    spots = [axes.transData.transform((point.x, hundredths * point.y)) for point in points]
    radii = [0.6 * area**0.5 + 2 for area in areas]
    taken = [_Box(x - r, x + r, y - r, y + r) for (x, y), r in zip(spots, radii, strict=True)]
    highest_first = sorted(range(len(points)), key=lambda number: -spots[number][1])
    for number in highest_first:
        (x, y), radius, name = spots[number], radii[number], short(points[number].label)
        box, away = _free(x, y, radius, 5.2 * len(name), taken, inside)
        taken.append(box)
        axes.annotate(
            name,
            (points[number].x, hundredths * points[number].y),
            (box.left - x, (box.low + box.high) / 2 - y),
            textcoords="offset points",  # and not pixels: a file may have more of them to an inch
            va="center",
            ha="left",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.5, "alpha": 0.5} if away else None,
            annotation_clip=False,
        )


def _free(x: float, y: float, radius: float, width: float, taken: Sequence[_Box], inside: Any) -> tuple[_Box, bool]:
    """Find the nearest place for a text, and tell whether it needs a line to its marker."""
    for left, up in _moves(radius, width):
        box = _Box(x + left, x + left + width, y + up - _LINE / 2, y + up + _LINE / 2)
        fits = inside.x0 <= box.left and box.right <= inside.x1 and inside.y0 <= box.low and box.high <= inside.y1
        if fits and not any(box.meets(other) for other in taken):
            return box, abs(up) > radius + _LINE / 2
    return _Box(x + radius, x + radius + width, y - _LINE / 2, y + _LINE / 2), False


def _moves(radius: float, width: float) -> Iterator[tuple[float, float]]:
    for lines in range(30):
        for up in (lines * _LINE / 2, -lines * _LINE / 2):
            yield radius + 1 + lines, up
            yield -radius - 1 - lines - width, up


def _ticks(axes: Any, words: Any) -> None:
    """Set round numbers with few digits, also where the axis spans less than a power of ten."""
    low, high = axes.get_xlim()
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in (np.array([1]), np.array([1, 3]), np.array([1, 2, 5]), _NICE):
        ticks = [float(f"{step * 10**power:.3g}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    axes.set_xticks(ticks, [words(tick) for tick in ticks])
    axes.set_xticks([], minor=True)

"""Draw single numbers of each model over all tasks in one figure."""

from __future__ import annotations

from statistics import fmean
from typing import Any, NamedTuple

from limbeck.report.data import ReportData
from limbeck.report.drawing import ReportFigure
from limbeck.report.layout import DASH, GREY, TEACHER_LOOK, Look, Room, look, panels, short, task_figure

_MEAN = "mean over tasks"
_HATCHES = ("", "///", "...", "xxx")
_MOST_BARS = 60  # beyond which only the means are drawn: each task has a figure of its own


class _Model(NamedTuple):
    name: str
    look: Look
    values: list[float | None]  # of each task

    @property
    def mean(self) -> float | None:
        """Average over tasks; None where one is missing, because a mean of others would be of other tasks."""
        known = [value for value in self.values if value is not None]
        return fmean(known) if known and len(known) == len(self.values) else None


def diagonal_points(results: ReportData) -> list[ReportFigure]:
    """Draw the mean diagonals of the heat maps as points on one scale (Jung et al. 2023, figure 5)."""
    models = _models(results, "cka_diagonal")
    if len(models) < 2:
        return []
    figure, (axes,) = panels(1, 5.2, 0.26 * len(models), Room(1.9, 0.6, 0.1, 0.5))
    for row, model in enumerate(models):
        if results.several:
            known = [value for value in model.values if value is not None]
            axes.plot(known, [row] * len(known), linestyle="", marker="|", color=GREY, markersize=6)
        if (value := model.mean) is not None:
            axes.plot([value], [row], linestyle="", marker=model.look.marker, color=model.look.colour, markersize=7)
            axes.annotate(f"{value:.3f}", (value, row), (7, 0), textcoords="offset points", va="center", size=7)
    axes.set_yticks(range(len(models)), [short(f"teacher {DASH} {model.name}", 1.8) for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xlabel(f"CKA on the diagonal{', ' + _MEAN if results.several else ''}")
    axes.set_ylabel("models")
    axes.grid(True)
    strokes = " Strokes: each task." if results.several else ""
    return [
        _figure(
            results,
            "diagonals",
            "CKA on the diagonals of the heat maps",
            f"How close each student's structure is to the teacher's, which is at 1, and to the undistilled one's: the "
            f"means of the heat maps' diagonals.{strokes}",
            f"Mean CKA on the diagonals: {_words(models)}.",
            figure,
        )
    ]


def intra_class_over_tasks(results: ReportData) -> list[ReportFigure]:
    """Draw the intra-class similarity of each model on each task, and their means (Saadi et al. 2023, figure 2)."""
    models = _models(results, "intra_class_similarity")
    if not results.several or not models:
        return []
    groups = [task.task for task in results.tasks] if len(results.tasks) * len(models) <= _MOST_BARS else []
    thick = 0.16
    group = thick * len(models) + 0.14
    height = group * (len(groups) + 1)
    figure, (axes,) = panels(1, 5.2, height, Room(1.9, 0.6, 0.1, 0.5), foot=0.2 * -(-len(models) // 3) + 0.15)
    for place, model in enumerate(models):
        values = [*model.values[: len(groups)], model.mean]
        drawn = [(row, value) for row, value in enumerate(values) if value is not None]
        rows = [row * group + place * thick for row, _ in drawn]
        how: dict[str, Any] = {"height": 0.9 * thick, "linewidth": 0, "edgecolor": "white"}
        hatch = _HATCHES[place % len(_HATCHES)]
        axes.barh(
            rows, [value for _, value in drawn], color=model.look.colour, hatch=hatch, label=short(model.name), **how
        )
        for row, (_, value) in zip(rows, drawn, strict=True):
            axes.annotate(f"{value:.2f}", (max(value, 0), row), (4, 0), textcoords="offset points", va="center", size=7)
    middle = thick * (len(models) - 1) / 2
    axes.set_yticks(
        [row * group + middle for row in range(len(groups) + 1)], [short(name, 1.8) for name in (*groups, _MEAN)]
    )
    axes.set_ylim(height - 0.07 - thick / 2, -0.07 - thick / 2)
    axes.set_xlabel("intra-class similarity (mean cosine, at most 1)")
    axes.set_ylabel("task")
    axes.grid(True, axis="x")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=min(3, len(models)), borderaxespad=0.2)
    return [
        _figure(
            results,
            "intra-class similarity",
            "Intra-class similarity",
            "How similar the representations of examples of one class are in a mini-batch, on each task and on "
            "average: the teacher, the student before training, and after it with each method.",
            f"Intra-class similarity, mean over {len(results.tasks)} tasks: {_words(models)}.",
            figure,
        )
    ]


def _figure(results: ReportData, kind: str, title: str, caption: str, alt: str, figure: Any) -> ReportFigure:
    """Describe a figure over all tasks, which is about the task where there is only one."""
    where = "all tasks" if results.several else results.tasks[0].task
    return task_figure(where, kind, title, caption=caption, alt=alt, figure=figure)


def _models(results: ReportData, place: str) -> list[_Model]:
    """List teacher, student before and each label, with a value for each task; those of which nothing is known not."""
    tasks = results.tasks
    found = [
        _Model("teacher", TEACHER_LOOK, [task.shared(place, "teacher") for task in tasks]),
        _Model("student before", Look(GREY, "."), [task.shared(place, "before") for task in tasks]),
    ]
    for number, label in enumerate(results.labels):
        spreads = [
            next((student.spread(place, "after") for student in task.students if student.label == label), None)
            for task in tasks
        ]
        found.append(_Model(label, look(number), [None if value is None else value.mean for value in spreads]))
    return [model for model in found if any(value is not None for value in model.values)]


def _words(models: list[_Model]) -> str:
    return ", ".join(f"{model.name} {model.mean:.3f}" for model in models if model.mean is not None)

"""Draw the page's pictures, as SVG files that are the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evidence.results import MAIN, MethodRuns, ResultFiles
from limbeck.report.drawing import INK, ReportFigure, save_as, style
from limbeck.report.layout import Room, look, panels, stem

_ROW = 0.22  # inches


def draw(results: ResultFiles, folder: Path) -> list[tuple[ReportFigure, Path]]:
    """Write every picture into ``folder``."""
    with style():
        found = [scores(results), *similarity(results)]
    return [(drawn, save_as(drawn, folder / f"{drawn.name}.svg")) for drawn in found]


def scores(results: ResultFiles) -> ReportFigure:
    """Draw every seed of every method, against the mean of fine-tuning."""
    tasks = results.tasks(MAIN)
    labels = list(dict.fromkeys(label for task in tasks for label in results.files[MAIN, task].methods))
    figure, axes = panels(len(tasks), 1.9, _ROW * len(labels), Room(0.75, 0.15, 0.3, 0.5))
    for place, (panel, task) in enumerate(zip(axes, tasks, strict=True)):
        lines = results.files[MAIN, task].methods
        middle = lines["ft"].summary.mean
        panel.axvline(0.0, color=INK, linewidth=0.6)
        for row, label in enumerate(labels):
            if label in lines:
                values = np.asarray(lines[label].scores) - middle
                panel.plot(values, np.full(len(values), row), "o", color=look(row).colour, alpha=0.6, markersize=4)
                panel.plot([values.mean()], [row], "|", color=INK, markersize=11, markeredgewidth=1.8)
        panel.set_title(_named(lines["ft"]))
        panel.set_yticks(range(len(labels)), labels if place == 0 else [""] * len(labels))
        panel.set_ylim(len(labels) - 0.5, -0.5)
        panel.set_xlabel("points above ft")
        panel.grid(axis="x")
    words = [f"{task}: {_means(list(results.files[MAIN, task].methods.values()))}" for task in tasks]
    return ReportFigure(
        name="scores",
        title="Scores of each seed against fine-tuning",
        caption="Each dot is a seed, each bar a mean; zero is the mean of `ft`.",
        alt=f"Means. {'; '.join(words)}.",
        task="",
        kind="scores",
        figure=figure,
    )


def similarity(results: ResultFiles) -> list[ReportFigure]:
    """Draw the CKA of students and teacher on validation data, before and after training."""
    found = []
    for task in results.tasks(MAIN):
        lines = results.files[MAIN, task].methods
        values = {label: measured for label, line in lines.items() if (measured := _diagonal(line)) is not None}
        if not values:
            continue
        figure, (panel,) = panels(1, 3.6, _ROW * len(values), Room(0.75, 0.3, 0.3, 0.5))
        for row, (before, after) in enumerate(values.values()):
            panel.plot([before, after], [row, row], "-", color=look(row).colour)
            panel.plot([before], [row], "o", color=look(row).colour, markerfacecolor="none")
            panel.plot([after], [row], "o", color=look(row).colour)
        panel.set_title(task)
        panel.set_yticks(range(len(values)), list(values))
        panel.set_ylim(len(values) - 0.5, -0.5)
        panel.set_xlabel("CKA with the teacher")
        panel.grid(axis="x")
        words = [f"{label} {before:.2f} to {after:.2f}" for label, (before, after) in values.items()]
        found.append(
            ReportFigure(
                name=stem("similarity", task),
                title=f"CKA with the teacher on {task}",
                caption="Before training (open) and after it (filled), on validation data, one seed.",
                alt=f"CKA with the teacher: {', '.join(words)}.",
                task=task,
                kind="similarity",
                figure=figure,
            )
        )
    return found


def _diagonal(line: MethodRuns) -> tuple[float, float] | None:
    measured = [run["analysis"]["cka_diagonal"] for run in line.runs if "cka_diagonal" in run.get("analysis", {})]
    return (measured[0]["before"], measured[0]["after"]) if measured else None


def _named(line: MethodRuns) -> str:
    return f"{line.task} ({line.runs[0]['metric']})"


def _means(lines: Sequence[MethodRuns]) -> str:
    return ", ".join(f"{line.label} {line.summary.mean:.1f}" for line in lines)

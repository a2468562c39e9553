"""Draw what 'limbeck bench' measured: latency and throughput by batch size, a column for each length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import RecipeError
from limbeck.report.drawing import SUFFIXES, ReportFigure, save_as, style
from limbeck.report.layout import COLUMNS, TEACHER_LOOK, Room, draw_legend, legend_for, listed, look, panels, short

_ROOM = Room(0.65, 0.15, 0.3, 0.5)
_PANEL = (2.3, 1.7)  # inches


def check_plot(file: Path) -> None:
    """Raise what would keep the figure from being written, before anything is measured."""
    if file.suffix.lower() not in SUFFIXES:
        raise RecipeError(f"A figure is written as {listed(SUFFIXES)}; seen: {file.name}. Change the name's ending.")
    with style():  # tells if matplotlib is missing
        pass


def plot(values: Mapping[str, Any], file: Path) -> None:
    """Draw the values of a ``Bench`` into a file."""
    with style():
        drawn = _draw(values)
    save_as(drawn, file)


def _draw(values: Mapping[str, Any]) -> ReportFigure:
    models = values["models"]
    lengths = sorted({cell["length"] for cell in models[0]["cells"]})[:COLUMNS]
    looks = [TEACHER_LOOK, *map(look, range(len(models) - 1))]
    names = [short(model["name"]) for model in models]
    legend = legend_for(names, len(lengths) * (_PANEL[0] + _ROOM.left + _ROOM.right))
    figure, axes = panels(2 * len(lengths), *_PANEL, _ROOM, foot=legend.height, columns=len(lengths))
    for place, length in enumerate(lengths):
        for model, how in zip(models, looks, strict=True):
            line: dict[str, Any] = {"color": how.colour, "linestyle": how.dashes, "marker": how.marker, "markersize": 5}
            cells = sorted((cell for cell in model["cells"] if cell["length"] == length), key=_batch_size)
            sizes, p50 = [_batch_size(cell) for cell in cells], [cell["p50_ms"] for cell in cells]
            above = [cell["p95_ms"] - cell["p50_ms"] for cell in cells]
            axes[place].errorbar(sizes, p50, yerr=[[0] * len(above), above], elinewidth=0.8, capsize=1.5, **line)
            axes[place + len(lengths)].plot(sizes, [cell["examples_per_second"] for cell in cells], **line)
        axes[place].set_title(f"{length} tokens")
    sizes = sorted({_batch_size(cell) for cell in models[0]["cells"]})
    for number, panel in enumerate(axes):
        panel.set(xscale="log", xlabel="batch size")
        panel.set_xticks(sizes, list(map(str, sizes)))
        panel.set_xticks([], minor=True)
        panel.grid(True, axis="y")
        if number < len(lengths):
            _plain_logarithms(panel)
        else:
            panel.set_ylim(bottom=0)
        if number % len(lengths) == 0:
            panel.set_ylabel("examples per second" if number else "milliseconds")
    draw_legend(figure, names, looks, legend)
    caption = (
        f"Median latency of a batch, with a line up to its 95th percentile, and throughput; {values['processor']}, "
        f"{values['threads']} threads."
    )
    return ReportFigure("bench", "Latency and throughput", caption, _words(models), "", "bench", figure)


def _plain_logarithms(panel: Any) -> None:
    """Write ticks at 1, 2, 5, 10, 20, ... as such."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _batch_size(cell: Mapping[str, Any]) -> int:
    return int(cell["batch_size"])


def _words(models: Any) -> str:
    said = []
    for model in models:
        cell = min(model["cells"], key=lambda cell: (cell["batch_size"], cell["length"]))
        said.append(f"{model['name']} {cell['p50_ms']:.3g} ms at batch size {cell['batch_size']}")
    return f"Latency and throughput by batch size: {', '.join(said)}."

"""Place panels, legends and texts: sizes are fixed in inches, so that no figure is squeezed by its labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from limbeck._internal.files import file_name
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.report.drawing import INK, ReportFigure, printable

COLOURS = "colours"  # tells a bar of colours from a panel
COLUMNS = 4  # of panels: more are not readable
_LETTER = 0.075  # inches, of 9 points, rather too wide than too narrow
# Okabe and Ito's colours and a violet; orange, sky blue and purple are darker here, to be seen on white too
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c06a9a", "#b98200", "#3592cf", "#8a63d2")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")
TIMES_100 = "\N{MULTIPLICATION SIGN} 100"
DASH = "\N{EN DASH}"  # between two models, and for nothing
GREY = "#808080"  # the student before training
_CORRELATIONS = ("mcc", "pearson", "spearman")


@dataclass(frozen=True)
class Look:
    """Tell one label from others: never by the colour alone."""

    colour: str
    marker: str
    dashes: Any = "-"


TEACHER_LOOK = Look(INK, "*")


class Room(NamedTuple):
    """Hold the room around a panel, for its ticks, title and labels."""

    left: float
    right: float
    top: float
    bottom: float


def look(number: int) -> Look:
    """Choose the look of a label; colours repeat after 7 labels with other dashes, markers after 8."""
    return Look(
        _COLOURS[number % len(_COLOURS)],
        _MARKERS[number % len(_MARKERS)],
        _DASHES[number // len(_COLOURS) % len(_DASHES)],
    )


def panels(
    count: int, width: float, height: float, room: Room, foot: float = 0.0, columns: int = COLUMNS
) -> tuple[Any, list[Any]]:
    """Make a figure with panels of this size in rows, and a foot below them for a legend or a bar of colours."""
    from matplotlib.figure import Figure

    across = min(columns, count)
    down = -(-count // across)
    cell_width, cell_height = width + room.left + room.right, height + room.top + room.bottom
    total = (across * cell_width, down * cell_height + foot)
    figure = Figure(figsize=total, dpi=72)  # a unit is a point, which is what labels are placed in
    axes = []
    for place in range(count):
        row, column = divmod(place, across)
        left = column * cell_width + room.left
        bottom = total[1] - (row + 1) * cell_height + room.bottom
        box = (left / total[0], bottom / total[1], width / total[0], height / total[1])
        axes.append(figure.add_axes(box))
    return figure, axes


class Legend(NamedTuple):
    """Hold the size of a legend."""

    columns: int
    height: float


def legend_for(labels: Sequence[str], width: float) -> Legend:
    """Compute how many columns a legend of this width has, and how high it is."""
    each = max(map(len, labels)) * _LETTER + 0.6
    columns = max(1, min(len(labels), int(width / each)))
    return Legend(columns, -(-len(labels) // columns) * 0.2 + 0.15)


def draw_legend(figure: Any, labels: Sequence[str], looks: Sequence[Look], legend: Legend) -> None:
    """Draw one legend below all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=5) for look in looks
    ]
    figure.legend(handles, labels, loc="lower center", ncols=legend.columns, handlelength=3, borderaxespad=0.3)


def bar_of_colours(figure: Any, image: Any, words: str, foot: float) -> None:
    """Draw the scale of colours below all panels, as wide as is needed to read it."""
    width, height = figure.get_size_inches()
    long = min(3.2, width - 0.6)
    box = ((width - long) / 2 / width, (foot - 0.2) / height, long / width, 0.11 / height)
    figure.colorbar(image, cax=figure.add_axes(box, label=COLOURS), orientation="horizontal", label=words)


def short(text: str, inches: float = 2.4) -> str:
    """Write a label as one line of at most this width, in a form that matplotlib and XML take.

    The middle goes, because labels of one method differ at their end.
    """
    line = printable(text)
    longest = max(4, int(inches / _LETTER))
    if len(line) > longest:
        line = f"{line[: longest // 2 - 1]}…{line[len(line) - (longest + 1) // 2 :]}"
    return f"\N{HAIR SPACE}{line}" if line.startswith("_") else line or DASH


def stem(*names: str) -> str:
    """Name a figure's files; the name is an anchor in the page too."""
    return re.sub(r"[^\w.-]+", "-", file_name(*names).replace(" ", "-"))


def task_figure(
    task: str, kind: str, title: str, *, caption: str, alt: str, figure: Any, name: str = "", part: int = 1
) -> ReportFigure:
    """Describe a figure about one task, or a part of one too large; ``name`` or the kind names its files."""
    files = stem(name or kind, task, *([str(part)] if part > 1 else []))
    return ReportFigure(files, f"{title}, {task}{part_of(part)}", caption, alt, task, kind, figure)


def part_of(number: int) -> str:
    """Say in a title which part of a figure this is."""
    return f", part {number}" if number > 1 else ""


def in_parts(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Divide items into parts of at most this many."""
    return [items[start : start + most] for start in range(0, len(items), most)]


def scale(metric: str) -> float:
    """Return the factor by which a metric is shown: hundredths for shares and correlations, as in every table."""
    return 1.0 if metric in SMALLER_IS_BETTER else 100.0


def with_unit(metric: str) -> str:
    """Write a metric with its unit for an axis: ``accuracy (%)``."""
    if metric in SMALLER_IS_BETTER:
        return metric
    return f"{metric} ({TIMES_100})" if metric in _CORRELATIONS else f"{metric} (%)"


def listed(items: Sequence[str]) -> str:
    """Join words for a sentence: ``kd, fsd and ft``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))) if items else ""

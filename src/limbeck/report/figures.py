"""Draw every figure that finished runs give."""

from __future__ import annotations

from limbeck.report.bars import intra_class_bars, restoration_bars
from limbeck.report.data import ReportData
from limbeck.report.drawing import ReportFigure, style
from limbeck.report.lines import relation_difference, reliability, training_curves
from limbeck.report.maps import heat_maps, layer_maps, token_maps
from limbeck.report.over_tasks import diagonal_points, intra_class_over_tasks
from limbeck.report.tradeoff import trade_off

_DRAW = (
    trade_off,
    training_curves,
    restoration_bars,
    heat_maps,
    layer_maps,
    relation_difference,
    intra_class_bars,
    token_maps,
    reliability,
)
_DRAW_OVER_TASKS = (diagonal_points, intra_class_over_tasks)


def all_figures(results: ReportData) -> list[ReportFigure]:
    """Draw all figures: those over all tasks, then the others by kind and by task."""
    with style():
        over_tasks = [drawn for draw in _DRAW_OVER_TASKS for drawn in draw(results)]
        return over_tasks + [drawn for draw in _DRAW for task in results.tasks for drawn in draw(task)]

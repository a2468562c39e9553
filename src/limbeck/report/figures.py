"""Every figure that finished runs give."""

from __future__ import annotations

from limbeck.report.bars import intra_class_bars, restoration_bars
from limbeck.report.drawing import Drawn, style
from limbeck.report.gathered import Results
from limbeck.report.lines import curves, relation_difference, reliability
from limbeck.report.maps import heat_maps, layer_maps, token_maps
from limbeck.report.tradeoff import trade_off

_DRAW = (
    trade_off,
    curves,
    restoration_bars,
    heat_maps,
    layer_maps,
    relation_difference,
    intra_class_bars,
    token_maps,
    reliability,
)


def all_figures(results: Results) -> list[Drawn]:
    """By kind, then by task."""
    with style():
        return [drawn for draw in _DRAW for task in results.tasks for drawn in draw(task)]

"""Choose among measured models: those that no other beats in both score and time, the knee, what a budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.shrink.budget import Budget

Entry = Mapping[str, Any]  # a model of the summary; "chosen_by" is its score on the rows that choose, more is better


def front(models: Sequence[Entry], noise: float = 0.0) -> list[Entry]:
    """Return the models than which none is both faster and better, from fast to slow.

    A slower one is better where its score is larger by more than ``noise``.
    """
    kept: list[Entry] = []
    for model in sorted(models, key=lambda model: (model["p50_ms"], -model["chosen_by"])):
        if not kept or model["chosen_by"] > kept[-1]["chosen_by"] + noise:
            kept.append(model)
    return kept


def knee(models: Sequence[Entry], noise: float = 0.0) -> Entry:
    """Return the model of the front after which more time buys the least: farthest above the line from end to end.

    Time counts by its logarithm: from 1 to 2 ms is as far as from 10 to 20. Of two models the better one is taken.
    """
    ends = front(models, noise)
    if len(ends) < 3:
        return ends[-1]
    times = [math.log(model["p50_ms"]) for model in ends]
    scores = [model["chosen_by"] for model in ends]

    def above(place: int) -> float:
        across = (times[place] - times[0]) / (times[-1] - times[0])
        return (scores[place] - scores[0]) / (scores[-1] - scores[0]) - across

    return ends[max(range(len(ends)), key=above)]


def within(models: Sequence[Entry], budget: Budget, teacher_ms: float) -> Entry | None:
    """Return the best model within the budget; of equals the fastest. None where no model is."""
    allowed = [model for model in models if budget.met(model["p50_ms"], teacher_ms)]
    return max(allowed, key=lambda model: (model["chosen_by"], -model["p50_ms"]), default=None)

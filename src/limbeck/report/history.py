"""Read the curves of a training: values of its loss terms, and scores on the validation data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from limbeck.report.data import finite
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import read_history

_MOST = 200  # points of a line: more are not seen


class Curve(NamedTuple):
    """Hold values over steps."""

    steps: np.ndarray
    values: np.ndarray


class History(NamedTuple):
    """Hold the curves of one stage of a training."""

    stage: str  # empty for a training in one stage
    terms: dict[str, Curve]
    scores: Curve | None


def histories(run: RunDirectory, metric: str) -> list[History]:
    """Read the curves of every stage of a run that logged something."""
    logged = [stage for stage in (*run.stages(), run) if stage.history.is_file()]
    several = any(stage != run for stage in logged)
    found = [
        _history(f"stage {number}" if several else "", read_history(stage), metric)
        for number, stage in enumerate(logged, start=1)
    ]
    return [history for history in found if history.terms or history.scores]


def _history(stage: str, entries: list[dict[str, Any]], metric: str) -> History:
    names = dict.fromkeys(name for entry in entries for name in entry if name.startswith("term/"))
    terms = {name.partition("/")[2]: _line(entries, name) for name in names}
    return History(stage, {name: line for name, line in terms.items() if line}, _line(entries, f"eval_{metric}"))


def _line(entries: list[dict[str, Any]], name: str) -> Curve | None:
    points = [finite((entry.get("step"), entry.get(name))) for entry in entries]
    known = np.array([point for point in points if len(point) == 2])
    if not known.size:
        return None
    if len(known) > _MOST:
        known = np.array([part.mean(axis=0) for part in np.array_split(known, _MOST)])
    return Curve(known[:, 0], known[:, 1])

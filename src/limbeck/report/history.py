"""The log of a training: values of its loss terms, and scores on the validation data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import RunError
from limbeck.report.gathered import finite

_MOST = 200  # points of a line: more are not seen


class Line(NamedTuple):
    steps: np.ndarray
    values: np.ndarray


class History(NamedTuple):
    stage: str  # empty for a training in one stage
    terms: dict[str, Line]
    scores: Line | None


def histories(run: Path, metric: str) -> list[History]:
    """Of every stage of a run, those that logged something."""
    stages = sorted(run.glob("stage-[0-9]*/history.jsonl"), key=lambda file: int(file.parent.name.rpartition("-")[2]))
    files = [(f"stage {number}", file) for number, file in enumerate(stages, start=1)]
    files.append((f"stage {len(stages) + 1}" if stages else "", run / "history.jsonl"))
    found = [_history(stage, _entries(file), metric) for stage, file in files if file.is_file()]
    return [history for history in found if history.terms or history.scores]


def _history(stage: str, entries: list[dict[str, Any]], metric: str) -> History:
    names = dict.fromkeys(name for entry in entries for name in entry if name.startswith("term/"))
    terms = {name.partition("/")[2]: _line(entries, name) for name in names}
    return History(stage, {name: line for name, line in terms.items() if line}, _line(entries, f"eval_{metric}"))


def _line(entries: list[dict[str, Any]], name: str) -> Line | None:
    points = [finite((entry.get("step"), entry.get(name))) for entry in entries]
    known = np.array([point for point in points if len(point) == 2])
    if not known.size:
        return None
    if len(known) > _MOST:
        known = np.array([part.mean(axis=0) for part in np.array_split(known, _MOST)])
    return Line(known[:, 0], known[:, 1])


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        seen = " ".join(str(error).split())
        raise RunError(f"{file} is damaged ({seen}). Copy it again or repeat the run.") from error
    return [entry for entry in entries if isinstance(entry, dict)]

"""Make the other tables that papers print of the same scores: relative changes, pooled deviations, averages of GLUE.

A study says which it wants: ``relative_to: FSD``, ``pooled: {FSD: [batch 8, batch 16]}``, ``average: fcd``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from limbeck.compare.entries import Entry
from limbeck.compare.glue_table import glue_average, mean_scores, missing_scores
from limbeck.compare.significance import Column
from limbeck.compare.tables import Cell, Table
from limbeck.metrics import readable_score

_NONE = Cell("\N{EN DASH}")


def further_tables(entries: Sequence[Entry], columns: Sequence[Column], wanted: Mapping[str, Any]) -> list[Table]:
    """Make the tables that a study wants beside that of scores."""
    tables = []
    if wanted.get("relative_to"):
        tables.append(_relative(entries, columns, str(wanted["relative_to"])))
    if wanted.get("pooled"):
        tables.append(_pooled(entries, columns, wanted["pooled"]))
    if wanted.get("average"):
        tables.append(_average(entries, str(wanted["average"])))
    return tables


def _relative(entries: Sequence[Entry], columns: Sequence[Column], reference: str) -> Table:
    """Show by how many percent of the reference's mean each other method differs, and the plain mean of that."""
    labels = [label for label in _labels(entries) if label != reference]
    changes: dict[str, list[float]] = {label: [] for label in labels}
    rows = []
    for column in columns:
        base = _scores(entries, column, [reference])
        cells = [Cell(_name(column, columns))]
        for label in labels:
            ours = _scores(entries, column, [label])
            change = 100 * (fmean(ours) - fmean(base)) / fmean(base) if ours and base and fmean(base) else math.nan
            if math.isfinite(change):
                changes[label].append(change)
            cells.append(Cell(f"{change:+.2f}%") if math.isfinite(change) else _NONE)
        rows.append(tuple(cells))
    means = [Cell(f"{fmean(found):+.2f}%") if found else _NONE for found in changes.values()]
    rows.append((Cell("average"), *means))
    note = (
        f"Means over seeds, in percent of {reference}'s. The average is over the rows above: every number counts once."
    )
    title = f"Change relative to {reference}"
    return Table(title, ("score", *labels), tuple(rows), rules=frozenset({len(rows) - 1}), notes=(note,))


def _pooled(entries: Sequence[Entry], columns: Sequence[Column], pooled: Mapping[str, Sequence[str]]) -> Table:
    """Show the deviation over all runs of several rows taken together."""
    rows, counts = [], set()
    for name, labels in pooled.items():
        cells = [Cell(name)]
        for column in columns:
            scores = _scores(entries, column, labels)
            counts.add(len(scores))
            enough = len(scores) > 1 and all(map(math.isfinite, scores))
            cells.append(Cell(readable_score(column.metric, stdev(scores))) if enough else _NONE)
        rows.append(tuple(cells))
    of_each = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in pooled.items())
    many = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    note = f"Standard deviation (of a sample: n - 1) over {many} runs, those of several rows together. {of_each}."
    head = ("method", *(_name(column, columns) for column in columns))
    return Table("Deviation over pooled runs", head, tuple(rows), notes=(note,))


def _average(entries: Sequence[Entry], kind: str) -> Table:
    """Show the average over GLUE's tasks of each method; where scores are missing, which."""
    rows = []
    for label in _labels(entries):
        runs = {
            entry.task.removeprefix("glue/"): [run.scores for run in entry.runs]
            for entry in entries
            if entry.label == label and entry.runs
        }
        means = mean_scores(runs)
        missing = missing_scores(means, kind)
        text = f"missing {', '.join(missing)}" if missing else f"{100 * glue_average(means, kind):.2f}"
        rows.append((Cell(label), Cell(text)))
    return Table(f"Average over tasks, as '{kind}' counts them", ("method", "average"), tuple(rows))


def _labels(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.label for entry in entries))


def _scores(entries: Sequence[Entry], column: Column, labels: Sequence[str]) -> list[float]:
    return [
        run.scores[column.metric]
        for entry in entries
        if entry.task == column.task and entry.label in labels
        for run in entry.runs
        if column.metric in run.scores
    ]


def _name(column: Column, columns: Sequence[Column]) -> str:
    several = len({other.task for other in columns}) > 1
    return f"{column.task} {column.metric}" if several else column.metric

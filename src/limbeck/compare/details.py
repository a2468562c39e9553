"""Show what is behind a table of scores in two more: every mean with its interval, every test with its p."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.compare.entries import Entry
from limbeck.compare.significance import Column
from limbeck.compare.tables import Cell, Table
from limbeck.metrics import readable_score
from limbeck.stats import summary

_SCORES = ("task", "metric", "method", "seeds", "mean", "sd", "95% interval of the mean")
_TESTS = ("task", "metric", "methods", "test", "difference", "95% interval", "p", "p (Holm)")
_BY_SEED = "p of single runs, by seed"


def summaries(entries: Sequence[Entry], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Summarise each entry over its seeds, as plain values; left out are entries with a run that diverged."""
    found = []
    for column in columns:
        for entry in entries:
            scores = [run.scores[column.metric] for run in entry.runs if column.metric in run.scores]
            if entry.task == column.task and scores and all(map(math.isfinite, scores)):
                names = {"task": column.task, "metric": column.metric, "label": entry.label}
                found.append(names | vars(summary(scores)))
    return found


def detail_tables(scores: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Show summaries and tests as tables."""
    over_seeds = [
        _row(
            *(score["task"], score["metric"], score["label"], str(score["count"])),
            *(_value(score["metric"], score[name]) for name in ("mean", "sd")),
            _interval(score["metric"], score["low"], score["high"]),
        )
        for score in scores
    ]
    tables = [Table("Scores over seeds", _SCORES, tuple(over_seeds))]
    if tests:
        by_seed = any(test["p_by_seed"] for test in tests)
        rows = [
            _row(
                *(test["task"], test["metric"], f"{test['ours']} and {test['theirs']}", test["test"]),
                _value(test["metric"], test["difference"]),
                _interval(test["metric"], test["low"], test["high"]),
                *(_p(test[name]) for name in ("p", "p_holm")),
                *([", ".join(map(_p, test["p_by_seed"]))] if by_seed else []),
            )
            for test in tests
        ]
        tables.append(Table("Tests", (*_TESTS, _BY_SEED) if by_seed else _TESTS, tuple(rows)))
    return tables


def _row(*texts: str) -> tuple[Cell, ...]:
    return tuple(map(Cell, texts))


def _value(metric: str, value: float | None) -> str:
    return "" if value is None else readable_score(metric, value)


def _interval(metric: str, low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{readable_score(metric, low)} to {readable_score(metric, high)}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"

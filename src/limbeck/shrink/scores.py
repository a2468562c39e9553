"""Compute what students lost against their teacher, from the predictions in their run directories.

One half of the validation rows chooses among the students, the other half tells what the choice is worth: a score that
chose is flattered by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.compare.answers import prediction_columns, read_answers
from limbeck.errors import RunError
from limbeck.metrics import METRICS
from limbeck.stats import bootstrap_interval, paired_bootstrap
from limbeck.tasks.held_out import content_hash, text_key
from limbeck.training.execute import RunDirectory

_RESAMPLES = 10_000
TEACHER_NAME = "teacher"


class Halves(NamedTuple):
    """Hold the positions of the rows that choose, and of those that are reported."""

    choosing: np.ndarray
    reported: np.ndarray


def halves(labels: Any, texts: Sequence[str]) -> Halves:
    """Deal texts sorted by label out in turns, so that both halves have the same share of each class.

    Which text is in which half follows from the texts, not from their order, and equal ones are in the same.
    """
    labels = np.asarray(labels)
    columns = labels.T[::-1] if labels.ndim > 1 else (labels,)  # lexsort goes by its last key first
    order = np.lexsort([np.array([content_hash(text) for text in texts], dtype=np.uint64), *columns])
    sides: dict[str, int] = {}
    for row in order:
        sides.setdefault(texts[row], len(sides) % 2)
    side = np.array([sides[text] for text in texts])
    return Halves(np.flatnonzero(side == 0), np.flatnonzero(side == 1))


@dataclass(frozen=True)
class ModelScores:
    """Score several models by their predictions for the same rows."""

    metric: str
    labels: np.ndarray
    predictions: Mapping[str, np.ndarray]  # by the model's name; one is the teacher's
    texts: Sequence[str]  # what equal rows share

    @classmethod
    def of(cls, runs: Mapping[str, Path], validation: Mapping[str, Sequence[str]]) -> ModelScores:
        """Read the predictions of finished runs of one teacher, by their methods, for these columns of texts."""
        found, labels = {}, None
        for method, run in runs.items():
            file = RunDirectory(run).predictions()
            answers, theirs = read_answers(file), prediction_columns(file, ["teacher_prediction"])
            found[method] = np.array(answers.predictions)
            found[TEACHER_NAME] = np.array(theirs["teacher_prediction"])
            labels = np.array(answers.labels)
        if labels is None:
            raise RunError("No student was trained to the end, so there is nothing to choose from.")
        metric = RunDirectory(next(iter(runs.values()))).metrics()["metric"]
        texts = [text_key(*row) for row in zip(*validation.values(), strict=True)]
        return cls(metric, labels.astype(np.int64) if labels.ndim > 1 else labels, found, texts)

    def with_predictions(self, others: Mapping[str, Any]) -> ModelScores:
        """Add the predictions of other models, by their names."""
        return dataclasses.replace(self, predictions={**self.predictions, **others})

    @cached_property
    def halves(self) -> Halves:
        """Return which rows choose, and which are reported."""
        return halves(self.labels, self.texts)

    def best(self, methods: Sequence[str]) -> str:
        """Return the best of these on the rows that choose; of equals, the first."""
        return max(methods, key=self.choosing_score)

    def choosing_score(self, name: str) -> float:
        """Return a model's score on the rows that choose."""
        rows = self.halves.choosing
        return METRICS[self.metric](self.predictions[name][rows], self.labels[rows])

    def score(self, name: str) -> dict[str, float]:
        """Return a model's score on the reported rows, with its 95% bootstrap interval."""
        rows = self.halves.reported
        own, labels = self.predictions[name][rows], self.labels[rows]
        low, high = bootstrap_interval(self.metric, own, labels, resamples=_RESAMPLES)
        return {"value": METRICS[self.metric](own, labels), "low": low, "high": high}

    def difference(self, name: str, other: str) -> dict[str, float]:
        """Return the first one's score minus the other's on the reported rows, with its 95% interval."""
        rows = self.halves.reported
        ours, theirs = ([self.predictions[side][rows]] for side in (name, other))
        found = paired_bootstrap(self.metric, ours, theirs, self.labels[rows], resamples=_RESAMPLES)
        assert found.low is not None and found.high is not None
        return {"value": found.difference, "low": found.low, "high": found.high}

    def agreement(self, name: str) -> float:
        """Return how often a model agrees with the teacher on the reported rows; of numbers, how they correlate."""
        rows = self.halves.reported
        ours, theirs = self.predictions[name][rows], self.predictions[TEACHER_NAME][rows]
        numbers = np.issubdtype(ours.dtype, np.floating)
        return METRICS["pearson"](ours, theirs) if numbers else float((ours == theirs).mean())

    def counts(self) -> dict[str, int]:
        """Count the rows of each half."""
        return {"choosing": len(self.halves.choosing), "reported": len(self.halves.reported)}

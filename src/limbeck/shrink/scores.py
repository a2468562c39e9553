"""Score models by what they answer, on the rows that choose and on those that chose nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.progress import muted_messages
from limbeck.inference.logits import logits_in_order
from limbeck.inference.served import load_served
from limbeck.metrics import METRICS
from limbeck.shrink.data import CHOOSING, REPORTED
from limbeck.stats import bootstrap_interval, paired_bootstrap
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

_RESAMPLES = 10_000
_BATCH_SIZE = 32
Answers = Mapping[str, np.ndarray]  # by split: what a model predicts for its rows


@dataclass
class ModelScores:
    """Hold what several models answer to the same rows, by the models' names, and score them."""

    task: Task
    length: int  # in tokens, at which texts are cut
    answers: dict[str, Answers] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """Name the metric that everything is scored by."""
        return self.task.metrics[0]

    def add_model(self, name: str, path: Path | str) -> None:
        """Ask a model as it is served."""
        served = load_served(path, task=self.task)
        found = {}
        for split in (CHOOSING, REPORTED):
            with muted_messages():
                encoded = self.task.encode(split, served.tokenizer, self.length)
            collate = Collator(served.tokenizer, problem=self.task.problem)
            logits = logits_in_order(served.logits, encoded, collate, _BATCH_SIZE, f"evaluate {name}")
            found[split] = np.asarray(self.task.predictions(logits))
        self.answers[name] = found

    def add_rival(self, name: str, predict: Callable[..., Any]) -> None:
        """Ask a model that takes columns of texts."""
        self.answers[name] = {
            split: np.asarray(predict(*self.task.inputs(self.task.split(split)[:]))) for split in (CHOOSING, REPORTED)
        }

    def choosing_score(self, name: str) -> float:
        """Return a model's score on the rows that choose."""
        return METRICS[self.metric](self.answers[name][CHOOSING], self._labels(CHOOSING))

    def choosing_noise(self, name: str) -> float:
        """Estimate the standard error of a model's score on the rows that choose: differences below it say little."""
        return standard_error(self.metric, self.answers[name][CHOOSING], self._labels(CHOOSING))

    def score(self, name: str) -> dict[str, float]:
        """Return a model's score on the reported rows, with its 95% interval."""
        ours, labels = self.answers[name][REPORTED], self._labels(REPORTED)
        low, high = bootstrap_interval(self.metric, ours, labels, resamples=_RESAMPLES)
        return {"value": METRICS[self.metric](ours, labels), "low": low, "high": high}

    def difference(self, name: str, other: str) -> dict[str, float]:
        """Return how much better a model is than another on the reported rows, with its 95% interval."""
        ours, theirs = ([self.answers[side][REPORTED]] for side in (name, other))
        found = paired_bootstrap(self.metric, ours, theirs, self._labels(REPORTED), resamples=_RESAMPLES)
        assert found.low is not None and found.high is not None
        return {"value": found.difference, "low": found.low, "high": found.high}

    def agreement(self, name: str, other: str) -> float:
        """Return how often two models agree on the reported rows; of numbers, how they correlate."""
        ours, theirs = (self.answers[side][REPORTED] for side in (name, other))
        return METRICS["pearson"](ours, theirs) if self.task.problem == "regression" else float((ours == theirs).mean())

    def majority(self) -> float:
        """Return the score of always giving the training data's most frequent answer, on the reported rows."""
        rows = self.task.split(REPORTED).rename_column("label", "labels")
        return self.task.majority({"labels": self.task.split("train")["label"]}, rows)[self.metric]

    def _labels(self, split: str) -> np.ndarray:
        labels = np.asarray(self.task.split(split)["label"][:])
        return labels.astype(np.int64) if labels.ndim > 1 else labels


def standard_error(metric: str, answers: np.ndarray, labels: np.ndarray) -> float:
    """Estimate the standard error of a score: differences below it say little."""
    low, high = bootstrap_interval(metric, answers, labels, resamples=_RESAMPLES)
    return (high - low) / 4  # a 95% interval is two of them to each side

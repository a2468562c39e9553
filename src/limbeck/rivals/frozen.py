"""Fit a linear model to what an encoder computes without any training: its first layers, or all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from limbeck.models.families import blocks_of
from limbeck.models.linear import LinearModel, fit_linear
from limbeck.models.loading import count_parameters, longest_input
from limbeck.protocols import Model, Tokenizer
from limbeck.rivals.features import FrozenFeatures
from limbeck.rivals.rival import (
    Rival,
    count_rows,
    linear_problem,
    row_groups,
    score_rival,
    some_rows,
    tuning_metric,
    with_fewer_rows,
)
from limbeck.tasks.task import Task, make_split

FROZEN_ROWS = 15_000  # at most: one pass of the encoder over them
_WORDS = 30_000  # to which a tagger is fitted, at most
_POOLING = {"cls": "its first token", "last": "its last token", "mean": "the mean of its tokens"}


def frozen_rival(
    task: Task, model: Model, tokenizer: Tokenizer, layer: int, *, name: str = "", max_length: int | None = None
) -> Rival:
    """Fit a linear model to a model's hidden state after ``layer``, without training anything else of it.

    A text is its first token (of a decoder its last) or the mean of its tokens, whichever is better in a
    cross-validation of the training rows. ``name`` is what the model is called in tables.
    """
    return frozen_rivals(task, model, tokenizer, [layer], name=name, max_length=max_length)[0]


def frozen_rivals(
    task: Task,
    model: Model,
    tokenizer: Tokenizer,
    layers: Sequence[int],
    *,
    name: str = "",
    max_length: int | None = None,
) -> list[Rival]:
    """Fit one to the hidden state after each of several layers, which one pass of the model computes."""
    began = time.perf_counter()
    linear_problem(task)  # an error now, not after a pass of the model
    given, task = task, with_fewer_rows(task, FROZEN_ROWS)
    length = max_length or task.suggest_length(tokenizer, longest_input(model))[0]
    frozen = FrozenFeatures(model, tokenizer, length, tuple(layers))
    seen = {split: frozen.of(task, split) for split in ("train", *task.dev_splits)}
    passed = time.perf_counter() - began
    called = name or str(model.config.model_type)
    rivals = []
    for layer in layers:
        began = time.perf_counter()
        rival = _Fitted(task, frozen, layer, seen["train"]).as_rival(seen, called, count_rows(task, given))
        rivals.append(dataclasses.replace(rival, seconds=passed + time.perf_counter() - began))
    return rivals


class _Fitted:
    """Hold the linear model on one layer, and what was chosen for it."""

    def __init__(self, task: Task, frozen: FrozenFeatures, layer: int, train: Any) -> None:
        self.task, self.frozen, self.layer = task, frozen, layer
        labels, owners = train.labels(task)
        groups = row_groups(task, task.split("train")[:])[owners]
        kept = np.arange(len(labels))
        if task.problem == "tokens" and len(labels) > _WORDS:
            kept = np.sort(np.random.default_rng(0).permutation(len(labels))[:_WORDS])
        self.pooling, self.linear = self._choose(train, labels[kept], groups[kept], kept)
        self.rows = len(kept)

    def _choose(self, train: Any, labels: np.ndarray, groups: np.ndarray, kept: np.ndarray) -> tuple[str, LinearModel]:
        """Choose what stands for a text, and the regularisation, by some of the rows; then fit to all."""
        task = self.task
        some = some_rows(len(labels))
        how: dict[str, Any] = {"num_labels": task.num_labels, "metric": tuning_metric(task)}
        found = {}
        for pooling in self.frozen.poolings(task):
            features = train.features(self.layer, pooling)[kept][some]
            found[pooling] = fit_linear(
                features, labels[some], linear_problem(task), groups=groups[some].tolist(), **how
            )
        sign = -1 if how["metric"] == "mse" else 1
        best = max(found, key=lambda pooling: sign * np.nan_to_num(found[pooling].score, nan=-np.inf))
        if len(some) == len(labels):
            return best, found[best]
        features = train.features(self.layer, best)[kept]
        # all rows in one group: nothing is held out, so nothing is fitted twice
        together, strength = [0] * len(labels), found[best].strength
        fitted = fit_linear(features, labels, linear_problem(task), groups=together, strengths=(strength,), **how)
        return best, dataclasses.replace(fitted, score=found[best].score)

    def as_rival(self, seen: dict[str, Any], called: str, rows: str) -> Rival:
        """Score it on the validation data, whose features are in ``seen``."""
        task, depth = self.task, len(blocks_of(self.frozen.model))

        def logits_for(split: str) -> tuple[Any, Any]:
            return self._logits(seen[split]), seen[split].encoded

        metrics, answers = score_rival(task, logits_for)
        stands = "each word is its first token" if task.problem == "tokens" else f"a text is {_POOLING[self.pooling]}"
        layers = f"{self.layer} layer{'s' * (self.layer != 1)}"
        what = "ridge" if task.problem == "regression" else "logistic"
        return Rival(
            name=f"linear on {called}, {layers}",
            about=f"{what} regression on {called} after {self.layer} of {depth} layers, nothing of which was trained "
            f"for it; {stands}; fitted to {rows}",
            metrics=metrics,
            answers=answers,
            seconds=0.0,
            parameters=_size(self.frozen.model, self.layer) + self.linear.weight.size + self.linear.bias.size,
            details={
                "strength": self.linear.strength,
                "features": self.linear.weight.shape[1],
                "rows": self.rows,
                "layer": self.layer,
                "pooling": self.pooling,
            },
            predict=self.predict,
        )

    def predict(self, *columns: Sequence[Any]) -> Any:
        """Answer new texts."""
        task = self.task
        cells = dict(zip(task.text_columns, columns, strict=True)) | {"id": range(len(columns[0]))}
        asked = dataclasses.replace(task, splits={"predict": make_split("predict", cells)})
        seen = self.frozen.of(asked, "predict")
        logits = self._logits(seen)
        return asked.tags(logits, seen.encoded) if task.problem == "tokens" else task.predictions(logits)  # type: ignore[attr-defined]

    def _logits(self, seen: Any) -> Any:
        return seen.as_rows(self.linear.logits(seen.features(self.layer, self.pooling)))


def _size(model: Model, layer: int) -> int:
    """Count what is needed of an encoder up to a layer: its blocks, and what lies before and after all of them."""
    blocks, whole = blocks_of(model), count_parameters(model.base_model)
    pooler = getattr(model.base_model, "pooler", None)  # BERT's, which reads the last layer and is not used here
    unused = [*blocks[layer:], *([pooler] if pooler is not None else [])]
    return whole - sum(count_parameters(part) for part in unused)

"""Find the best point between a model's weights before and after it was fine-tuned.

Fine-tuning forgets some of what a pre-trained model knows. Weights between those before and after it often answer new
rows better than either (Wortsman et al. 2022, arXiv:2109.01903), and cost a few passes over the rows that choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck._internal.files import replacing_folder
from limbeck._internal.progress import muted_messages
from limbeck.inference.logits import predict_logits
from limbeck.metrics import METRICS, SMALLER_IS_BETTER
from limbeck.models.loading import load_fine_tuned, load_tokenizer, longest_input
from limbeck.problems import Problem
from limbeck.shrink.data import CHOOSING
from limbeck.shrink.trainings import fast_passes
from limbeck.stats import bootstrap_interval
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what training changed
_RESAMPLES = 2_000


@dataclass(frozen=True)
class Point:
    """Hold how well the weights answer the rows that choose, after a share of what training changed."""

    share: float
    score: float
    loss: float
    noise: float  # the standard error of the score


def compare_points(start: Path, end: Path, task: Task) -> list[Point]:
    """Score the weights at several points from ``start`` to ``end`` on the rows that choose."""
    network, weights = load_fine_tuned(str(end), task), _Weights(start, end, task)
    tokenizer = load_tokenizer(str(start))
    length, _ = task.suggest_length(tokenizer, longest_input(network))
    collate = Collator(tokenizer, problem=task.problem)
    with muted_messages():
        encoded = task.encode(CHOOSING, tokenizer, length)
    labels = np.asarray(encoded["labels"][:])
    found = []
    for share in SHARES:
        network.load_state_dict(weights.at(share))
        with fast_passes():
            logits = predict_logits(network, encoded, collate, job="compare weights before and after")
        found.append(_point(share, logits, labels, task))
    return found


def _point(share: float, logits: Any, labels: np.ndarray, task: Task) -> Point:
    metric, answers = task.metrics[0], np.asarray(task.predictions(logits))
    low, high = bootstrap_interval(metric, answers, labels, resamples=_RESAMPLES)
    return Point(share, METRICS[metric](answers, labels), _loss(logits, labels, task.problem), (high - low) / 4)


def _loss(logits: Any, labels: np.ndarray, problem: Problem) -> float:
    found, truth = torch.as_tensor(np.asarray(logits)).float(), torch.as_tensor(labels)
    if problem == "regression":
        return F.mse_loss(found.squeeze(-1), truth.float()).item()
    if problem == "multi_label":
        return F.binary_cross_entropy_with_logits(found, truth.float()).item()
    return F.cross_entropy(found, truth).item()


def best_point(points: Sequence[Point], metric: str) -> Point:
    """Return the point with the least loss among those whose score is within noise of the best.

    A few hundred rows do not tell points apart by their score; by the loss, which sees how sure each answer is, more.
    """
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    top = max(points, key=lambda point: sign * point.score)
    near = [point for point in points if sign * (top.score - point.score) <= top.noise]
    return min(near, key=lambda point: point.loss)


def save_point(start: Path, end: Path, share: float, task: Task, folder: Path) -> None:
    """Save the model with the weights after a share of what training changed."""
    network: Any = load_fine_tuned(str(end), task)
    network.load_state_dict(_Weights(start, end, task).at(share))
    with replacing_folder(folder) as temporary:
        network.save_pretrained(temporary)
        load_tokenizer(str(start)).save_pretrained(temporary)


class _Weights:
    """Hold the weights of two models of one shape, and give those between them."""

    def __init__(self, start: Path, end: Path, task: Task) -> None:
        self._start, self._end = (_state(load_fine_tuned(str(folder), task)) for folder in (start, end))

    def at(self, share: float) -> dict[str, Tensor]:
        return {
            name: torch.lerp(self._start[name], value, share) if value.is_floating_point() else value
            for name, value in self._end.items()
        }


def _state(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}

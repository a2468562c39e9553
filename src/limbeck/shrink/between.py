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
from torch.nn import functional as F

from limbeck._internal.files import replacing_folder
from limbeck._internal.progress import muted_messages
from limbeck.inference.logits import predict_logits
from limbeck.metrics import METRICS, SMALLER_IS_BETTER
from limbeck.models.loading import load_fine_tuned, load_tokenizer, longest_input
from limbeck.problems import Problem
from limbeck.shrink.data import CHOOSING
from limbeck.shrink.scores import standard_error
from limbeck.shrink.trainings import fast_passes
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what training changed


@dataclass(frozen=True)
class Point:
    """Hold how well the weights answer the rows that choose, after a share of what training changed."""

    share: float
    score: float
    loss: float
    noise: float  # the standard error of the score


class Between:
    """Hold a model with its weights before and after it was fine-tuned, from two folders, and those between them."""

    def __init__(self, start: Path, end: Path, task: Task) -> None:
        self._task, self._tokenizer = task, load_tokenizer(str(start))
        self._network: Any = load_fine_tuned(str(end), task)
        self._end = {name: value.clone() for name, value in self._network.state_dict().items()}
        self._start = load_fine_tuned(str(start), task).state_dict()

    def compare(self) -> list[Point]:
        """Score the weights at several points on the rows that choose."""
        task, tokenizer = self._task, self._tokenizer
        length, _ = task.suggest_length(tokenizer, longest_input(self._network))
        collate = Collator(tokenizer, problem=task.problem)
        with muted_messages():
            encoded = task.encode(CHOOSING, tokenizer, length)
        labels = np.asarray(encoded["labels"][:])
        found = []
        for share in SHARES:
            self._move_to(share)
            with fast_passes():
                logits = predict_logits(self._network, encoded, collate, job="compare weights before and after")
            found.append(_point(share, logits, labels, task))
        return found

    def save(self, share: float, folder: Path) -> None:
        """Save the model with the weights after a share of what training changed."""
        self._move_to(share)
        with replacing_folder(folder) as temporary:
            self._network.save_pretrained(temporary)
            self._tokenizer.save_pretrained(temporary)

    def _move_to(self, share: float) -> None:
        self._network.load_state_dict(
            {
                name: torch.lerp(self._start[name], value, share) if value.is_floating_point() else value
                for name, value in self._end.items()
            }
        )


def _point(share: float, logits: Any, labels: np.ndarray, task: Task) -> Point:
    metric, answers = task.metrics[0], np.asarray(task.predictions(logits))
    noise = standard_error(metric, answers, labels)
    return Point(share, METRICS[metric](answers, labels), _loss(logits, labels, task.problem), noise)


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

"""Let several teachers teach as one: their predictions are averaged, their hidden states are those of one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.models.features import Features, Members, Wanted
from limbeck.problems import Problem

Teacher = Callable[[Mapping[str, Tensor], Wanted], Features]


class Ensemble:
    """Ask each teacher for its logits, and the one that is ``followed`` for all else.

    The features hold the logits of each (:class:`~limbeck.models.features.Members`), of which a term of the logits
    averages the probabilities at its own temperature, and as ``logits`` those of the averaged probabilities.
    """

    def __init__(
        self, teachers: Sequence[Teacher], weights: Sequence[float], problem: Problem, followed: int | None
    ) -> None:
        self.teachers, self.weights, self.problem, self.followed = teachers, tuple(weights), problem, followed

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        rest = Wanted.named(name for name in wanted.names() if name != "logits")
        if not wanted.logits:
            assert self.followed is not None
            return self.teachers[self.followed](batch, wanted)
        found = [
            teacher(batch, wanted if number == self.followed else Wanted(logits=True))
            for number, teacher in enumerate(self.teachers)
        ]
        assert not rest or self.followed is not None
        members = Members(self.weights, torch.stack([features["logits"] for features in found]))
        features = found[self.followed or 0]
        mixed = mixed_logits(members.logits, self.weights, self.problem, features.mask)
        return dataclasses.replace(features, logits=mixed, members=members)


def mixed_logits(logits: Tensor, weights: Sequence[float], problem: Problem, mask: Tensor) -> Tensor:
    """Return logits whose probabilities are the weighted mean of those of several teachers' ``logits`` (K, B, ...).

    Of classes log Σ w·softmax, of several labels the logit of Σ w·sigmoid, of numbers Σ w·number. Of spans, starts and
    ends have probabilities over the real tokens of ``mask``.
    """
    logits = logits.float()
    if problem == "regression":
        return torch.einsum("k,k...->...", torch.tensor(weights, device=logits.device), logits)
    if problem == "multi_label":
        return log_mean(F.logsigmoid(logits), weights) - log_mean(F.logsigmoid(-logits), weights)
    if problem == "span":
        logits = logits.masked_fill(~mask[..., None], -torch.inf)
        return log_mean(logits.log_softmax(-2), weights).masked_fill(~mask[..., None], 0)
    return log_mean(logits.log_softmax(-1), weights)


def mixed_answers(
    answers: Sequence[np.ndarray | list[np.ndarray]], weights: Sequence[float], problem: Problem
) -> np.ndarray | list[np.ndarray]:
    """Do the same with answers to all examples: (N, labels) of each teacher, or for each example (tokens, labels)."""
    if isinstance(answers[0], np.ndarray):
        stacked = torch.from_numpy(np.stack([np.asarray(part) for part in answers]))
        every: np.ndarray = mixed_logits(stacked, weights, problem, torch.ones(len(answers[0]), 1)).numpy()
        return every
    mixed = []
    for rows in zip(*answers, strict=True):
        stacked = torch.from_numpy(np.stack(rows))[:, None]  # K 1 L C
        real = torch.ones(1, stacked.shape[2], dtype=torch.bool)
        mixed.append(mixed_logits(stacked, weights, problem, real)[0].numpy())
    return mixed


def log_mean(log_probabilities: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the logarithm of the weighted mean of several teachers' probabilities; of one, what it is given."""
    parts = list(log_probabilities)
    if len(parts) == 1:
        return parts[0]
    return torch.stack([part + math.log(weight) for part, weight in zip(parts, weights, strict=True)]).logsumexp(0)

"""Measure how far relations between samples and between tokens are from the teacher's (Jung et al. 2023, figure 6)."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import torch
from torch import Tensor

from limbeck.models.pooling import left_aligned
from limbeck.similarity import unit

Layer = Literal["last", "penultimate"]
RELATIONS = ("inter_euclidean", "inter_cosine", "intra_euclidean", "intra_cosine")
_BATCH_SIZE = 32
_FEWEST_BATCHES = 8  # where there are few examples, batches are smaller
_SMALLEST_BATCH = 4  # below which CKA does not exist


def place_of(layer: Layer, depth: int) -> int:
    """Return the number of the last or the penultimate of so many layers."""
    return depth if layer == "last" else max(1, depth - 1)


def measured_batch_size(examples: int) -> int:
    """Choose a size of mini-batches that gives several of few examples."""
    return min(_BATCH_SIZE, max(_SMALLEST_BATCH, examples // _FEWEST_BATCHES))


class RelationDifference:
    """Measure how far relations differ between two models on average (Jung et al. 2023, equations 12 and 13).

    Inter: between the samples of a batch, whose features are those of their tokens side by side; intra: between the
    tokens of a sample. Relations are Euclidean distances and cosines.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)

    def update(self, student: Tensor, teacher: Tensor, mask: Tensor) -> None:
        """Add features of tokens (B, L, D) of both models; ``mask`` is True for real tokens."""
        sides, mask = left_aligned(mask, student.double(), teacher.double())
        real = (mask[:, :, None] & mask[:, None, :]).double()
        for name, relate in (("euclidean", _distances), ("cosine", _cosines)):
            inter = _apart(*(relate(side.flatten(1)) for side in sides))
            # batches count by their samples, so that a short last one does not weigh as much as the others
            self._add(f"inter_{name}", float(inter.mean()) * len(mask), len(mask))
            intra = (_apart(*map(relate, sides)) * real).sum((1, 2)) / real.sum((1, 2)).clamp(min=1)
            self._add(f"intra_{name}", float(intra.sum()), len(mask))

    def _add(self, name: str, total: float, weight: float) -> None:
        self._sums[name] += total
        self._weights[name] += weight

    def values(self) -> dict[str, float]:
        """Return the mean difference of each kind of relation."""
        return {name: self._sums[name] / self._weights[name] for name in RELATIONS}


def _distances(x: Tensor) -> Tensor:
    return torch.cdist(x, x)


def _cosines(x: Tensor) -> Tensor:
    rows = unit(x)
    return rows @ rows.mT


def _apart(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).abs()

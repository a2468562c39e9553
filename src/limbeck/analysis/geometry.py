"""Measure hidden features batch by batch: CKA maps and intra-class similarity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from limbeck.similarity import MinibatchCKA, cka, unit


class LayerCKA:
    """Compute CKA of every layer of one model with every layer of another, over all batches seen (unbiased)."""

    def __init__(self) -> None:
        self._total = MinibatchCKA()

    def update(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> None:
        """Add features of the same samples, (n, d) for each layer."""
        self._total.update(torch.stack(list(rows))[:, None], torch.stack(list(columns))[None])

    def value(self) -> np.ndarray:
        """Return the CKA, (layers of the first model, layers of the second)."""
        return self._total.compute().numpy()


def heat_map(teacher: Sequence[Tensor], other: Sequence[Tensor], estimator: str = "unbiased") -> np.ndarray:
    """Compute CKA of each mini-batch of the teacher with each of another model, (m, m): same samples on the diagonal.

    Each of the m mini-batches is (n, d), with the same n; off the diagonal, samples are paired as they come
    (Jung et al. 2023, figure 4).
    """
    others = torch.stack(list(other))
    # row by row, so that memory does not grow with the square of m
    return torch.stack([cka(others, batch[None], estimator=estimator) for batch in teacher]).numpy()


class IntraClassSimilarity:
    """Measure M_ICS (Saadi et al. 2023): the mean cosine of each sample with those of its class, itself included.

    These are the ones in its batch, as printed, or of all batches. Cosines of a class add up to the square of its sum
    of unit vectors, so that only the sums are kept.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._counts: dict[int, int] = defaultdict(int)
        self._in_batches = 0.0

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (n, d) of samples and their classes (n,)."""
        units = unit(features.double())
        for label in labels.unique().tolist():
            rows = units[labels == label]
            total = rows.sum(0)
            self._sums[label] = self._sums.get(label, torch.zeros_like(total)) + total
            self._counts[label] += len(rows)
            self._in_batches += float(total @ total) / len(rows)

    def per_batch(self) -> float:
        """Return the mean over all samples, each beside those of its batch: the smaller a batch, the higher."""
        return self._in_batches / sum(self._counts.values())

    def pooled(self) -> float:
        """Return the mean over all samples, each beside those of all batches."""
        of_classes = (float(total @ total) / self._counts[label] for label, total in self._sums.items())
        return sum(of_classes) / sum(self._counts.values())

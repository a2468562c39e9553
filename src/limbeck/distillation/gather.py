"""Gather the rows of all processes, so that terms which relate samples see the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from limbeck._internal.processes import process_count, rank, sum_over_processes
from limbeck.models.features import Features, Needs, Wanted
from limbeck.problems import IGNORED


@dataclass(frozen=True)
class RowGatherer:
    """Bring the rows of all processes together, padded to one length, in the order of the processes."""

    counts: list[int]  # rows of each process
    length: int  # tokens of the longest

    @classmethod
    def of(cls, mask: Tensor) -> RowGatherer:
        """Learn the sizes of the other processes' batches, from this one's ``mask`` (B, L)."""
        sizes = torch.zeros(process_count(), 2, dtype=torch.long, device=mask.device)
        sizes[rank()] = torch.tensor(mask.shape)
        dist.all_reduce(sizes)
        return cls(sizes[:, 0].tolist(), int(sizes[:, 1].max()))

    def rows(self, rows: Tensor) -> Tensor:
        """Gather (n, ...) of each process to (sum of n, ...), with gradients that find their way back."""
        # a sum of what each process puts into its own places
        before, after = sum(self.counts[: rank()]), sum(self.counts[rank() + 1 :])
        return sum_over_processes(F.pad(rows, (0, 0) * (rows.dim() - 1) + (before, after)))

    def tokens(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Gather (n, L, ...), whose L differs between processes; shorter ones are filled up with ``fill``."""
        return self.rows(F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, self.length - rows.shape[1]), value=fill))

    def features(self, features: Features, wanted: Wanted) -> Features:
        """Gather the mask and what is ``wanted`` of these features."""
        found = {name: features[name] for name in wanted.names()}
        mask = self.tokens(features.mask.to(torch.uint8)).bool()
        gather = {name: self.tokens if value.dim() == 3 else self.rows for name, value in found.items()}
        return Features.named(mask, {name: gather[name](value) for name, value in found.items()})

    def batch(self, batch: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
        """Gather what losses read of a batch: its labels, where it has any."""
        if "labels" not in batch:
            return {}
        labels = batch["labels"]
        of_tokens = labels.shape == mask.shape and not labels.is_floating_point()
        return {"labels": self.tokens(labels, IGNORED) if of_tokens else self.rows(labels)}


def gather_all_processes(
    student: Features, teacher: Features, batch: Mapping[str, Tensor], needs: Needs
) -> tuple[Features, Features, dict[str, Tensor]]:
    """Return the features and labels of all processes, for terms that relate samples."""
    everyone = RowGatherer.of(student.mask)
    return (
        everyone.features(student, needs.student),
        everyone.features(teacher, needs.teacher),
        everyone.batch(batch, student.mask),
    )


def mean_shares(counts: Tensor) -> Tensor:
    """Return the factor of each of this process's means that makes the mean over processes the mean over all.

    ``counts`` (n,) is how many things each of n means is over.
    """
    return process_count() * counts / sum_over_processes(counts).clamp(min=1)

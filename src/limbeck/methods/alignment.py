"""Compare representations of paired layers by one distance, as `cka`, `shape`, `rkd`, `spkd` and `cckd` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from limbeck.distillation.pair import Pair
from limbeck.methods.paired import PairedLayers, rows_of
from limbeck.models.features import Features
from limbeck.models.layers import Layers
from limbeck.models.pooling import Pooling, pool

Distance = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Alignment(PairedLayers):
    """Average or sum the distance between the student's and the teacher's representations over layer pairs."""

    relational = True

    def __init__(
        self,
        pair: Pair,
        layers: Layers,
        pool: Pooling,
        distance: Distance,
        mask_padding: bool,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(pair, layers, mask_padding, pool=pool)
        self.distance, self.reduction = distance, reduction

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        mask = self.counted(student)
        values = []
        for s, t in self.pairs:
            x, real = pool(student.hidden[s], mask, self.pool)
            values.append(self.distance(x, rows_of(teacher, t, mask, self.pool), real))
        over_pairs = torch.stack(values)
        return over_pairs.mean() if self.reduction == "mean" else over_pairs.sum()

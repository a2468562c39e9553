"""What `cka`, `shape`, `rkd`, `spkd` and `cckd` share: representations of paired layers, compared by one distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from limbeck.features import Features, Needs, Wanted
from limbeck.layers import Layers
from limbeck.methods.paired import PairedLayers, rows_needed, rows_of
from limbeck.pair import Pair
from limbeck.pooling import Pool, pool

Distance = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Alignment(PairedLayers):
    """The mean over layer pairs of the distance between the student's and the teacher's representations."""

    relational = True

    def __init__(self, pair: Pair, layers: Layers, pool: Pool, distance: Distance, mask_padding: bool) -> None:
        super().__init__(pair, layers, mask_padding)
        self.pool, self.distance = pool, distance

    def needs(self) -> Needs:
        teacher = rows_needed(self.pool, [t for _, t in self.pairs], self.mask_padding)
        return Needs(super().needs().student, teacher | Wanted(padding=not self.mask_padding))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        mask = self.counted(student)
        values = []
        for s, t in self.pairs:
            x, real = pool(student.hidden[s], mask, self.pool)
            values.append(self.distance(x, rows_of(teacher, t, mask, self.pool), real))
        return torch.stack(values).mean()

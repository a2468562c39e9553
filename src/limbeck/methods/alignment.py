"""What `cka` and `shape` share: representations of paired layers, compared by one distance (paper 000)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from limbeck.features import Features, Needs, Wanted
from limbeck.layers import Layers, layer_map
from limbeck.objective import Term
from limbeck.pair import Pair
from limbeck.pooling import Pool, pool

Distance = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Alignment(Term):
    """The mean over layer pairs of the distance between the student's and the teacher's representations."""

    relational = True

    def __init__(self, pair: Pair, layers: Layers, pool: Pool, distance: Distance, mask_padding: bool) -> None:
        super().__init__()
        self.pairs = layer_map(layers, pair.student.depth, pair.the_teacher.depth)
        self.pool, self.distance, self.mask_padding = pool, distance, mask_padding

    def needs(self) -> Needs:
        student, teacher = zip(*self.pairs, strict=True)
        return Needs(Wanted(hidden=student), Wanted(hidden=teacher))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        mask = student.mask if self.mask_padding else torch.ones_like(student.mask)
        values = []
        for s, t in self.pairs:
            x, real = pool(student.hidden[s], mask, self.pool)
            y, _ = pool(teacher.hidden[t], mask, self.pool)
            values.append(self.distance(x, y, real))
        return torch.stack(values).mean()

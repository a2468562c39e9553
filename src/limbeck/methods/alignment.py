"""What `cka` and `shape` share: representations of paired layers, compared by one distance (paper 000)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from limbeck.features import Features, Needs, Wanted
from limbeck.layers import Layers, layer_map
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.objective import Objective, Term
from limbeck.pair import Pair
from limbeck.pooling import Pool, pool

Distance = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Alignment(Term):
    """The mean over layer pairs of the distance between the student's and the teacher's representations."""

    relational = True

    def __init__(self, pairs: Sequence[tuple[int, int]], pool: Pool, distance: Distance, mask_padding: bool) -> None:
        super().__init__()
        self.pairs, self.pool, self.distance, self.mask_padding = list(pairs), pool, distance, mask_padding

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


def aligned(
    pair: Pair,
    distance: Distance,
    *,
    alpha: float,
    gamma: float,
    layers: Layers,
    pool: Pool,
    temperature: float,
    mask_padding: bool,
) -> Objective:
    """L = γ·CE + α·L_sim + (1-α)·L_KD (eq. 2), with L_sim the mean of ``distance`` over the layer pairs."""
    pairs = layer_map(layers, pair.student.depth, pair.the_teacher.depth)
    return Objective(
        task=(gamma, TaskLoss(pair.problem)),
        sim=(alpha, Alignment(pairs, pool, distance, mask_padding)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
    )

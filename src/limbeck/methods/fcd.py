"""Build feature correlation distillation (Huang et al. 2023): relations between tokens and between samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.ft import TaskLoss
from limbeck.methods.paired import PairedLayers
from limbeck.models.features import Features
from limbeck.models.layers import Layers
from limbeck.models.pooling import moved_left
from limbeck.options import Positive, Weight


class Relations(PairedLayers):
    """Compare the relation matrices of each layer pair, and sum or average over the pairs.

    ``levels``: all that the objective compares, of which this term is one. They are computed together, by the first
    term that runs.
    """

    level: str

    def __init__(
        self,
        pair: Pair,
        layers: Layers,
        reduction: Literal["mean", "sum"],
        mask_padding: bool,
        levels: tuple[str, ...],
        **settings: Any,
    ) -> None:
        super().__init__(pair, layers, mask_padding)
        self.reduction, self.levels, self.settings = reduction, levels, settings

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        key = ("relations", self.mask_padding, self.levels, *self.pairs, *self.settings.items())
        values = student.memoize(key, teacher, lambda: self._values(student, teacher))[self.level]
        return values.mean() if self.reduction == "mean" else values.sum()

    def _values(self, student: Features, teacher: Features) -> dict[str, Tensor]:
        """Return the losses of all layer pairs, for each level."""
        pairs = [(student.hidden[s], teacher.hidden[t]) for s, t in self.pairs]
        # position j must be the j-th token of every sample, whichever side was padded
        moved, mask = moved_left(self.counted(student), *(hidden for pair in pairs for hidden in pair))
        losses = [
            similarity.relation_losses(s, t, mask, levels=self.levels, **self.settings)
            for s, t in zip(moved[::2], moved[1::2], strict=True)
        ]
        return {
            level: torch.stack(values) for level, values in zip(self.levels, zip(*losses, strict=True), strict=True)
        }


class TokenRelations(Relations):
    """Compute L_t (eq. 8): how the tokens of each sample relate to each other."""

    level = "tokens"


class SampleRelations(Relations):
    """Compute L_s (eq. 9): how the samples of the batch relate to each other at each token position."""

    level = "samples"
    relational = True


def fcd(
    pair: Pair,
    *,
    alpha: Weight = 1.0,
    beta: Weight = 1.0,
    layers: Layers = "uniform",
    norm: Literal["l2", "layernorm", "softmax", "none"] = "l2",
    relation_loss: Literal["pearson", "mse", "kl"] = "pearson",
    tau: Positive = 10.0,
    reduction: Literal["mean", "sum"] = "mean",
    include_diagonal: bool = True,
    mask_padding: bool = True,
) -> Objective:
    """Distil token-level and sample-level relations of the hidden states, with the labels.

    Equation: L = CE(y, s) + α·L_t + β·L_s, L_t the mean over samples of 1 - ρ(R(s), R(t)) with R the L x L cosines of
    the tokens, L_s the same over token positions with R the B x B cosines of the samples.
    Left open by the paper: padding (ignored here), sum or mean over the layer pairs (`reduction`), and what LayerNorm
    normalises: tokens, as in its figure 5, and then the relations, as its eqs. 11 to 13 need.
    Citation: Huang, Guo and Wang, 2023, "Towards Efficient Pre-Trained Language Model via Feature Correlation
    Distillation", NeurIPS.

    Options:
        alpha: weight of the token relations (paper: 0.1, 0.2, 0.4 or 1)
        beta: weight of the sample relations (paper: 0.1, 0.2, 0.4 or 1)
        layers: uniform (default), top, bottom, another strategy, or explicit pairs
        norm: of each token's vector before relations are taken: l2, layernorm, softmax or none; layernorm standardises
            the relations too (eq. 13)
        relation_loss: pearson (1 - correlation), mse, or kl at temperature tau
        tau: temperature of kl
        reduction: mean or sum over the layer pairs
        include_diagonal: a token's relation with itself counts, as in the paper, although it dominates
        mask_padding: false lets padding count, as the paper's listing does
    """
    levels = tuple(level for level, weight in (("tokens", alpha), ("samples", beta)) if weight != 0)
    settings = {"norm": norm, "loss": relation_loss, "tau": tau, "include_diagonal": include_diagonal}
    return Objective(
        task=(1.0, TaskLoss(pair)),
        tokens=(alpha, TokenRelations(pair, layers, reduction, mask_padding, levels, **settings)),
        samples=(beta, SampleRelations(pair, layers, reduction, mask_padding, levels, **settings)),
    )

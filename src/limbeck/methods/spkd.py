"""Build similarity-preserving distillation (Tung and Mori 2019): which samples of a batch resemble each other."""

from __future__ import annotations

from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.alignment import Alignment
from limbeck.methods.ft import TaskLoss
from limbeck.models.layers import Layers
from limbeck.models.pooling import Pooling, check_pool
from limbeck.options import Weight


def spkd(
    pair: Pair,
    *,
    gamma: Weight = 3000.0,
    layers: Layers = "last",
    pool: Pooling = "flat",
) -> Objective:
    """Distil which samples are alike for the teacher, with the labels.

    Equation: L = CE(y, s) + γ·‖G_s - G_t‖²_F / B², G = X·Xᵀ (B x B) with each row scaled to length 1, X the layer with
    one row per sample.
    Left open by the paper, which is about images: the layer (the last here) and how its tokens become a row (side by
    side here, as the paper does with pixels). Several layer pairs are averaged; the paper sums them.
    Citation: Tung and Mori, 2019, "Similarity-Preserving Knowledge Distillation", ICCV, arXiv:1907.09682.

    Options:
        gamma: weight of the similarities (paper: 3000)
        layers: which layers are compared: a strategy, or pairs such as [[3, 6], [6, 12]]
        pool: the row of a sample: cls, last, mean or flat
    """
    check_pool("spkd", pool, "cls", "last", "mean", "flat")

    def difference(x: Tensor, y: Tensor, _: Tensor | None) -> Tensor:
        return similarity.spkd_distance(x, y)

    return Objective(
        task=(1.0, TaskLoss(pair)),
        similarity=(gamma, Alignment(pair, layers, pool, difference, mask_padding=True)),
    )

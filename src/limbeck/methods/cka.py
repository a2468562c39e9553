"""Build representational alignment by centred kernel alignment (Anonymous, ACL submission)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.alignment import Alignment
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.models.layers import Layers
from limbeck.models.pooling import Pooling
from limbeck.options import Positive, Share, Weight


def cka(
    pair: Pair,
    *,
    alpha: Share = 0.6,
    gamma: Weight = 1.0,
    layers: Layers = "middle",
    pool: Pooling = "mean",
    estimator: Literal["unbiased", "biased"] = "unbiased",
    kernel: Literal["linear", "rbf"] = "linear",
    reduction: Literal["mean", "sum"] = "mean",
    temperature: Positive = 1.0,
    mask_padding: bool = True,
) -> Objective:
    """Align hidden layers by centred kernel alignment, with the logits and labels.

    Equation: L = γ·CE(y, s) + α·mean over pairs of (1 - CKA(R_s, R_t)) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T))
    Left open by the paper: how a layer becomes one row per sample (`pool`, here the mean of the real tokens), sum or
    mean over pairs (`reduction`), and the temperature (1 here). Where CKA does not exist (fewer than 4 rows, constant
    features) the term is 0.
    Citation: Anonymous (ACL submission), "Knowledge Distillation through Representational Alignment"; CKA: Kornblith,
    Norouzi, Lee and Hinton, 2019, "Similarity of Neural Network Representations Revisited", ICML, arXiv:1905.00414.

    Options:
        alpha: weight of the alignment against the teacher's logits, 0 to 1 (paper: 0.6; 0 is KD, 1 is "only")
        gamma: weight of the labels (paper: 0 or 1)
        layers: which layers are aligned: a strategy, or pairs such as [[3, 6], [6, 12], [9, 18]]
        pool: rows that are compared: cls, last, mean, tokens or flat
        estimator: of HSIC: unbiased (eq. 6) or biased (eq. 5)
        kernel: linear, or rbf with the median heuristic
        reduction: mean or sum over the layer pairs
        temperature: T, softens both distributions
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """

    def distance(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        value, exists = similarity.cka_with_validity(x, y, mask=mask, estimator=estimator, kernel=kernel)
        return torch.where(exists, 1 - value, 0)

    return Objective(
        task=(gamma, TaskLoss(pair)),
        sim=(alpha, Alignment(pair, layers, pool, distance, mask_padding, reduction)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
    )

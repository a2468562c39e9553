"""Build representational alignment by the Shape (Procrustes) distance (Anonymous, ACL submission)."""

from __future__ import annotations

from typing import Literal

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


def shape(
    pair: Pair,
    *,
    alpha: Share = 0.6,
    gamma: Weight = 1.0,
    layers: Layers = "middle",
    pool: Pooling = "mean",
    kind: Literal["angular", "euclidean"] = "angular",
    beta: Share = 1.0,
    reduction: Literal["mean", "sum"] = "mean",
    temperature: Positive = 1.0,
    mask_padding: bool = True,
) -> Objective:
    """Align hidden layers by the Shape distance, with the logits and labels.

    Equation: L = γ·CE(y, s) + α·mean over pairs of d(R_s, R_t) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)),
    d = arccos(|φ(R_s)ᵀφ(R_t)|_* / (|φ(R_s)|·|φ(R_t)|)), φ centring and partial whitening.
    Left open by the paper: how a layer becomes one row per sample (`pool`, here the mean of the real tokens), sum or
    mean over pairs (`reduction`), and the temperature (1 here). Widths may differ; zero-padding the narrower side, as
    the paper does, changes nothing.
    Citation: Anonymous (ACL submission), "Knowledge Distillation through Representational Alignment"; Shape: Williams,
    Kunz, Kornblith and Linderman, 2021, "Generalized Shape Metrics on Neural Representations", NeurIPS,
    arXiv:2110.14739.

    Options:
        alpha: weight of the alignment against the teacher's logits, 0 to 1 (paper: 0.6; 0 is KD, 1 is "only")
        gamma: weight of the labels (paper: 0 or 1)
        layers: which layers are aligned: a strategy, or pairs such as [[3, 6], [6, 12], [9, 18]]
        pool: rows that are compared: cls, last, mean, tokens or flat
        kind: angular, or euclidean
        beta: partial whitening: 1 none (rotation invariant), 0 full (invariant to any invertible linear map)
        reduction: mean or sum over the layer pairs
        temperature: T, softens both distributions
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """

    def distance(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        return similarity.shape_distance(x, y, mask=mask, kind=kind, beta=beta)

    return Objective(
        task=(gamma, TaskLoss(pair)),
        sim=(alpha, Alignment(pair, layers, pool, distance, mask_padding, reduction)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
    )

"""Build relational knowledge distillation (Park et al. 2019): distances and angles between samples of a batch."""

from __future__ import annotations

from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.alignment import Alignment
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.models.layers import Layers
from limbeck.models.pooling import Pooling, check_pool
from limbeck.options import Positive, Share, Weight


def rkd(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 5.0,
    distance: Weight = 100.0,
    angle: Weight = 200.0,
    layers: Layers = "last",
    pool: Pooling = "mean",
) -> Objective:
    """Distil how the samples of a batch lie to each other, with the logits and labels.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + λ_d·mean_ij ℓ(d_ij(s)/μ(s) - d_ij(t)/μ(t)) +
    λ_a·mean_ijk ℓ(cos_ijk(s) - cos_ijk(t)), d the distance of two samples, μ its mean, cos_ijk of the angle at sample i
    between j and k, ℓ the smooth L1 loss.
    Left open by the paper, which is about images: the layer (the last here) and how its tokens become one row per
    sample (`pool`). Averages are over all pairs and triplets, i = j included, as in the authors' code.
    Citation: Park, Kim, Lu and Cho, 2019, "Relational Knowledge Distillation", CVPR, arXiv:1904.05068.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        distance: λ_d, weight of the distances (Jung et al. 2023: 100 or 10000)
        angle: λ_a, weight of the angles (Jung et al. 2023: 200, 2000 or 20000)
        layers: which layers are compared: a strategy, or pairs such as [[3, 6], [6, 12]]
        pool: the row of a sample: cls, last, mean or flat
    """
    check_pool("rkd", pool, "cls", "last", "mean", "flat")

    def distances(x: Tensor, y: Tensor, _: Tensor | None) -> Tensor:
        return similarity.rkd_distance(x, y)

    def angles(x: Tensor, y: Tensor, _: Tensor | None) -> Tensor:
        return similarity.rkd_angle(x, y)

    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        distance=(distance, Alignment(pair, layers, pool, distances, mask_padding=True)),
        angle=(angle, Alignment(pair, layers, pool, angles, mask_padding=True)),
    )

"""Build correlation congruence (Peng et al. 2019): kernels between the samples of a batch."""

from __future__ import annotations

from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.alignment import Alignment
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import read_token
from limbeck.models.layers import Layers
from limbeck.models.pooling import Pooling, check_pool
from limbeck.options import Count, Positive, Share, Weight


def cckd(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 5.0,
    beta: Weight = 0.02,
    gamma: Positive = 0.4,
    order: Count = 2,
    layers: Layers = "last",
    pool: Pooling | None = None,
) -> Objective:
    """Distil kernel values between the samples of a batch, with the logits and labels.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·‖C_s - C_t‖²_F / B²,
    C_ij = exp(-2γ)·Σ_{p=0..P} (2γ)^p/p!·(f_i·f_j)^p, f the vector of a sample, scaled to length 1.
    Left open by the paper, which is about images: the layer (the last here) and the vector of a sample (the token that
    the classifier reads). β is not from the paper: 0.02 is what the benchmark of Tian et al. 2020 ("Contrastive
    Representation Distillation", ICLR, arXiv:1910.10699) gives a variant of the loss, so it is worth a search. Batches
    are as they come, without the paper's samplers.
    Citation: Peng, Jin, Li, Zhou, Wu, Liu, Zhang and Liu, 2019, "Correlation Congruence for Knowledge Distillation",
    ICCV, arXiv:1904.01802.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the correlations
        gamma: γ of the Gaussian kernel
        order: P, where its Taylor series ends
        layers: which layers are compared: a strategy, or pairs such as [[3, 6], [6, 12]]
        pool: the vector of a sample: cls, last, mean or flat; by default cls for encoders, last for decoders
    """
    pool = pool or read_token(pair)
    check_pool("cckd", pool, "cls", "last", "mean", "flat")

    def difference(x: Tensor, y: Tensor, _: Tensor | None) -> Tensor:
        return similarity.cckd_distance(x, y, gamma=gamma, order=order)

    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        correlation=(beta, Alignment(pair, layers, pool, difference, mask_padding=True)),
    )

"""Build feature structure distillation (Jung et al. 2023) and the ablations of its table 4."""

from __future__ import annotations

from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.fsd_terms import Estimator, Global, Intra, Layer, Local, Start
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.options import Count, Positive, Share, Weight


def fsd(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 1.0,
    gamma_i: Weight = 1.0,
    gamma_l: Weight = 1.0,
    gamma_g: Weight = 1e-4,
    gamma_m: Share = 1e-6,
    memory: Count = 100,
    passes: Count = 3,
    memory_start: Start = "k-means++",
    layer: Layer = "penultimate",
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Distil the intra-feature, local and global structures of one layer, with the logits and labels.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·(γᵢ·L_I + γₗ·L_L + γ_g·L_G), L_I and L_L
    -log|CKA| between tokens of a sample and between samples, L_G = γₘ·F_Mh^E + (1-γₘ)·F_Mh^C + F_MM with centroids.
    Left open by the paper: padding (ignored here), and the start of the student's memory (normal, with the spread of
    the teacher's).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring", Expert Systems with Applications, arXiv:2204.08922.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 1)
        gamma_i: weight of the intra-feature structure
        gamma_l: weight of the local inter-feature structure
        gamma_g: weight of the global inter-feature structure
        gamma_m: Euclidean against cosine in the global structure, 0 to 1
        memory: number of centroids (paper: 100; 300 for QQP and MNLI)
        passes: passes of k-means over the training set
        memory_start: of k-means: k-means++, or random training samples (paper: randomly initialised)
        layer: of both models: penultimate, or last
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        intra=(beta * gamma_i, Intra(pair, layer, estimator, mask_padding)),
        local=(beta * gamma_l, Local(pair, layer, estimator, mask_padding)),
        memory=(beta * gamma_g, Global(pair, layer, estimator, mask_padding, gamma_m, memory, passes, memory_start)),
    )


def fsd_i(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 4.0,
    gamma_i: Weight = 1.0,
    layer: Layer = "penultimate",
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Distil the intra-feature structure alone: FSD with γₗ = γ_g = 0, a row of the paper's table 4.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·γᵢ·L_I, L_I the mean over samples
    of -log|CKA| between the tokens of a sample.
    Left open by the paper: padding (ignored here).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring", Expert Systems with Applications, arXiv:2204.08922.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 3, 4, 5 or 6)
        gamma_i: weight of the intra-feature structure
        layer: of both models: penultimate, or last
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        intra=(beta * gamma_i, Intra(pair, layer, estimator, mask_padding)),
    )


def fsd_l(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 4.0,
    gamma_l: Weight = 1.0,
    layer: Layer = "penultimate",
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Distil the local inter-feature structure alone: FSD with γᵢ = γ_g = 0, a row of the paper's table 4.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·γₗ·L_L, L_L = -log|CKA| between the
    samples of the batch.
    Left open by the paper: padding (ignored here).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring", Expert Systems with Applications, arXiv:2204.08922.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 3, 4, 5 or 6)
        gamma_l: weight of the local inter-feature structure
        layer: of both models: penultimate, or last
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        local=(beta * gamma_l, Local(pair, layer, estimator, mask_padding)),
    )


def fsd_g(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 4.0,
    gamma_g: Weight = 1e-4,
    gamma_m: Share = 1e-6,
    memory: Count = 100,
    passes: Count = 3,
    memory_start: Start = "k-means++",
    layer: Layer = "penultimate",
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Distil the global inter-feature structure alone: FSD with γᵢ = γₗ = 0, a row of the paper's table 4.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·γ_g·L_G,
    L_G = γₘ·F_Mh^E + (1-γₘ)·F_Mh^C + F_MM between samples and centroids of the training set.
    Left open by the paper: padding (ignored here), and the start of the student's memory (normal, with the spread of
    the teacher's).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring", Expert Systems with Applications, arXiv:2204.08922.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 1e-7 to 1)
        gamma_g: weight of the global inter-feature structure
        gamma_m: Euclidean against cosine in the global structure, 0 to 1
        memory: number of centroids (paper: 100; 300 for QQP and MNLI)
        passes: passes of k-means over the training set
        memory_start: of k-means: k-means++, or random training samples (paper: randomly initialised)
        layer: of both models: penultimate, or last
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        memory=(beta * gamma_g, Global(pair, layer, estimator, mask_padding, gamma_m, memory, passes, memory_start)),
    )


def fsd_il(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 1.0,
    gamma_i: Weight = 1.0,
    gamma_l: Weight = 1.0,
    layer: Layer = "penultimate",
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Distil the intra-feature and local structures: FSD with γ_g = 0, a row of the paper's table 4.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·(γᵢ·L_I + γₗ·L_L), L_I and L_L -log|CKA|
    between tokens of a sample and between samples.
    Left open by the paper: padding (ignored here).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring", Expert Systems with Applications, arXiv:2204.08922.

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 1)
        gamma_i: weight of the intra-feature structure
        gamma_l: weight of the local inter-feature structure
        layer: of both models: penultimate, or last
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        intra=(beta * gamma_i, Intra(pair, layer, estimator, mask_padding)),
        local=(beta * gamma_l, Local(pair, layer, estimator, mask_padding)),
    )

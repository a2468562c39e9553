"""Build patient knowledge distillation (Sun et al. 2019): the vector a classifier reads, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector
from limbeck.errors import RecipeError
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import PairedLayers, read_token, rows_of
from limbeck.models.features import Features
from limbeck.models.layers import Layers, layer_map
from limbeck.models.pooling import Pooling, check_pool, pool, real_dimensions
from limbeck.options import Positive, Share, Weight


class Patient(PairedLayers):
    """Compute L_PT: the squared difference of unit vectors, averaged over layer pairs, samples and real dimensions."""

    def __init__(self, pair: Pair, layers: Layers, pool: Pooling) -> None:
        super().__init__(pair, layers, pool=pool)
        self.student_width = pair.student.width
        self.project = projector(self.student_width, pair.require_teacher().width)

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        values = []
        for layer_s, layer_t in self.pairs:
            s, _ = pool(student.hidden[layer_s], student.mask, self.pool)
            s = self.project(s.unflatten(1, (-1, self.student_width))).flatten(1)  # flat rows are mapped by tokens
            t = similarity.teacher_side(rows_of(teacher, layer_t, student.mask, self.pool))
            squares = (similarity.unit(s.float()) - similarity.unit(t.float())).square().sum(1)
            values.append((squares / real_dimensions(t, student.mask, self.pool)).mean())
        return torch.stack(values).mean()


def pkd(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 100.0,
    layers: Layers = "skip",
    pool: Pooling | None = None,
) -> Objective:
    """Distil the [CLS] vectors of intermediate layers, with the logits and labels.

    Equation: L = α·T²·KL(softmax(t/T) ‖ softmax(s/T)) + (1-α)·CE(y, s) + β·L_PT, L_PT the mean over layer pairs,
    samples and dimensions of (h_s/‖h_s‖ - h_t/‖h_t‖)², h the vector of the token that the classifier reads.
    Left open by the paper: whether L_PT is summed or averaged; averaged here, over dimensions too. The T² on the
    logits' part, which the paper does not print, keeps α comparable between temperatures. Students narrower than the
    teacher, which one learned linear map serves for all pairs.
    Citation: Sun, Cheng, Gan and Liu, 2019, "Patient Knowledge Distillation for BERT Model Compression", EMNLP,
    arXiv:1908.09355.

    Options:
        alpha: weight of the teacher's logits against the labels, 0 to 1 (paper: 0.2, 0.5 or 0.7)
        temperature: T, softens both distributions (paper: 5, 10 or 20)
        beta: weight of the layers (paper: 10, 100, 500 or 1000)
        layers: skip (6 <- 12 layers gives 2, 4, ..., 10), last (PKD-Last: 7, ..., 11), another strategy, or pairs
        pool: the vector of a sample: cls, last, mean, or flat (all its tokens, as Jung et al. 2023 compare them); by
            default cls for encoders, last for decoders
    """
    pool = pool or read_token(pair)
    check_pool("pkd", pool, "cls", "last", "mean", "flat")
    if layers in ("skip", "last") and pair.student.depth == 1:
        raise RecipeError(
            f"pkd with layers '{layers}' leaves out the last layer, and the student has only 1. Give explicit pairs, "
            f"such as [[1, {pair.require_teacher().depth}]], or use kd."
        )
    if layers == "last":
        layers = layer_map("top", pair.student.depth, pair.require_teacher().depth)[:-1]
    return Objective(
        kd=(alpha, SoftLogits(pair.problem, temperature)),
        task=(1 - alpha, TaskLoss(pair)),
        patient=(beta, Patient(pair, layers, pool)),
    )

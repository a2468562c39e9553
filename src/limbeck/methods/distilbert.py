"""Build DistilBERT's loss (Sanh et al. 2019): logits, labels and the direction of the last hidden states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import PairedLayers
from limbeck.models.features import Features
from limbeck.models.pooling import without_padding
from limbeck.options import Positive, Weight


class Cosine(PairedLayers):
    """Average 1 - cos of the last hidden states over the real tokens of the batch."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair, "last")
        self.project = projector(pair.student.width, pair.require_teacher().width)

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return student.mask.sum()

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        [(layer_s, layer_t)], mask = self.pairs, student.mask
        s = self.project(without_padding(student.hidden[layer_s], mask)).float()
        t = without_padding(similarity.teacher_side(teacher.hidden[layer_t]), mask).float()
        cosines = (similarity.unit(s) * similarity.unit(t)).sum(-1)  # B L
        return torch.where(mask, 1 - cosines, 0).sum() / mask.sum().clamp(min=1)


def distilbert(
    pair: Pair,
    *,
    alpha_kd: Weight = 5.0,
    alpha_task: Weight = 2.0,
    alpha_cos: Weight = 1.0,
    temperature: Positive = 2.0,
) -> Objective:
    """Distil the teacher's logits and the direction of its last hidden states, with the labels: DistilBERT's loss.

    Equation: L = α_kd·T²·KL(softmax(t/T) ‖ softmax(s/T)) + α_task·CE(y, s) + α_cos·mean over tokens of
    (1 - cos(h_s, h_t)), h the last hidden state.
    Left open by the paper: the weights and the temperature, which its code sets to 5, 2, 1 and 2; padding (ignored
    here); widths that differ, for which a linear map is learned. The loss serves text (CE is that of the language
    model) and labelled tasks alike. The student takes every second layer of its teacher: see `student` in the recipe.
    Citation: Sanh, Debut, Chaumond and Wolf, 2019, "DistilBERT, a distilled version of BERT", EMC² workshop at NeurIPS,
    arXiv:1910.01108.

    Options:
        alpha_kd: weight of the teacher's logits
        alpha_task: weight of the labels, or of the tokens to predict
        alpha_cos: weight of the last hidden states
        temperature: T, softens both distributions
    """
    return Objective(
        kd=(alpha_kd, SoftLogits(pair.problem, temperature)),
        task=(alpha_task, TaskLoss(pair)),
        cosine=(alpha_cos, Cosine(pair)),
    )

"""Build FitNets (Romero et al. 2015): a hint from the teacher's middle layer first, then its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector
from limbeck.methods.kd import kd
from limbeck.methods.paired import PairedLayers, token_mse
from limbeck.models.features import Features
from limbeck.models.layers import Layers
from limbeck.options import Positive, Share


class Hint(PairedLayers):
    """Compute L_HT (eq. 3): the squared difference of hidden states, averaged over pairs with a regressor each."""

    def __init__(self, pair: Pair, layers: Layers) -> None:
        super().__init__(pair, layers)
        self.regressors = nn.ModuleList(projector(pair.student.width, pair.require_teacher().width) for _ in self.pairs)

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return student.mask.sum()

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.stack(
            [
                token_mse(student.hidden[s], teacher.hidden[t], student.mask, regressor)
                for (s, t), regressor in zip(self.pairs, self.regressors, strict=True)
            ]
        ).mean()


def fitnets(
    pair: Pair,
    *,
    stage: Literal["hint", "kd"] = "hint",
    layers: Layers = "middle",
    alpha: Share = 0.5,
    temperature: Positive = 5.0,
) -> Objective:
    """Distil the teacher's middle layer, then its logits with the labels: FitNets, in two stages.

    Equation: hint: L = mean over tokens and dimensions of (r(h_s) - h_t)², r a learned linear map where widths differ.
    kd: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T))
    Left open by the paper, which is about images: padding (ignored here). The printed ½‖·‖² is a mean here, so that
    learning rates do not depend on width and length. The paper lets the weight of the teacher fall during the second
    stage; it is constant here.
    Citation: Romero, Ballas, Kahou, Chassang, Gatta and Bengio, 2015, "FitNets: Hints for Thin Deep Nets", ICLR,
    arXiv:1412.6550.

    Options:
        stage: hint or kd; a recipe that sets neither runs both, in this order
        layers: which layers the hint pairs: a strategy, or pairs such as [[3, 6]]
        alpha: weight of the labels against the teacher's logits in the kd stage, 0 to 1
        temperature: T of the kd stage, softens both distributions
    """
    if stage == "kd":
        return kd(pair, alpha=alpha, temperature=temperature)
    return Objective(hint=(1.0, Hint(pair, layers)))

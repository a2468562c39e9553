"""Build TinyBERT (Jiao et al. 2020): first embeddings, hidden states and attention scores, then predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck import similarity
from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector
from limbeck.methods.ft import decision_count, decisions
from limbeck.methods.paired import PairedLayers, check_attention, token_mse
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.layers import Layers
from limbeck.options import Positive
from limbeck.problems import Problem


class Hidden(PairedLayers):
    """Compute L_hidn (eq. 8): the squared difference of hidden states, summed over pairs, which share a projector."""

    def __init__(self, pair: Pair, layers: Layers) -> None:
        super().__init__(pair, layers)
        self.project = projector(pair.student.width, pair.require_teacher().width)

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return student.mask.sum()

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.stack(
            [token_mse(student.hidden[s], teacher.hidden[t], student.mask, self.project) for s, t in self.pairs]
        ).sum()


class AttentionScores(PairedLayers):
    """Compute L_attn (eq. 7): the squared difference of the scores before the softmax, summed over the pairs."""

    def __init__(self, pair: Pair, layers: Layers) -> None:
        super().__init__(pair, layers, kinds=("queries", "keys"))
        self.heads, self.causal = pair.student.heads, pair.student.causal

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        """Count the pairs of a query and a key."""
        lengths = student.mask.sum(1)
        return (lengths * (lengths + 1) // 2 if self.causal else lengths.square()).sum()

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.stack(
            [
                similarity.attention_loss(
                    *(student.queries[s], student.keys[s], teacher.queries[t], teacher.keys[t]),
                    heads=self.heads,
                    mask=student.mask,
                    loss="mse",
                    causal=self.causal,
                )
                for s, t in self.pairs
            ]
        ).sum()


class SoftTargets(Term):
    """Compute L_pred (eq. 10): cross-entropy with the teacher's softened predictions, without the factor T².

    Averaged over examples, or over the decisions of each (the tokens, a span's start and end). Multi-label: the binary
    cross-entropy of each label, summed over labels. Regression: the squared difference of the logits.
    """

    def __init__(self, problem: Problem, temperature: float) -> None:
        super().__init__()
        self.problem, self.temperature = problem, temperature

    def needs(self) -> Needs:
        return Needs(student=Wanted(logits=True), teacher=Wanted(logits=True))

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return decision_count(student, batch, self.problem)

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        s, t = (decisions(side, batch, self.problem) for side in (student, teacher))
        t = similarity.teacher_side(t)
        if self.problem == "regression":
            return F.mse_loss(s, t)
        s, t = s / self.temperature, t / self.temperature
        if self.problem == "multi_label":
            total = F.binary_cross_entropy_with_logits(s, t.sigmoid(), reduction="sum")
        else:
            total = F.cross_entropy(s, t.softmax(-1), reduction="sum")
        return total / max(len(s), 1)


def tinybert(
    pair: Pair,
    *,
    stage: Literal["intermediate", "prediction"] = "intermediate",
    layers: Layers = "uniform",
    temperature: Positive = 1.0,
) -> Objective:
    """Distil embeddings, hidden states and attention, then the teacher's predictions: TinyBERT, in two stages.

    Equation: intermediate: L = MSE(E_s·W_e, E_t) + Σ over pairs MSE(H_s·W_h, H_t) + Σ over pairs MSE(A_s, A_t), E the
    embeddings, H hidden states, A the scores q·kᵀ/√d_head before the softmax, W learned where widths differ.
    prediction: L = -Σ_c softmax(t/T)_c·log softmax(s/T)_c, averaged over examples.
    Left open by the paper: padding. The means are over the real tokens, and over the real (query, key) entries of all
    heads, of the batch; decoders' entries end at the query. Regression distils the squared difference of the logits.
    Citation: Jiao, Yin, Shang, Jiang, Chen, Li, Wang and Liu, 2020, "TinyBERT: Distilling BERT for Natural Language
    Understanding", Findings of EMNLP, arXiv:1909.10351.

    Options:
        stage: intermediate or prediction; a recipe that sets neither runs both, in this order
        layers: which layers are paired, for hidden states and attention alike: a strategy, or pairs of blocks
        temperature: T of the prediction stage (paper: 1)
    """
    if stage == "prediction":
        return Objective(soft=(1.0, SoftTargets(pair.problem, temperature)))
    check_attention("tinybert", pair)
    return Objective(
        embeddings=(1.0, Hidden(pair, [(0, 0)])),
        hidden=(1.0, Hidden(pair, layers)),
        attention=(1.0, AttentionScores(pair, layers)),
    )

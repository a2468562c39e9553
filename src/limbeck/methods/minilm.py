"""Build MiniLM (Wang et al. 2020): the last layer's attention distributions and relations between its values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import PairedLayers, check_attention
from limbeck.models.features import Features
from limbeck.models.layers import Layers
from limbeck.options import Positive, Weight


class AttentionKL(PairedLayers):
    """Average KL(teacher ‖ student) of softmax(a·bᵀ/√d) over pairs, a and b queries, keys or values of each head.

    Relations are attention between a projection and itself; ``causal`` concerns attention only.
    """

    def __init__(self, pair: Pair, layers: Layers, a: str, b: str, heads: int, causal: bool = False) -> None:
        super().__init__(pair, layers, kinds=(a, b))
        self.heads, self.causal = heads, causal

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        values = []
        for layer_s, layer_t in self.pairs:
            (a_s, b_s), (a_t, b_t) = self._projections(student, layer_s), self._projections(teacher, layer_t)
            values.append(
                similarity.attention_loss(a_s, b_s, a_t, b_t, self.heads, student.mask, loss="kl", causal=self.causal)
            )
        return torch.stack(values).mean()

    def _projections(self, side: Features, layer: int) -> list[Tensor]:
        return [getattr(side, kind)[layer] for kind in self.kinds]


def minilm(
    pair: Pair,
    *,
    alpha: Weight = 1.0,
    task: Weight | None = None,
    kd: Weight = 0.0,
    temperature: Positive = 5.0,
    layers: Layers = "last",
) -> Objective:
    """Distil the attention distributions and value relations of the last layer.

    Equation: L = α·KL(A_t ‖ A_s) + α·KL(R_t ‖ R_s) + λ_task·CE(y, s) + λ_kd·T²·KL(softmax(t/T) ‖ softmax(s/T)),
    A = softmax(q·kᵀ/√d_head), R = softmax(v·vᵀ/√d_head), each KL averaged over heads and real queries, then samples.
    Left open by the paper, which distils on plain text: labelled tasks, where the labels are learned too (`task`).
    Decoders attend to the keys at or before the query; their value relations are over all tokens.
    Citation: Wang, Wei, Dong, Bao, Yang and Zhou, 2020, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic
    Compression of Pre-Trained Transformers", NeurIPS, arXiv:2002.10957.

    Options:
        alpha: weight of the attention and of the value relations
        task: weight of the labels; by default 1, and 0 on plain text
        kd: weight of the teacher's logits
        temperature: T, softens both distributions of the logits
        layers: which blocks are paired: last (paper), another strategy, or pairs
    """
    check_attention("minilm", pair)
    heads = pair.student.heads
    return Objective(
        task=(float(pair.labelled) if task is None else task, TaskLoss(pair)),
        kd=(kd, SoftLogits(pair.problem, temperature)),
        attention=(alpha, AttentionKL(pair, layers, "queries", "keys", heads, pair.student.causal)),
        value=(alpha, AttentionKL(pair, layers, "values", "values", heads)),
    )

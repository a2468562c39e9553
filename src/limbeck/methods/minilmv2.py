"""Build MiniLMv2 (Wang et al. 2021): relations between queries, keys and values, in heads of any number."""

from __future__ import annotations

import math

from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.errors import RecipeError
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.methods.minilm import AttentionKL
from limbeck.models.layers import Layers
from limbeck.options import Count, Positive, Weight

_KINDS = ("queries", "keys", "values")


def minilmv2(
    pair: Pair,
    *,
    alpha_q: Weight = 1.0,
    alpha_k: Weight = 1.0,
    alpha_v: Weight = 1.0,
    relation_heads: Count | None = None,
    task: Weight | None = None,
    kd: Weight = 0.0,
    temperature: Positive = 5.0,
    layers: Layers = "last",
) -> Objective:
    """Distil how queries relate to queries, keys to keys and values to values, in the same number of heads.

    Equation: L = Σ over x in {q, k, v} of α_x·KL(R_t(x) ‖ R_s(x)) + λ_task·CE(y, s) + λ_kd·T²·KL(softmax(t/T) ‖
    softmax(s/T)), R(x) = softmax(x·xᵀ/√d_r) in each of A_r relation heads, d_r = width / A_r of each model, each KL
    averaged over heads and real queries, then over samples.
    Left open by the paper, which distils on plain text: labelled tasks, where the labels are learned too (`task`).
    Where heads share keys and values, these are split into as many relation heads as the teacher has of them.
    Widths and attention heads may differ, and every model family will do, since no attention score is needed.
    Citation: Wang, Bao, Huang, Dong and Wei, 2021, "MiniLMv2: Multi-Head Self-Attention Relation Distillation for
    Compressing Pretrained Transformers", Findings of ACL, arXiv:2012.15828.

    Options:
        alpha_q: weight of the query relations
        alpha_k: weight of the key relations
        alpha_v: weight of the value relations
        relation_heads: A_r, a divisor of both widths; by default the teacher's heads (paper: 48 for base, 64 for large)
        task: weight of the labels; by default 1, and 0 on plain text
        kd: weight of the teacher's logits
        temperature: T, softens both distributions of the logits
        layers: which blocks are paired: last, another strategy, or pairs (paper: [[6, 21]] from BERT-large)
    """
    heads = {kind: _heads(pair, kind, relation_heads) for kind in _KINDS}
    return Objective(
        task=(float(pair.labelled) if task is None else task, TaskLoss(pair)),
        kd=(kd, SoftLogits(pair.problem, temperature)),
        query=(alpha_q, AttentionKL(pair, layers, "queries", "queries", heads["queries"])),
        key=(alpha_k, AttentionKL(pair, layers, "keys", "keys", heads["keys"])),
        value=(alpha_v, AttentionKL(pair, layers, "values", "values", heads["values"])),
    )


def _heads(pair: Pair, kind: str, chosen: int | None) -> int:
    """Return how many relation heads the queries, keys or values are split into."""
    heads = chosen or pair.require_teacher().heads_of(kind)
    widths = [shape.width_of(kind) for shape in (pair.student, pair.require_teacher())]
    if math.gcd(*widths) % heads:
        common = math.gcd(
            *(shape.width_of(kind) for shape in (pair.student, pair.require_teacher()) for kind in _KINDS)
        )
        divisors = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise RecipeError(
            f"minilmv2 splits both models into {heads} relation heads, which does not divide both widths: the "
            f"student's {kind} are {widths[0]} wide, the teacher's {widths[1]}. Set method.relation_heads to one of: "
            f"{', '.join(divisors)}."
        )
    return heads

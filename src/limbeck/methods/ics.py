"""Build intra-class similarity-guided feature distillation (Saadi et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector as make_projector
from limbeck.errors import ModelError
from limbeck.methods.ft import TaskLoss, decided
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import read_token, rows_needed, rows_of
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.pooling import Pooling, pool
from limbeck.options import Count, Positive, Weight
from limbeck.problems import IGNORED, Problem


class NearestOfClass(Term):
    """Compute L_hidd: the squared distance of each sample to the K nearest teacher samples of its class.

    Where tokens are decided, these are the samples: each tagged token, or the tokens where an answer starts and ends.
    """

    relational = True

    def __init__(self, pair: Pair, k: int, pool: Pooling, bin_width: float, reduction: Literal["sum", "mean"]) -> None:
        super().__init__()
        self.student_layer, self.teacher_layer = pair.student.depth, pair.require_teacher().depth
        self.project = make_projector(pair.student.width, pair.require_teacher().width)
        self.k, self.pool, self.summed = k, pool, reduction == "sum"
        self.problem, self.bin_width = pair.problem, bin_width

    def needs(self) -> Needs:
        of_teacher: Pooling = "tokens" if self.problem in ("tokens", "span") else self.pool
        return Needs(Wanted(hidden=[self.student_layer]), rows_needed(of_teacher, [self.teacher_layer]))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        labels = batch["labels"]
        if self.problem in ("tokens", "span"):
            s = deciding_tokens(student.hidden[self.student_layer], labels, self.problem)
            t = deciding_tokens(teacher.hidden[self.teacher_layer], labels, self.problem)
        else:
            s, _ = pool(student.hidden[self.student_layer], student.mask, self.pool)
            t = rows_of(teacher, self.teacher_layer, student.mask, self.pool)
        s, t = self.project(s).float(), t.float()
        classes = class_of(labels, student.mask, self.problem, self.bin_width)
        nearest, valid = similarity.nearest_same_class(s, t, classes, self.k)
        distances = (s[:, None] - t[nearest]).square().mean(-1)  # B K
        total = torch.where(valid, distances, 0).sum()
        return total if self.summed else total / max(len(s), 1)


def deciding_tokens(hidden: Tensor, labels: Tensor, problem: Problem) -> Tensor:
    """Return (n, D): the tokens that have a label, or for each example those where its answer starts and ends."""
    if problem == "tokens":
        return hidden[labels != IGNORED]
    return hidden.gather(1, labels[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)


def class_of(labels: Tensor, mask: Tensor, problem: Problem, bin_width: float) -> Tensor:
    """Return what counts as the same class: the label, the bin of a score, or the set of labels.

    Of a span: the starts, the ends, and the first tokens of texts without an answer.
    """
    if problem == "regression":
        return (labels / bin_width).round().long()
    if problem == "multi_label":
        return labels.unique(dim=0, return_inverse=True)[1]
    if problem == "span":
        first = mask.byte().argmax(1, keepdim=True)
        return torch.where(labels == first, 2, torch.arange(2, device=labels.device)).flatten()
    return decided(labels, problem)


def ics(
    pair: Pair,
    *,
    k: Count = 1,
    alpha_1: Weight = 0.01,
    alpha_2: Weight = 0.5,
    alpha_3: Weight = 0.5,
    temperature: Positive = 5.0,
    pool: Pooling | None = None,
    reduction: Literal["sum", "mean"] = "sum",
    bin_width: Positive = 1.0,
    projector: bool = False,
) -> Objective:
    """Pull each student sample to its nearest teacher samples of the same class, with the logits and labels.

    Equation: L = α₁·Σ_i Σ_k mean_d (s_i - t_{n(i,k)})² + α₂·T²·KL(softmax(t/T) ‖ softmax(s/T)) + α₃·CE(y, s), n(i, k)
    the k-th nearest teacher sample of the batch with the label of i, on the last hidden state.
    Left open by the paper: regression, where labels are rounded to bins; tags and answers, where tokens are the
    samples: those of one tag, those where answers start, and where they end. K is clamped to what the class has.
    Citation: Saadi, Mitrović and Granitzer, 2023, "Intra-Class Similarity-Guided Feature Distillation", NeurIPS.

    Options:
        k: K, how many nearest teacher samples (paper: 1, 2, 3 or 5)
        alpha_1: weight of the hidden term (paper: 0.1, 0.01 or 0.001)
        alpha_2: weight of the teacher's logits
        alpha_3: weight of the labels
        temperature: T, softens both distributions
        pool: the representation of a sample: cls, last or mean; None: the token that the classifiers read (paper: cls)
        reduction: sum over the batch, as printed, or mean
        bin_width: width of a class of scores, for regression
        projector: learn a map to the teacher's width, where the widths differ
    """
    if pair.problem == "language_model":
        raise ModelError("ics needs the class of each text, which plain text does not have. Use fcd, cka or minilmv2.")
    pool = pool or read_token(pair)
    if pool == "tokens":
        raise ModelError("ics compares samples, so pool must give one row per sample: cls, last, mean or flat.")
    if pair.student.width != pair.require_teacher().width and (not projector or pool == "flat"):
        raise ModelError(
            f"ics compares hidden states directly, but the student is {pair.student.width} wide and the teacher "
            f"{pair.require_teacher().width}. Set method.projector=true to learn a map between them (with pool cls, "
            "last or mean), or choose a student of the teacher's width."
        )
    return Objective(
        hidden=(alpha_1, NearestOfClass(pair, k, pool, bin_width, reduction)),
        kd=(alpha_2, SoftLogits(pair.problem, temperature)),
        task=(alpha_3, TaskLoss(pair)),
    )

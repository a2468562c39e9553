"""Build intra-class similarity-guided feature distillation (Saadi et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.distillation.projectors import projector as make_projector
from limbeck.errors import ModelError, RecipeError
from limbeck.methods.ft import TaskLoss, decided, is_known
from limbeck.methods.kd import SoftLogits
from limbeck.methods.paired import read_token, rows_needed, rows_of
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.pooling import Pooling, pool, real_dimensions
from limbeck.options import Count, Positive, Weight
from limbeck.problems import IGNORED, Problem


class Samples(Term):
    """Compare samples of both models' last layers by their squared distance, averaged over real dimensions.

    Where tokens are decided, these are the samples: each tagged token, or the tokens where an answer starts and ends.
    """

    def __init__(self, pair: Pair, pool: Pooling, reduction: Literal["sum", "mean"]) -> None:
        super().__init__()
        self.student_layer, self.teacher_layer = pair.student.depth, pair.require_teacher().depth
        self.project = make_projector(pair.student.width, pair.require_teacher().width)
        self.pool: Pooling = "tokens" if pair.problem in ("tokens", "span") else pool
        self.summed, self.problem = reduction == "sum", pair.problem

    def needs(self) -> Needs:
        return Needs(Wanted(hidden=[self.student_layer]), rows_needed(self.pool, [self.teacher_layer]))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        if self.pool == "tokens":
            s = deciding_tokens(student.hidden[self.student_layer], batch["labels"], self.problem)
            t = deciding_tokens(teacher.hidden[self.teacher_layer], batch["labels"], self.problem)
        else:
            s, _ = pool(student.hidden[self.student_layer], student.mask, self.pool)
            t = rows_of(teacher, self.teacher_layer, student.mask, self.pool)
        s, t = self.project(s).float(), t.float()
        sizes = real_dimensions(s, student.mask, self.pool)
        there = self.compared(batch)
        s, t, sizes = s[there], t[there], sizes[there]
        targets, counted = self.targets(s, t, batch, student.mask)  # n K each
        squares = torch.where(counted, (s[:, None] - similarity.teacher_side(t)[targets]).square().sum(-1), 0)
        total = (squares / torch.maximum(sizes[:, None], sizes[targets])).sum()
        return total if self.summed else total / max(len(s), 1)

    def compared(self, batch: Mapping[str, Tensor]) -> Any:
        """Choose the samples that are compared: all of them."""
        return slice(None)

    def targets(self, s: Tensor, t: Tensor, batch: Mapping[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows of t each of s is compared with, (n, K), and which of these count."""
        raise TypeError(f"{type(self).__name__} defines no targets(s, t, batch, mask).")


class OwnVector(Samples):
    """Compute the squared distance of each sample to the teacher's vector of the same sample."""

    def targets(self, s: Tensor, t: Tensor, batch: Mapping[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        own = torch.arange(len(s), device=s.device)[:, None]
        return own, torch.ones_like(own, dtype=torch.bool)


class NearestOfClass(Samples):
    """Compute L_hidd: the squared distance of each sample to the K nearest teacher samples of its class.

    Samples whose class is not known are neither compared nor compared with.
    """

    relational = True

    def __init__(self, pair: Pair, pool: Pooling, reduction: Literal["sum", "mean"], k: int, bin_width: float) -> None:
        super().__init__(pair, pool, reduction)
        self.k, self.bin_width = k, bin_width

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return super().count(student, batch) if self.pool == "tokens" else is_known(batch["labels"]).sum()

    def compared(self, batch: Mapping[str, Tensor]) -> Any:
        return is_known(decided(batch["labels"], self.problem))

    def targets(self, s: Tensor, t: Tensor, batch: Mapping[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        labels = batch["labels"]
        if self.problem == "tokens":
            labels = labels.where(labels >= 0, IGNORED)
        elif self.problem != "span":
            labels = labels[is_known(labels)]
        classes = class_of(labels, mask, self.problem, self.bin_width)
        return similarity.nearest_same_class(s, t, classes, self.k)


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
    match: Literal["class", "own"] = "class",
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
    The paper's figure 2 compares with "typical feature distillation", which is n(i, 1) = i: `match: own`.
    Citation: Saadi, Mitrović and Granitzer, 2023, "Intra-Class Similarity-Guided Feature Distillation", NeurIPS.

    Options:
        match: class, the nearest teacher samples of its class; or own, each sample's own teacher vector (K = 1)
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
    if match == "class" and pair.problem == "language_model":
        raise ModelError("ics needs the class of each text, which plain text does not have. Use fcd, cka or minilmv2.")
    if match == "own" and k != 1:
        raise RecipeError(f"ics with match: own has one teacher vector for each sample, so k must be 1; seen: {k}.")
    pool = pool or read_token(pair)
    if pool == "tokens":
        raise ModelError("ics compares samples, so pool must give one row per sample: cls, last, mean or flat.")
    if pair.student.width != pair.require_teacher().width and (not projector or pool == "flat"):
        raise ModelError(
            f"ics compares hidden states directly, but the student is {pair.student.width} wide and the teacher "
            f"{pair.require_teacher().width}. Set method.projector=true to learn a map between them (with pool cls, "
            "last or mean), or choose a student of the teacher's width."
        )
    hidden = OwnVector(pair, pool, reduction) if match == "own" else NearestOfClass(pair, pool, reduction, k, bin_width)
    return Objective(
        hidden=(alpha_1, hidden),
        kd=(alpha_2, SoftLogits(pair.problem, temperature)),
        task=(alpha_3, TaskLoss(pair)),
    )

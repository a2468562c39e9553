"""Build fine-tuning on the labels alone: how a teacher is made, and the student that learns without one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.errors import RecipeError
from limbeck.models.features import Features, Needs, Wanted
from limbeck.options import Share
from limbeck.problems import IGNORED, PER_TOKEN, Problem

_SMOOTHED: tuple[Problem, ...] = ("classification", "tokens")
_NEVER = -1e30  # a logit of probability 0 whose differences are still numbers


class TaskLoss(Term):
    """Compute the loss against the labels, averaged over examples.

    Cross-entropy for classification, squared error for regression, binary cross-entropy averaged over the labels
    for multi-label problems. Where tokens are decided (tags, a language model), cross-entropy averaged over them;
    of a span, the mean of its start's and its end's. Class weights multiply the loss of an example of that class (of
    multi-label problems: of a label that is there), and are not divided out again in each batch. ``smoothing`` is the
    share of a label that is given to all classes alike.

    What has no label (:func:`is_known`) does not count: the averages are over what has one, and 0 where nothing has.
    """

    def __init__(self, pair: Pair, smoothing: float = 0.0) -> None:
        super().__init__()
        if smoothing and pair.problem not in _SMOOTHED:
            raise RecipeError(
                f"method.smoothing divides a label among classes, and this is a {pair.problem} problem. Leave it out."
            )
        self.problem, self.smoothing = pair.problem, smoothing
        self.weights: Tensor | None
        weights = None if pair.class_weights is None else torch.tensor(pair.class_weights)
        self.register_buffer("weights", weights, persistent=False)

    def needs(self) -> Needs:
        return Needs(student=Wanted(logits=True))

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        if self.problem == "span":
            return decision_count(student, batch, self.problem)
        return is_known(decided(batch["labels"], self.problem)).sum()

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        logits, labels = decisions(student, batch, self.problem), decided(batch["labels"], self.problem)
        known = is_known(labels)
        count = known.sum().clamp(min=1)
        if self.problem == "regression":
            difference = logits.squeeze(-1) - labels.float().nan_to_num()
            return torch.where(known, difference, 0).square().sum() / count
        if self.problem == "multi_label":
            targets = labels.float().nan_to_num()
            losses = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weights, reduction="none")
            return torch.where(known[:, None], losses, 0).sum() / (count * labels.shape[1])
        labels = torch.where(known, labels, IGNORED)
        if not self.smoothing:
            return F.cross_entropy(logits, labels, self.weights, reduction="sum", ignore_index=IGNORED) / count
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing, ignore_index=IGNORED)
        weights = 1.0 if self.weights is None else self.weights[labels.clamp(min=0)]
        return (weights * losses).sum() / count


def decisions(features: Features, batch: Mapping[str, Tensor], problem: Problem) -> Tensor:
    """Return the logits as one row per decision, (n, C), in float32 under any autocast.

    An example is one decision, or each of its tokens that has a label is one. A span is two, its start and its end,
    each among the real tokens: (2B, L).
    """
    assert features.logits is not None
    if problem in PER_TOKEN:  # chosen first, because most of the (B, L, V) logits are not needed
        return features.logits[batch["labels"] != IGNORED].float()
    if problem == "span":
        mask = features.mask[..., None]
        return features.logits.float().masked_fill(~mask, _NEVER).transpose(1, 2).flatten(0, 1)
    return features.logits.float()


def decision_count(features: Features, batch: Mapping[str, Tensor], problem: Problem) -> Tensor:
    """Count the decisions, or (of spans) the pairs of them."""
    if problem in PER_TOKEN:
        return (batch["labels"] != IGNORED).sum()
    return torch.tensor(len(features.mask), device=features.mask.device)


def decided(labels: Tensor, problem: Problem) -> Tensor:
    """Return the labels of these decisions."""
    if problem in PER_TOKEN:
        return labels[labels != IGNORED]
    return labels.flatten() if problem == "span" else labels


def is_known(labels: Tensor) -> Tensor:
    """Tell for each decision whether its label is known: neither NaN, in numbers and rows of flags, nor below 0."""
    if labels.is_floating_point():
        missing = labels.isnan()
        return ~(missing.any(-1) if labels.dim() > 1 else missing)
    return labels >= 0


def ft(pair: Pair, *, smoothing: Share = 0.0) -> Objective:
    """Fine-tune without distillation: the baseline of every table ("FT", "nDS", "BERT-small").

    Equation: L = CE(y, s), or the squared error for regression.
    Citation: Devlin, Chang, Lee and Toutanova, 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding", NAACL, arXiv:1810.04805; smoothing: Szegedy et al., 2016, arXiv:1512.00567.

    Options:
        smoothing: share of each label that is given to all classes alike, 0 to 1
    """
    return Objective(task=(1.0, TaskLoss(pair, smoothing)))

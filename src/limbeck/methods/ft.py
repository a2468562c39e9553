"""Fine-tuning on the labels alone: how a teacher is made, and the student that learns without one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from limbeck.features import Features, Needs, Wanted
from limbeck.objective import Objective, Term
from limbeck.pair import Pair
from limbeck.tasks.task import IGNORED, Problem


class TaskLoss(Term):
    """The loss against the labels, averaged over examples.

    Cross-entropy for classification, squared error for regression, binary cross-entropy averaged over the labels
    for multi-label problems. A language model's cross-entropy is averaged over the tokens that it predicts.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def needs(self) -> Needs:
        return Needs(student=Wanted(logits=True))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        assert student.logits is not None
        labels = batch["labels"]
        if self.problem == "language_model":
            logits, labels = predicted(student.logits, labels).float(), labels[labels != IGNORED]
            return F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
        logits = student.logits.float()  # float32 under any autocast
        if self.problem == "classification":
            return F.cross_entropy(logits, labels)
        if self.problem == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.float())
        return F.binary_cross_entropy_with_logits(logits, labels.float())


def predicted(logits: Tensor, labels: Tensor) -> Tensor:
    """A language model's logits (B, L, V) at the tokens that it predicts: (n, V)."""
    return logits[labels != IGNORED]


def ft(pair: Pair) -> Objective:
    """Fine-tuning without distillation, the baseline of every table ("FT", "nDS", "BERT-small").

    Equation: L = CE(y, s), or the squared error for regression.
    Citation: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers", NAACL.
    """
    return Objective(task=(1.0, TaskLoss(pair.problem)))

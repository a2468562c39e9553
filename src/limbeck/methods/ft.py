"""Fine-tuning on the labels alone: how a teacher is made, and the student that learns without one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from limbeck.features import Features, Needs, Wanted
from limbeck.objective import Objective, Term
from limbeck.pair import Pair
from limbeck.tasks.task import Problem


class TaskLoss(Term):
    """The loss against the labels, averaged over examples.

    Cross-entropy for classification, squared error for regression, binary cross-entropy averaged over the labels
    for multi-label problems.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def needs(self) -> Needs:
        return Needs(student=Wanted(logits=True))

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        assert student.logits is not None
        logits, labels = student.logits.float(), batch["labels"]  # float32 under any autocast
        if self.problem == "classification":
            return F.cross_entropy(logits, labels)
        if self.problem == "regression":
            return F.mse_loss(logits.squeeze(-1), labels.float())
        return F.binary_cross_entropy_with_logits(logits, labels.float())


def ft(pair: Pair) -> Objective:
    """Fine-tuning without distillation, the baseline of every table ("FT", "nDS", "BERT-small").

    Equation: L = CE(y, s), or the squared error for regression.
    Citation: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers", NAACL.
    """
    return Objective(task=(1.0, TaskLoss(pair.problem)))

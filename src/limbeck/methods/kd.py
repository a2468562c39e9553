"""Build distillation of the logits (Hinton et al. 2015), "vanilla" KD in the papers' tables."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from limbeck.distillation.ensemble import log_mean
from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.methods.ft import TaskLoss, decision_count, decisions
from limbeck.models.features import Features, Needs, Wanted
from limbeck.options import Positive, Share
from limbeck.problems import Problem


class SoftLogits(Term):
    """Compute T²·KL(teacher ‖ student) of the softened predictions, summed over classes, averaged over examples.

    Where tokens are decided (tags, a language model), KL is averaged over them; of a span, the mean of its start's and
    its end's. Multi-label: the Bernoulli KL of each label, summed over labels. Regression: a softmax over one logit is
    constant, so the squared difference of the logits is used, which is the same T²-scaled quantity for any T.

    Of several teachers, the target is the weighted mean of their softened probabilities (of numbers: of their logits).
    """

    def __init__(self, problem: Problem, temperature: float) -> None:
        super().__init__()
        self.problem = problem
        self.temperature = temperature

    def needs(self) -> Needs:
        return Needs(student=Wanted(logits=True), teacher=Wanted(logits=True))

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        return decision_count(student, batch, self.problem)

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        s = decisions(student, batch, self.problem) / self.temperature
        weights, members = each_of(teacher)
        sides = [decisions(one, batch, self.problem) / self.temperature for one in members]
        if self.problem == "regression":
            divergence = (s - sum(weight * t for weight, t in zip(weights, sides, strict=True))).square()
        elif self.problem != "multi_label":
            target = log_mean((t.log_softmax(-1) for t in sides), weights)
            divergence = F.kl_div(s.log_softmax(-1), target, reduction="none", log_target=True)
        else:
            # F.kl_div wants log-probabilities: of "label is on" and "label is off", for each label
            is_on, is_off = (log_mean([F.logsigmoid(sign * t) for t in sides], weights) for sign in (1, -1))
            on = F.kl_div(F.logsigmoid(s), is_on, reduction="none", log_target=True)
            off = F.kl_div(F.logsigmoid(-s), is_off, reduction="none", log_target=True)
            divergence = on + off
        return self.temperature**2 * divergence.sum() / max(len(s), 1)


def each_of(teacher: Features) -> tuple[tuple[float, ...], list[Features]]:
    """Return the weights and the logits of several teachers; of one, its features with the weight 1."""
    if teacher.members is None:
        return (1.0,), [teacher]
    return teacher.members.weights, [Features(teacher.mask, logits) for logits in teacher.members.logits]


def kd(pair: Pair, *, alpha: Share = 0.5, temperature: Positive = 5.0) -> Objective:
    """Distil the softened logits, with the labels ("KD", "VKD").

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T))
    Left open by the paper: the reduction; KL is summed over classes and averaged over examples.
    Citation: Hinton, Vinyals and Dean, 2015, "Distilling the Knowledge in a Neural Network", NIPS Deep Learning
    Workshop, arXiv:1503.02531.

    Options:
        alpha: weight of the labels against the teacher, 0 to 1
        temperature: T, softens both distributions
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
    )

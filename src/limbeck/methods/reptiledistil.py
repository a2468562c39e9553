"""Build ReptileDistil (Ma et al. 2022): the teacher moves a little towards a student that has taken a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from limbeck._internal.processes import mean_gradients
from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.distillation.teachers import LearningTeacher
from limbeck.methods.kd import kd
from limbeck.methods.paired import check_same_blocks
from limbeck.models.families import blocks_of
from limbeck.models.layers import Pairs, layer_map
from limbeck.options import Positive, Share

Blocks = Literal["first", "last", "skip", "both"]


class MovingTeacher(LearningTeacher):
    """Move a teacher block by block, θ_t ← θ_t - μ·(θ_t - θ_s'), θ_s' the student after one step on the loss."""

    def __init__(
        self, model: Any, student: Any, objective: Objective, mu: float, inner_rate: float, pairs: Pairs
    ) -> None:
        super().__init__(model, student, objective)
        self.mu, self.inner_rate, self.pairs = mu, inner_rate, pairs

    def learn(self, batch: Mapping[str, Tensor]) -> None:
        stepped = self.stepped(batch)
        with torch.no_grad():
            for theirs, ours in self.moving():
                theirs.lerp_(stepped[ours], self.mu)

    def moving(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter of the teacher that moves, with the student's that it moves to."""
        student, teacher = blocks_of(self.student), blocks_of(self.model)
        in_blocks = {id(parameter) for blocks in (student, teacher) for parameter in blocks.parameters()}
        for s, t in self.pairs:
            yield from zip(teacher[t - 1].parameters(), student[s - 1].parameters(), strict=True)
        theirs = dict(self.model.named_parameters())
        for name, ours in self.student.named_parameters():
            if id(ours) not in in_blocks and name in theirs and theirs[name].shape == ours.shape:
                yield theirs[name], ours

    def stepped(self, batch: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
        """Return each parameter of the student with what it would be after one step of gradient descent."""
        needs = self.objective.needs()
        student = self.capture(batch, needs.student)[1]
        terms = self.objective(student, self.live(batch, needs.teacher), batch)
        trained = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        gradients = mean_gradients(torch.autograd.grad(self.objective.total(terms), trained, allow_unused=True))
        after: dict[Tensor, Tensor] = {parameter: parameter.detach() for parameter in self.student.parameters()}
        for parameter, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                after[parameter] = parameter.detach() - self.inner_rate * gradient
        return after


def block_pairs(blocks: Blocks, student: int, teacher: int) -> Pairs:
    """Return which of the teacher's blocks move to which of the student's, as pairs (student, teacher)."""
    if blocks == "both":  # no block of the teacher is skipped: 1 and 2 move to the student's 1, 3 and 4 to its 2, ...
        ends = [0, *(end for _, end in layer_map("uniform", student, teacher))]
        return [(s, t) for s in range(1, student + 1) for t in range(ends[s - 1] + 1, ends[s] + 1)]
    return layer_map({"first": "bottom", "last": "top", "skip": "uniform"}[blocks], student, teacher)


def reptiledistil(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 5.0,
    mu: Share = 0.001,
    inner_rate: Positive = 3e-5,
    blocks: Blocks = "skip",
) -> Method:
    """Distil the logits of a teacher whose blocks follow the student by first-order meta-learning.

    Equation: in each step θ_t ← θ_t - μ·(θ_t - θ_s'), θ_s' = θ_s - η·∇L, then the student's own step on
    L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T))
    Left open: μ and η, of which the defaults are ours. Embeddings and head move with the blocks.
    Citation: Ma, Wang, Yu and Zhang, 2022, "Knowledge Distillation with Reptile Meta-Learning for Pretrained Language
    Model Compression", COLING.

    Options:
        alpha: weight of the labels against the teacher, 0 to 1
        temperature: T, softens both distributions
        mu: μ, how far the teacher moves to the student in a step; 0 is kd
        inner_rate: η, learning rate of the copy's step
        blocks: the teacher's blocks that move: first, last, skip (evenly spread: 2, 4, ...) or both (1 and 2, ...)
    """
    check_same_blocks("reptiledistil", pair)
    pairs = block_pairs(blocks, pair.student.depth, pair.require_teacher().depth)
    return Method(
        kd(pair, alpha=alpha, temperature=temperature),
        make_teacher=partial(MovingTeacher, mu=mu, inner_rate=inner_rate, pairs=pairs),
    )

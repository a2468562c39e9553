"""Build MetaDistil (Zhou et al. 2022): the teacher learns to teach, by how a student does that it has just taught."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.adam import adam

from limbeck import similarity
from limbeck._internal.processes import mean_gradients
from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.distillation.teachers import LearningTeacher
from limbeck.errors import RecipeError
from limbeck.methods.ft import TaskLoss
from limbeck.methods.registry import find_method
from limbeck.models.capture import Capture
from limbeck.models.features import Features
from limbeck.options import MethodName, Positive, Share, check, schema_of
from limbeck.tasks.batching import Batches


class ExaminedTeacher(LearningTeacher):
    """Move a teacher by the quiz loss of a student that has taken one virtual step on the teacher's loss.

    θ_s' = θ_s - η·∇L(θ_s, θ_t), then one step of Adam along -∇ CE(y_quiz, θ_s') with respect to θ_t. The moments of
    Adam are buffers ``mean_i`` and ``square_i``, so that they are checkpointed with the weights.
    """

    lessons: Tensor

    def __init__(
        self, model: Any, student: Any, objective: Objective, pair: Pair, inner_rate: float, teacher_rate: float
    ) -> None:
        super().__init__(model, student, objective)
        self.teach = Capture(model)
        self.task = TaskLoss(pair)
        self.inner_rate, self.teacher_rate = inner_rate, teacher_rate
        self.quiz: Batches | None = None
        self.register_buffer("lessons", torch.zeros((), dtype=torch.long))
        for number, parameter in enumerate(model.parameters()):
            self.register_buffer(f"mean_{number}", torch.zeros_like(parameter))
            self.register_buffer(f"square_{number}", torch.zeros_like(parameter))

    def examine_on(self, quiz: Batches) -> None:
        """Take held-out examples as the quiz; each lesson reads a batch of them."""
        self.quiz = quiz

    def learn(self, batch: Mapping[str, Tensor]) -> None:
        device = batch["input_ids"].device
        quiz = {name: value.to(device) for name, value in self._next_quiz().items()}
        self.descend(self.gradients(batch, quiz))

    def gradients(self, batch: Mapping[str, Tensor], quiz: Mapping[str, Tensor]) -> list[Tensor | None]:
        """Return the gradient of the quiz loss after the virtual step for each parameter of the teacher."""
        needs = self.objective.needs()
        teacher = {name: p.detach().requires_grad_() for name, p in self.model.named_parameters()}
        student = {name: p for name, p in self.student.named_parameters() if p.requires_grad}
        # fused attention has no second derivative
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), similarity.gradients_to_teacher():
            s = self.capture(batch, needs.student, student)[1]
            t = self.teach(batch, needs.teacher, teacher)[1]
            loss = self.objective.total(self.objective(s, t, batch))
            steps = mean_gradients(
                torch.autograd.grad(loss, list(student.values()), create_graph=True, allow_unused=True)
            )
            virtual = {
                name: parameter if step is None else parameter - self.inner_rate * step
                for (name, parameter), step in zip(student.items(), steps, strict=True)
            }
            answers = self.capture(quiz, self.task.needs().student, virtual)[1]
            examined = self.task(answers, Features(answers.mask), quiz)
            return mean_gradients(torch.autograd.grad(examined, list(teacher.values()), allow_unused=True))

    def _next_quiz(self) -> Mapping[str, Tensor]:
        if self.quiz is None:
            raise RecipeError("The teacher has no quiz yet: call examine_on(batches) with held-out examples first.")
        round_, place = divmod(int(self.lessons), len(self.quiz))
        order = torch.randperm(len(self.quiz), generator=torch.Generator().manual_seed(round_))
        return self.quiz[int(order[place])]

    @torch.no_grad()
    def descend(self, gradients: list[Tensor | None]) -> None:
        """Take one step of Adam; a parameter without a gradient stays."""
        parameters = list(self.model.parameters())
        found = {number: gradient for number, gradient in enumerate(gradients) if gradient is not None}
        steps = [self.lessons.to("cpu", torch.float32, copy=True) for _ in found]  # adam() counts them up
        adam(
            [parameters[number] for number in found],
            list(found.values()),
            [self.get_buffer(f"mean_{number}") for number in found],
            [self.get_buffer(f"square_{number}") for number in found],
            [],
            steps,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.teacher_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        self.lessons += 1


def metadistil(
    pair: Pair,
    *,
    inner: MethodName = "kd",
    inner_options: dict[str, Any] | None = None,
    inner_rate: Positive = 3e-5,
    teacher_rate: Positive = 5e-6,
    quiz: Share = 0.1,
) -> Method:
    """Let the teacher learn from the quiz of a student that it has taught for one virtual step.

    Equation: in each step θ_s' = θ_s - η·∇_s L(s, t), the teacher descends ∇_t CE(y_quiz, s'), then the student takes
    its own step on L(s, t) with the new teacher; L is the loss of the inner method.
    Left open: the teacher's optimiser (Adam here) and η. The quiz is a share of the training data that the student
    does not train on; the validation data are never touched. The virtual step treats learned projectors as constants.
    Citation: Zhou, Xu and McAuley, 2022, "BERT Learns to Teach: Knowledge Distillation with Meta Learning", ACL,
    arXiv:2106.04570.

    Options:
        inner: the method whose loss teaches, without stages: kd, or any other
        inner_options: options of the inner method, e.g. {alpha: 0.5, temperature: 5}
        inner_rate: η, learning rate of the virtual step
        teacher_rate: learning rate of the teacher
        quiz: share of the training data that is held out, between 0 and 1
    """
    objective = _inner(pair, inner, inner_options or {})
    if not 0 < quiz < 1:
        raise RecipeError(f"metadistil holds out a share of the training data: quiz is between 0 and 1; seen: {quiz}.")
    teacher = partial(ExaminedTeacher, pair=pair, inner_rate=inner_rate, teacher_rate=teacher_rate)
    return Method(objective, make_teacher=teacher, held_out=quiz, use_held_out=ExaminedTeacher.examine_on)


def _inner(pair: Pair, name: str, options: dict[str, Any]) -> Objective:
    function = find_method(name)
    checked, mistakes = check(schema_of(function), options, ("method", "inner_options"))
    if mistakes:
        raise RecipeError("; ".join(f"{'.'.join(map(str, m.where))}: {m.message}" for m in mistakes))
    objective = function(pair, **(checked.model_dump() if checked else {}))
    if not isinstance(objective, Objective) or not objective.needs().teacher:
        raise RecipeError(f"metadistil needs an inner method that is a loss between student and teacher; seen: {name}.")
    return objective

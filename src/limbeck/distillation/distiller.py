"""Wrap student and objective into one trainable module whose forward computes the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import ModelError
from limbeck.models.capture import Capture
from limbeck.models.features import Features, Wanted
from limbeck.protocols import Model

Teacher = Callable[[Mapping[str, Tensor], Wanted], Features]


class Distiller(nn.Module):
    """Compute the loss: ``Distiller(student, objective, teacher)(**batch)`` returns it, the logits and every term.

    The student is captured only as far as the objective needs, and the teacher runs only if it needs it at all. Where
    no term needs the student's logits they are None, and its head is not run.

    ``micro_batch_size``: a larger batch is run in parts of so many examples, whose activations are computed again in
    the backward pass. Memory is that of a part, loss and gradients are those of the whole batch: samples are related
    across parts too.
    """

    # The loss is a mean over the batch: Trainer must divide it by the accumulation steps itself.
    accepts_loss_kwargs = False

    def __init__(
        self,
        student: Model,
        objective: Objective,
        teacher: Teacher | None = None,
        run_student: Callable[[Mapping[str, Tensor], Wanted], tuple[Any, Features]] | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.objective = objective
        self.teacher = teacher
        self.micro_batch_size = micro_batch_size
        self.needs = objective.needs()
        self.run_student = run_student or Capture(student)
        if self.needs.teacher and teacher is None:
            raise ModelError(f"This objective ({objective}) needs a teacher, and none was given: set teacher.model.")

    @classmethod
    def of(
        cls,
        method: Objective | Method,
        student: Model,
        teacher: Model | None = None,
        micro_batch_size: int | None = None,
    ) -> Distiller:
        """Make the distiller of what a method returned, for these two models."""
        method = Method.of(method)
        if teacher is None:
            return cls(student, method.objective, micro_batch_size=micro_batch_size)
        return cls(
            student,
            method.objective,
            method.make_teacher(teacher, student, method.objective) if method.make_teacher else LiveTeacher(teacher),
            method.run_student(student, teacher) if method.run_student else None,
            micro_batch_size,
        )

    def taught_by(self, teacher: Teacher) -> Distiller:
        """Return a distiller of the same student and objective that asks another teacher."""
        return Distiller(self.student, self.objective, teacher, self.run_student, self.micro_batch_size)

    def begin_step(self, parts: int) -> None:
        """Announce that the next so many calls are parts of one step, to methods that draw anew in each step."""
        if (begin := getattr(self.run_student, "begin_step", None)) is not None:
            begin(parts)

    def counts(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """Count what each term's value is a mean of, in several batches; see :meth:`Objective.counts`."""
        return self.objective.counts(batches)

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        """Return ``loss``, ``logits`` and ``terms`` of a batch."""
        parts = self._parts(batch)
        # the teacher first: what it needs in passing is free again before the student's activations pile up
        teacher = Features(batch["attention_mask"].bool())
        if self.teacher is not None and self.needs.teacher:
            teacher = Features.joined([self.teacher(part, self.needs.teacher) for part in parts])
        if len(parts) == 1 or not torch.is_grad_enabled():
            found = [self._student(part) for part in parts]
        else:
            found = [checkpoint(self._student, part, use_reentrant=False) for part in parts]
        student = Features.joined(found)
        terms = self.objective(student, teacher, batch)
        return {"loss": self.objective.total(terms), "logits": student.logits, "terms": terms}

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **options: Any) -> None:
        """Compute the activations of the student's layers again in the backward pass, as Trainer asks of a model.

        What a method reads inside a layer has a gradient only without ``use_reentrant``.
        """
        settings = {**(gradient_checkpointing_kwargs or {}), "use_reentrant": False}
        student: Any = self.student
        student.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings, **options)

    def _student(self, batch: Mapping[str, Tensor]) -> Features:
        return self.run_student(batch, self.needs.student)[1]

    def _parts(self, batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        rows = len(batch["attention_mask"])
        if self.micro_batch_size is None or rows <= self.micro_batch_size:
            return [batch]
        starts = range(0, rows, self.micro_batch_size)
        return [
            {name: value[start : start + self.micro_batch_size] for name, value in batch.items()} for start in starts
        ]

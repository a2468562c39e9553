"""Run a teacher as a distiller calls it, ``teacher(batch, wanted) -> Features``; frozen or learning."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from limbeck.distillation.objective import Objective
from limbeck.models.capture import Capture
from limbeck.models.features import Features, Wanted
from limbeck.protocols import Model


class LiveTeacher:
    """Run the frozen teacher on each batch. Not a module: no optimiser, checkpoint or wrapper may see its weights."""

    def __init__(self, model: Model) -> None:
        self.model = model.eval().requires_grad_(False)
        self.capture = Capture(model)

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        device = batch["input_ids"].device
        if self.model.device != device:
            self.model.to(device)
        # no_grad, not inference_mode: losses save the teacher's tensors for the student's backward pass
        with torch.no_grad():
            return self.capture(batch, wanted)[1]


class LearningTeacher(nn.Module):
    """Run a teacher that changes while it teaches: before each lesson it learns from the student and the batch.

    A module, so that it moves with the distiller and its weights are checkpointed with the run. No optimiser of the
    student's sees them: they never require gradients outside of ``learn``.
    """

    def __init__(self, model: Model, student: Model, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.live = LiveTeacher(model)
        # in tuples, because they are the distiller's submodules and not the teacher's
        self._student, self._objective = (student,), (objective,)
        self.capture = Capture(student)

    @property
    def student(self) -> Model:
        """Return the student, which the distiller owns."""
        return self._student[0]

    @property
    def objective(self) -> Objective:
        """Return the objective, which the distiller owns."""
        return self._objective[0]

    def forward(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        """Learn from the batch while the student trains, then compute the features of it."""
        if self.student.training and torch.is_grad_enabled():
            # Its own random numbers: the student's dropout must not depend on whether the teacher learns.
            device = batch["input_ids"].device
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                self.learn(batch)
        return self.live(batch, wanted)

    def learn(self, batch: Mapping[str, Tensor]) -> None:
        """Change the weights of ``model`` in place."""
        raise TypeError(f"{type(self).__name__} defines no learn(batch).")

    def train(self, mode: bool = True) -> LearningTeacher:
        """Stay in evaluation mode: a teacher teaches without dropout."""
        return super().train(False)

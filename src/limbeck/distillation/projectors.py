"""Map the student's features to the teacher's width; the maps are owned by the term that needs them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projector(nn.Linear):
    """Map linearly without bias, so that zeros stay zeros; in its own precision under any autocast."""

    def __init__(self, student_width: int, teacher_width: int) -> None:
        super().__init__(student_width, teacher_width, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(device_type=input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))


def projector(student_width: int, teacher_width: int) -> nn.Module:
    """Make a linear map to be learned, or the identity (no parameters) where the widths are equal.

    It is optimised and checkpointed with the term that owns it and never exported with the student.
    """
    return nn.Identity() if student_width == teacher_width else Projector(student_width, teacher_width)

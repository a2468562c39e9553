"""Maps from the student's width to the teacher's, owned by the term that needs them."""

from __future__ import annotations

from torch import nn


def projector(student_width: int, teacher_width: int) -> nn.Module:
    """A learned linear map, or the identity (no parameters) where the widths are equal.

    It is optimised and checkpointed with the term that owns it and never exported with the student.
    """
    if student_width == teacher_width:
        return nn.Identity()
    return nn.Linear(student_width, teacher_width, bias=False)

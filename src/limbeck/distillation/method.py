"""Say what a method brings when it changes more than the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from limbeck.distillation.objective import Objective


@dataclass(frozen=True)
class Method:
    """Hold an objective and, where the training itself is another, how the student is run and who teaches.

    Both makers are called once, with the models: ``run_student(student, teacher)`` gives what the distiller calls with
    a batch instead of ``Capture(student)``, ``make_teacher(teacher, student, objective)`` what it calls instead of
    ``LiveTeacher(teacher)``. Modules among them are checkpointed with the run and never exported. What ``run_student``
    gave may have ``begin_step(parts)``: it is told before each step of how many parts that step is.

    ``held_out`` is the share of the training data that the student does not train on; before training,
    ``use_held_out(teacher, batches)`` is called with what ``make_teacher`` made and batches of that share.
    """

    objective: Objective
    run_student: Callable[[Any, Any], Any] | None = None
    make_teacher: Callable[[Any, Any, Objective], Any] | None = None
    held_out: float = 0.0
    use_held_out: Callable[[Any, Any], None] | None = None

    @classmethod
    def of(cls, method: Objective | Method) -> Method:
        """Wrap an objective, which is all that most methods are."""
        return method if isinstance(method, Method) else cls(method)

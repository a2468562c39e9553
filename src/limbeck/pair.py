"""What a method may know of the two models when it builds its objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from limbeck.errors import ModelError
from limbeck.families import blocks_of, family_of, has_raw_scores
from limbeck.tasks.task import Problem


@dataclass(frozen=True)
class Shape:
    """One model in numbers."""

    model_type: str
    depth: int
    width: int
    heads: int
    causal: bool = False  # a decoder: a token sees only the tokens before it
    raw_scores: bool = True  # its attention softmaxes q·k/√d_head

    @classmethod
    def of(cls, model: Any) -> Shape:
        config = model.config
        return cls(
            config.model_type,
            len(blocks_of(model)),
            config.hidden_size,
            config.num_attention_heads,
            family_of(model).causal,
            has_raw_scores(model),
        )


@dataclass(frozen=True)
class Pair:
    """Student and teacher, and what their heads predict. Plain fine-tuning has no teacher."""

    student: Shape
    teacher: Shape | None
    problem: Problem
    num_labels: int

    @property
    def the_teacher(self) -> Shape:
        """The teacher, for methods that cannot do without one."""
        if self.teacher is None:
            raise ModelError("This method needs a teacher, and none was given: set teacher.model.")
        return self.teacher

    @property
    def labelled(self) -> bool:
        """Whether the task has labels beside its text, which plain text has not."""
        return self.problem != "language_model"

    @classmethod
    def of(cls, student: Any, teacher: Any | None, problem: Problem) -> Pair:
        return cls(Shape.of(student), Shape.of(teacher) if teacher else None, problem, student.config.num_labels)

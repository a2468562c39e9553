"""Describe the two models to a method that builds its objective."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from limbeck.errors import ModelError
from limbeck.models.families import blocks_of, family_of, has_raw_scores, width_of
from limbeck.models.heads import model_class
from limbeck.models.loading import load_config
from limbeck.problems import Problem
from limbeck.protocols import Model


@dataclass(frozen=True)
class ModelShape:
    """Describe one model in numbers."""

    model_type: str
    depth: int
    width: int
    heads: int
    causal: bool = False  # a decoder: a token sees only the tokens before it
    raw_scores: bool = True  # its attention softmaxes q·k/√d_head
    key_heads: int | None = None  # of keys and values, where several heads share them
    query_width: int | None = None  # where it is not the model's width
    key_width: int | None = None

    @classmethod
    def of(cls, model: Model) -> ModelShape:
        """Describe a transformers model."""
        config = model.config
        return cls(
            config.model_type,
            len(blocks_of(model)),
            config.hidden_size,
            config.num_attention_heads,
            family_of(model).causal,
            has_raw_scores(model),
            getattr(config, "num_key_value_heads", None),
            width_of(model, "queries"),
            width_of(model, "keys"),
        )

    @classmethod
    def named(cls, source: str | Path) -> ModelShape:
        """Describe a model in a folder, a run directory or on the hub by its config, without its weights."""
        config = load_config(source)
        with torch.device("meta"):
            return cls.of(model_class("classification", config).from_config(config))

    def heads_of(self, kind: str) -> int:
        """Return how many heads the ``queries``, ``keys`` or ``values`` have."""
        return (None if kind == "queries" else self.key_heads) or self.heads

    def width_of(self, kind: str) -> int:
        """Return how wide the ``queries``, ``keys`` or ``values`` of all heads are."""
        return (self.query_width if kind == "queries" else self.key_width) or self.width


@dataclass(frozen=True)
class Pair:
    """Describe student and teacher, and what their heads predict. Plain fine-tuning has no teacher."""

    student: ModelShape
    teacher: ModelShape | None
    problem: Problem
    num_labels: int
    class_weights: tuple[float, ...] | None = None  # of the task loss

    def require_teacher(self) -> ModelShape:
        """Return the teacher; raise where there is none, for methods that cannot do without."""
        if self.teacher is None:
            raise ModelError("This method needs a teacher, and none was given: set teacher.model.")
        return self.teacher

    @property
    def labelled(self) -> bool:
        """Tell whether the task has labels beside its text, which plain text has not."""
        return self.problem != "language_model"

    @classmethod
    def of(
        cls, student: Any, teacher: Any | None, problem: Problem, class_weights: tuple[float, ...] | None = None
    ) -> Pair:
        """Describe two transformers models."""
        teacher_shape = ModelShape.of(teacher) if teacher else None
        return cls(ModelShape.of(student), teacher_shape, problem, student.config.num_labels, class_weights)

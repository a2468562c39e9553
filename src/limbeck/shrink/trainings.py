"""Write the recipes of the trainings: the teacher's, and those of the students that race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from limbeck.recipes.recipe import Recipe, load_recipe
from limbeck.training.precision import automatic_precision, computing_in

# What a student may learn by. The labels alone are among them, because what they give must be beaten.
METHODS: dict[str, dict[str, Any]] = {
    "kd": {"name": "kd", "alpha": 0.3, "temperature": 3.0},
    "cka": {"name": "cka"},
    "fcd": {"name": "fcd"},
    "ft": {"name": "ft"},
}
# The learning rates of models so wide; narrower ones bear more, and so do those that lost more layers. A teacher moves
# far, then half-way back.
_RATE, _TEACHER_RATE, _WIDTH, _MOST_RATE = 7e-5, 1e-4, 768, 5e-4
_SMOOTHING = 0.1  # of the teacher's labels
_MANY_ROWS = 1000


def fast_passes() -> AbstractContextManager[object]:
    """Compute inside the block in the precision that suits the machine, as the trainings do."""
    return computing_in(automatic_precision(), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


@dataclass(frozen=True)
class Candidate:
    """Describe a student that may win: which layers it keeps of a model with ``of`` of them, and how it learns."""

    layers: tuple[int, ...]
    of: int
    method: str

    @property
    def depth(self) -> int:
        """Count its layers."""
        return len(self.layers)

    @property
    def title(self) -> str:
        """Name it for people: ``3 layers (2, 4, 6 of 6), kd``."""
        layers = "1 layer" if self.depth == 1 else f"{self.depth} layers"
        return f"{layers} ({', '.join(map(str, self.layers))} of {self.of}), {self.method}"

    @property
    def key(self) -> str:
        """Name it in paths."""
        return f"{self.depth}-of-{self.of}-{self.method}-{'.'.join(map(str, self.layers))}"


@dataclass(frozen=True)
class Trainings:
    """Make recipes for one task block; ``width`` and ``depth`` are the teacher's, ``rows`` those that train."""

    block: Mapping[str, Any]
    width: int
    depth: int
    rows: int
    seed: int

    def teacher(self, model: str, epochs: float) -> Recipe:
        """Return the recipe that fine-tunes ``model``, whose head is fitted first."""
        student = {"model": model, "head": "fitted"}
        method = METHODS["ft"] | ({"smoothing": _SMOOTHING} if self.block["problem"] == "classification" else {})
        return load_recipe(values=self._values(student, method, epochs, _TEACHER_RATE))

    def student(self, candidate: Candidate, source: str, teacher: str, epochs: float) -> dict[str, Any]:
        """Return the values of the recipe that trains a candidate, which is cut from the model ``source``."""
        cut_from = "teacher" if source == teacher else source
        student = {"from": cut_from, "keep": list(candidate.layers), "head": "fitted"}
        values = self._values(student, METHODS[candidate.method], epochs, _RATE * candidate.of / candidate.depth)
        # confirmed, because it was looked at when it was made
        return values | {"teacher": {"model": teacher, "cache_dtype": "float16", "confirmed": True}}

    def _values(self, student: dict[str, Any], method: dict[str, Any], epochs: float, rate: float) -> dict[str, Any]:
        return {
            "task": dict(self.block),
            "student": student,
            "method": method,
            "train": {
                "epochs": epochs,
                "batch_size": 32 if self.rows >= _MANY_ROWS else 16,
                "learning_rate": float(f"{min(_MOST_RATE, rate * _WIDTH / self.width):.2g}"),
                "eval_strategy": "no",
                "save_steps": 0.5,  # of all steps: what a killed run loses at most
            },
            "seed": self.seed,
        }


def field_of(layer_sets: Sequence[Sequence[int]], count: int, of: int) -> list[Candidate]:
    """Return so many candidates of one depth: each set of layers by the first method, then by the next."""
    sets = [tuple(layers) for layers in layer_sets]
    return [Candidate(layers, of, method) for method in METHODS for layers in sets][:count]

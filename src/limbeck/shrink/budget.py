"""Read how fast a student must be, and choose the deepest one that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limbeck.errors import ModelError, RecipeError

# From depths to the milliseconds of models with so many of the teacher's layers, measured in turns.
Timer = Callable[[Sequence[int]], Mapping[int, float]]

_TOLERANCE = 0.05  # of a ratio: half of the layers is half of the time but for what all models share
_PATTERN = re.compile(r"(\d+\.?\d*|\.\d+)\s*(x|ms)", re.IGNORECASE)
_REMEDY = "Write a share of the teacher's latency such as 0.5x, or milliseconds such as 20ms."


@dataclass(frozen=True)
class Budget:
    """Limit the median latency of one text: to a ``ratio`` of the teacher's, or to ``milliseconds``; one is None."""

    ratio: float | None = None
    milliseconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``0.5x`` or ``20ms``; raise with what to write where it is neither."""
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise RecipeError(f"The budget '{text}' is not understood. {_REMEDY}")
        number, unit = float(found[1]), found[2].lower()
        if number == 0:
            raise RecipeError(f"The budget '{text}' leaves no time at all. {_REMEDY}")
        if unit == "ms":
            return cls(milliseconds=number)
        if number >= 1:
            raise RecipeError(
                f"The budget '{text}' is no less than the teacher's own latency. For a student that is {found[1]} "
                f"times as fast, write {1 / number:.2g}x."
                if number > 1
                else f"The budget '{text}' is the teacher's own latency. {_REMEDY}"
            )
        return cls(ratio=number)

    def limit(self, teacher: float) -> float:
        """Return the milliseconds that a student may take beside a teacher that takes so many."""
        return self.milliseconds if self.milliseconds is not None else (self.ratio or 0.0) * teacher

    def met(self, student: float, teacher: float) -> bool:
        """Tell whether these milliseconds, measured in turns, are within the budget; a ratio may be 5% off."""
        return student <= self.limit(teacher) * (1 if self.ratio is None else 1 + _TOLERANCE)


@dataclass(frozen=True)
class DepthChoice:
    """Hold the number of layers to keep, what they and the teacher take, and whether that is within the budget."""

    layers: int
    milliseconds: float
    teacher_milliseconds: float
    met: bool


def choose_depth(depth: int, budget: Budget, timer: Timer) -> DepthChoice:
    """Choose the deepest student of a teacher with ``depth`` layers that is within the budget; one layer if none is.

    The shallowest and the deepest are measured, those between them predicted, and the choice is measured before it is
    believed.
    """
    if depth < 2:
        raise ModelError("The teacher has a single layer, so no layer can be removed. Choose a deeper teacher.")
    times = timer(sorted({1, depth - 1, depth}, reverse=True))
    students = sorted({1, depth - 1})  # without the teacher, which may be of another form
    predicted = np.interp(range(1, depth), students, [times[layers] for layers in students])
    layers = max((n for n, time in enumerate(predicted, start=1) if budget.met(time, times[depth])), default=1)
    while True:
        if layers not in times:
            times = timer([depth, layers])
        met = budget.met(times[layers], times[depth])
        if met or layers == 1:
            return DepthChoice(layers, times[layers], times[depth], met)
        layers -= 1

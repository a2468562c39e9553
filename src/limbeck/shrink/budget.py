"""Read how fast a model must be, and tell which ones are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limbeck.errors import RecipeError

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

"""What a model's forward pass is asked for (Needs) and what it gave (Features).

Layer 0 is the embedding output, layer i the output of block i; projections are numbered by their block, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

NO_LAYERS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Wanted:
    """What to capture from one model."""

    logits: bool = False
    hidden: frozenset[int] = NO_LAYERS
    queries: frozenset[int] = NO_LAYERS
    keys: frozenset[int] = NO_LAYERS
    values: frozenset[int] = NO_LAYERS

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(
            self.logits or other.logits,
            self.hidden | other.hidden,
            self.queries | other.queries,
            self.keys | other.keys,
            self.values | other.values,
        )

    def __bool__(self) -> bool:
        return self != Wanted()


@dataclass(frozen=True)
class Needs:
    """What a term wants captured on each side; needs of several terms are joined with ``|``."""

    student: Wanted = Wanted()
    teacher: Wanted = Wanted()

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.student | other.student, self.teacher | other.teacher)


@dataclass(frozen=True)
class Features:
    """What was captured from one forward pass, and nothing that was not asked for."""

    mask: Tensor  # B L, bool: True where there is a real token
    logits: Tensor | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # B L D
    queries: Mapping[int, Tensor] = field(default_factory=dict)  # B L D, as the model projected them
    keys: Mapping[int, Tensor] = field(default_factory=dict)
    values: Mapping[int, Tensor] = field(default_factory=dict)

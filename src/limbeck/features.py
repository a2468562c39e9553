"""What a model's forward pass is asked for (Needs) and what it gave (Features).

Layer 0 is the embedding output, layer i the output of block i; projections are numbered by their block, from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

_LAYERED = ("hidden", "queries", "keys", "values")


@dataclass(frozen=True)
class Wanted:
    """What to capture from one model: ``Wanted(logits=True, hidden=[3, 6])``. Layers are kept as sets."""

    logits: bool = False
    hidden: Iterable[int] = ()
    queries: Iterable[int] = ()
    keys: Iterable[int] = ()
    values: Iterable[int] = ()

    def __post_init__(self) -> None:
        for kind in _LAYERED:
            object.__setattr__(self, kind, frozenset(getattr(self, kind)))

    def layers(self, *kinds: str) -> Set[int]:
        """The layers of these kinds (all kinds by default)."""
        return frozenset().union(*(cast(Set[int], getattr(self, kind)) for kind in kinds or _LAYERED))

    def __or__(self, other: Wanted) -> Wanted:
        joined = {kind: self.layers(kind) | other.layers(kind) for kind in _LAYERED}
        return Wanted(self.logits or other.logits, **joined)

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

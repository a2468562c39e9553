"""Name what a forward pass is asked for (Wanted, Needs) and hold what it gave (Features).

Layer 0 is the embedding output, layer i the output of block i; projections are numbered by their block, from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

POOLED = ("cls", "last", "mean")
LAYERED = ("hidden", "queries", "keys", "values", *POOLED)
T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """Name what to capture from one model: ``Wanted(logits=True, hidden=[3, 6])``. Layers are kept as sets."""

    logits: bool = False
    hidden: Iterable[int] = ()
    queries: Iterable[int] = ()
    keys: Iterable[int] = ()
    values: Iterable[int] = ()
    cls: Iterable[int] = ()  # of the hidden states, each sample's first token, its last one, or the mean of its tokens
    last: Iterable[int] = ()
    mean: Iterable[int] = ()
    padding: bool = False  # what the model computes at padding counts too

    def __post_init__(self) -> None:
        for kind in LAYERED:
            object.__setattr__(self, kind, frozenset(getattr(self, kind)))

    def layers(self, *kinds: str) -> Set[int]:
        """Return the layers of these kinds (all kinds by default)."""
        return frozenset().union(*(cast(Set[int], getattr(self, kind)) for kind in kinds or LAYERED))

    def names(self) -> list[str]:
        """List every tensor by its name: ``["logits", "hidden.3", "hidden.6"]``."""
        layered = [f"{kind}.{layer}" for kind in LAYERED for layer in sorted(self.layers(kind))]
        return ["logits"] * self.logits + layered

    @classmethod
    def named(cls, names: Iterable[str]) -> Wanted:
        """Turn names into what is wanted, the inverse of :meth:`names`."""
        split = [name.split(".") for name in names]
        layers: Any = {kind: [int(part[1]) for part in split if part[0] == kind] for kind in LAYERED}
        return cls(["logits"] in split, **layers)

    def __or__(self, other: Wanted) -> Wanted:
        joined = {kind: self.layers(kind) | other.layers(kind) for kind in LAYERED}
        return Wanted(self.logits or other.logits, **joined, padding=self.padding or other.padding)

    def __bool__(self) -> bool:
        return self.logits or bool(self.layers())


@dataclass(frozen=True)
class Needs:
    """Name what a term wants captured on each side; needs of several terms are joined with ``|``."""

    student: Wanted = Wanted()
    teacher: Wanted = Wanted()

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.student | other.student, self.teacher | other.teacher)


@dataclass(frozen=True)
class Members:
    """Hold the logits of several teachers, (K, B, ...), and how much each counts; the weights add up to 1."""

    weights: tuple[float, ...]
    logits: Tensor


@dataclass(frozen=True)
class Features:
    """Hold what was captured from one forward pass, and nothing that was not asked for."""

    mask: Tensor  # B L, bool: True where there is a real token
    logits: Tensor | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # B L D
    queries: Mapping[int, Tensor] = field(default_factory=dict)  # B L D, as the model projected them
    keys: Mapping[int, Tensor] = field(default_factory=dict)
    values: Mapping[int, Tensor] = field(default_factory=dict)
    cls: Mapping[int, Tensor] = field(default_factory=dict)  # B D
    last: Mapping[int, Tensor] = field(default_factory=dict)
    mean: Mapping[int, Tensor] = field(default_factory=dict)
    members: Members | None = None  # of several teachers, whose mean ``logits`` are
    _derived: dict[tuple[Hashable, int], tuple[Features, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __getitem__(self, name: str) -> Tensor:
        """Return one tensor by its name, as in :meth:`Wanted.names`."""
        kind, _, layer = name.partition(".")
        found = getattr(self, kind)
        return cast(Tensor, found[int(layer)] if layer else found)

    @classmethod
    def named(cls, mask: Tensor, tensors: Mapping[str, Tensor]) -> Features:
        """Make features from tensors by name."""
        layered: Any = {kind: {} for kind in LAYERED}
        for name, tensor in tensors.items():
            kind, _, layer = name.partition(".")
            if layer:
                layered[kind][int(layer)] = tensor
        return cls(mask, tensors.get("logits"), **layered)

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """Join the rows of several features of the same kinds, one after the other."""
        if len(parts) == 1:
            return parts[0]
        names = parts[0].names()
        tensors = {name: torch.cat([part[name] for part in parts]) for name in names}
        joined = cls.named(torch.cat([part.mask for part in parts]), tensors)
        members = [part.members for part in parts if part.members is not None]
        if not members:
            return joined
        every = Members(members[0].weights, torch.cat([found.logits for found in members], dim=1))
        return replace(joined, members=every)

    def names(self) -> list[str]:
        """List every tensor but the mask by its name, as in :meth:`Wanted.names`."""
        layered = [f"{kind}.{layer}" for kind in LAYERED for layer in getattr(self, kind)]
        return ["logits"] * (self.logits is not None) + layered

    def memoize(self, key: Hashable, other: Features, make: Callable[[], T]) -> T:
        """Return a value that several terms derive from these and ``other`` features, the teacher's.

        It is made for the first term that asks, and is gone with the step.
        """
        if (key, id(other)) not in self._derived:
            self._derived[key, id(other)] = other, make()  # kept with it, so that its id stays its own
        return cast(T, self._derived[key, id(other)][1])

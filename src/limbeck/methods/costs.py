"""Compute what a method's loss costs from shapes alone: the products of its forward pass, and the relations it keeps.

Products of matrices are counted, an addition and a multiplication as two operations, for student and teacher together;
what is linear in the features is not, nor are decompositions of small matrices. The backward pass has twice as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from limbeck.distillation.method import Method
from limbeck.distillation.pair import Pair
from limbeck.methods.paired import PairedLayers
from limbeck.methods.registry import find_method
from limbeck.options import schema_of

_BYTES = 4  # of a number in float32
_WIDE = 0.65  # rows below this share of the width are compared by an eigenproblem of their size in `shape`


@dataclass(frozen=True)
class LossCost:
    """Hold what one forward pass of a loss costs."""

    flops: int
    entries: int  # of matrices that relate tokens or samples, and of a memory

    @property
    def bytes(self) -> int:
        """Return the memory of the entries."""
        return _BYTES * self.entries


@dataclass(frozen=True)
class _Shapes:
    batch: int
    length: int
    student: int
    teacher: int
    pairs: int
    heads: int  # whose attention is related
    options: dict[str, Any]

    @property
    def width(self) -> int:
        return self.student + self.teacher

    def rows(self) -> tuple[int, int]:
        """Return how many rows are compared, and by what their width is multiplied."""
        how = self.options.get("pool")
        return (self.batch * self.length, 1) if how == "tokens" else (self.batch, self.length if how == "flat" else 1)

    def projected(self, rows: int) -> int:
        """Return the operations of a learned map, which is needed where the widths differ."""
        return 2 * rows * self.student * self.teacher if self.student != self.teacher else 0


def loss_cost(name: str, pair: Pair, batch: int, length: int, **options: Any) -> LossCost | None:
    """Compute the cost for a batch of texts of one length; None of a method that is somebody's own."""
    if name not in _COSTS:
        return None
    function = find_method(name)
    given = {key: field.default for key, field in schema_of(function).model_fields.items()} | options
    terms = Method.of(function(pair, **options)).objective.terms.values()
    pairs = max((len(term.pairs) for term in terms if isinstance(term, PairedLayers)), default=1)
    teacher = pair.teacher.width if pair.teacher else 0
    heads = given.get("relation_heads") or pair.student.heads
    flops, entries = _COSTS[name][1](_Shapes(batch, length, pair.student.width, teacher, pairs, heads, given))
    return LossCost(flops, entries)


def formula_of(name: str) -> str:
    """Return the cost in words; empty of a method that is somebody's own."""
    return _COSTS[name][0] if name in _COSTS else ""


_Cost = tuple[int, int]  # operations, and entries


def _free(s: _Shapes) -> _Cost:
    return 0, 0


def _cka(s: _Shapes) -> _Cost:
    n, times = s.rows()
    linear = s.options.get("kernel", "linear") == "linear"
    flops, entries = _cka_of(n, s.student * times, s.teacher * times, linear)
    return s.pairs * flops, s.pairs * entries


def _cka_of(n: int, x: int, y: int, linear: bool = True) -> _Cost:
    """Return the cost for n rows of two widths: by products of rows or of columns, whichever are fewer."""
    columns = x * x + y * y + x * y
    if linear and columns < n * (x + y):
        return 2 * n * columns, columns
    return 2 * n**2 * (x + y), 2 * n**2


def _shape(s: _Shapes) -> _Cost:
    n, times = s.rows()
    flops, sizes = 0, []
    for width in (s.student * times, s.teacher * times):
        wide = n < _WIDE * width
        if wide:
            flops += 2 * n**2 * width
        elif s.options["beta"] < 1:
            flops += 4 * n * width**2
        sizes.append(n if wide else width)
    x, y = sizes
    flops += 2 * n * x * y + 4 * n * min(x, y) * (x + y) + 2 * x * y * min(x, y)
    return s.pairs * flops, s.pairs * x * y


def _grams(times: int) -> Callable[[_Shapes], _Cost]:
    """Return the cost of so many matrices of inner products between samples, for each pair of layers and model."""

    def cost(s: _Shapes) -> _Cost:
        n, wide = s.rows()
        return times * s.pairs * 2 * n**2 * wide * s.width, times * s.pairs * 2 * n**2

    return cost


def _intra(s: _Shapes) -> _Cost:
    return 2 * s.batch * s.length**2 * s.width, 2 * s.batch * s.length**2


def _local(s: _Shapes) -> _Cost:
    return 2 * s.batch**2 * s.length * s.width, 2 * s.batch**2


def _global(s: _Shapes) -> _Cost:
    c = s.options["memory"]
    # the teacher's centroids are rotated to C columns once
    flops, entries = _cka_of(c, s.length * s.student, min(c, s.length * s.teacher))
    return flops + 2 * s.batch * c * s.length * s.width, entries + c * s.length * s.width + 2 * s.batch * c


def _sum(*parts: Callable[[_Shapes], _Cost]) -> Callable[[_Shapes], _Cost]:
    def cost(s: _Shapes) -> _Cost:
        found = [part(s) for part in parts]
        return sum(flops for flops, _ in found), sum(entries for _, entries in found)

    return cost


def _fcd(s: _Shapes) -> _Cost:
    token = s.pairs * s.batch * s.length**2 * bool(s.options["alpha"])
    sample = s.pairs * s.batch**2 * s.length * bool(s.options["beta"])
    return 2 * (token + sample) * s.width, 2 * (token + sample)


def _attention(relations: int) -> Callable[[_Shapes], _Cost]:
    """Return the cost of so many relations of queries, keys and values, for each pair of layers."""

    def cost(s: _Shapes) -> _Cost:
        squares = s.pairs * relations * s.batch * s.length**2
        return 2 * squares * s.width, 2 * squares * s.heads

    return cost


def _projected(of_tokens: bool, times: int = 1) -> Callable[[_Shapes], _Cost]:
    """Return the cost of a learned map of samples or tokens, so many times for each pair of layers."""

    def cost(s: _Shapes) -> _Cost:
        every = of_tokens or s.options.get("pool") == "flat"
        return times * s.pairs * s.projected(s.batch * (s.length if every else 1)), 0

    return cost


def _tinybert(s: _Shapes) -> _Cost:
    if s.options["stage"] == "prediction":
        return 0, 0
    flops, entries = _attention(1)(s)
    return flops + (s.pairs + 1) * s.projected(s.batch * s.length), entries  # the embeddings too


def _fitnets(s: _Shapes) -> _Cost:
    return (s.pairs * s.projected(s.batch * s.length) if s.options["stage"] == "hint" else 0), 0


# D: the widths of both models together, P: pairs of layers, C: centroids.
_COSTS: dict[str, tuple[str, Callable[[_Shapes], _Cost]]] = {
    **dict.fromkeys(("ft", "kd", "theseus", "metadistil", "reptiledistil"), ("0 (logits alone)", _free)),
    "cka": ("P·2B²·D", _cka),
    "shape": ("P·(2B²·D + 12B³)", _shape),
    "fsd_i": ("2B·L²·D", _intra),
    "fsd_l": ("2B²·L·D", _local),
    "fsd_g": ("2B·C·L·D + 2C²·(L·D_s + C)", _global),
    "fsd_il": ("2B·L²·D + 2B²·L·D", _sum(_intra, _local)),
    "fsd": ("2B·L²·D + 2B²·L·D + 2B·C·L·D + 2C²·(L·D_s + C)", _sum(_intra, _local, _global)),
    "fcd": ("P·(2B·L²·D + 2B²·L·D)", _fcd),
    "ics": ("0, or 2B·D_s·D_t with a projector", _projected(False)),
    "pkd": ("0, or P·2B·D_s·D_t with a projector", _projected(False)),
    "rkd": ("2·P·2B²·D", _grams(2)),
    "distilbert": ("0, or 2B·L·D_s·D_t with a projector", _projected(True)),
    "tinybert": ("P·2B·L²·D, and (P + 1)·2B·L·D_s·D_t with projectors", _tinybert),
    "minilm": ("2·2B·L²·D", _attention(2)),
    "minilmv2": ("3·2B·L²·D", _attention(3)),
    "spkd": ("P·2B²·L·D", _grams(1)),
    "cckd": ("P·2B²·D", _grams(1)),
    "fitnets": ("0, or P·2B·L·D_s·D_t with projectors", _fitnets),
}

"""Store the embeddings of a whole vocabulary in few bytes inside an ONNX file.

The less a piece is used, the fewer bytes its row takes: the most frequent ones have 8 bits a weight, then 4, the others
are written by product quantisation (Jégou et al. 2011, IEEE TPAMI 33:1): a row is cut into short parts, and each part
is the nearest of 256 that are kept. What is rarely read needs little precision, but some: a piece without any embedding
would be written letter by letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from limbeck.models.trimming import token_ids
from limbeck.protocols import Tokenizer
from limbeck.similarity import kmeans

# How many rows have 8 bits a weight, 4 bits, and short parts; such that a student of three layers 384 wide takes 8 MB.
BYTES, NIBBLES, SEEN = 500, 2_200, 4_300
_FEW, _MANY = 4, 12  # weights that share a byte, in rows that are used now and then, and hardly ever
_CENTRES = 256  # as many as a byte can name
_BLOCK = 128  # weights of 4 bits that share a scale
_SHARES = np.linspace(0.6, 1, 9)  # of a block's largest weight that become the largest number
_PASSES, _SAMPLE = 10, 8_192  # of k-means, and the rows that it reads

Add = Callable[..., str]  # adds a node to a graph, and names its result
Constant = Callable[[str, np.ndarray], str]


class Rows(Protocol):
    """Hold rows of a table in fewer bytes."""

    def rows(self) -> np.ndarray:
        """Return the rows as they are read."""
        ...

    def look_up(self, place: str, constant: Constant, add: Add) -> str:
        """Add what reads the rows at ``place`` to a graph, and name its result."""
        ...


@dataclass(frozen=True)
class ByteRows:
    """Hold rows as whole numbers from -127 to 127, each with a scale of its own."""

    numbers: np.ndarray  # N D, int8
    scales: np.ndarray  # N 1, float32

    @classmethod
    def of(cls, rows: np.ndarray) -> ByteRows:
        """Round rows of a table."""
        scales = (np.abs(rows).max(1, keepdims=True, initial=0) / 127).astype(np.float32)
        return cls(np.round(rows / np.where(scales > 0, scales, 1)).astype(np.int8), scales)

    def rows(self) -> np.ndarray:
        return self.numbers * self.scales

    def look_up(self, place: str, constant: Constant, add: Add) -> str:
        from onnx import TensorProto

        numbers = add("Gather", [constant("numbers", self.numbers), place], "whole")
        wide = add("Cast", [numbers], "wide", to=TensorProto.FLOAT)
        return add("Mul", [wide, add("Gather", [constant("scales", self.scales), place], "scale")], "rows")


@dataclass(frozen=True)
class NibbleRows:
    """Hold rows as whole numbers from -7 to 7, with a scale for each block of weights."""

    numbers: np.ndarray  # N D, int8
    scales: np.ndarray  # N ceil(D/block), float32

    @classmethod
    def of(cls, rows: np.ndarray) -> NibbleRows:
        """Round rows of a table, by the scale of each block that comes nearest to it."""
        starts = np.arange(0, rows.shape[1], _BLOCK)
        largest = np.maximum.reduceat(np.abs(rows), starts, axis=1) / 7
        best, error = largest, np.full(largest.shape, np.inf)
        for share in _SHARES:
            own = np.add.reduceat(np.square(rows - cls._rounded(rows, share * largest).rows()), starts, axis=1)
            best, error = np.where(own < error, share * largest, best), np.minimum(own, error)
        return cls._rounded(rows, best)

    @classmethod
    def _rounded(cls, rows: np.ndarray, scales: np.ndarray) -> NibbleRows:
        steps = np.where(scales > 0, scales, 1)[:, np.arange(rows.shape[1]) // _BLOCK]
        return cls(np.clip(np.round(rows / steps), -7, 7).astype(np.int8), scales.astype(np.float32))

    def rows(self) -> np.ndarray:
        return self.numbers * self.scales[:, np.arange(self.numbers.shape[1]) // _BLOCK]

    def look_up(self, place: str, constant: Constant, add: Add) -> str:
        from onnx import TensorProto, helper

        flat = np.pad(self.numbers.ravel() & 0xF, (0, self.numbers.size % 2))
        packed = (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()
        numbers = helper.make_tensor("", TensorProto.INT4, self.numbers.shape, packed, raw=True)
        reading = {"domain": "com.microsoft", "gather_axis": 0, "quantize_axis": 1, "block_size": _BLOCK}
        return add(
            *("GatherBlockQuantized", [constant("numbers", numbers), place, constant("scales", self.scales)], "rows"),
            **reading,
        )


@dataclass(frozen=True)
class CodedRows:
    """Hold rows as one byte for each part, which names a row of the part's own centres."""

    codes: np.ndarray  # N S, uint8
    centres: np.ndarray  # S 256 D/S, int8
    scales: np.ndarray  # S 1, float32

    @classmethod
    def of(cls, rows: np.ndarray, most: int) -> CodedRows:
        """Find the centres of each part, of at most so many weights, and the nearest one for each row."""
        size = next(size for size in range(most, 0, -1) if rows.shape[1] % size == 0)
        some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_SAMPLE]
        centres, scales, codes = [], [], []
        for part in torch.from_numpy(rows).split(size, dim=1):
            few = min(_CENTRES, len(part))
            found = kmeans([part[some]], few, seed=0, passes=_PASSES, init="random").centroids
            scale = (found.abs().max() / 127).clamp(min=torch.finfo(torch.float32).tiny)
            numbers = (found / scale).round()
            centres.append(torch.nn.functional.pad(numbers, (0, 0, 0, _CENTRES - few)).to(torch.int8))
            scales.append(scale)
            codes.append(_nearest(part, numbers * scale))
        parts = torch.stack(codes, 1).to(torch.uint8)
        return cls(parts.numpy(), torch.stack(centres).numpy(), torch.stack(scales)[:, None].numpy())

    def rows(self) -> np.ndarray:
        parts = self.centres[np.arange(len(self.centres)), self.codes] * self.scales  # N S D/S
        return parts.reshape(len(self.codes), -1)

    def look_up(self, place: str, constant: Constant, add: Add) -> str:
        from onnx import TensorProto

        parts, _, size = self.centres.shape
        codes = add("Gather", [constant("codes", self.codes), place], "bytes")
        starts = constant("starts", np.arange(parts, dtype=np.int32) * _CENTRES)
        centre = add("Add", [add("Cast", [codes], "own", to=TensorProto.INT32), starts], "centre")
        found = add("Gather", [constant("centres", self.centres.reshape(-1, size)), centre], "numbers")
        wide = add("Cast", [found], "wide", to=TensorProto.FLOAT)
        scaled = add("Mul", [wide, constant("scales", self.scales)], "parts")
        return add("Reshape", [scaled, constant("shape", np.array([0, 0, parts * size], np.int64))], "rows")


def _nearest(rows: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return torch.addmm(-centres.square().sum(1) / 2, rows, centres.mT).argmax(1)


@dataclass(frozen=True)
class CompactEmbeddings:
    """Hold a table of embeddings: ``places`` has each piece's row among those of all tiers, one after the other."""

    places: np.ndarray  # V
    tiers: dict[str, Rows]
    starts: list[int]  # of each tier

    @classmethod
    def of(cls, table: np.ndarray, uses: np.ndarray) -> CompactEmbeddings:
        """Store the rows that are used most with most precision."""
        order = np.argsort(-uses, kind="stable")
        places = np.empty(len(table), np.int64)
        places[order] = np.arange(len(table))
        starts = [0, *np.cumsum([BYTES, NIBBLES, SEEN]).tolist()]
        parts = np.split(table[order], starts[1:])
        makers: dict[str, Callable[[np.ndarray], Rows]] = {
            "bytes": ByteRows.of,
            "nibbles": NibbleRows.of,
            "seen": lambda rows: CodedRows.of(rows, _FEW),
            "rare": lambda rows: CodedRows.of(rows, _MANY),
        }
        tiers = {name: make(part) for (name, make), part in zip(makers.items(), parts, strict=True) if len(part)}
        return cls(places, tiers, starts[: len(tiers)])

    def table(self) -> np.ndarray:
        """Return the whole table as it is read."""
        return np.concatenate([tier.rows() for tier in self.tiers.values()])[self.places]


def count_uses(tokenizer: Tokenizer, texts: Iterable[str], pieces: int) -> np.ndarray:
    """Count how often texts use each of so many pieces; what is put around texts counts as used most."""
    ids = np.fromiter(chain.from_iterable(token_ids(tokenizer, texts)), np.int64)
    uses = np.bincount(ids, minlength=pieces)
    uses[[index for index in tokenizer.all_special_ids if index < pieces]] = uses.max(initial=0) + 1
    return uses


def lookup_of(graph: Any, table: np.ndarray) -> Any | None:
    """Find the node of an ONNX graph that looks rows of this table up; None where there is no single one."""
    from onnx import numpy_helper

    shape = list(table.shape)
    same = [
        one.name
        for one in graph.initializer
        if list(one.dims) == shape and np.array_equal(numpy_helper.to_array(one), table)
    ]
    found = [node for node in graph.node if node.op_type == "Gather" and node.input[0] in same]
    return found[0] if len(found) == 1 else None


def replace_lookup(model: Any, node: Any, embeddings: CompactEmbeddings) -> None:
    """Let an ONNX model read compact embeddings where ``node`` looks rows of the whole table up."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    whole, ids, result = node.input[0], node.input[1], node.output[0]
    name = f"{whole}.compact"
    nodes: list[Any] = []

    def constant(part: str, values: Any) -> str:
        tensor = numpy_helper.from_array(values) if isinstance(values, np.ndarray) else values
        tensor.name = f"{name}.{part}"
        graph.initializer.append(tensor)
        return str(tensor.name)

    def add(operator: str, inputs: Sequence[str], part: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"{name}.{part}"], name=f"{name}.{part}.node", **attributes))
        return f"{name}.{part}"

    narrow = np.uint16 if len(embeddings.places) <= np.iinfo(np.uint16).max else np.int32
    place = add("Gather", [constant("places", embeddings.places.astype(narrow)), ids], "place.narrow")
    place = add("Cast", [place], "place", to=TensorProto.INT32)
    zero, last_axis = constant("zero", np.array(0, np.int32)), constant("last_axis", np.array([-1], np.int64))
    found = ""
    ends = [*embeddings.starts[1:], len(embeddings.places)]
    for (tier, rows), start, end in zip(embeddings.tiers.items(), embeddings.starts, ends, strict=True):
        begin, last = (constant(f"{tier}.{part}", np.array(value, np.int32)) for part, value in
                       (("start", start), ("last", end - start - 1)))  # fmt: skip
        shifted = add("Sub", [place, begin], f"{tier}.shifted")
        own = add("Clip", [shifted, zero, last], f"{tier}.place")
        read = rows.look_up(own, _within(tier, constant), _within_node(tier, add))
        if found:
            earlier = add("Unsqueeze", [add("Less", [place, begin], f"{tier}.later"), last_axis], f"{tier}.is_earlier")
            read = add("Where", [earlier, found, read], f"{tier}.so_far")
        found = read
    nodes[-1].output[0] = result
    at = list(graph.node).index(node)
    graph.node.remove(node)
    for offset, one in enumerate(nodes):
        graph.node.insert(at + offset, one)
    _forget_table(graph, whole)
    model.ir_version = max(model.ir_version, 10)  # the first with numbers of 4 bits
    if not any(one.domain == "com.microsoft" for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _within(tier: str, constant: Constant) -> Constant:
    return lambda part, values: constant(f"{tier}.{part}", values)


def _within_node(tier: str, add: Add) -> Add:
    return lambda operator, inputs, part, **attributes: add(operator, inputs, f"{tier}.{part}", **attributes)


def _forget_table(graph: Any, name: str) -> None:
    if any(name in node.input for node in graph.node):
        return  # a head that shares the table
    for one in [one for one in graph.initializer if one.name == name]:
        graph.initializer.remove(one)

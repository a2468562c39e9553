"""Store the embeddings of a whole vocabulary in few bytes inside an ONNX file.

The pieces that texts use most take 4 bits a weight. Every other row is written by product quantisation (Jégou et al.
2011, IEEE TPAMI 33:1): it is cut into short parts, and each part is the nearest of 256 that are kept. What is rarely
read needs little precision, but some: a piece without any embedding would be written letter by letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from limbeck.models.trimming import token_ids
from limbeck.protocols import Tokenizer
from limbeck.similarity import kmeans

FINE_PIECES = 4_000  # stored in 4 bits a weight
_CENTRES = 256  # as many as a byte can name
_PARTS = (12, 8, 16, 10, 6, 4, 2, 1)  # weights that share a byte: the first of these that divides the width
_BLOCK = 128  # weights that share a scale
_PASSES, _SAMPLE = 10, 8_192  # of k-means, and the rows that it reads


@dataclass(frozen=True)
class FineRows:
    """Hold rows as whole numbers from -7 to 7, and the scale of each block."""

    numbers: np.ndarray  # N D, int8
    scales: np.ndarray  # N ceil(D/block), float32

    @classmethod
    def of(cls, rows: np.ndarray) -> FineRows:
        """Round rows of a table."""
        starts = np.arange(0, rows.shape[1], _BLOCK)
        scales = (np.maximum.reduceat(np.abs(rows), starts, axis=1) / 7).astype(np.float32)
        numbers = np.round(rows / np.where(scales > 0, scales, 1)[:, np.arange(rows.shape[1]) // _BLOCK])
        return cls(numbers.astype(np.int8), scales)

    def rows(self) -> np.ndarray:
        """Return the rows as they are read."""
        return self.numbers * self.scales[:, np.arange(self.numbers.shape[1]) // _BLOCK]


@dataclass(frozen=True)
class CoarseRows:
    """Hold rows as one byte for each part, which names a row of the part's own centres."""

    codes: np.ndarray  # N S, uint8
    centres: np.ndarray  # S 256 D/S, float16

    @classmethod
    def of(cls, rows: np.ndarray) -> CoarseRows:
        """Find the centres of each part, and the nearest one for each row."""
        size = next(size for size in _PARTS if rows.shape[1] % size == 0)
        some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_SAMPLE]
        centres, codes = [], []
        for part in torch.from_numpy(rows).split(size, dim=1):
            few = min(_CENTRES, len(part))
            found = kmeans([part[some]], few, seed=0, passes=_PASSES, init="random").centroids.half()
            centres.append(torch.nn.functional.pad(found, (0, 0, 0, _CENTRES - few)))
            codes.append(_nearest(part, found.float()))
        return cls(torch.stack(codes, 1).to(torch.uint8).numpy(), torch.stack(centres).numpy())

    def rows(self) -> np.ndarray:
        """Return the rows as they are read."""
        parts = self.centres[np.arange(len(self.centres)), self.codes]  # N S D/S
        return parts.astype(np.float32).reshape(len(self.codes), -1)


def _nearest(rows: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return torch.addmm(-centres.square().sum(1) / 2, rows, centres.mT).argmax(1)


@dataclass(frozen=True)
class CompactEmbeddings:
    """Hold a table of embeddings: ``places`` has each piece's row, the fine ones before the coarse ones."""

    places: np.ndarray  # V
    fine: FineRows
    coarse: CoarseRows | None  # None where all are fine

    @classmethod
    def of(cls, table: np.ndarray, uses: np.ndarray) -> CompactEmbeddings:
        """Store the rows that are used most finely, and the others coarsely."""
        order = np.argsort(-uses, kind="stable")
        places = np.empty(len(table), np.int64)
        places[order] = np.arange(len(table))
        fine, coarse = np.split(table[order], [FINE_PIECES])
        return cls(places, FineRows.of(fine), CoarseRows.of(coarse) if len(coarse) else None)

    def table(self) -> np.ndarray:
        """Return the whole table as it is read."""
        parts = [self.fine.rows(), *([self.coarse.rows()] if self.coarse else [])]
        return np.concatenate(parts)[self.places]


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

    def constant(part: str, values: np.ndarray) -> str:
        graph.initializer.append(numpy_helper.from_array(values, f"{name}.{part}"))
        return f"{name}.{part}"

    def add(operator: str, inputs: Sequence[str], part: str, **attributes: Any) -> str:
        output = result if part == "" else f"{name}.{part}"
        nodes.append(helper.make_node(operator, inputs, [output], name=f"{name}.{part}.node", **attributes))
        return output

    fine, coarse = embeddings.fine, embeddings.coarse
    narrow = np.uint16 if len(embeddings.places) <= np.iinfo(np.uint16).max else np.int32
    place = add("Gather", [constant("places", embeddings.places.astype(narrow)), ids], "place.narrow")
    place = add("Cast", [place], "place", to=TensorProto.INT32)
    last = constant("fine.last", np.array(len(fine.numbers) - 1, np.int32))
    flat = np.pad(fine.numbers.ravel() & 0xF, (0, fine.numbers.size % 2))
    packed = (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()
    numbers = helper.make_tensor(f"{name}.fine.numbers", TensorProto.INT4, fine.numbers.shape, packed, raw=True)
    graph.initializer.append(numbers)
    reading = {"domain": "com.microsoft", "gather_axis": 0, "quantize_axis": 1, "block_size": _BLOCK}
    fine_inputs = [numbers.name, add("Min", [place, last], "fine.place"), constant("fine.scales", fine.scales)]
    fine_rows = add("GatherBlockQuantized", fine_inputs, "fine.rows" if coarse else "", **reading)
    if coarse:
        parts, size = coarse.centres.shape[0], coarse.centres.shape[2]
        count = constant("fine.count", np.array(len(fine.numbers), np.int32))
        zero = constant("zero", np.array(0, np.int32))
        below = add("Max", [add("Sub", [place, count], "coarse.shifted"), zero], "coarse.place")
        codes = add("Gather", [constant("coarse.codes", coarse.codes), below], "coarse.bytes")
        starts = constant("coarse.starts", np.arange(parts, dtype=np.int32) * _CENTRES)
        codes = add("Add", [add("Cast", [codes], "coarse.own", to=TensorProto.INT32), starts], "coarse.centre")
        centres = constant("coarse.centres", coarse.centres.reshape(-1, size))
        narrow_rows = add("Gather", [centres, codes], "coarse.half")
        wide = add("Cast", [narrow_rows], "coarse.parts", to=TensorProto.FLOAT)
        shape = constant("coarse.shape", np.array([0, 0, parts * size], np.int64))
        coarse_rows = add("Reshape", [wide, shape], "coarse.rows")
        is_fine = add("Less", [place, count], "is_fine.flat")
        is_fine = add("Unsqueeze", [is_fine, constant("last_axis", np.array([-1], np.int64))], "is_fine")
        add("Where", [is_fine, fine_rows, coarse_rows], "")
    at = list(graph.node).index(node)
    graph.node.remove(node)
    for offset, one in enumerate(nodes):
        graph.node.insert(at + offset, one)
    _forget_table(graph, whole)
    model.ir_version = max(model.ir_version, 10)  # the first with numbers of 4 bits
    if not any(one.domain == "com.microsoft" for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _forget_table(graph: Any, name: str) -> None:
    if any(name in node.input for node in graph.node):
        return  # a head that shares the table
    for one in [one for one in graph.initializer if one.name == name]:
        graph.initializer.remove(one)

"""Sum up the data of a task in short texts, which differ where rows, texts, labels or their order differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from limbeck._internal.files import expand_home
from limbeck.tasks.stream import Texts
from limbeck.tasks.task import Task

_ROWS = 10_000  # read at a time
_BLOCK = 1 << 20  # bytes
_BYTES = 16  # of the sum over a row, and over rows in any order


def data_fingerprint(task: Task, splits: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the names of the labels and, for each of some splits, short texts for what it holds.

    ``texts`` and ``labels`` are of the rows in their order, ``content`` of the rows in any order. Without ``splits``,
    those that are trained on and scored.
    """
    names = splits if splits is not None else ("train", *task.dev_splits)
    return {"labels": list(task.label_names), "splits": {name: _of_split(task.split(name)) for name in names}}


def _of_split(split: Any) -> dict[str, Any]:
    return _of_stream(split) if isinstance(split, Texts) else _of_rows(split)


def _of_rows(split: Any) -> dict[str, Any]:
    texts, labels, content = hashlib.sha256(), hashlib.sha256(), 0
    for text, label in _row_digests(split):
        texts.update(text)
        labels.update(label)
        content += int.from_bytes(_digest(text + label), "big")
    in_any_order = (content % (1 << 8 * _BYTES)).to_bytes(_BYTES, "big")
    return {
        "rows": len(split),
        "texts": texts.hexdigest(),
        "labels": labels.hexdigest(),
        "content": in_any_order.hex(),
    }


def _row_digests(split: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield a digest of what each row says, and one of its label; ids are positions, which the order tells."""
    read = [name for name in split.column_names if name not in ("id", "label")]
    labelled = "label" in split.column_names
    for start in range(0, len(split), _ROWS):
        columns = split[start : start + _ROWS]
        labels = columns["label"] if labelled else [None] * len(columns[read[0]])
        for *cells, label in zip(*(columns[name] for name in read), labels, strict=True):
            yield _digest(_text(cells)), _digest(_text(label))


def _of_stream(texts: Texts) -> dict[str, Any]:
    """Sum up the file that a stream reads; its rows are not counted, because it may be large."""
    path, digest = expand_home(texts.path), hashlib.sha256(_text(texts.column))
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    found = digest.hexdigest()
    return {"rows": None, "texts": found, "labels": "", "content": found}


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_BYTES).digest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()

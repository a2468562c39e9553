"""Turn text into token ids: encode a split once without padding, then pad each batch to its own longest row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from limbeck._internal.progress import progress
from limbeck.errors import DataError, ModelError
from limbeck.problems import IGNORED, PER_TOKEN, Problem

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("limbeck")

# the columns of an encoded split that training reads; others serve only to score
TRAINING_COLUMNS = ("id", "example", "input_ids", "attention_mask", "token_type_ids", "labels")
_CHUNK = 2_000  # rows per tokenizer call: large enough for its threads, small enough for memory


def encode(
    columns: Sequence[str],
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    too_long: Literal["cut", "refuse"] = "cut",
    task: str = "",
) -> Dataset:
    """Tokenize ``dataset`` into id, input_ids, attention_mask, token_type_ids (if any) and labels (if any).

    ``columns`` names one or two text columns. Rows longer than ``max_length`` are cut with one warning that counts
    them, or refused; messages name ``task``.
    """
    where = " ".join(filter(None, [task, str(dataset.split or "")]))

    def texts_of(rows: Mapping[str, Any]) -> list[list[str]]:
        return [list(rows[name]) for name in columns]

    def labels_of(rows: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
        return {"labels": rows["label"]} if "label" in rows else {}

    return encode_rows(where, dataset, tokenizer, max_length, too_long, texts_of, labels_of)


def encode_rows(
    where: str,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    too_long: Literal["cut", "refuse"],
    texts_of: Callable[[Mapping[str, Any]], list[list[str]]],
    extra: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]],
    **options: Any,
) -> Dataset:
    """Tokenize one or two texts of each row; ``extra`` makes further columns of some rows and of their encoding."""
    import pyarrow as pa
    from datasets import Dataset

    chunks: dict[str, list[Any]] = {}
    columns: dict[str, Any] = {}
    cut = 0
    with progress(f"tokenize {where}".rstrip(), len(dataset)) as steps:
        for start in range(0, len(dataset), _CHUNK):
            rows = dataset[start : start + _CHUNK]
            texts = texts_of(rows)
            # Not truncated at first, so that what would be lost can be counted.
            encoded = dict(tokenizer(*texts, padding=False, truncation=False, verbose=False, **options))
            long = [row for row, ids in enumerate(encoded["input_ids"]) if len(ids) > max_length]
            if long and too_long == "refuse":
                ids = rows["id"] if "id" in rows else range(start, start + _CHUNK)
                _refuse(where, ids[long[0]], texts[0][long[0]], len(encoded["input_ids"][long[0]]), max_length)
            if long:
                _cut(encoded, long, texts, tokenizer, max_length, options)
                cut += len(long)
            for name, values in extra(rows, encoded).items():
                columns.setdefault(name, []).extend(values)
            encoded.pop("offset_mapping", None)
            for name, values in encoded.items():
                chunks.setdefault(name, []).append(pa.array(values, type=pa.list_(pa.int32())))
            steps.advance(len(texts[0]))
    if cut:
        _warn_of_cuts(where, cut, len(dataset), max_length, "task.max_length")
    columns |= {name: pa.chunked_array(arrays) for name, arrays in chunks.items()}
    if "id" in dataset.column_names:
        columns["id"] = dataset["id"][:]
    return Dataset.from_dict(columns, split=dataset.split)


def _warn_of_cuts(where: str, cut: int, rows: int, max_length: int, option: str) -> None:
    logger.warning(
        "%s%s of %s texts (%.1f%%) are longer than %d tokens and were cut; raise %s to keep them.",
        f"{where}: " if where else "",
        f"{cut:,}",
        f"{rows:,}",
        100 * cut / rows,
        max_length,
        option,
        extra={"cut": cut},
    )


class CutCounter(logging.Filter):
    """Take out the warnings that say how many texts were cut, and count these."""

    cut = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep any other message."""
        found: int | None = getattr(record, "cut", None)
        self.cut += found or 0
        return found is None

    def warn(self, where: str, rows: int, max_length: int, option: str) -> None:
        """Give one warning for all of them; ``option`` is what to raise."""
        if self.cut:
            _warn_of_cuts(where, self.cut, rows, max_length, option)


@contextmanager
def counting_cuts() -> Iterator[CutCounter]:
    """Count the texts that are cut inside the block, where data are encoded part by part; warn of none of them."""
    counter = CutCounter()
    logger.addFilter(counter)
    try:
        yield counter
    finally:
        logger.removeFilter(counter)


def _cut(
    encoded: dict[str, list[list[int]]],
    long: list[int],
    texts: list[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    options: dict[str, Any],
) -> None:
    """Encode the ``long`` rows again, truncated; of a pair, the longer text gives way first."""
    again = [[column[row] for row in long] for column in texts]
    shorter = tokenizer(*again, padding=False, truncation=True, max_length=max_length, verbose=False, **options)
    for name, values in encoded.items():
        for row, value in zip(long, shorter[name], strict=True):
            values[row] = value


def _refuse(where: str, row: int, text: str, length: int, max_length: int) -> NoReturn:
    raise DataError(
        f"{f'{where}: ' if where else ''}the row with id {row} ({text[:30] + '...'!r}) has {length:,} tokens, "
        f"more than the {max_length:,} allowed, and too_long is 'refuse'. "
        "Raise task.max_length, shorten the text, or let long texts be cut."
    )


@dataclass(frozen=True)
class Collator:
    """Pad encoded rows to the longest of the batch (or to ``pad_to``) and make tensors.

    ``id`` becomes the tensor ``ids``. Class labels become int64; numbers and multi-label rows float32. Labels of tokens
    are padded with IGNORED, and positions of a span move with the padding before them.
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None
    problem: Problem = "classification"

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token_id is None:
            name = self.tokenizer.name_or_path or type(self.tokenizer).__name__
            raise ModelError(
                f"The tokenizer '{name}' has no padding token, so texts of different length cannot share a "
                "batch. Set one first, for example tokenizer.pad_token = tokenizer.eos_token, and the same "
                "id as pad_token_id in the model's config."
            )

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        import torch

        lengths = [len(row["input_ids"]) for row in rows]
        width = self.pad_to or max(lengths)
        if max(lengths) > width:
            raise DataError(
                f"A row has {max(lengths):,} tokens but batches are padded to {width:,}. "
                f"Encode with max_length={width} or raise pad_to."
            )
        left = self.tokenizer.padding_side == "left"
        fills = {
            "input_ids": self.tokenizer.pad_token_id,
            "token_type_ids": self.tokenizer.pad_token_type_id,
            "attention_mask": 0,
        }
        if self.problem in PER_TOKEN:
            fills["labels"] = IGNORED
        batch: dict[str, Tensor] = {}
        for name, fill in fills.items():
            if name not in rows[0]:
                continue
            padded = np.full((len(rows), width), fill, dtype=np.int64)
            for line, row, length in zip(padded, rows, lengths, strict=True):
                line[width - length if left else 0 : width if left else length] = row[name]
            batch[name] = torch.from_numpy(padded)
        if left and "attention_mask" in batch:
            # a decoder's first token is at position 0 however much padding there is before it
            batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        if "labels" in rows[0] and self.problem not in PER_TOKEN:
            labels = torch.tensor([row["labels"] for row in rows])
            if self.problem == "span" and left:
                labels += width - torch.tensor(lengths)[:, None]
            batch["labels"] = labels.float() if labels.is_floating_point() else labels.long()
        if "id" in rows[0]:
            batch["ids"] = torch.tensor([row["id"] for row in rows], dtype=torch.int64)
        return batch

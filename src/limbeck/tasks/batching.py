"""Decide which examples share a batch: similar lengths, the same batches for the same seed and epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Sampler

from limbeck.protocols import EncodedData

_BATCHES_IN_A_POOL = 50
_ROWS = 10_000  # whose lengths are read at a time


def token_counts(encoded: EncodedData) -> np.ndarray:
    """Count the tokens of each row, without a list of them in memory."""
    if isinstance(known := getattr(encoded, "lengths", None), np.ndarray):
        return known
    if not hasattr(encoded, "with_format"):  # rows that are no table of the datasets library
        return np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
    tables = encoded.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=_ROWS)  # type: ignore[attr-defined]
    counts = [table.column(0).combine_chunks().value_lengths().to_numpy() for table in tables]
    return np.concatenate([np.empty(0, dtype=np.int64), *counts]).astype(np.int64)


class LengthGroupedOrder(Sampler[int]):
    """Draw examples in random order, but so that each consecutive ``batch_size`` of them have similar lengths.

    The data are shuffled, cut into pools of 50 batches, sorted by length inside each pool, and the batches of the whole
    epoch are shuffled again; the incomplete batch comes last. The order depends on the seed and the epoch alone, so
    that a resumed run sees the batches that an uninterrupted one would have seen.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        batches: list[torch.Tensor] = []
        for pool in order.split(_BATCHES_IN_A_POOL * self.batch_size):
            by_length = pool[self.lengths[pool].argsort(descending=True, stable=True)]
            batches.extend(by_length.split(self.batch_size))
        incomplete = [batch for batch in batches if len(batch) < self.batch_size]
        complete = [batch for batch in batches if len(batch) == self.batch_size]
        shuffled = [complete[i] for i in torch.randperm(len(complete), generator=generator).tolist()]
        for batch in shuffled + incomplete:
            yield from batch.tolist()


class OwnShare:
    """Take one process's rows of each batch that all processes share, in even parts; of the last batch maybe none.

    Serves as a batch sampler over an order of examples, or over the rows of a stream.
    """

    batch_size = None  # parts differ in size where a batch cannot be divided

    def __init__(self, order: Any, shared_batch: int, rank: int, processes: int, drop_last: bool = False) -> None:
        self.order, self.shared_batch, self.rank, self.processes = order, shared_batch, rank, processes
        self.drop_last = drop_last  # a batch that is not full

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        batches = len(self.order) / self.shared_batch
        return math.floor(batches) if self.drop_last else math.ceil(batches)

    def __iter__(self) -> Iterator[list[Any]]:
        rest = iter(self.order)
        while batch := list(islice(rest, self.shared_batch)):
            if self.drop_last and len(batch) < self.shared_batch:
                return
            start, end = (len(batch) * part // self.processes for part in (self.rank, self.rank + 1))
            yield batch[start:end]


class OwnShareOfStream(OwnShare, IterableDataset):
    """Take the same rows of a stream, as a data set whose items are batches."""


class Batches:
    """Iterate over every example once, as padded batches from long to short; as often as somebody likes.

    A stream of blocks is read in its own order.
    """

    def __init__(
        self, encoded: EncodedData, collate: Callable[[list[Any]], dict[str, Tensor]], batch_size: int
    ) -> None:
        self.encoded, self.collate, self.batch_size = encoded, collate, batch_size

    @cached_property
    def indices(self) -> tuple[Tensor, ...]:
        # only when they are asked for: most methods have nothing to prepare, and this reads every row
        lengths = torch.from_numpy(token_counts(self.encoded))
        return lengths.argsort(descending=True, stable=True).split(self.batch_size)

    def __len__(self) -> int:
        if isinstance(self.encoded, IterableDataset):
            return math.ceil(len(self.encoded) / self.batch_size)
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self.collate([self.encoded[i] for i in self.indices[number].tolist()])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if isinstance(self.encoded, IterableDataset):
            rows = iter(self.encoded)
            while batch := list(islice(rows, self.batch_size)):
                yield self.collate(batch)
            return
        for number in range(len(self)):
            yield self[number]

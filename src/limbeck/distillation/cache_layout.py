"""Compute where the features of each example lie in a cache, from the lengths of the examples alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from limbeck.errors import CacheError


class Places(NamedTuple):
    """Hold for each row its shard, and its place there among the examples and (its first token) among the tokens."""

    shard: np.ndarray
    example: np.ndarray
    token: np.ndarray


class ShardSize(NamedTuple):
    """Count what a shard holds."""

    examples: int
    tokens: int


class CacheLayout:
    """Divide examples into shards of about ``tokens_in_a_shard`` tokens, and tell where each example lies."""

    def __init__(self, ids: Sequence[int], lengths: Sequence[int] | np.ndarray, tokens_in_a_shard: int) -> None:
        numbers = np.array(ids, dtype=np.int64)
        self._row = np.argsort(numbers, kind="stable")
        self._id = numbers[self._row]
        if len(twice := np.flatnonzero(self._id[1:] == self._id[:-1])):
            raise CacheError(f"Two examples have the id {self._id[twice[0]]}, so their features cannot be told apart.")
        self.lengths = np.array(lengths, dtype=np.int64)
        self.shards = _divide(self.lengths, tokens_in_a_shard)  # the rows of each

    @cached_property
    def places(self) -> Places:
        """Return the place of each row."""
        places = Places(*(np.empty(len(self.lengths), dtype=np.int64) for _ in Places._fields))
        for number, rows in enumerate(self.shards):
            places.shard[rows], places.example[rows] = number, np.arange(len(rows))
            places.token[rows] = np.cumsum(self.lengths[rows]) - self.lengths[rows]
        return places

    def rows_of(self, ids: Sequence[int]) -> list[int | None]:
        """Return the row of each example, by its id; None for one that is not there."""
        place = np.minimum(np.searchsorted(self._id, ids), len(self._id) - 1)
        found = self._id[place] == np.asarray(ids)
        return [int(row) if known else None for row, known in zip(self._row[place], found, strict=True)]

    def size(self, shard: int) -> ShardSize:
        """Count the examples of a shard and their tokens."""
        rows = self.shards[shard]
        return ShardSize(len(rows), int(self.lengths[rows].sum()))


def _divide(lengths: np.ndarray, tokens_in_a_shard: int) -> list[np.ndarray]:
    # from long to short, so that batches of neighbours are hardly padded
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    shard = (ends - 1) // tokens_in_a_shard
    return np.split(order, np.flatnonzero(np.diff(shard)) + 1)

"""Compute where the features of each example lie in a cache, from the lengths of the examples alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def __init__(self, ids: Iterable[int], lengths: Sequence[int], tokens_in_a_shard: int) -> None:
        self.row_of_id: dict[int, int] = {}
        for row, number in enumerate(ids):
            if self.row_of_id.setdefault(number, row) != row:
                raise CacheError(f"Two examples have the id {number}, so their features cannot be told apart.")
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

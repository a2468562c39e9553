"""Read examples from the files of a cache, which are mapped into memory and checked once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import safetensors
import torch
from torch import Tensor

from limbeck._internal.progress import progress
from limbeck.distillation.cache_files import CacheFolder, StoredTensor
from limbeck.distillation.cache_layout import CacheLayout
from limbeck.errors import CacheError

logger = logging.getLogger("limbeck")


class CacheReader:
    """Load the tensors of a cache by name, and read rows from them in float32."""

    def __init__(self, folder: CacheFolder, layout: CacheLayout, dtype: torch.dtype) -> None:
        self.folder, self.layout, self.dtype = folder, layout, dtype
        self._loaded: dict[tuple[str, int], StoredTensor] = {}

    def load(self, names: Sequence[str], warn: bool = False) -> dict[int, list[str]]:
        """Load the files of these tensors, and return by shard the names of those that are missing or damaged."""
        missing: dict[int, list[str]] = {}
        files = [(shard, name) for shard in range(len(self.layout.shards)) for name in names]
        with progress("check the cached features", len(files)) as steps:
            for shard, name in files:
                steps.advance()
                if (name, shard) in self._loaded:
                    continue
                file = self.folder.file(name, shard)
                try:
                    self._loaded[name, shard] = file.load(self.dtype, self.layout.size(shard))
                except FileNotFoundError:
                    missing.setdefault(shard, []).append(name)
                except (CacheError, OSError, safetensors.SafetensorError) as error:
                    missing.setdefault(shard, []).append(name)
                    if warn:
                        logger.warning("%s: %s. It is computed again.", file.path, error)
        return missing

    def has_loaded(self, names: Sequence[str], rows: list[int]) -> bool:
        """Tell whether these tensors can be read for these rows."""
        shards = self.layout.places.shard[rows].tolist()
        return all((name, shard) in self._loaded for name in names for shard in shards)

    def has_token_rows(self, name: str) -> bool:
        """Tell whether a loaded tensor has a row for each token, not for each example."""
        return self._loaded[name, 0].of_tokens

    def read(self, name: str, rows: Sequence[int], first: Sequence[int] = (), width: int = 0) -> Tensor:
        """Return what a loaded tensor holds for these examples: (rows, D), or of tokens (rows, width, D).

        An example's tokens start at its place in ``first``; before and behind them are zeros.
        """
        places = self.layout.places
        shards = [self._loaded[name, places.shard[row]] for row in rows]
        if not shards[0].of_tokens:
            found = [shard.data[places.example[row]] for shard, row in zip(shards, rows, strict=True)]
            return torch.stack([part.float() for part in found])  # autocast on a CPU stacks no float16
        padded = torch.zeros(len(rows), width, shards[0].data.shape[1])
        for line, shard, row, left in zip(padded, shards, rows, first, strict=True):
            start, length = places.token[row], self.layout.lengths[row]
            line[left : left + length] = shard.data[start : start + length]
        return padded

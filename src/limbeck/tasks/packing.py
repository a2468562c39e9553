"""Pack streamed texts into blocks of one length, with what a language model must predict in them.

Encoders predict masked tokens, decoders the next token. Neither the texts nor their tokens are ever held as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from limbeck._internal.progress import progress
from limbeck.errors import DataError, ModelError
from limbeck.problems import IGNORED
from limbeck.tasks.stream import Texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CHUNK = 1_000  # texts per tokenizer call
_SHUFFLED = 4_096  # blocks among which the next one is drawn


@dataclass(frozen=True)
class Packing:
    """Turn texts into blocks of ``max_length`` tokens, and choose which of their tokens are predicted."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    causal: bool
    mask: float

    def __post_init__(self) -> None:
        if not self.causal and self.tokenizer.mask_token_id is None:
            raise ModelError(
                f"The tokenizer '{self.tokenizer.name_or_path}' has no mask token, which a masked language model "
                "needs. Choose a model that was pre-trained with one, such as bert-base-uncased."
            )
        if self.max_length - len(self._around[0]) - len(self._around[1]) < 1:
            raise DataError(f"task.max_length is {self.max_length}, which leaves no room for a token of the text.")

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer puts before and after a text."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self.tokenizer("a")["input_ids"]
        start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:start], whole[start + len(bare) :]

    def blocks(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Join texts by a separator and cut them at ``max_length``; the last block may be shorter."""
        before, after = self._around
        room = self.max_length - len(before) - len(after)
        separator = [i for i in (self.tokenizer.sep_token_id, self.tokenizer.eos_token_id) if i is not None][:1]
        texts = iter(texts)
        left: list[int] = []
        while chunk := list(islice(texts, _CHUNK)):
            for ids in self.tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]:
                left += ids + separator
            full = len(left) - len(left) % room
            for start in range(0, full, room):
                yield before + left[start : start + room] + after
            left = left[full:]
        if left:
            yield before + left + after

    def example(self, block: list[int], generator: np.random.Generator) -> dict[str, Any]:
        """Return token ids and what is to be predicted at each of them."""
        ids = np.asarray(block)
        if self.causal:
            labels = np.append(ids[1:], IGNORED)
        else:
            ids, labels = self._masked(ids, generator)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}

    def _masked(self, ids: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask 80% of the chosen tokens, replace 10% by random ones, and keep 10% (Devlin et al. 2019)."""
        chosen = (generator.random(len(ids)) < self.mask) & ~np.isin(ids, self.tokenizer.all_special_ids)
        fate = generator.random(len(ids))
        anything = generator.integers(len(self.tokenizer), size=len(ids))
        changed = np.where(fate < 0.8, self.tokenizer.mask_token_id, np.where(fate < 0.9, anything, ids))
        return np.where(chosen, changed, ids), np.where(chosen, ids, IGNORED)


class Blocks(IterableDataset[dict[str, Any]]):
    """Iterate over the blocks of a stream of texts; blocks and order follow from the seed and the epoch alone."""

    def __init__(self, texts: Texts, packing: Packing, seed: int, *, shuffle: bool) -> None:
        self.texts, self.packing, self.seed, self.shuffle = texts, packing, seed, shuffle
        self.epoch = 0
        self._count: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def count(self) -> None:
        """Read everything once, so that the length is known: what training by epochs needs."""
        with progress(f"count blocks in {self.texts.path}", self.texts.size()) as steps:
            self._count = sum(1 for _ in self.packing.blocks(self.texts.advancing(steps)))

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("The number of blocks is not known before count() has read the texts once.")
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is not None:
            # The tokenizer's threads do not survive the fork that made this process; waiting for them never ends.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        blocks: Iterable[tuple[int, list[int]]] = enumerate(self.packing.blocks(self.texts))
        if self.shuffle:
            blocks = self._shuffled(blocks)
        # with several loader processes, each reads all and keeps its part
        for index, block in islice(blocks, worker.id, None, worker.num_workers) if worker else blocks:
            yield self.packing.example(block, np.random.default_rng([self.seed, self.epoch, index]))

    def _shuffled(self, blocks: Iterable[tuple[int, list[int]]]) -> Iterator[tuple[int, list[int]]]:
        """Draw each next block from a buffer that the following one then enters."""
        generator = np.random.default_rng([self.seed, self.epoch])
        blocks = iter(blocks)
        buffer = list(islice(blocks, _SHUFFLED))
        for block in blocks:
            place = int(generator.integers(len(buffer)))
            yield buffer[place]
            buffer[place] = block
        yield from (buffer[i] for i in generator.permutation(len(buffer)))

"""Keep the teacher's features on disk: computed once, unpadded, memory-mapped, and checked before they are believed.

A cache is a folder with one safetensors file for each tensor and shard, e.g. ``hidden.6-00003.safetensors``
(:mod:`limbeck.distillation.cache_files`). Where an example's features lie follows from the lengths of the examples
alone (:mod:`limbeck.distillation.cache_layout`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from limbeck._internal.progress import progress
from limbeck.distillation.cache_files import CacheFolder, StoredTensor
from limbeck.distillation.cache_layout import CacheLayout
from limbeck.distillation.cache_reader import CacheReader
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, ModelError
from limbeck.models.families import decides_tokens, width_of
from limbeck.models.features import POOLED, Features, Wanted
from limbeck.protocols import Model
from limbeck.tasks.batching import token_counts
from limbeck.tasks.task import Logits

if TYPE_CHECKING:
    from datasets import Dataset

TOKENS_IN_A_SHARD = 16_384  # of one tensor 768 wide in float32: 50 MB
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_FORMAT = 1


class FeatureCache:
    """Keep in ``folder`` what a teacher computes for the examples of ``encoded``.

    ``made_for`` is the fingerprint of teacher and data. A folder that was made for others is refused.
    """

    def __init__(self, folder: Path, encoded: Dataset, made_for: Mapping[str, str], dtype: str = "float32") -> None:
        self.folder, self.encoded, self.dtype = Path(folder), encoded, DTYPES[dtype]
        form = f"{_FORMAT}, {TOKENS_IN_A_SHARD} tokens in a shard"
        self._files = CacheFolder(self.folder, {**made_for, "dtype": dtype, "format": form})
        self._layout = CacheLayout(encoded["id"][:], token_counts(encoded), TOKENS_IN_A_SHARD)
        self._reader = CacheReader(self._files, self._layout, self.dtype)
        self._files.check()

    def estimate(self, model: Model, wanted: Wanted) -> int:
        """Count the bytes that these features take in whole."""
        return self._bytes(model, dict.fromkeys(range(len(self._layout.shards)), wanted.names()))

    def fill(
        self,
        teacher: LiveTeacher,
        collate: Callable[[list[Any]], Mapping[str, Tensor]],
        batch_size: int,
        wanted: Wanted,
        device: torch.device | str = "cpu",
    ) -> None:
        """Have the teacher compute what is missing or damaged of ``wanted``, and keep it.

        Can be killed at any moment and called again. Where another process is at it, this one waits.
        """

        def compute(rows: np.ndarray, names: list[str]) -> Features:
            batch = collate([self.encoded[int(row)] for row in rows])
            return teacher({key: value.to(device) for key, value in batch.items()}, Wanted.named(names))

        if not self._reader.load(wanted.names()):
            return
        with self._files.locked():
            missing = self._reader.load(wanted.names(), warn=True)
            self._files.check_space(self._bytes(teacher.model, missing))
            examples = sum(len(self._layout.shards[shard]) for shard in missing)
            with progress("compute the teacher's features", examples) as steps:
                for shard, names in missing.items():
                    parts: dict[str, list[StoredTensor]] = {name: [] for name in names}
                    in_shard = self._layout.shards[shard]
                    for rows in np.split(in_shard, range(batch_size, len(in_shard), batch_size)):
                        features = compute(rows, names)
                        for name in names:
                            self._check_finite(features, name, rows)
                            parts[name].append(_unpadded(features, name, self.dtype))
                        steps.advance(len(rows))
                    for name, found in parts.items():
                        data = torch.cat([part.data for part in found])
                        self._files.save(name, shard, StoredTensor(data, found[0].of_tokens))
            # read back, because what was written is trusted no more than what was found
            if self._reader.load(wanted.names()):
                raise CacheError(f"{self.folder}: files changed while they were written. Run the same command again.")

    def _check_finite(self, features: Features, name: str, rows: np.ndarray) -> None:
        """Raise where the teacher computed nan or inf for a real token: what is kept is believed by every run."""
        value = features[name]
        finite = value.isfinite()
        finite = finite.all(-1) | ~features.mask if value.dim() == 3 else finite
        wrong = (~finite.flatten(1).all(1)).nonzero()
        if len(wrong):
            number = self.encoded[int(rows[int(wrong[0])])]["id"]
            raise ModelError(
                f"The teacher computes nan or inf ({name}) for the example with id {number}: its weights are damaged "
                "or too large. Fine-tune it again with a lower train.learning_rate."
            )

    def read(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        """Return the features of a padded batch, found by its ``ids``; zeros where there is padding."""
        if "ids" not in batch:
            raise CacheError("Features are found by the examples' ids, and this batch has none: add a tensor 'ids'.")
        mask, names = batch["attention_mask"].bool(), wanted.names()
        rows = self._rows_of(batch["ids"].tolist(), mask.sum(1).tolist())
        first = mask.byte().argmax(1).tolist()
        if not self._reader.has_loaded(names, rows) and self._reader.load(names):
            raise CacheError(f"{self.folder} does not hold all of {', '.join(names)}: fill it first.")
        tensors = {name: self._reader.read(name, rows, first, mask.shape[1]) for name in names}
        return Features.named(mask, {name: tensor.to(mask.device) for name, tensor in tensors.items()})

    def logits(self) -> Logits:
        """Return the logits of every example, in their order."""
        lengths = self._layout.lengths
        if not self._reader.has_token_rows("logits"):
            return self._reader.read("logits", range(len(lengths))).numpy()
        return [self._reader.read("logits", [row], [0], int(length))[0].numpy() for row, length in enumerate(lengths)]

    def _rows_of(self, ids: list[int], lengths: list[int]) -> list[int]:
        rows = []
        for number, row, length in zip(ids, self._layout.rows_of(ids), lengths, strict=True):
            if row is None or self._layout.lengths[row] != length:
                seen = "it is not among them" if row is None else f"there it has {self._layout.lengths[row]}"
                raise CacheError(
                    f"The example with id {number} ({length} tokens) was asked of a cache of other examples: {seen}. "
                    f"Cache the data that you train on, or set teacher.cache=off. Cache: {self.folder}"
                )
            rows.append(row)
        return rows

    def _bytes(self, model: Model, names: Mapping[int, list[str]]) -> int:
        numbers = sum(count_numbers(model, some, *self._layout.size(shard)) for shard, some in names.items())
        return self.dtype.itemsize * numbers


class CachedTeacher:
    """Read what the frozen teacher computed before: the same call as a LiveTeacher, the same result."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        return self.cache.read(batch, wanted)


def count_numbers(model: Model, names: Iterable[str], examples: int, tokens: int) -> int:
    """Count the numbers that the tensors of these names hold for so many examples with so many tokens."""
    numbers = 0
    for name in names:
        kind = name.partition(".")[0]
        width = model.config.num_labels if kind == "logits" else width_of(model, kind)
        of_examples = kind in POOLED or (kind == "logits" and not decides_tokens(model))
        numbers += width * (examples if of_examples else tokens)
    return numbers


def _unpadded(features: Features, name: str, dtype: torch.dtype) -> StoredTensor:
    value = features[name]
    of_tokens = value.dim() == 3
    value = value[features.mask] if of_tokens else value
    kept = value.to("cpu", dtype)
    if dtype == torch.float16 and kept.isinf().any():
        raise CacheError(
            f"{name} of this teacher reaches {value.abs().max():,.0f}, more than float16 can hold. "
            "Set teacher.cache_dtype to bfloat16 or float32 (and a new folder)."
        )
    return StoredTensor(kept, of_tokens)

"""The teacher's features on disk: computed once, unpadded, memory-mapped, and checked before they are believed.

A cache is a folder with one safetensors file for each tensor and shard, e.g. ``hidden.6-00003.safetensors``. Where an
example's features lie follows from the lengths of the examples alone. Each file is written under a temporary name and
renamed, and says itself what it holds (made for which teacher and data, which tensor and shard) with a checksum: either
a file is whole and right, or it is computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from limbeck._internal.files import readable_size, replacing, write_text
from limbeck._internal.progress import progress
from limbeck._internal.tensors import tensor_bytes
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError
from limbeck.models.families import decides_tokens, width_of
from limbeck.models.features import POOLED, Features, Wanted
from limbeck.tasks.task import Logits

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("limbeck")

TOKENS_IN_A_SHARD = 16_384  # of one tensor 768 wide in float32: 50 MB
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_FORMAT = 1
_MANIFEST = "manifest.json"
VALIDATION = "validation"  # the folder inside a cache for what teachers predict of validation data
_PARTS = {
    "teacher": "the teacher's weights or config",
    "tokenizer": "the tokenizer",
    "data": "the training data",
    "max_length": "task.max_length",
    "dtype": "teacher.cache_dtype",
    "format": "the format (another version of limbeck)",
}


class _Shard(NamedTuple):
    """One tensor of one shard, mapped from its file."""

    data: Tensor  # a row for each token, or for each example
    of_tokens: bool


class FeatureCache:
    """What a teacher computes for the examples of ``encoded``, kept in ``folder``.

    ``made_for`` is the fingerprint of teacher and data. A folder that was made for others is refused.
    """

    def __init__(self, folder: Path, encoded: Dataset, made_for: Mapping[str, str], dtype: str = "float32") -> None:
        self.folder, self.encoded, self.dtype = Path(folder), encoded, DTYPES[dtype]
        self.made_for = {**made_for, "dtype": dtype, "format": f"{_FORMAT}, {TOKENS_IN_A_SHARD} tokens in a shard"}
        self.digest = hashlib.sha256(json.dumps(self.made_for, sort_keys=True).encode()).hexdigest()
        self._row_of_id: dict[int, int] = {}
        for row, number in enumerate(encoded["id"]):
            if self._row_of_id.setdefault(number, row) != row:
                raise CacheError(f"Two examples have the id {number}, so their features cannot be told apart.")
        self.lengths = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
        self.rows = _shards(self.lengths)
        self._open: dict[tuple[str, int], _Shard] = {}
        self._check_manifest()

    def estimate(self, model: Any, wanted: Wanted) -> int:
        """Bytes that these features take in whole."""
        return self._bytes(model, dict.fromkeys(range(len(self.rows)), wanted.names()))

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
        if not self._missing(wanted):
            return
        with self._locked():
            self._begin()
            missing = self._missing(wanted, warn=True)
            self._check_space(teacher.model, missing)
            with progress("compute the teacher's features", sum(len(self.rows[shard]) for shard in missing)) as steps:
                for shard, names in missing.items():
                    found: dict[str, list[_Shard]] = {name: [] for name in names}
                    for rows in np.split(self.rows[shard], range(batch_size, len(self.rows[shard]), batch_size)):
                        batch = collate([self.encoded[int(row)] for row in rows])
                        features = teacher({key: value.to(device) for key, value in batch.items()}, Wanted.named(names))
                        for name in names:
                            found[name].append(self._unpadded(features, name))
                        steps.advance(len(rows))
                    for name, parts in found.items():
                        self._write(name, shard, _Shard(torch.cat([part.data for part in parts]), parts[0].of_tokens))
            # read back, because what was written is trusted no more than what was found
            if self._missing(wanted):
                raise CacheError(f"{self.folder}: files changed while they were written. Run the same command again.")

    def read(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        """The features of a padded batch, found by its ``ids``; zeros where there is padding."""
        if "ids" not in batch:
            raise CacheError("Features are found by the examples' ids, and this batch has none: add a tensor 'ids'.")
        mask, names = batch["attention_mask"].bool(), wanted.names()
        rows = self._rows_of(batch["ids"].tolist(), mask.sum(1).tolist())
        first = mask.byte().argmax(1).tolist()
        opened = all((name, shard) in self._open for name in names for shard in self.places.shard[rows].tolist())
        if not opened and self._missing(wanted):
            raise CacheError(f"{self.folder} does not hold all of {', '.join(names)}: fill it first.")
        tensors = {name: self._read(name, rows, first, mask.shape[1]) for name in names}
        return Features.named(mask, {name: tensor.to(mask.device) for name, tensor in tensors.items()})

    def logits(self) -> Logits:
        """The logits of every example, in their order."""
        rows = range(len(self.lengths))
        if not self._open["logits", 0].of_tokens:
            return self._read("logits", list(rows), [], 0).numpy()
        return [self._read("logits", [row], [0], int(self.lengths[row]))[0].numpy() for row in rows]

    def _read(self, name: str, rows: list[int], first: list[int], width: int) -> Tensor:
        shards = [self._open[name, self.places.shard[row]] for row in rows]
        if not shards[0].of_tokens:
            found = [shard.data[self.places.example[row]] for shard, row in zip(shards, rows, strict=True)]
            return torch.stack(found).float()
        padded = torch.zeros(len(rows), width, shards[0].data.shape[1])
        for line, shard, row, left in zip(padded, shards, rows, first, strict=True):
            start, length = self.places.token[row], self.lengths[row]
            line[left : left + length] = shard.data[start : start + length]
        return padded

    def _rows_of(self, ids: list[int], lengths: list[int]) -> list[int]:
        rows = []
        for number, length in zip(ids, lengths, strict=True):
            row = self._row_of_id.get(number)
            if row is None or self.lengths[row] != length:
                seen = "it is not among them" if row is None else f"there it has {self.lengths[row]}"
                raise CacheError(
                    f"The example with id {number} ({length} tokens) was asked of a cache of other examples: {seen}. "
                    f"Cache the data that you train on, or set teacher.cache=off. Cache: {self.folder}"
                )
            rows.append(row)
        return rows

    @cached_property
    def places(self) -> _Places:
        """Where each row lies."""
        places = _Places(*(np.empty(len(self.lengths), dtype=np.int64) for _ in _Places._fields))
        for number, rows in enumerate(self.rows):
            places.shard[rows], places.example[rows] = number, np.arange(len(rows))
            places.token[rows] = np.cumsum(self.lengths[rows]) - self.lengths[rows]
        return places

    def _missing(self, wanted: Wanted, warn: bool = False) -> dict[int, list[str]]:
        """The tensors of each shard that are not there or not right; those that are, are open afterwards."""
        missing: dict[int, list[str]] = {}
        wanted_files = [(shard, name) for shard in range(len(self.rows)) for name in wanted.names()]
        with progress("check the cached features", len(wanted_files)) as steps:
            for shard, name in wanted_files:
                steps.advance()
                if (name, shard) in self._open:
                    continue
                try:
                    self._open[name, shard] = self._opened(name, shard)
                except FileNotFoundError:
                    missing.setdefault(shard, []).append(name)
                except (CacheError, OSError, safetensors.SafetensorError) as error:
                    missing.setdefault(shard, []).append(name)
                    if warn:
                        logger.warning("%s: %s. It is computed again.", self._file(name, shard), error)
        return missing

    def _opened(self, name: str, shard: int) -> _Shard:
        file = self._file(name, shard)
        if not file.exists():
            raise FileNotFoundError(file)
        with safetensors.safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            if {key: about.get(key) for key in ("fingerprint", "tensor", "shard")} != self._identity(name, shard):
                raise CacheError("the file belongs to another cache or another place in this one")
            data = opened.get_tensor(name)  # mapped, not read
        of_tokens = about.get("of") == "tokens"
        rows = int(self.lengths[self.rows[shard]].sum()) if of_tokens else len(self.rows[shard])
        if data.dtype != self.dtype or data.dim() != 2 or len(data) != rows:
            raise CacheError(f"the file holds {tuple(data.shape)} {data.dtype}, not {rows} rows of {self.dtype}")
        if about.get("sha256") != _sha256(data):
            raise CacheError("the checksum is wrong, so the file is damaged")
        return _Shard(data, of_tokens)

    def _unpadded(self, features: Features, name: str) -> _Shard:
        value = features[name]
        of_tokens = value.dim() == 3
        value = value[features.mask] if of_tokens else value
        kept = value.to("cpu", self.dtype)
        if self.dtype == torch.float16 and kept.isinf().any():
            raise CacheError(
                f"{name} of this teacher reaches {value.abs().max():,.0f}, more than float16 can hold. "
                "Set teacher.cache_dtype to bfloat16 or float32 (and a new folder)."
            )
        return _Shard(kept, of_tokens)

    def _write(self, name: str, shard: int, part: _Shard) -> None:
        about = self._identity(name, shard) | {
            "sha256": _sha256(part.data),
            "of": "tokens" if part.of_tokens else "examples",
        }
        with self._writing(), replacing(self._file(name, shard)) as temporary:
            temporary.write_bytes(safetensors.torch.save({name: part.data}, metadata=about))

    def _identity(self, name: str, shard: int) -> dict[str, str]:
        return {"fingerprint": self.digest, "tensor": name, "shard": str(shard)}

    def _file(self, name: str, shard: int) -> Path:
        return self.folder / f"{name}-{shard:05}.safetensors"

    def _check_manifest(self) -> None:
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise CacheError(f"{self.folder} is a file; a cache is a folder. Choose another place.")
        file = self.folder / _MANIFEST
        if not file.exists():
            if any(not path.name.startswith(".") and path.name != VALIDATION for path in self.folder.iterdir()):
                raise CacheError(f"{self.folder} holds other files and is no cache. Choose another folder.")
            return
        try:
            theirs = dict(json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CacheError(
                f"{file} cannot be read ({error}). Remove the folder {self.folder}: it is made again."
            ) from None
        different = [name for part, name in _PARTS.items() if theirs.get(part) != self.made_for.get(part)]
        if different:
            raise CacheError(
                f"The cache in {self.folder} was made for something else; it differs in: {', '.join(different)}. "
                "Choose another folder, or remove this one if nobody needs it."
            )

    def _begin(self) -> None:
        """Once the lock is held: nobody else has begun another cache here, and what a killed process left is gone."""
        self._check_manifest()
        with self._writing():
            for leftover in self.folder.glob(".*.*"):  # temporary files; the lock has no second dot
                leftover.unlink()
            write_text(self.folder / _MANIFEST, json.dumps(self.made_for, indent=2) + "\n")

    def _check_space(self, model: Any, missing: Mapping[int, list[str]]) -> None:
        needed, free = self._bytes(model, missing), shutil.disk_usage(self.folder).free
        if needed > free:
            raise CacheError(
                f"The teacher's features take {needed / 1e9:,.2f} GB in {self.folder}, where {free / 1e9:,.2f} GB are "
                "free. Make room, choose another folder or teacher.cache_dtype=float16, or set teacher.cache=off."
            )
        logger.info("The teacher's features take %s in %s.", readable_size(needed), self.folder)

    def _bytes(self, model: Any, names: Mapping[int, list[str]]) -> int:
        numbers = 0
        for shard, wanted in names.items():
            rows = self.rows[shard]
            numbers += count_numbers(model, wanted, len(rows), int(self.lengths[rows].sum()))
        return self.dtype.itemsize * numbers

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.folder / ".lock")
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.info("Another process is writing %s; waiting for it.", self.folder)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"The cache in {self.folder} cannot be written: {error.strerror}. What it holds already is whole: once "
                "there is room, the same command goes on from there. Or choose another folder, or teacher.cache=off."
            ) from error


class CachedTeacher:
    """Reads what the frozen teacher computed before: the same call as a LiveTeacher, the same result."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        return self.cache.read(batch, wanted)


class _Places(NamedTuple):
    """For each row: its shard, and its place there among the examples and (its first token) among the tokens."""

    shard: np.ndarray
    example: np.ndarray
    token: np.ndarray


def count_numbers(model: Any, names: Iterable[str], examples: int, tokens: int) -> int:
    """How many numbers the tensors of these names hold for so many examples with so many tokens."""
    numbers = 0
    for name in names:
        kind = name.partition(".")[0]
        width = model.config.num_labels if kind == "logits" else width_of(model, kind)
        of_examples = kind in POOLED or (kind == "logits" and not decides_tokens(model))
        numbers += width * (examples if of_examples else tokens)
    return numbers


def _shards(lengths: np.ndarray) -> list[np.ndarray]:
    """The rows of each shard, from long to short, so that batches of neighbours are hardly padded."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    shard = (ends - 1) // TOKENS_IN_A_SHARD
    return np.split(order, np.flatnonzero(np.diff(shard)) + 1)


def _sha256(data: Tensor) -> str:
    return hashlib.sha256(tensor_bytes(data)).hexdigest()

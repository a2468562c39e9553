"""Read and write the files of a cache, each of which is whole and right or not believed.

A file is written under a temporary name and renamed. It says itself what it holds (made for which teacher and data,
which tensor and shard), with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from limbeck._internal.files import readable_size, remove_leftovers, replacing, write_text
from limbeck._internal.links import refuse_links
from limbeck._internal.locks import holds_nothing, wait_for_lock
from limbeck._internal.tensors import tensor_bytes
from limbeck.distillation.cache_layout import ShardSize
from limbeck.errors import CacheError

logger = logging.getLogger("limbeck")

VALIDATION = "validation"  # the folder inside a cache for what teachers predict of validation data
_MANIFEST = "manifest.json"
_PARTS = {
    "teacher": "the teacher's weights or config",
    "tokenizer": "the tokenizer",
    "data": "the training data",
    "max_length": "task.max_length",
    "dtype": "teacher.cache_dtype",
    "format": "the format (another version of limbeck)",
}


def is_cache(folder: Path) -> bool:
    """Tell whether a folder was made for a cache."""
    return (folder / _MANIFEST).is_file()


class StoredTensor(NamedTuple):
    """Hold one tensor of one shard, without padding."""

    data: Tensor  # a row for each token, or for each example
    of_tokens: bool


@dataclass(frozen=True)
class ShardFile:
    """Read or write the file of one tensor of one shard, e.g. ``hidden.6-00003.safetensors``."""

    folder: Path
    made_for: str  # a digest
    tensor: str
    shard: int

    @property
    def path(self) -> Path:
        """Locate the file."""
        return self.folder / f"{self.tensor}-{self.shard:05}.safetensors"

    def load(self, dtype: torch.dtype, size: ShardSize) -> StoredTensor:
        """Map the tensor into memory; raise where the file is damaged, belongs elsewhere or is not there."""
        if not self.path.exists():
            raise FileNotFoundError(self.path)
        with safetensors.safe_open(self.path, "pt") as file:
            about = file.metadata() or {}
            if {key: about.get(key) for key in ("fingerprint", "tensor", "shard")} != self._identity():
                raise CacheError("the file belongs to another cache or another place in this one")
            data = file.get_tensor(self.tensor)  # mapped, not read
        of_tokens = about.get("of") == "tokens"
        rows = size.tokens if of_tokens else size.examples
        if data.dtype != dtype or data.dim() != 2 or len(data) != rows:
            raise CacheError(f"the file holds {tuple(data.shape)} {data.dtype}, not {rows} rows of {dtype}")
        if about.get("sha256") != self._checksum():
            raise CacheError("the checksum is wrong, so the file is damaged")
        return StoredTensor(data, of_tokens)

    def save(self, stored: StoredTensor) -> None:
        """Write the file, whole or not at all."""
        about = self._identity() | {
            "sha256": hashlib.sha256(tensor_bytes(stored.data)).hexdigest(),
            "of": "tokens" if stored.of_tokens else "examples",
        }
        with replacing(self.path) as temporary:
            temporary.write_bytes(safetensors.torch.save({self.tensor: stored.data}, metadata=about))

    def _checksum(self) -> str:
        """Read what lies behind the header, without the whole of it in memory, mapped or not."""
        with self.path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            file.seek(8 + header)
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _identity(self) -> dict[str, str]:
        return {"fingerprint": self.made_for, "tensor": self.tensor, "shard": str(self.shard)}


class CacheFolder:
    """Keep a folder for one cache: what it was made for, one writer at a time, and errors that say what to do."""

    def __init__(self, path: Path, made_for: Mapping[str, str]) -> None:
        self.path, self.made_for = path, dict(made_for)
        self._digest = hashlib.sha256(json.dumps(self.made_for, sort_keys=True).encode()).hexdigest()

    def file(self, tensor: str, shard: int) -> ShardFile:
        """Point to the file of one tensor of one shard."""
        return ShardFile(self.path, self._digest, tensor, shard)

    def check(self) -> None:
        """Raise where the folder was made for another teacher or other data, or holds something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise CacheError(f"{self.path} is a file; a cache is a folder. Choose another place.")
        file = self.path / _MANIFEST
        if not file.exists():
            if not holds_nothing(self.path, beside=_validation_caches(self.path)):
                raise CacheError(f"{self.path} holds other files and is no cache. Choose another folder.")
            return
        try:
            theirs = dict(json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CacheError(
                f"{file} cannot be read ({error}). Remove the folder {self.path}: it is made again."
            ) from None
        different = [name for part, name in _PARTS.items() if theirs.get(part) != self.made_for.get(part)]
        if different:
            raise CacheError(
                f"The cache in {self.path} was made for something else; it differs in: {', '.join(different)}. "
                "Choose another folder, or remove this one if nobody needs it."
            )

    def check_space(self, needed: int) -> None:
        """Raise where the disk has not so many bytes free."""
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise CacheError(
                f"The teacher's features take {needed / 1e9:,.2f} GB in {self.path}, where {free / 1e9:,.2f} GB are "
                "free. Make room, choose another folder or teacher.cache_dtype=float16, or set teacher.cache=off."
            )
        logger.info("The teacher's features take %s in %s.", readable_size(needed), self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder ready to be written into, by nobody else; wait for another process that is at it."""
        refuse_links(self.path)
        with self._explain_errors():
            lock = wait_for_lock(self.path)
        with lock:
            self.check()  # again: somebody else may have begun another cache before the lock was ours
            with self._explain_errors():
                write_text(self.path / _MANIFEST, json.dumps(self.made_for, indent=2) + "\n")
                remove_leftovers(self.path)  # which is a cache's now
            yield

    def save(self, tensor: str, shard: int, stored: StoredTensor) -> None:
        """Write one file."""
        with self._explain_errors():
            self.file(tensor, shard).save(stored)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"The cache in {self.path} cannot be written: {error.strerror}. What it holds already is whole: once "
                "there is room, the same command goes on from there. Or choose another folder, or teacher.cache=off."
            ) from error


def _validation_caches(folder: Path) -> tuple[str, ...]:
    """Name the folder of the caches for validation data, which may be made first; one of another kind is not named."""
    inner = folder / VALIDATION
    ours = inner.is_dir() and all(
        one.is_dir() and ((one / _MANIFEST).is_file() or holds_nothing(one)) for one in inner.iterdir()
    )
    return (VALIDATION,) if ours else ()

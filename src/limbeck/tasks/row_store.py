"""Keep encoded rows in a temporary file that is gone with the process: memory holds only where each of them begins."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from limbeck.errors import RecipeError

_NUMBER = np.dtype(np.int32)


class RowStore:
    """Hold rows of lists of whole numbers, all lists of a row of one length: token ids, and what else each token has.

    Rows are read one by one with ``pread``, not mapped: memory stays the same however many are read.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="limbeck-rows-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)  # open as long as the store
        self.names: tuple[str, ...] = ()
        self._sizes: list[np.ndarray] = []
        self._ends = np.zeros(1, dtype=np.int64)
        self._digest = hashlib.sha256()

    def append(self, columns: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Add rows; every call has the same columns."""
        self.names = tuple(columns)
        sizes = np.fromiter(map(len, columns[self.names[0]]), dtype=_NUMBER)
        rows = zip(*columns.values(), strict=True)
        numbers = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), dtype=_NUMBER)
        self._file.write(numbers.tobytes())
        self._digest.update(sizes.tobytes())
        self._digest.update(numbers.tobytes())
        self._sizes.append(sizes)

    def close_writing(self) -> None:
        """Make what was appended readable."""
        self._file.flush()
        sizes = np.concatenate([np.empty(0, _NUMBER), *self._sizes])
        self._sizes = []
        self._ends = np.concatenate([self._ends, np.cumsum(sizes, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Return how long the lists of each row are."""
        return np.diff(self._ends)

    @property
    def digest(self) -> str:
        """Return a short text that differs where any row does."""
        return self._digest.hexdigest()

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        start, end = self._ends[row : row + 2].tolist()
        width, size = len(self.names), _NUMBER.itemsize
        data = os.pread(self._file.fileno(), (end - start) * width * size, start * width * size)
        numbers = np.frombuffer(data, dtype=_NUMBER).reshape(width, end - start)
        return dict(zip(self.names, numbers.tolist(), strict=True))

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        return (self[row] for row in range(len(self)))

    def __getstate__(self) -> Any:
        raise RecipeError(
            "Unlabelled rows lie in a file of this process, which processes that load data can share only where they "
            "are forked: set train.dataloader_multiprocessing_context=fork, or train.dataloader_num_workers=0."
        )

"""Read rows without labels, from any number of files of any size: some rows at a time, never all at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from limbeck._internal.files import expand_home
from limbeck.errors import DataError, RecipeError
from limbeck.tasks.checked_texts import checked_ids, checked_texts
from limbeck.tasks.chunks import read_chunks
from limbeck.tasks.files import Columns, check_exists, lines
from limbeck.tasks.held_out import content_hash, text_key

KEY = "key"  # the column with the ids that the user gave the rows, where they have any
SHARE = 0.5  # of the rows of a step, unless the recipe says otherwise
ROWS = 2_000  # read at a time
_PLAIN = (".txt", ".text", "")
_BLOCK = 1 << 20  # bytes

Rows = dict[str, list[Any]]  # columns of equal length
Reader = Callable[[str], Iterator[Rows]]  # the rows of one file, some at a time


class Part(NamedTuple):
    """Hold some of the rows, and how many beside them were left out."""

    rows: Rows
    left_out: int


@dataclass(frozen=True)
class Unlabelled:
    """Hold what a task has beside its labelled rows. A row whose texts are those of a labelled one is left out.

    What the student is scored on must not be among what it learns from, with or without a label.
    """

    paths: tuple[str, ...]
    read: Reader = field(repr=False)
    text_columns: tuple[str, ...]
    share: float  # of the rows of a step
    labelled: frozenset[int] = field(repr=False)  # hashes of the texts of all labelled rows

    @classmethod
    def of(
        cls,
        paths: str | Sequence[str] | None,
        share: float | None,
        read: Reader,
        text_columns: tuple[str, ...],
        splits: Mapping[str, Rows],
    ) -> Unlabelled | None:
        """Check what a task's options say; None where they name no files. ``splits`` are the labelled rows."""
        if paths is None:
            if share is not None:
                raise RecipeError("task.unlabelled_share is the share of unlabelled rows: name them, task.unlabelled.")
            return None
        names = (paths,) if isinstance(paths, str) else tuple(paths)
        if not names or not all(names):
            raise RecipeError("task.unlabelled names no file. Give the path of a file, or a list of paths.")
        share = SHARE if share is None else share
        if not 0 < share < 1:
            raise RecipeError(
                f"task.unlabelled_share is {share:g}, but steps mix both kinds: more than 0, less than 1."
            )
        for name in names:
            check_exists(expand_home(name))
        labelled = {place for rows in splits.values() for place in _places(rows, text_columns)}
        found = cls(names, read, text_columns, share, frozenset(labelled))
        if not any(part.rows[text_columns[0]] for part in found.parts()):
            raise DataError(
                f"{', '.join(names)}: every row has the text of a labelled row, and is left out. Give other texts."
            )
        return found

    def parts(self) -> Iterator[Part]:
        """Yield the rows, in their order, some at a time."""
        for path in self.paths:
            for rows in self.read(path):
                kept = [row for row, at in enumerate(_places(rows, self.text_columns)) if at not in self.labelled]
                every = len(rows[self.text_columns[0]])
                if len(kept) < every:
                    rows = {name: [column[row] for row in kept] for name, column in rows.items()}
                yield Part(rows, every - len(kept))

    def texts(self) -> Iterator[str]:
        """Yield all texts, those of a pair one after the other."""
        for part in self.parts():
            for name in self.text_columns:
                yield from (_joined(cell) for cell in part.rows[name])

    def digest(self) -> str:
        """Return a short text that differs where the files do."""
        digest = hashlib.sha256("\n".join(self.text_columns).encode())
        for path in self.paths:
            with expand_home(path).open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()


def _places(rows: Rows, text_columns: Sequence[str]) -> Iterator[int]:
    for cells in zip(*(rows[name] for name in text_columns), strict=True):
        yield content_hash(text_key(*map(_joined, cells)))


def _joined(cell: Any) -> str:
    return cell if isinstance(cell, str) else " ".join(cell)


def text_rows(path: str, columns: Sequence[str], id_column: str | None = None) -> Iterator[Rows]:
    """Read texts: the named columns of a table, or the lines of a plain text file that are not empty."""
    if not is_plain(path):
        for chunk in read_chunks(path, [*columns, *([id_column] if id_column else [])], ROWS):
            rows: Rows = dict(checked_texts(chunk, columns))
            yield rows | ({KEY: checked_ids(chunk, id_column)} if id_column else {})
        return
    if len(columns) > 1 or id_column:
        needed = " and ".join([*columns, *([id_column] if id_column else [])])
        raise RecipeError(
            f"task.unlabelled: {path} is plain text, but the columns {needed} are needed. Give a table that has them."
        )
    for chunk in plain_chunks(path, columns[0]):
        yield chunk.values


def plain_chunks(path: str, column: str) -> Iterator[Columns]:
    """Read the lines of a plain text file as a column of that name; empty ones are no rows."""
    found = expand_home(path)
    numbered = ((number, line.strip()) for number, line in enumerate(lines(found), start=1))
    there = ((number, text) for number, text in numbered if text)
    seen = False
    for chunk in _in_parts(there):
        seen = True
        numbers, texts = zip(*chunk, strict=True)
        yield Columns(found, "line", numbers, {column: list(texts)})
    if not seen:
        raise DataError(f"{path} has no text. Check that it was written completely.")


def _in_parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    items = iter(items)
    while part := list(islice(items, ROWS)):
        yield part


def is_plain(path: str) -> bool:
    """Tell whether a file's name says that it is plain text."""
    return Path(path).suffix.lower() in _PLAIN

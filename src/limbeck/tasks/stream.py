"""Read the texts of a file of any size, one after the other: plain lines, or a column of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from limbeck._internal.files import expand_home
from limbeck._internal.progress import Steps
from limbeck.errors import DataError, RecipeError
from limbeck.tasks.cells import arrow_cells
from limbeck.tasks.files import check_exists, csv_rows, file_format, jsonl_rows, lines, pick, tsv_table_rows
from limbeck.tasks.held_out import HASH_RANGE, content_hash, text_key
from limbeck.tasks.labels import is_missing

_PLAIN = (".txt", ".text", "")


@dataclass(frozen=True)
class Texts:
    """Iterate over the non-empty texts of a file, which is read anew each time.

    With ``limit``, only the texts whose hash is below it (``held_out``) or only the others: whatever their order, and
    equal texts are on one side.
    """

    path: str
    column: str | None = None
    limit: int = 0
    held_out: bool = False

    def __post_init__(self) -> None:
        check_exists(expand_home(self.path))
        plain = Path(self.path).suffix.lower() in _PLAIN
        if plain and self.column is not None:
            raise RecipeError(
                f"task.text names the column '{self.column}', but {self.path} is plain text without columns."
            )
        if not plain and self.column is None:
            file_format(self.path)  # an unknown extension is the first thing to say
            raise RecipeError(f"{self.path} is a table: name its text column, e.g. task.text=sentence.")

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return expand_home(self.path).stat().st_size

    def __iter__(self) -> Iterator[str]:
        for text in filter(None, map(str.strip, self._all())):
            if not self.limit or (_place(text) < self.limit) == self.held_out:
                yield text

    def split_off(self, share: float) -> tuple[Texts, Texts]:
        """Return the texts without about this share of them, and that share: at least one of two different texts."""
        limit = self._limit(round(share * HASH_RANGE))
        return replace(self, limit=limit), replace(self, limit=limit, held_out=True)

    def _limit(self, limit: int) -> int:
        """Move the limit where all of a small file is on one side of it; of a large one, the start is read."""
        least, most = HASH_RANGE, -1
        for text in self:
            place = _place(text)
            least, most = min(least, place), max(most, place)
            if least < limit <= most:
                return limit
        return least + 1 if least >= limit else max(most, 1)

    def advancing(self, steps: Steps) -> Iterator[str]:
        """Yield the texts, and show progress in bytes."""
        for text in self:
            yield text
            steps.advance(len(text.encode()) + 1)

    def _all(self) -> Iterator[str]:
        path = expand_home(self.path)
        if self.column is None:
            return lines(path)
        return _column(path, self.column)


def _place(text: str) -> int:
    return content_hash(text_key(text))


def _column(path: Path, name: str) -> Iterator[str]:
    kind = file_format(path)
    if kind == "parquet":
        cells = _parquet_cells(path, name)
    elif kind == "jsonl":
        cells = _jsonl_cells(path, name)
    else:
        rows = csv_rows(path) if kind == "csv" else tsv_table_rows(path)
        header = next(rows, None)
        if header is None:
            raise DataError(f"{path} is empty. Its first line must hold the names of the columns.")
        names = [cell.strip() for cell in header[1]]
        pick(path, names, [name], [])
        place = names.index(name)
        cells = ((f"line {number}", row[place]) for number, row in rows)
    for where, cell in cells:
        if isinstance(cell, (list, tuple, dict)):
            raise DataError(f"{path}, {where}: column '{name}' holds a {type(cell).__name__}, but text is needed.")
        yield "" if is_missing(cell) else str(cell)


def _jsonl_cells(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    for number, row in jsonl_rows(path, [name]):
        if name not in row:
            pick(path, list(row), [name], [])
        yield f"line {number}", row[name]


def _parquet_cells(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            pick(path, file.schema_arrow.names, [name], [])
            for batch in file.iter_batches(batch_size=1_000, columns=[name]):
                for cell in arrow_cells(batch.column(0), f"{path}, column '{name}'", number + 1):
                    number += 1
                    yield f"row {number}", cell
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Write or copy it again.") from error

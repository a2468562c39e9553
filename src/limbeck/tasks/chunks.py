"""Read tables that need not fit into memory: some rows at a time, by the rules of ``files``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from limbeck._internal.files import expand_home
from limbeck.errors import DataError
from limbeck.tasks.cells import arrow_cells
from limbeck.tasks.files import (
    Columns,
    check_exists,
    csv_rows,
    file_format,
    is_quoted,
    jsonl_rows,
    pick,
    tsv_table_rows,
    unwrapped,
)

_FIRST = 100  # rows of JSONL whose keys are its columns


def read_chunks(path: str | Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    """Read the ``wanted`` columns of a file, at most ``rows`` rows at a time."""
    path = expand_home(path)
    kind = file_format(path)
    check_exists(path)
    reader = {"csv": _csv, "tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet}[kind]
    seen = False
    for chunk in reader(path, wanted, rows):
        seen = True
        yield chunk
    if not seen:
        raise DataError(f"{path} has no rows. Check that it was written completely.")


def column_names(path: str | Path) -> list[str]:
    """Return the names of a file's columns; of JSONL, those of its first rows."""
    path = expand_home(path)
    kind = file_format(path)
    check_exists(path)
    if kind == "jsonl":
        names: dict[str, None] = {}
        for _, row in islice(jsonl_rows(path, ()), _FIRST):
            names.update(dict.fromkeys(row))
        return list(names)
    if kind == "parquet":
        return _parquet_names(path)
    header = next(iter(csv_rows(path) if kind == "csv" else tsv_table_rows(path)), None)
    return [name.strip() for name in header[1]] if header else []


def _parquet_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Write or copy it again.") from error


def _csv(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    return _of_cells(path, csv_rows(path), wanted, rows)


def _tsv(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    # a quote at the very end may show that the others are data
    quoted = is_quoted(
        cell
        for chunk in _of_cells(path, tsv_table_rows(path), wanted, rows)
        for column in chunk.values.values()
        for cell in column
    )
    for chunk in _of_cells(path, tsv_table_rows(path), wanted, rows):
        if quoted:
            chunk.values.update({name: list(map(unwrapped, column)) for name, column in chunk.values.items()})
        yield chunk


def _of_cells(
    path: Path, lines: Iterable[tuple[int, list[str]]], wanted: Sequence[str], rows: int
) -> Iterator[Columns]:
    lines = iter(lines)
    header = next(lines, None)
    if header is None:
        raise DataError(f"{path} is empty. Its first line must hold the names of the columns.")
    names = [name.strip() for name in header[1]]
    places = {name: names.index(name) for name in pick(path, names, wanted, ())}
    while chunk := list(islice(lines, rows)):
        values = {name: [cells[place] for _, cells in chunk] for name, place in places.items()}
        yield Columns(path, "line", [number for number, _ in chunk], values)


def _jsonl(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    lines = jsonl_rows(path, wanted)
    names: dict[str, Any] = {}
    while chunk := list(islice(lines, rows)):
        if not names:  # what lacks a column later on is one row, which has its own message
            for _, row in chunk:
                names.update(row)
            pick(path, list(names), wanted, ())
        values = {name: [row.get(name) for _, row in chunk] for name in wanted}
        yield Columns(path, "line", [number for number, _ in chunk], values)


def _parquet(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Columns]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 1
    try:
        with pq.ParquetFile(path) as file:
            picked = pick(path, file.schema_arrow.names, wanted, ())
            for batch in file.iter_batches(rows, columns=picked):
                values = {name: arrow_cells(batch.column(name), f"{path}, column '{name}'", first) for name in picked}
                yield Columns(path, "row", range(first, first + len(batch)), values)
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        after = f" after row {first - 1:,}" if first > 1 else ""
        raise DataError(f"{path} is not a readable Parquet file{after} ({error}). Write or copy it again.") from error

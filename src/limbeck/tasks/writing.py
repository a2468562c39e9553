"""Write tables: CSV, JSONL and Parquet, all at once or some rows at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from limbeck._internal.files import replacing
from limbeck._internal.machine import out_of_memory
from limbeck._internal.spreadsheets import CsvWriter, warn_of_guards
from limbeck.errors import DataError
from limbeck.tasks.files import file_format

Append = Callable[[Mapping[str, Any]], None]  # takes columns of equal length


def write_table(path: str | Path, columns: Mapping[str, Any], *, raw_csv: bool = False) -> None:
    """Write CSV, JSONL or Parquet by extension. The file appears complete or not at all."""
    with table_writer(path, raw_csv=raw_csv) as append:
        append(columns)


@contextmanager
def table_writer(path: str | Path, *, overwrite: bool = True, raw_csv: bool = False) -> Iterator[Append]:
    """Give a function that appends rows to the same kinds of file; every call has the same columns.

    Without ``overwrite``, a file that appears meanwhile is left alone, and the rows are kept beside it. Texts in CSV
    that a spreadsheet would take for formulas get an apostrophe before them, unless ``raw_csv``.
    """
    path = Path(path)
    writers: dict[str, Callable[[Path], AbstractContextManager[Append]]] = {
        "csv": partial(_csv, path, raw_csv),
        "jsonl": _jsonl,
        "parquet": _parquet,
    }
    writer = writers[file_format(path, writing=True)]

    def append_plain(columns: Mapping[str, Any]) -> None:
        plain = {  # numpy's scalars are neither JSON nor what a reader of a CSV expects
            name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in columns.items()
        }
        if len({len(values) for values in plain.values()}) > 1:
            raise ValueError(f"columns differ in length: { {name: len(v) for name, v in plain.items()} }")
        append(plain)

    try:
        with replacing(path, overwrite=overwrite) as temporary, writer(temporary) as append:
            yield append_plain
    except OSError as error:
        if out_of_memory(error):
            raise
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error


@contextmanager
def _csv(shown: Path, raw: bool, path: Path) -> Iterator[Append]:
    """Write to ``path``, which will be ``shown``."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = CsvWriter(file, raw)

        def append(columns: Mapping[str, Any]) -> None:
            if file.tell() == 0:
                writer.write([columns])
            writer.write(zip(*columns.values(), strict=True))

        yield append
    warn_of_guards(writer.guarded, shown, "--raw-csv (raw_csv=True in Python) writes every text as it is.")


@contextmanager
def _jsonl(path: Path) -> Iterator[Append]:
    with path.open("w", encoding="utf-8") as file:

        def append(columns: Mapping[str, Any]) -> None:
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

        yield append


@contextmanager
def _parquet(path: Path) -> Iterator[Append]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writers: list[Any] = []  # one, once the first rows tell the types

    def append(columns: Mapping[str, Any]) -> None:
        table = pa.table(dict(columns), schema=writers[0].schema if writers else None)
        if not writers:
            writers.append(pq.ParquetWriter(path, table.schema))
        writers[0].write_table(table)

    try:
        yield append
    finally:
        for writer in writers:
            writer.close()

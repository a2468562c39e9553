"""Read tables: CSV, TSV, JSONL and Parquet, with errors that name the file and the line.

Lines are split on line feeds only and decoded one by one, so that an error knows its line and unusual
characters inside a text (U+2028, vertical tabs) never break a row.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck._internal.files import expand_home
from limbeck.errors import DataError
from limbeck.tasks.cells import arrow_cells, check_encodable, parse_json

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class Columns:
    """Hold some columns of one file, in file order, with each row's number as its reader sees it."""

    path: Path
    unit: str  # "line" or, for Parquet, "row"
    numbers: Sequence[int]
    values: dict[str, list[Any]]

    def where(self, *rows: int) -> str:
        """Name rows in a message: ``data/train.csv, line 7`` or ``data/train.csv, lines 7, 9``."""
        numbers = ", ".join(str(self.numbers[row]) for row in rows)
        return f"{self.path}, {self.unit}{'s' if len(rows) > 1 else ''} {numbers}"


def file_format(path: str | Path, *, writing: bool = False) -> str:
    """Return the format that a file name's extension stands for; an unknown one is an error."""
    suffix = Path(path).suffix.lower()
    known = [ending for ending, kind in _FORMATS.items() if not (writing and kind == "tsv")]
    if suffix not in known:
        raise DataError(
            f"{path}: the extension '{suffix}' is not supported. Use one of {', '.join(known)}."
            if suffix
            else f"{path}: the file name has no extension. Give it one of {', '.join(known)}."
        )
    return _FORMATS[suffix]


def read_columns(path: str | Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> Columns:
    """Read the ``wanted`` columns and those of ``optional`` that exist; nothing else is kept."""
    path = expand_home(path)
    kind = file_format(path)
    check_exists(path)
    reader = {"csv": _read_csv, "tsv": _read_tsv, "jsonl": _read_jsonl, "parquet": _read_parquet}[kind]
    columns = reader(path, wanted, optional)
    if not columns.numbers:
        raise DataError(f"{path} has no rows. Check that it was written completely.")
    return columns


def check_exists(path: Path) -> None:
    """Raise a DataError that suggests similar names in the same folder, if ``path`` is not a file."""
    if path.is_file():
        return
    if path.is_dir():
        raise DataError(f"{path} is a folder, but a file is needed.")
    if not path.parent.is_dir():
        raise DataError(f"{path} does not exist, nor does its folder. Relative paths start from {Path.cwd()}.")
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    raise DataError(f"{path} does not exist.{guess}")


def tsv_rows(path: Path) -> Iterator[tuple[int, list[str], bool]]:
    """Yield (line number, cells, ends with a newline) without any quoting; blank lines at the end are dropped."""
    blank: list[int] = []
    for number, line in enumerate(lines(path), start=1):
        bare = line.rstrip("\r\n")
        if not bare:
            blank.append(number)
            continue
        yield from ((skipped, [""], True) for skipped in blank)
        blank.clear()
        yield number, bare.split("\t"), line.endswith("\n")


def width_error(path: Path, number: int, seen: int, expected: int, complete: bool, remedy: str) -> DataError:
    """Return the error for a row with too few or too many cells; a short last line gets its own."""
    if not complete and seen < expected:
        return cut_off(path, number, f"it has {seen} of {expected} columns")
    return DataError(f"{path}, line {number}: {seen} columns were found, {expected} expected. {remedy}")


def cut_off(path: Path, number: int, seen: str) -> DataError:
    """Return the error for a last line that stops in the middle."""
    return DataError(
        f"{path}, line {number}: the file looks cut off in its last line ({seen}, and no newline follows). "
        "Copy or download it again, or delete that line."
    )


def unquoted(columns: Sequence[list[str]]) -> Sequence[list[str]]:
    """Undo CSV quoting inside a TSV, if the file has it; otherwise quotes are data and stay."""
    if not is_quoted(cell for column in columns for cell in column):
        return columns
    return [[unwrapped(cell) for cell in column] for column in columns]


def is_quoted(cells: Iterable[str]) -> bool:
    """Tell whether the cells of a TSV are quoted as in a CSV.

    They are only if every cell with a quote is wrapped in quotes and doubles its inner ones, as any CSV writer does,
    and at least one inner quote proves it. One stray quote shows that they are not.
    """
    proven = False
    for cell in cells:
        if '"' in cell:
            if not _is_wrapped(cell):
                return False
            proven = proven or '""' in cell[1:-1]
    return proven


def unwrapped(cell: str) -> str:
    """Undo the CSV quoting of one cell."""
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def _is_wrapped(cell: str) -> bool:
    inside = cell[1:-1].replace('""', "")
    return len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inside


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file one by one; a byte that is not UTF-8 is an error that names its line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8. "
                    "Save the file with UTF-8 encoding and try again."
                ) from error


def pick(path: Path, names: Sequence[str], wanted: Sequence[str], optional: Sequence[str]) -> list[str]:
    """Return the columns to read, once it is certain that they exist and are not ambiguous."""
    for name in wanted:
        if name in names:
            continue
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        if len(names) == 1 and (separators := [s for s in ";\t|" if s in names[0]]):
            hint = f" The file seems to be separated by {separators[0]!r}: save it with commas."
        listed = ", ".join(f"'{known}'" for known in names)
        raise DataError(f"{path} has no column '{name}'. Its columns are {listed}.{hint}")
    picked = [*wanted, *(name for name in optional if name in names)]
    for name in picked:
        if list(names).count(name) > 1:
            raise DataError(f"{path} has more than one column '{name}'. Rename all but one of them.")
    return picked


def _collect(
    path: Path, rows: Iterable[tuple[int, list[str]]], wanted: Sequence[str], optional: Sequence[str]
) -> Columns:
    rows = iter(rows)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{path} is empty. Its first line must hold the names of the columns.")
    names = [name.strip() for name in header[1]]
    picked = pick(path, names, wanted, optional)
    numbers: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in picked}
    targets = [(values[name].append, names.index(name)) for name in picked]
    for number, cells in rows:
        numbers.append(number)
        for append, position in targets:
            append(cells[position])
    return Columns(path, "line", numbers, values)


def _read_csv(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Columns:
    return _collect(path, csv_rows(path), wanted, optional)


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each row that is not blank, the header first; all have the header's width."""
    csv.field_size_limit(2**31 - 1)  # a whole document in one cell is fine
    reader = csv.reader(lines(path), strict=True)
    width = 0
    start = 1
    try:
        for cells in reader:
            width = width or len(cells)
            if cells and len(cells) != width:
                raise DataError(
                    f"{path}, line {start}: {len(cells)} columns were found, {width} expected. "
                    "Put double quotes around a text that contains a comma; check that the file is complete."
                )
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}: the row that starts in line {start} is not valid CSV ({error}). "
            "Look for a double quote that is not closed, or not doubled inside a quoted text."
        ) from error


def _read_tsv(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Columns:
    columns = _collect(path, tsv_table_rows(path), wanted, optional)
    plain = unquoted(list(columns.values.values()))
    columns.values.update(zip(columns.values, plain, strict=True))
    return columns


def tsv_table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each row, the header first; all have the header's width."""
    width = 0
    for number, cells, complete in tsv_rows(path):
        width = width or len(cells)
        if len(cells) != width:
            remedy = "A TSV cell cannot hold a tab or a line break: remove it, or use CSV or JSONL."
            raise width_error(path, number, len(cells), width, complete, remedy)
        yield number, cells


def _read_jsonl(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Columns:
    numbers: list[int] = []
    names: dict[str, None] = {}
    values: dict[str, list[Any]] = {name: [] for name in (*wanted, *optional)}
    for number, row in jsonl_rows(path, [*wanted, *optional]):
        names.update(dict.fromkeys(row))
        numbers.append(number)
        for name, column in values.items():
            column.append(row.get(name))
    if not numbers:
        raise DataError(f"{path} is empty. Every line must hold one JSON object.")
    picked = pick(path, list(names), wanted, optional)
    return Columns(path, "line", numbers, {name: values[name] for name in picked})


def jsonl_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank; what these names hold can be encoded as UTF-8."""
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, f"{path}, line {number}")
        except json.JSONDecodeError as error:
            if number > 1 and not line.endswith("\n"):
                raise cut_off(path, number, f"it ends with {line[-20:]!r}") from error
            row = None
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: {line.strip()[:40]!r} is not a JSON object. Every line must hold "
                'one whole object such as {"text": "...", "label": "..."}, without brackets around the file.'
            )
        if "\\ud" in line.lower():  # an escaped surrogate, which may lack its other half
            check_encodable([list(row), [row.get(name) for name in names]], f"{path}, line {number}")
        yield number, row


def _read_parquet(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            picked = pick(path, file.schema_arrow.names, wanted, optional)
            table = file.read(columns=picked)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Write or copy it again.") from error
    values = {name: arrow_cells(table.column(name), f"{path}, column '{name}'") for name in picked}
    return Columns(path, "row", range(1, table.num_rows + 1), values)

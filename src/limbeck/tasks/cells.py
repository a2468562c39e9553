"""Turn what JSON and Parquet hold into cells that a tokenizer can read, or say in which row one cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from limbeck.errors import DataError


def parse_json(text: str, where: str) -> Any:
    """Read JSON; what no program could use is an error with its place. Other mistakes raise a JSONDecodeError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise DataError(f"{where}: a number has more digits than can be read. Shorten it, or quote it.") from error
    except RecursionError as error:
        raise DataError(f"{where}: its lists or objects are nested too deep to be read. Remove that value.") from error


def check_encodable(value: Any, where: str) -> None:
    r"""Raise where a text holds half of a surrogate pair such as ``"\ud800"``: JSON can write it, UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{where}: {code} is half of a character (a lone surrogate), which no text can hold. "
            "Write the whole character, or remove it."
        ) from error


def arrow_cells(column: Any, where: str, first: int = 1) -> list[Any]:
    """Return the values of an Arrow column, bytes as the UTF-8 text they are; ``first`` is the number of its first row.

    ``where`` names the file and the column in an error.
    """
    try:
        cells = column.to_pylist()
    except UnicodeDecodeError:  # text that was written without a check
        cells = [_python_value(cell, f"{where}, row {first + place}") for place, cell in enumerate(column)]
    if not any(_holds_bytes(cell) for cell in cells):
        return list(cells)
    return [_decoded(cell, f"{where}, row {first + place}") for place, cell in enumerate(cells)]


def _python_value(scalar: Any, where: str) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        raise _not_utf8(error, where) from error


def _holds_bytes(cell: Any) -> bool:
    return isinstance(cell, bytes) or (isinstance(cell, list) and any(isinstance(item, bytes) for item in cell))


def _decoded(cell: Any, where: str) -> Any:
    if isinstance(cell, Sequence) and not isinstance(cell, (str, bytes)):
        return [_decoded(item, where) for item in cell]
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(error, where) from error


def _not_utf8(error: UnicodeDecodeError, where: str) -> DataError:
    return DataError(
        f"{where}: byte 0x{error.object[error.start]:02x} is not UTF-8, so this is no text. "
        "Write the column as text, in UTF-8."
    )

"""See that the text columns of a table hold texts."""

from __future__ import annotations

from collections.abc import Sequence

from limbeck.errors import DataError
from limbeck.tasks.files import Columns
from limbeck.tasks.labels import is_missing


def checked_texts(file: Columns, names: Sequence[str]) -> dict[str, list[str]]:
    """Return these columns as texts; a cell without text is an error that names its line."""
    texts: dict[str, list[str]] = {}
    for name in names:
        cells = file.values[name]
        for row, cell in enumerate(cells):
            if isinstance(cell, (list, tuple, dict)):
                kind = type(cell).__name__
                raise DataError(f"{file.where(row)}: column '{name}' holds a {kind}, but text is needed.")
        texts[name] = ["" if is_missing(cell) else str(cell) for cell in cells]
        empty = [row for row, text in enumerate(texts[name]) if not text.strip()]
        if empty:
            raise DataError(
                f"{file.where(*empty[:5])}: {len(empty):,} of {len(cells):,} rows have an empty text in "
                f"column '{name}'. Fill in the texts or remove those rows."
            )
    return texts


def checked_ids(file: Columns, name: str) -> list[str]:
    """Return the column that names the rows, as texts; a row without a name is an error that names its line."""
    cells = file.values[name]
    if missing := [row for row, cell in enumerate(cells) if is_missing(cell)]:
        raise DataError(f"{file.where(*missing[:5])}: {len(missing):,} of {len(cells):,} rows have no '{name}'.")
    # a table that once had gaps holds whole numbers as 1.0
    return [str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip() for cell in cells]

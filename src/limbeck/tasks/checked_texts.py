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

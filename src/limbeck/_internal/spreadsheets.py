"""Keep text in CSV files from being run by a spreadsheet, which takes a cell that begins with = or @ for a formula."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger("limbeck")

_BEGINNINGS = "=+-@\uff1d\uff0b\uff0d\uff20"  # and the wide ones, which some spreadsheets read alike
_NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?%?"
# numbers as tables have them: a deviation or the end of an interval behind, and the marks of tests
_PLAIN = re.compile(rf"{_NUMBER}(?: ?(?:±|to) ?{_NUMBER})*[†‡§¶]*|-")


def guard(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would take for a formula; numbers stay as they are."""
    start = text.lstrip()
    return f"'{text}" if start.startswith(tuple(_BEGINNINGS)) and not _PLAIN.fullmatch(start.rstrip()) else text


class CsvWriter:
    """Write rows of a CSV file, with texts guarded unless they are wanted ``raw``, and count those that changed."""

    def __init__(self, file: TextIO, raw: bool = False) -> None:
        self._plain = csv.writer(file, lineterminator="\n")
        self._quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self._raw, self.guarded = raw, 0

    def write(self, rows: Iterable[Iterable[Any]]) -> None:
        """Append rows."""
        for row in rows:
            cells = list(row) if self._raw else [self._guarded(cell) for cell in row]
            # Python leaves a carriage return unquoted, and most readers begin a row with what comes after it
            broken = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (self._quoted if broken else self._plain).writerow(cells)

    def _guarded(self, cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        text = guard(cell)
        self.guarded += text != cell
        return text


def warn_of_guards(count: int, file: Path | str, remedy: str) -> None:
    """Tell the user once that cells of a file were changed, and how to have them unchanged."""
    if count:
        cells = "1 cell" if count == 1 else f"{count:,} cells"
        logger.warning(
            "%s: %s began like a formula of a spreadsheet and got an apostrophe before it. %s", file, cells, remedy
        )

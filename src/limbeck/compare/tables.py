"""Write a table of results for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from limbeck._internal.console import plain_console
from limbeck._internal.spreadsheets import CsvWriter
from limbeck.errors import RecipeError, unknown

TableFormat = Literal["terminal", "markdown", "latex", "csv"]
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
_FORMATS: dict[str, TableFormat] = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
TABLE_SUFFIXES = tuple(_FORMATS)


@dataclass(frozen=True)
class Cell:
    """Hold one cell of a table."""

    text: str
    bold: bool = False
    marks: str = ""  # daggers behind the text


@dataclass(frozen=True)
class Table:
    """Hold a table whose first ``left`` columns are words and set left, the others right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rules: frozenset[int] = frozenset()  # a rule before each of these rows, where the form has one
    notes: tuple[str, ...] = ()
    left: int = 1


def render(table: Table, form: TableFormat, *, raw_csv: bool = False) -> str:
    """Write the table as text that ends with one line break. Text for a terminal is plain here, without bold.

    Words in CSV that a spreadsheet would take for formulas get an apostrophe before them, unless ``raw_csv``.
    """
    if form == "markdown":
        return _markdown(table)
    if form == "latex":
        return _latex(table)
    if form == "csv":
        return _csv(table, raw_csv)[0]
    file = io.StringIO()
    # as wide as it needs to be, whatever terminal there is
    show_table(table, plain_console(file=file, width=10_000, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def show_table(table: Table, console: Console) -> None:
    """Print the table on a console."""
    title = _one_line(table.title)
    grid = rich.table.Table(title=Text(title) if title else None, title_justify="left")
    for place, name in enumerate(table.head):
        grid.add_column(Text(_one_line(name)), justify="left" if place < table.left else "right")
    for number, row in enumerate(table.rows):
        if number in table.rules:
            grid.add_section()
        grid.add_row(*(Text(_plain(cell), style="bold" if cell.bold else "") for cell in row))
    console.print(grid)
    for note in table.notes:
        console.print(Text(_one_line(note)), soft_wrap=True)


def format_of(file: Path) -> TableFormat:
    """Find the format that a file's name stands for."""
    if file.suffix.lower() not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise RecipeError(f"{file}: which form? Use one of the endings {known}, or add --format.")
    return _FORMATS[file.suffix.lower()]


def check_format(name: str) -> TableFormat:
    """Raise an error where a format is not known."""
    for form in TABLE_FORMATS:
        if form == name:
            return form
    raise RecipeError(unknown("format", name, TABLE_FORMATS, f"There are {', '.join(TABLE_FORMATS)}."))


def _one_line(text: str) -> str:
    """Join lines, because line breaks and other control characters would end a row."""
    return " ".join("".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text).split())


def _plain(cell: Cell) -> str:
    return _one_line(cell.text) + cell.marks


def count_guarded(tables: Iterable[Table]) -> int:
    """Count the cells that get an apostrophe in CSV."""
    return sum(_csv(table, raw=False)[1] for table in tables)


def _csv(table: Table, raw: bool) -> tuple[str, int]:
    """Return the text, and how many of its cells got an apostrophe."""
    file = io.StringIO()
    writer = CsvWriter(file, raw)
    writer.write([[_one_line(name) for name in table.head]])
    writer.write([_plain(cell) for cell in row] for row in table.rows)
    return file.getvalue(), writer.guarded


# Underscores inside a word and < before a blank mean nothing in Markdown, and stay readable.
_MARKDOWN = re.compile(r"[\\|*`\[\]&~$]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])")


def _markdown(table: Table) -> str:
    head = [_in_markdown(name) for name in table.head]
    rows = [head, *([_markdown_cell(cell) for cell in row] for row in table.rows)]
    widths = [max(3, *(cell_len(row[place]) for row in rows)) for place in range(len(table.head))]
    rulers = [
        f" {'-' * width} " if place < table.left else f" {'-' * (width - 1)}: " for place, width in enumerate(widths)
    ]
    lines = [_markdown_row(row, widths, table.left) for row in rows]
    title = [f"**{_in_markdown(table.title)}**", ""] if _one_line(table.title) else []
    notes = ["", *(f"- {_in_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*title, lines[0], f"|{'|'.join(rulers)}|", *lines[1:], *notes]) + "\n"


def _markdown_row(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padding = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    pairs = enumerate(zip(cells, padding, strict=True))
    padded = [cell + pad if place < left else pad + cell for place, (cell, pad) in pairs]
    return f"| {' | '.join(padded)} |"


def _markdown_cell(cell: Cell) -> str:
    text = _in_markdown(cell.text)
    return (f"**{text}**" if cell.bold and text else text) + cell.marks


def _in_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", _one_line(text))


_LATEX_MARKS = {"†": r"\dag", "‡": r"\ddag", "§": r"\S", "¶": r"\P"}
# Besides what LaTeX reserves: what a row must not begin with ([ and *), what its oldest fonts show as something else
# (<, >, |), and signs that a plain document does not have.
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{letter: f"{{{letter}}}" for letter in "[]*"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{"±": r"$\pm$", "→": r"$\rightarrow$", "↓": r"$\downarrow$", "…": r"\ldots{}"},
    **{"\N{EN DASH}": "--", "\0": "{}"},
    **{mark: rf"\textsuperscript{{{name}}}" for mark, name in _LATEX_MARKS.items()},
}


def _latex(table: Table) -> str:
    rows = []
    for number, row in enumerate(table.rows):
        rows += [r"    \midrule"] if number in table.rules else []
        rows.append(f"    {' & '.join(_latex_cell(cell) for cell in row)} \\\\")
    caption = [rf"  \caption{{{_in_latex(table.title)}}}"] if _one_line(table.title) else []
    notes = [r"    \footnotesize", *(rf"    {_in_latex(note)}\par" for note in table.notes)]
    lines = [
        r"\begin{table}",
        r"  \centering",
        *caption,
        rf"  \begin{{tabular}}{{{'l' * table.left}{'r' * (len(table.head) - table.left)}}}",
        r"    \toprule",
        f"    {' & '.join(map(_in_latex, table.head))} \\\\",
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}",
        *([r"  \par\smallskip", r"  \begin{minipage}{\linewidth}", *notes, r"  \end{minipage}"] if table.notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = _in_latex(cell.text)
    marks = "".join(_LATEX_MARKS.get(mark, _in_latex(mark)) for mark in cell.marks)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + (rf"\textsuperscript{{{marks}}}" if marks else "")


def _in_latex(text: str) -> str:
    hyphens_apart = re.sub("-(?=-)", "-\0", _one_line(text))  # two of them would become a dash
    return "".join(_LATEX.get(letter, letter) for letter in hyphens_apart)

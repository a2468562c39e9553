"""Write every figure and table as files for papers and slides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limbeck._internal.files import file_name, write_text
from limbeck._internal.spreadsheets import warn_of_guards
from limbeck.compare.tables import TABLE_SUFFIXES, Table, count_guarded, format_of, render
from limbeck.report.drawing import ReportFigure, save


def write_folder(figures: Sequence[ReportFigure], tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write figures (SVG, PNG, PDF) and tables (Markdown, LaTeX, CSV) into ``folder``, and return the files."""
    files = [file for drawn in figures for file in save(drawn, folder)]
    for table in tables:
        stem = file_name(*table.title.lower().replace(",", "").split())
        for ending in TABLE_SUFFIXES:
            files.append(folder / f"{stem}{ending}")
            write_text(files[-1], render(table, format_of(files[-1])))
    warn_of_guards(count_guarded(tables), f"{folder}/*.csv", "The same tables in Markdown have every text as it is.")
    return files

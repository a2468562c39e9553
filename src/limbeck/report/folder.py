"""Every figure and table as files for papers and slides."""

from __future__ import annotations

from pathlib import Path

from limbeck.compare.entries import Found
from limbeck.compare.tables import ENDINGS, Table, form_of, render
from limbeck.files import file_name, write_text
from limbeck.report.drawing import save
from limbeck.report.figures import all_figures
from limbeck.report.tables import all_tables


def write_folder(found: Found, folder: Path) -> tuple[list[Table], list[Path]]:
    """The tables (Markdown, LaTeX, CSV) and the figures (SVG, PNG, PDF) in ``folder``: the tables, and all files."""
    files = [file for drawn in all_figures(found) for file in save(drawn, folder)]
    tables = all_tables(found)
    for table in tables:
        stem = file_name(*table.title.lower().replace(",", "").split())
        for ending in ENDINGS:
            files.append(folder / f"{stem}{ending}")
            write_text(files[-1], render(table, form_of(files[-1])))
    return tables, files

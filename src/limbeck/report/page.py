"""Write one self-contained page: no network, no script; it is read on a phone, printed, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from limbeck._internal.files import write_text
from limbeck.compare.comparison import ComparisonResult, compare
from limbeck.compare.details import detail_tables
from limbeck.compare.entries import EntrySet, read_entries
from limbeck.compare.tables import Table
from limbeck.errors import DataError, MissingExtra, RunError
from limbeck.report.data import ReportData, gather
from limbeck.report.drawing import ReportFigure, inline_svg
from limbeck.report.figures import all_figures
from limbeck.report.folder import write_folder
from limbeck.report.layout import listed, stem
from limbeck.report.provenance import environment_of, names_only, runs_of, ways_to_repeat
from limbeck.report.summary import sentences, title_of, warning
from limbeck.report.tables import BY_CLASS, CALIBRATION, CKA, COST, POOLED, RANKS, RESTORATION, SIMILARITY, all_tables

_ANALYSES: dict[str, tuple[str, tuple[str, ...]]] = {  # by kind of figure: a heading, and the tables that belong to it
    "restoration": ("Restoration of the teacher's answers", (RESTORATION,)),
    "heat maps": ("CKA of mini-batches", ()),
    "diagonals": ("CKA on the diagonals of the heat maps", (CKA,)),
    "layers": ("CKA of layers", ()),
    "relation difference": ("Relation difference", (RANKS,)),
    "intra-class similarity": ("Intra-class similarity", (SIMILARITY, POOLED)),
    "tokens": ("Relations of tokens", ()),
    "calibration": ("Calibration", (CALIBRATION,)),
}
_FROM_PREDICTIONS = ("restoration", "calibration")
_WITH_OTHERS = ("diagonals",)  # drawn of what the heat maps need too


@dataclass(frozen=True)
class _Analysis:
    anchor: str
    title: str
    figures: list[ReportFigure]
    tables: list[Table]
    more: list[Table]  # to be opened


def write_report(paths: Sequence[Path], output: Path, figures: Path | None = None) -> None:
    """Write the page about everything at ``paths``; with ``figures``, also its figures and tables into that folder."""
    if output.is_dir():
        raise RunError(f"{output} is a folder. Name the page to write, such as {output / 'report.html'}.")
    template = _template()
    found = read_entries(paths)
    results = gather(found)
    drawn, tables = all_figures(results), all_tables(results)
    page = template.render(_content(found, results, drawn, tables, paths))
    if figures is not None:
        write_folder(drawn, tables, figures)
    write_text(output, page)


def _template() -> Any:
    return page_environment().from_string(_file("page.html"))


def page_environment() -> Any:
    """Return what renders a page: everything escaped, a filter that sets a figure into it, and the style as ``css``."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("A report needs jinja2: pip install 'limbeck[report]'.") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # both are written by us, and safe: labels and texts of users are escaped inside the figures
    environment.filters["svg"] = inline_svg
    environment.globals["css"] = _file("page.css")
    return environment


def _file(name: str) -> str:
    return (resources.files("limbeck.report") / name).read_text(encoding="utf-8")


def _content(
    found: EntrySet, results: ReportData, drawn: Sequence[ReportFigure], tables: Sequence[Table], paths: Sequence[Path]
) -> dict[str, Any]:
    compared = _compared(found)
    analyses = [
        _Analysis(
            anchor=f"analysis-{stem(kind)}",
            title=title,
            figures=[figure for figure in drawn if figure.kind == kind],
            tables=[table for table in tables if _is_one_of(table, names)],
            more=[table for table in tables if kind == "restoration" and _is_one_of(table, (BY_CLASS,))],
        )
        for kind, (title, names) in _ANALYSES.items()
    ]
    costs = [table for table in tables if _is_one_of(table, (COST,))]
    runs = [run for entry in found.entries for run in entry.runs]
    return {
        "title": title_of(found.title, results),
        "sentences": sentences(results, compared.verdicts),
        "warning": warning(results),
        "scores": compared.table,
        "score_data": _score_data(found, compared),
        "notes": [names_only(note, paths, runs) for note in compared.table.notes],
        "further": compared.further,
        "details": detail_tables(compared.scores, compared.tests),
        "trade_off": [figure for figure in drawn if figure.kind == "trade-off"],
        "costs": costs,
        "curves": [figure for figure in drawn if figure.kind == "curves"],
        "analyses": [analysis for analysis in analyses if analysis.figures or analysis.tables],
        "missing": _missing({figure.kind for figure in drawn}, bool(costs)),
        "runs": runs_of(found),
        "environment": environment_of(runs),
        "repeat": ways_to_repeat(found, paths),
    }


def _compared(found: EntrySet) -> ComparisonResult:
    """Compare as the study says; a report is worth having where its test is not for these runs."""
    try:
        return compare(found)
    except DataError as error:
        untested = compare(found, baselines=())
        note = f"The differences were not tested: {error}"
        return replace(untested, table=replace(untested.table, notes=(*untested.table.notes, note)))


def _is_one_of(table: Table, names: Sequence[str]) -> bool:
    """Find tables by name; those of one task among several say which in their title."""
    return any(table.title == name or table.title.startswith(f"{name} on ") for name in names)


def _score_data(found: EntrySet, compared: ComparisonResult) -> dict[tuple[int, int], dict[str, str]]:
    """Tell programs that read the page what is behind each cell of the table of scores, by row and column."""
    several = len({entry.task for entry in found.entries}) > 1
    metrics = {
        f"{entry.task} {name}" if several else name: (entry.task, name)
        for entry in found.entries
        for name in [*(name for run in entry.runs for name in run.scores), *(item.metric for item in entry.reported)]
    }
    means = {(score["task"], score["metric"], score["label"]): score["mean"] for score in compared.scores}
    first = max(compared.table.rules, default=0)  # above are the rows of the majority and the teacher
    data = {}
    for row, cells in enumerate(compared.table.rows[first:], start=first):
        for column, name in enumerate(compared.table.head):
            if name in metrics:
                place = (*metrics[name], cells[0].text)
                value = {"data-value": repr(means[place])} if place in means else {}
                data[row, column] = dict(zip(("data-task", "data-metric", "data-label"), place, strict=True)) | value
    return data


def _missing(kinds: set[str], timed: bool) -> dict[str, str]:
    """Name the analyses that were not made, by what would make them; empty where none is missing."""
    present = {*kinds, *_FROM_PREDICTIONS, *_WITH_OTHERS}
    measured = [*(kind for kind in _ANALYSES if kind not in present), *([] if timed else ["cost"])]
    return {
        "measured": listed(measured),
        "predicted": listed([kind for kind in _FROM_PREDICTIONS if kind not in kinds]),
    }

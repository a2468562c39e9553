"""What the commands print: results as tables, for people. It imports no model, so that --help answers at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console()


def show_run(folder: Path, results: dict[str, Any]) -> None:
    """The scores of a finished run, beside its teacher's."""
    from limbeck.metrics import readable_score

    table = Table(
        title=f"{results['method']} on {results['task']}, {results['split']} ({results['examples']:,} examples)"
    )
    table.add_column("metric")
    table.add_column("score", justify="right")
    teacher = results.get("teacher", {})
    if teacher:
        table.add_column("teacher", justify="right")
    theirs = teacher.get("metrics", {})  # plain text has none
    for name, value in results["metrics"].items():
        table.add_row(
            name, readable_score(name, value), *([readable_score(name, theirs[name])] if name in theirs else [])
        )
    table.add_row("parameters", f"{results['parameters']:,}", *([f"{teacher['parameters']:,}"] if teacher else []))
    if "agreement" in teacher:
        table.add_row("agreement with teacher", f"{100 * teacher['agreement']:.2f}", "")
    out.print(table)
    out.print(f"Run directory: {folder}", highlight=False)


def show_scores(title: str, scores: Mapping[str, float]) -> None:
    from limbeck.metrics import readable_score

    table = Table(title=title)
    table.add_column("metric")
    table.add_column("score", justify="right")
    for name, value in scores.items():
        table.add_row(name, readable_score(name, value))
    out.print(table)


def show_glue(found: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """The metrics of runs by GLUE task: their means, and the averages that can be computed."""
    from limbeck.compare.glue_table import AVERAGES, glue_average, mean_scores, missing_scores
    from limbeck.metrics import readable_score
    from limbeck.tasks.glue import GLUE

    scores = mean_scores(found)
    table = Table("task", "metric", "score", "runs", title="GLUE, validation data")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, values in scores.items():
        official = [metric for metric in AVERAGES["glue"][name] if metric in values]
        cells = (" / ".join(official), " / ".join(readable_score(metric, values[metric]) for metric in official))
        table.add_row(GLUE[name].folder, *cells, str(len(found[name])))
    out.print(table)
    for kind in AVERAGES:
        missing = missing_scores(scores, kind)
        value = f"missing {', '.join(missing)}" if missing else f"{100 * glue_average(scores, kind):.2f}"
        out.print(f"average '{kind}': {value}", highlight=False)


def show_submission(folder: Path, files: tuple[str, ...]) -> None:
    """Which files were written, and what GLUE's archive still lacks."""
    from limbeck.tasks.submission import ARCHIVE, GLUE_FILES, glue_files

    for name in files:
        out.print(f"Written: {folder / name}", highlight=False)
    if not set(files) & set(GLUE_FILES):
        return
    there, missing = glue_files(folder)
    archive = f"{folder / ARCHIVE} holds {len(there)} of GLUE's {len(GLUE_FILES)} files"
    out.print(f"{archive}: {', '.join(there)}", highlight=False)
    out.print(f"Missing: {', '.join(missing)}" if missing else "It is complete.", highlight=False)


def show_profile(found: Any) -> None:
    """As tables: the splits, then what their labels are."""
    if not found.splits:
        out.print(*found.lines(), sep="\n", highlight=False)
        return
    fate = "in several windows" if found.problem == "span" else "cut"
    title = f"{found.task}: {found.problem.replace('_', '-')}, read up to {found.max_length:,} tokens"
    splits = Table("split", "rows", "median", "95%", "longest", fate, title=title)
    for column in splits.columns[1:]:
        column.justify = "right"
    for name, split in found.splits.items():
        lengths = [f"{value:,}" for value in split.lengths.values()] or ["", "", ""]
        splits.add_row(name, f"{split.rows:,}", *lengths, f"{100 * split.too_long:.1f}%" if split.lengths else "")
    out.print(splits)
    _show_labels(found)
    for warning in found.warnings:
        out.print(f"Worth knowing: {warning}.", highlight=False, markup=False, soft_wrap=True)


def _show_labels(found: Any) -> None:
    labelled = {name: split for name, split in found.splits.items() if split.counts or split.numbers}
    if not labelled:
        return
    table = Table(found.counted, *labelled, *(["weight"] if found.class_weights else []))
    for column in table.columns[1:]:
        column.justify = "right"
    train = found.splits["train"]
    counts, more = train.most_frequent()
    for name in counts:
        weight = [f"{found.class_weights[name]:.3g}"] if found.class_weights else []
        table.add_row(escape(name), *(f"{split.counts.get(name, 0):,}" for split in labelled.values()), *weight)
    if more:
        rest = [sum(count for name, count in s.counts.items() if name not in counts) for s in labelled.values()]
        table.add_row(f"{more:,} more", *(f"{count:,}" for count in rest))
    for name in train.numbers:
        table.add_row(name, *(f"{split.numbers[name]:.4g}" for split in labelled.values()))
    out.print(table)


def show_plan(lines: Sequence[Any], selection: str) -> None:
    """The runs of a study, with what is left of them."""
    from limbeck._internal.files import readable_size

    table = Table("task", "method", "settings", "runs", "done", "time left", "disk")
    for column in table.columns[2:]:
        column.justify = "right"
    for line in lines:
        minutes = "?" if line.seconds is None else f"{line.seconds / 60:,.0f} min"
        disk = "?" if line.bytes is None else readable_size(line.bytes)
        table.add_row(line.task, line.label, str(line.settings), str(line.runs), str(line.done), minutes, disk)
    out.print(table)
    seconds = sum(line.seconds or 0 for line in lines)
    known = "" if all(line.seconds is not None for line in lines) else " and what is unknown"
    disk = readable_size(sum(line.bytes or 0 for line in lines))
    out.print(f"In all about {seconds / 3600:,.1f} h of one process{known}, and {disk} of students.", highlight=False)
    out.print(selection, highlight=False, soft_wrap=True)


def show_study(folder: Path) -> None:
    """A study's table, which is also written to files beside its results."""
    from limbeck._internal.files import write_text
    from limbeck.compare.comparison import compare_paths
    from limbeck.compare.tables import TableFormat, render, show_table

    result = compare_paths([folder])
    forms: dict[str, TableFormat] = {"md": "markdown", "tex": "latex", "csv": "csv"}
    for suffix, form in forms.items():
        write_text(folder / f"table.{suffix}", render(result.table, form))
    show_table(result.table, out)
    out.print(f"Tables: {folder / 'table.md'}, table.tex, table.csv", highlight=False)


def show_demo(rows: Sequence[Any]) -> None:
    table = Table("model", "method", rows[0].metric, "agrees with teacher", "parameters", "ms per example")
    for row in rows:
        table.add_row(
            row.model,
            row.method,
            f"{100 * row.score:.1f}",
            row.agreement,
            f"{row.parameters:,}",
            f"{row.milliseconds:.2f}",
        )
    out.print(table)


def show_options(function: Callable[..., Any], title: str) -> None:
    """A method or a task: what its docstring says, and its options if it has any."""
    from limbeck.options import describe_options

    out.print(inspect.getdoc(function) or function.__name__, highlight=False, markup=False)
    table = Table(title, "type", "default")
    for row in describe_options(function):
        table.add_row(*row)
    if table.row_count:
        out.print(table)


def show_pairs(pairs: Mapping[str, str], title: str | None = None, hint: str | None = None) -> None:
    table = Table(show_header=False, title=title, caption=hint)
    for name, value in pairs.items():
        table.add_row(name, value)
    out.print(table)

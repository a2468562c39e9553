"""Print results as tables, for people, or as JSON, for programs.

Nothing here imports a model at the top, so that --help answers at once.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table

from limbeck._internal.console import plain_console

if TYPE_CHECKING:
    from limbeck.compare.comparison import ComparisonResult
    from limbeck.compare.tables import Table as ResultTable
    from limbeck.demo import Row
    from limbeck.deploy.bench import BenchResult
    from limbeck.study.estimate import PlanLine
    from limbeck.tasks.profile import Profile

out = plain_console()
_json_to: ContextVar[TextIO | None] = ContextVar("json_to", default=None)


@contextmanager
def only_json() -> Iterator[None]:
    """Let the command inside the block print nothing but what it answers, as JSON, on stdout."""
    quiet, out.quiet = out.quiet, True
    token = _json_to.set(None if quiet else sys.stdout)  # of several processes, the first one answers
    try:
        with redirect_stdout(sys.stderr):  # for what libraries print
            yield
    finally:
        _json_to.reset(token)
        out.quiet = quiet


def answer(**values: Any) -> None:
    """Print what a command found as JSON, where ``--json`` asked for it."""
    if (file := _json_to.get()) is not None:
        print(json.dumps(_as_json(values), indent=1), file=file)


def _as_json(value: Any) -> Any:
    """Turn what JSON does not have into what it has: paths into text, numbers that are none into null."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else str(value)


def show_run(folder: Path, results: dict[str, Any]) -> None:
    """Print the scores of a finished run beside its teacher's."""
    from limbeck.metrics import readable_score

    answer(run=folder, **results)
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
    table.add_row(
        "parameters", f"{results['parameters']:,}", *([f"{teacher['parameters']:,}"] if "parameters" in teacher else [])
    )
    if "agreement" in teacher:
        table.add_row("agreement with teacher", f"{100 * teacher['agreement']:.2f}", "")
    out.print(table)
    out.print(f"Run directory: {folder}", highlight=False)


def show_scores(title: str, scores: Mapping[str, float]) -> None:
    """Print the metrics of a model under a title."""
    from limbeck.metrics import readable_score

    table = Table(title=title)
    table.add_column("metric")
    table.add_column("score", justify="right")
    for name, value in scores.items():
        table.add_row(name, readable_score(name, value))
    out.print(table)


def show_glue(found: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Print the mean metrics of each GLUE task, and the averages that can be computed."""
    from limbeck.compare.glue_table import AVERAGES, glue_average, mean_scores, missing_scores
    from limbeck.metrics import readable_score
    from limbeck.tasks.glue import GLUE

    scores = mean_scores(found)
    averages = {kind: None if missing_scores(scores, kind) else glue_average(scores, kind) for kind in AVERAGES}
    answer(
        tasks={name: {"runs": len(found[name]), "metrics": values} for name, values in scores.items()},
        averages=averages,
    )
    table = Table("task", "metric", "score", "runs", title="GLUE, validation data")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, values in scores.items():
        official = [metric for metric in AVERAGES["glue"][name] if metric in values]
        cells = (" / ".join(official), " / ".join(readable_score(metric, values[metric]) for metric in official))
        table.add_row(GLUE[name].folder, *cells, str(len(found[name])))
    out.print(table)
    for kind, value in averages.items():
        shown = f"{100 * value:.2f}" if value is not None else f"missing {', '.join(missing_scores(scores, kind))}"
        out.print(f"average '{kind}': {shown}", highlight=False)


def show_submission(folder: Path, files: tuple[str, ...]) -> None:
    """Print which files were written, and what GLUE's archive still lacks."""
    from limbeck.tasks.submission import ARCHIVE, GLUE_FILES, glue_files

    for name in files:
        out.print(f"Written: {folder / name}", highlight=False)
    if not set(files) & set(GLUE_FILES):
        return
    there, missing = glue_files(folder)
    archive = f"{folder / ARCHIVE} holds {len(there)} of GLUE's {len(GLUE_FILES)} files"
    out.print(f"{archive}: {', '.join(there)}", highlight=False)
    out.print(f"Missing: {', '.join(missing)}" if missing else "It is complete.", highlight=False)


def show_profile(found: Profile) -> None:
    """Print a table of the splits, then one of their labels."""
    answer(**vars(found))
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
        out.print(f"Worth knowing: {warning}.", highlight=False, soft_wrap=True)


def _show_labels(found: Profile) -> None:
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
        table.add_row(name, *(f"{split.counts.get(name, 0):,}" for split in labelled.values()), *weight)
    if more:
        rest = [sum(count for name, count in s.counts.items() if name not in counts) for s in labelled.values()]
        table.add_row(f"{more:,} more", *(f"{count:,}" for count in rest))
    for name in train.numbers:
        table.add_row(name, *(f"{split.numbers[name]:.4g}" for split in labelled.values()))
    out.print(table)


def show_plan(lines: Sequence[PlanLine], selection: str) -> None:
    """Print the runs of a study, with what is left of them."""
    from limbeck._internal.files import readable_size

    chained = any(line.after for line in lines)
    table = Table("task", "method", *(["after"] if chained else []), "settings", "runs", "done", "time left", "disk")
    for column in table.columns[2 + chained :]:
        column.justify = "right"
    for line in lines:
        minutes = "?" if line.seconds is None else f"{line.seconds / 60:,.0f} min"
        disk = "?" if line.bytes is None else readable_size(line.bytes)
        after = [", ".join(line.after)] if chained else []
        settings = " + ".join(map(str, line.settings))
        table.add_row(line.task, line.label, *after, settings, str(line.runs), str(line.done), minutes, disk)
    out.print(table)
    seconds = sum(line.seconds or 0 for line in lines)
    known = "" if all(line.seconds is not None for line in lines) else " and what is unknown"
    disk = readable_size(sum(line.bytes or 0 for line in lines))
    out.print(f"In all about {seconds / 3600:,.1f} h of one process{known}, and {disk} of students.", highlight=False)
    out.print(selection, highlight=False, soft_wrap=True)


def show_rivals_cost(wanted: bool, seconds: float | None) -> None:
    """Print what the linear models beside a study's students cost."""
    text = "The table will have no rows for linear models (rivals: false)."
    if wanted:
        time = "their time is not known here" if seconds is None else f"about {seconds / 60:,.0f} min more"
        text = f"Linear models on TF-IDF and frozen features, once for each task: {time}; rivals=false leaves them out."
    out.print(text, highlight=False, soft_wrap=True)


def comparison_values(result: ComparisonResult) -> dict[str, Any]:
    """Return a comparison for JSON: its numbers, and its tables as they are shown."""
    numbers = {"scores": result.scores, "tests": result.tests, "warnings": result.warnings}
    return numbers | {"tables": table_values([result.table, *result.further])}


def table_values(tables: Sequence[ResultTable]) -> list[dict[str, Any]]:
    """Return tables for JSON, with the texts of their cells."""
    return [
        {
            "title": table.title,
            "columns": table.head,
            "rows": [[cell.text + cell.marks for cell in row] for row in table.rows],
            "notes": table.notes,
        }
        for table in tables
    ]


def show_study(folder: Path) -> None:
    """Print a study's table, and write it to files beside its results."""
    from limbeck._internal.files import write_text
    from limbeck._internal.spreadsheets import warn_of_guards
    from limbeck.compare.comparison import compare_paths
    from limbeck.compare.tables import TableFormat, count_guarded, render, show_table

    result = compare_paths([folder])
    answer(study=folder, **comparison_values(result))
    forms: dict[str, TableFormat] = {"md": "markdown", "tex": "latex", "csv": "csv"}
    tables = [result.table, *result.further]
    for suffix, form in forms.items():
        write_text(folder / f"table.{suffix}", "\n".join(render(table, form) for table in tables))
    guarded, remedy = count_guarded(tables), f"'limbeck compare {folder} -o FILE.csv --raw-csv' does not."
    warn_of_guards(guarded, folder / "table.csv", remedy)
    for table in tables:
        show_table(table, out)
    out.print(f"Tables: {folder / 'table.md'}, table.tex, table.csv", highlight=False)


def show_bench(found: BenchResult) -> None:
    """Print a table of sizes, then one of times; ratios are against the first model."""
    from limbeck._internal.files import readable_size

    answer(**found.values())
    sizes = Table("model", "form", "parameters", "smaller", "disk", "memory")
    times = Table(
        "batch",
        "tokens",
        "model",
        "p50",
        "p95",
        "examples/s",
        "speed-up",
        caption=_conditions(found),
        caption_justify="left",
    )
    for table, first in ((sizes, 2), (times, 3)):
        for column in table.columns[first:]:
            column.justify = "right"
    for model in found.models:
        memory = "" if model.memory_bytes is None else readable_size(model.memory_bytes)
        cells = (model.form, f"{model.parameters:,}", _ratio(model.smaller), readable_size(model.disk_bytes), memory)
        sizes.add_row(model.name, *cells)
    for number, at in enumerate(found.models[0].cells):
        for model in found.models:
            cell = model.cells[number]
            where = (str(at.batch_size), str(at.length)) if model is found.models[0] else ("", "")
            timing = cell.timing
            speeds = (f"{timing.p50_ms:.1f} ms", f"{timing.p95_ms:.1f} ms", f"{timing.examples_per_second:,.0f}")
            times.add_row(*where, model.name, *speeds, _ratio(cell.speedup))
        times.add_section()
    out.print(sizes)
    out.print(times)


def _ratio(value: Any) -> str:
    return f"{value:.2f}x"


def _conditions(found: BenchResult) -> str:
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    return (
        f"{found.processor}, {threads}; {versions}. The models took turns. Speed-up: of the median latency (p50), "
        f"against {found.models[0].name}; smaller: its parameters over theirs."
    )


def show_demo(rows: Sequence[Row]) -> None:
    """Print the demo's models with their scores, sizes and times."""
    columns = ("model", "method", rows[0].metric, "agrees with teacher", "parameters", "ms per text")
    how = "ms per text: on one thread; teacher and students took turns, those of one architecture were timed as one."
    table = Table(*columns, caption=how, caption_justify="left")
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


def show_options(function: Callable[..., Any], title: str) -> dict[str, Any]:
    """Print what the docstring of a method or a task says, and its options if it has any; return both for JSON."""
    from limbeck.options import describe_options

    about, rows = inspect.getdoc(function) or function.__name__, describe_options(function)
    out.print(about, highlight=False)
    table = Table(title, "type", "default")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        out.print(table)
    options = [dict(zip(("name", "type", "default"), row, strict=True)) for row in rows]
    return {"about": about, "options": options}


def show_pairs(pairs: Mapping[str, str], title: str | None = None, hint: str | None = None) -> None:
    """Print names with a text for each."""
    table = Table(show_header=False, title=title, caption=hint)
    for name, value in pairs.items():
        table.add_row(name, value)
    out.print(table)

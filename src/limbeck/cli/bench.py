"""The commands that measure models and that make a small one of a large one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown
from rich.table import Table

from limbeck.cli.render import out
from limbeck.errors import Interrupted

if TYPE_CHECKING:
    from limbeck.deploy.bench import BenchResult

Threads = Annotated[int | None, typer.Option(min=1, help="Threads that compute together. Default: as torch chooses.")]


def bench(
    models: Annotated[
        list[str], typer.Argument(help="Run directories, model folders or exported models; the first is compared with.")
    ],
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Several times for several. Default: 1 8 32.")
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of each text; several times for several. Default: 32 128.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure latency, all models together.")] = 40.0,
    threads: Threads = None,
    memory: Annotated[bool, typer.Option(help="Measure memory too, in a process for each model.")] = True,
    output: Annotated[
        Path | None, typer.Option("--json", "--output", "-o", help="Write all numbers into this JSON file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw latency and throughput into this SVG, PNG or PDF.")] = None,
) -> None:
    """Measure models side by side: latency, throughput, parameters, disk and memory."""
    from limbeck._internal.files import write_text
    from limbeck.deploy.bench import BATCH_SIZES, LENGTHS
    from limbeck.deploy.bench import bench as measure
    from limbeck.report.timings import check_plot
    from limbeck.report.timings import plot as draw

    if plot is not None:
        check_plot(plot)
    found = measure(
        models,
        batch_sizes=batch_size or BATCH_SIZES,
        lengths=length or LENGTHS,
        seconds=seconds,
        threads=threads,
        memory=memory,
    )
    show_bench(found)
    if output is not None:
        write_text(output, json.dumps(found.values(), indent=1) + "\n")
        out.print(f"Written: {output}", highlight=False)
    if plot is not None:
        draw(found.values(), plot)
        out.print(f"Written: {plot}", highlight=False)


def show_bench(found: BenchResult) -> None:
    """Sizes, then times; ratios are against the first model."""
    from limbeck._internal.files import readable_size

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


def shrink(
    model: Annotated[
        str, typer.Option(help="A pre-trained model or a trained classifier: a folder, a run, a hub name.")
    ],
    data: Annotated[Path, typer.Option(help="CSV, TSV, JSONL or Parquet with texts and labels.")],
    text: Annotated[list[str], typer.Option(help="The text column; twice for text pairs.")],
    label: Annotated[str, typer.Option(help="The label column.")],
    budget: Annotated[
        str, typer.Option(help="Latency of one text: 0.5x of the teacher's, or milliseconds for a long one: 20ms.")
    ] = "0.5x",
    dev: Annotated[Path | None, typer.Option(help="Validation file. Default: a tenth of the data is held out.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write. Default: shrunk/<data>-<budget>.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="About how long it may take, on this machine.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    threads: Threads = None,
) -> None:
    """Make a small, fast classifier of a large one: teacher, students, choice, export and an honest summary.

    Started again, it goes on where it stopped.
    """
    from limbeck.shrink.pipeline import PAGE, Request
    from limbeck.shrink.pipeline import shrink as make
    from limbeck.shrink.summary import summary_page

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    request = Request(model, str(data), tuple(text), label, budget, str(dev) if dev else None, minutes, seed)
    folder = output or Path("shrunk") / f"{data.stem}-{budget}"
    try:
        summary = make(request, folder)
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted. The same command continues {folder}.") from None
    out.print(Markdown(summary_page(summary)))
    out.print(f"The student, its exported forms and {PAGE}: {folder}", highlight=False)

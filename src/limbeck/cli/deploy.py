"""Define the commands that put a trained model to work: export, push, predict, bench and shrink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from limbeck.cli.options import DataDir, MaxLength, Overrides, SpreadsheetSafe, option_overrides
from limbeck.cli.render import answer, out, show_bench
from limbeck.cli.stopping import continued_by


def export(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a model folder or a name on the hub.")],
    overrides: Overrides = None,
    to: Annotated[str, typer.Option(help="hf (Hugging Face folder), onnx, or onnx-int8.")] = "hf",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write. Default: exports/<run>-<form>.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Needed unless RUN is a run directory.")] = None,
    data_dir: DataDir = None,
    licence: Annotated[
        str | None, typer.Option(help="For the model card: an identifier of the hub, e.g. mit or apache-2.0.")
    ] = None,
    siblings: Annotated[
        list[Path] | None,
        typer.Option("--with", help="The same setting with another seed, for the card's deviation; repeatable."),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Validation examples to check the export on, at most.")] = 512,
    max_drop: Annotated[
        float, typer.Option(min=0, help="How much of the task's main metric onnx-int8 may lose; 0.01 is one point.")
    ] = 0.01,
    vocabulary: Annotated[
        str,
        typer.Option(
            help="whole; trimmed: keep only the word pieces that the task's training texts use; or, for onnx-int8, "
            "compact: keep all, those that these texts use least in few bytes."
        ),
    ] = "whole",
    pieces_of: Annotated[
        str | None, typer.Option(help="The model that a trimmed one was made from: gives it all its word pieces back.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write a model for use without limbeck, with a model card, after checking that it answers as before."""
    from limbeck.deploy.export import export as write

    pieces = "" if vocabulary == "whole" else f"-{vocabulary}"
    folder = output or Path("exports") / f"{Path(model).name}-{to}{pieces}"
    done = write(
        model,
        to,
        folder,
        task=task,
        overrides=[*option_overrides(data_dir), *(overrides or [])],
        licence=licence,
        siblings=siblings or [],
        examples=examples,
        max_drop=max_drop,
        vocabulary=vocabulary,
        pieces_of=pieces_of,
        force=force,
    )
    out.print(done.parity.describe(), highlight=False)
    out.print(f"{to} in {done.path}", highlight=False)


def push(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the folder of an export.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The repository on the hub: you/rte-small.")],
    to: Annotated[str, typer.Option(help="Of a run: hf (Hugging Face folder), onnx, or onnx-int8.")] = "hf",
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, where it is new.")] = False,
    licence: Annotated[
        str | None, typer.Option(help="For the model card: an identifier of the hub, e.g. mit or apache-2.0.")
    ] = None,
    siblings: Annotated[
        list[Path] | None,
        typer.Option("--with", help="The same setting with another seed, for the card's deviation; repeatable."),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
) -> None:
    """Upload a student to the hub: its weights, tokenizer, model card and metrics.

    The token is that of `hf auth login`, or HF_TOKEN; it is written nowhere.
    """
    from limbeck.deploy.push import push as upload

    done = upload(model, name, to=to, private=private, siblings=siblings or [], licence=licence, message=message)
    out.print(f"{', '.join(done.files)}: {done.url}", highlight=False)


def predict(
    model: Annotated[str, typer.Argument(help="A run directory, an export, a model folder or a name on the hub.")],
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet with the texts.")],
    text: Annotated[list[str] | None, typer.Option(help="Text column; twice for text pairs.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV, JSONL or Parquet.")] = Path("predictions.csv"),
    max_length: MaxLength = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    safe: SpreadsheetSafe = True,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Write texts and probabilities alone, as a file that can teach."),
    ] = False,
    id_column: Annotated[
        str | None, typer.Option("--id", help="With --probabilities: the column that names the rows; kept too.")
    ] = None,
) -> None:
    """Predict a label, with probabilities, for each row of a file of any size."""
    from limbeck.inference.predict import predict_file

    rows = predict_file(
        *(model, file, output),
        text=text or [],
        max_length=max_length,
        batch_size=batch_size,
        overwrite=force,
        raw_csv=not safe,
        probabilities=probabilities,
        id_column=id_column,
    )
    out.print(f"{rows:,} predictions in {output}", highlight=False)


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
    memory: Annotated[bool, typer.Option(help="Measure memory too, in a process for each model.")] = True,
    device: Annotated[
        str,
        typer.Option(help="Where PyTorch computes: cpu, cuda; auto is a GPU if there is one and no ONNX model."),
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write all numbers into this JSON file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw latency and throughput into this SVG, PNG or PDF.")] = None,
) -> None:
    """Measure models side by side: latency, throughput, parameters, disk and memory."""
    from limbeck._internal.files import write_text
    from limbeck.deploy.bench import BATCH_SIZES, LENGTHS
    from limbeck.deploy.bench import bench as measure
    from limbeck.report.timings import check_plot
    from limbeck.report.timings import plot as draw
    from limbeck.runs.outputs import check_not_read

    for file in filter(None, (output, plot)):
        check_not_read(file, models)
    if plot is not None:
        check_plot(plot)
    found = measure(
        models,
        batch_sizes=batch_size or BATCH_SIZES,
        lengths=length or LENGTHS,
        seconds=seconds,
        memory=memory,
        device=device,
    )
    show_bench(found)
    if output is not None:
        write_text(output, json.dumps(found.values(), indent=1) + "\n")
        out.print(f"Written: {output}", highlight=False)
    if plot is not None:
        draw(found.values(), plot)
        out.print(f"Written: {plot}", highlight=False)


def shrink(
    model: Annotated[
        str, typer.Option(help="A pre-trained model or a trained classifier: a folder, a run, a hub name.")
    ],
    data: Annotated[Path, typer.Option(help="CSV, TSV, JSONL or Parquet with texts and labels.")],
    text: Annotated[list[str], typer.Option(help="The text column; twice for text pairs.")],
    label: Annotated[str, typer.Option(help="The label column.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="Latency of one text: 0.5x of the teacher's, or milliseconds for a long one: 20ms. "
            "Without it, a student is proposed."
        ),
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="Validation file. Default: a tenth of the data is held out.")] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="More texts, without labels: the teacher labels them for the students.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="What separates several labels in one cell, such as ';' or '|'.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write. Default: shrunk/<data>.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="About how long it may take, on this machine.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Make small, fast models of a large one: a teacher, students of several depths, exports and an honest summary.

    Started again, it goes on where it stopped.

    Example: limbeck shrink --model bert-base-uncased --data intents.csv --text text --label intent
    """
    from limbeck.shrink.page import MARKDOWN, PAGE, summary_page
    from limbeck.shrink.pipeline import Request
    from limbeck.shrink.pipeline import shrink as make

    request = Request(
        *(model, str(data), tuple(text), label, budget),
        dev=str(dev) if dev else None,
        unlabelled=str(unlabelled) if unlabelled else None,
        separator=separator,
        minutes=minutes,
        seed=seed,
    )
    folder = output or Path("shrunk") / data.stem
    with continued_by(f"The same command continues {folder}."):
        summary = make(request, folder)
    answer(folder=folder, **summary)
    out.print(Markdown(summary_page(summary)))
    out.print(f"The students, {MARKDOWN} and {PAGE}: {folder}", highlight=False)

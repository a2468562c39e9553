"""The commands that put a trained model to work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limbeck.cli.options import DataDir, MaxLength, Overrides, flags_of
from limbeck.cli.render import out


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
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write a model for use without limbeck, with a model card, after checking that it answers as before."""
    from limbeck.deploy.export import export as write

    folder = output or Path("exports") / f"{Path(model).name}-{to}"
    done = write(
        model,
        to,
        folder,
        task=task,
        overrides=[*flags_of(data_dir), *(overrides or [])],
        licence=licence,
        siblings=siblings or [],
        examples=examples,
        max_drop=max_drop,
        force=force,
    )
    out.print(done.parity.describe(), highlight=False)
    out.print(f"{to} in {done.path}", highlight=False)


def predict(
    model: Annotated[str, typer.Argument(help="A run directory, an export, a model folder or a name on the hub.")],
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet with the texts.")],
    text: Annotated[list[str] | None, typer.Option(help="Text column; twice for text pairs.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV, JSONL or Parquet.")] = Path("predictions.csv"),
    max_length: MaxLength = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
) -> None:
    """Predict a label, with probabilities, for each row of a file of any size."""
    from limbeck.errors import DataError
    from limbeck.inference.predict import predict_file

    if output.exists() and not force:
        raise DataError(f"{output} exists. Choose another --output, or add --force to replace it.")
    rows = predict_file(model, file, output, text=text or [], max_length=max_length, batch_size=batch_size)
    out.print(f"{rows:,} predictions in {output}", highlight=False)

"""Define the command that serves a model."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.render import out
from limbeck.errors import LimbeckError, MissingExtra, RecipeError, RunError
from limbeck.runtime.server.settings import about, default

logger = logging.getLogger("limbeck")


def serve(
    model: Annotated[
        str, typer.Argument(metavar="FOLDER", help="An export, a run directory, or what `limbeck shrink` wrote.")
    ],
    teacher: Annotated[
        str | None, typer.Option(help="Its teacher, for the page: an export, a run directory or a model folder.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run of the student, whose disagreements with the teacher are shown.")
    ] = None,
    host: Annotated[str, typer.Option(help=about("host"))] = default("host"),
    port: Annotated[int, typer.Option(min=0, max=65535, help=about("port"))] = default("port"),
    threads: Annotated[int | None, typer.Option(min=1, help=about("threads"))] = None,
    batch_ms: Annotated[float, typer.Option(min=0.1, help=about("batch_ms"))] = default("batch_ms"),
    queue: Annotated[int, typer.Option(min=1, help=about("queue"))] = default("queue"),
    max_body: Annotated[int, typer.Option(min=1, help=about("max_body"))] = default("max_body"),
    max_texts: Annotated[int, typer.Option(min=1, help=about("max_texts"))] = default("max_texts"),
    max_tokens: Annotated[int, typer.Option(min=1, help=about("max_tokens"))] = default("max_tokens"),
    timeout: Annotated[float, typer.Option(min=0.1, help=about("timeout"))] = default("timeout"),
) -> None:
    """Serve a model over HTTP, with a page to try it; an exported folder needs neither torch nor transformers for it.

    Requests have the form of text-embeddings-inference. The environment variable LIMBECK_KEY asks for a key.
    """
    from limbeck.inference.asked import load_asked
    from limbeck.runs.directory import RunDirectory
    from limbeck.runtime.errors import FolderError, ServeError
    from limbeck.runtime.folder import read_card
    from limbeck.runtime.server.run import serve as answer
    from limbeck.runtime.server.settings import Settings, usable_cores
    from limbeck.shrink.layout import find_proposed

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    proposed = find_proposed(model)
    if proposed is not None:
        model, teacher, run = str(proposed.student), teacher or str(proposed.teacher), run or proposed.run
    elif run is None and RunDirectory(Path(model)).recipe.is_file():
        run = Path(model)
    cores = usable_cores()
    if threads is not None and threads > cores:
        logger.warning("--threads %d: this process may use %d cores, and as many texts are computed.", threads, cores)
        threads = cores
    settings = Settings(host, port, threads or cores, batch_ms, queue, max_body, max_texts, max_tokens, timeout)
    student = load_asked(model)
    taught = None if teacher is None else load_asked(teacher)
    if proposed is not None:  # whose folders are named after their form
        student.about = replace(student.about, name=proposed.name)
    if taught is not None and taught.about.problem != student.about.problem:
        raise RecipeError(
            f"{teacher} answers a problem of the kind '{taught.about.problem}', and {model} one of the kind "
            f"'{student.about.problem}': it is not its teacher."
        )
    try:
        answer(
            student,
            settings,
            teacher=taught,
            examples=_examples(run),
            card=read_card(model),
            say=lambda text: out.print(text, highlight=False, markup=False, soft_wrap=True),
        )
    except FolderError as error:
        raise RunError(str(error)) from error
    except ServeError as error:
        raise (MissingExtra if isinstance(error.__cause__, ImportError) else RunError)(str(error)) from error


def _examples(run: Path | None) -> list[dict[str, Any]]:
    """Return the examples of a run for the page; where they cannot be had, the page is without them, and says why here.

    They are read in a process of their own, so that the libraries that read them take no memory of the server.
    """
    if run is None:
        return []
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_read_examples, run).result()
    except LimbeckError as error:
        logger.warning("The page is without examples: %s", error)
        return []


def _read_examples(run: Path) -> list[dict[str, Any]]:
    from limbeck.analysis.disagreements import disagreements

    return disagreements(run)

"""Define the options that commands share, and turn them into overrides of a recipe or the engine of a study."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck._internal import own_code
from limbeck._internal.files import expand_home
from limbeck._internal.tuning import use_threads
from limbeck.cli.render import only_json
from limbeck.errors import RecipeError

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Override any setting, e.g. train.epochs=1."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Run directory to write. Default: runs/<task>-<method>-s<seed>."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the output directory.")]
DataDir = Annotated[Path | None, typer.Option(help="The GLUE folder, or the task's own folder in it.")]
TaskName = Annotated[str | None, typer.Option(help="See 'limbeck tasks'.")]
Teacher = Annotated[str | None, typer.Option(help="A fine-tuned model: run directory, folder or hub name.")]
Student = Annotated[str | None, typer.Option(help="A student checkpoint: folder or hub name.")]
Keep = Annotated[
    str | None,
    typer.Option(
        help="Build the student from the teacher's layers: first:6, last:6, spread:6 (ends in the last), ends:6 (the "
        "first ones and the last), best:6 (compared on training data), or a list: 4,8,12."
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Longest text in tokens; longer ones are cut. Default: what holds 99% of the training texts."),
]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Import methods of your own (module:function) that a file names, not you here."),
]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe/--raw-csv",
        help="In CSV, put an apostrophe before texts that a spreadsheet would run as a formula, or leave them as they "
        "are.",
    ),
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data. Default: 3.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step. Default: 32.")]
LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate. Default: 5e-5.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random. Default: 0.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many threads compute together. Default: OMP_NUM_THREADS, or as many as cores are free."
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module of your own first, e.g. one that registers a family of models. May be given again.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print what is found as JSON, numbers unrounded, and nothing else on stdout.")
]


# parameters that are no Path because they may also be names on the hub, of shipped recipes or of studies
_PATHS_OR_NAMES = ("model", "models", "teacher", "student", "source", "recipe", "words")


def expanding_home(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take ``~`` as the home folder wherever it takes a path: a shell leaves one in quotes as it is."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(**{name: _expanded(value, name in _PATHS_OR_NAMES) for name, value in values.items()})

    return run


def with_threads(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that computes the option ``--threads``, which counts before torch is loaded."""
    own = "threads" in _signature(command).parameters  # it needs the number itself too

    @functools.wraps(command)
    def run(threads: int | None = None, **values: Any) -> None:
        use_threads(threads)
        command(**values, **({"threads": threads} if own else {}))

    return run if own else _with_option(run, command, "threads", Threads)


def with_imports(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that loads models the option ``--import``."""

    @functools.wraps(command)
    def run(modules: list[str] | None = None, **values: Any) -> None:
        own_code.import_typed(modules or [])
        command(**values)

    return _with_option(run, command, "modules", Modules)


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that prints tables the option ``--json``, with which it prints what it answers instead."""

    @functools.wraps(command)
    def run(as_json: bool = False, **values: Any) -> None:
        with only_json() if as_json else nullcontext():
            command(**values)

    return _with_option(run, command, "as_json", Json, default=False)


def _with_option(
    run: Any, command: Callable[..., None], name: str, kind: Any, default: Any = None
) -> Callable[..., None]:
    """Let what wraps a command have the command's parameters and one more."""
    signature = _signature(command)
    option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])
    wrapped: Callable[..., None] = run
    return wrapped


def _signature(command: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(command, eval_str=True)


def _expanded(value: Any, path_or_name: bool) -> Any:
    if isinstance(value, list):
        return [_expanded(item, path_or_name) for item in value]
    if isinstance(value, Path):
        return expand_home(value)
    return str(expand_home(value)) if path_or_name and isinstance(value, str) and value.startswith("~") else value


_TEACHERS = ("teacher=", "teacher.model=", "teacher.probabilities=", "teacher.logits=")


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words of a command line into names of recipes and ``key=value`` overrides."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def load_pair_recipe(source: str | None, overrides: list[str], allow_code: bool) -> Any:
    """Load a recipe that has a teacher: a file, a shipped one, or one made of the overrides alone."""
    from limbeck.recipes.recipe import load_recipe

    if source is None and not any(word.startswith(_TEACHERS) for word in overrides):
        raise RecipeError("Which teacher? Add --teacher RUN (made by 'limbeck finetune'), or name a recipe.")
    student = {"from": "teacher", "keep": "first:6"}
    values = {"method": {}, "task": {}, "teacher": {}, "student": student}
    return load_recipe(source, overrides, values, allow_code=allow_code)


def pair_overrides(
    method: str | None, task: str | None, teacher: str | None, student: str | None, keep: str | None
) -> list[str]:
    """Return the options that say who learns what from whom, as overrides of a recipe."""
    named = {"method.name": method, "task.name": task, "teacher.model": teacher}
    flags = [f"{key}={_quoted(value)}" for key, value in named.items() if value is not None]
    if student is not None and keep is not None:
        raise RecipeError("--student and --keep exclude each other: one loads a checkpoint, one cuts the teacher.")
    if student is not None:
        flags.append(f"student={{model: {_quoted(student)}}}")
    if keep is not None:
        flags.append(f"student={{from: teacher, keep: {_quoted(keep)}}}")
    return flags


def option_overrides(
    data_dir: Path | None,
    max_length: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
) -> list[str]:
    """Return the options that have a short name, as overrides of a recipe."""
    values = {
        "task.data_dir": _quoted(str(data_dir)) if data_dir is not None else None,
        "task.max_length": max_length,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.learning_rate": learning_rate,
        "seed": seed,
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def choose_engine(workers: int, ray: str | None, threads: int | None) -> Any:
    """Choose where the runs of a study are done: here, in local processes, or on a Ray cluster."""
    from limbeck.study.engines import InProcess, Workers
    from limbeck.study.ray_engine import Ray

    if ray is not None and workers > 1:
        raise RecipeError("--workers and --ray exclude each other: Ray has workers of its own.")
    if ray is not None:
        return Ray(ray, threads or 1)
    return Workers(workers, threads) if workers > 1 else InProcess(threads)


def _quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is also a YAML string, whatever it holds

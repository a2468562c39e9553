"""The command line. Commands import what they need when they run, so that --help answers at once."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from limbeck._internal.progress import QUIET
from limbeck.cli.bench import bench, shrink
from limbeck.cli.deploy import export, predict
from limbeck.cli.listings import doctor, methods, profile, recipes, studies, tasks, validate
from limbeck.cli.options import (
    BatchSize,
    DataDir,
    Epochs,
    Keep,
    LearningRate,
    MaxLength,
    Output,
    Overrides,
    Resume,
    Seed,
    Student,
    TaskName,
    Teacher,
    engine_of,
    flags_of,
    pair_flags,
    recipe_of_a_pair,
    recipes_and_overrides,
)
from limbeck.cli.render import out, show_demo, show_plan, show_run, show_scores, show_study, show_submission
from limbeck.cli.results import analyze, compare, glue, report
from limbeck.errors import Fault, Interrupted, LimbeckError, RecipeError, RunError, Terminated, shortened

app = typer.Typer(
    name="limbeck",
    help="Distil pre-trained language models through their hidden representations.",
    epilog="Start with: limbeck demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _common(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if quiet:
        os.environ[QUIET] = "1"
        logging.getLogger("limbeck").setLevel(logging.WARNING)
    if debug:
        os.environ["LIMBECK_DEBUG"] = "1"


@app.command(
    epilog="Example: limbeck finetune glue/rte --model bert-base-uncased --data-dir data/glue -o runs/teacher-rte"
)
def finetune(
    task: Annotated[str, typer.Argument(help="A task's name: see 'limbeck tasks'.")],
    overrides: Overrides = None,
    model: Annotated[str, typer.Option(help="Model to start from: a folder or a name on the hub.")] = "",
    data_dir: DataDir = None,
    output: Output = None,
    resume: Resume = False,
    max_length: MaxLength = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
) -> None:
    """Fine-tune a model on a task: this makes a teacher."""
    from limbeck.recipes.recipe import load_recipe

    values: dict[str, Any] = {"task": {"name": task}, "student": {"model": model}, "method": {"name": "ft"}}
    if not model and not any(word.startswith(("student.", "student=")) for word in overrides or []):
        raise RecipeError("Which model should be fine-tuned? Add --model, e.g. --model bert-base-uncased.")
    if not model:
        values["student"] = {}
    flags = flags_of(data_dir, max_length, epochs, batch_size, learning_rate, seed)
    _run(load_recipe(None, [*flags, *(overrides or [])], values), output, resume)


@app.command(
    epilog="Examples: limbeck distill kd-rte teacher.model=runs/teacher-rte   |   "
    "limbeck distill --method kd --task glue/rte --data-dir data/glue --teacher runs/teacher-rte --keep first:6"
)
def distill(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A recipe file or shipped recipe, and overrides."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'limbeck methods', or module:function.")] = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    teacher: Teacher = None,
    student: Student = None,
    keep: Keep = None,
    output: Output = None,
    resume: Resume = False,
    max_length: MaxLength = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
) -> None:
    """Distil a teacher into a smaller student."""
    sources, overrides = recipes_and_overrides(words or [])
    if len(sources) > 1:
        raise RecipeError(f"One recipe at a time; seen: {', '.join(sources)}.")
    flags = flags_of(data_dir, max_length, epochs, batch_size, learning_rate, seed)
    flags += pair_flags(method, task, teacher, student, keep)
    _run(recipe_of_a_pair(sources[0] if sources else None, [*flags, *overrides]), output, resume)


@app.command(
    epilog="Examples: limbeck cache fsd/rte fcd/rte teacher.model=runs/teacher-rte -o caches/rte   |   "
    "limbeck cache --method kd --method fsd --task glue/rte --data-dir data/glue --teacher runs/teacher-rte "
    "-o caches/rte"
)
def cache(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the cache; an older one is extended.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]... [KEY=VALUE]...", help="Recipes that will share it, and overrides."),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Instead of recipes; several times for several.")] = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    teacher: Teacher = None,
    student: Student = None,
    keep: Keep = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default), float16 or bfloat16: half the size.")] = None,
) -> None:
    """Run a teacher once and keep what one or more methods need of it, for any number of runs."""
    from limbeck._internal.files import readable_size
    from limbeck.training.cache_policy import build_cache

    sources, overrides = recipes_and_overrides(words or [])
    flags = flags_of(data_dir, max_length, batch_size=batch_size)
    flags += [f"teacher.cache_dtype={dtype}"] if dtype else []
    recipes = [
        recipe_of_a_pair(source, [*flags, *pair_flags(name, task, teacher, student, keep), *overrides])
        for source in sources or (None,)
        for name in method or (None,)
    ]
    wanted, needed = build_cache(recipes, output)
    out.print(f"{readable_size(needed)} in {output}: {', '.join(wanted.names())}", highlight=False)
    out.print(f"Use it with teacher.cache={output}", highlight=False)


@app.command(
    epilog="Examples: limbeck evaluate runs/rte-kd-s0   |   "
    "limbeck evaluate my-model --task glue/rte --data-dir data/glue   |   "
    "limbeck evaluate runs/rte-kd-s0 --split test --submission out"
)
def evaluate(
    model: Annotated[str, typer.Argument(help="A run directory, a model folder or a name on the hub.")],
    overrides: Overrides = None,
    task: Annotated[str | None, typer.Option(help="Needed unless MODEL is a run directory.")] = None,
    data_dir: DataDir = None,
    split: Annotated[str | None, typer.Option(help="Which split to score. Default: all validation data.")] = None,
    submission: Annotated[
        Path | None, typer.Option(help="Write what the official evaluation of GLUE or SQuAD takes into this folder.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    """Score a model on a task with the task's official metrics."""
    from limbeck.inference.evaluate import evaluate as score

    flags = [*flags_of(data_dir), *(overrides or [])]
    result = score(model, task=task, split=split, overrides=flags, batch_size=batch_size, submission=submission)
    if result.metrics:
        show_scores(f"{model} on {result.task}, {result.split} ({result.examples:,} examples)", result.metrics)
    if submission is not None:
        show_submission(submission, result.files)


@app.command(
    epilog="Examples: limbeck study first task.data_dir=data/glue   |   "
    "limbeck study fsd/small task.data_dir=data/glue   |   limbeck study my-study.yaml --workers 2 --dry-run"
)
def study(
    source: Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or a name from 'limbeck studies'.")],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The study's folder. Default: studies/<name>.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, with their time and disk, and stop.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Local processes that share the work.")] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster (auto finds it), or 'local' to start one here.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each run. Results are the same bit for bit where this is.")
    ] = None,
) -> None:
    """Run methods x settings x seeds, choose, compare, and write tables. Started again, it does what is missing."""
    from limbeck._internal.files import file_name
    from limbeck.study.estimate import estimate_costs
    from limbeck.study.loading import find_study, load_study
    from limbeck.study.plan import Plan
    from limbeck.study.runner import run_study
    from limbeck.study.watch import watching

    loaded = load_study(source, overrides or [])
    file, variant = find_study(source)
    folder = output or Path("studies") / file_name(*filter(None, (file.stem, variant)))
    plan = Plan(loaded, folder)
    if dry_run:
        show_plan(estimate_costs(plan), loaded.selection_note())
        return
    with watching(plan.count_jobs_left()) as watcher:
        try:
            results = run_study(loaded, folder, engine_of(workers, ray, threads), watcher)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted. The same command continues {folder}.") from None
    show_study(folder)
    missing = [entry for entry in results["entries"] if entry["missing"]]
    if missing:
        first, count = missing[0], sum(entry["missing"] for entry in missing)
        raise RunError(
            f"{count} runs failed, the first of {first['label']} on {first['task']}: {first['why'].rstrip('.')}. "
            f"See {folder / 'failures'}; the same command tries them again."
        )


app.command(
    epilog="Examples: limbeck compare runs/glue-rte-* --baseline ft   |   "
    "limbeck compare runs/rte-kd-s0 runs/rte-fsd-s0   |   limbeck compare studies/rte-small -o table.tex"
)(compare)
app.command(
    epilog="Examples: limbeck analyze runs/rte-kd-s0 runs/rte-fsd-s0 -o figures   |   "
    "limbeck analyze studies/first   |   limbeck analyze runs/rte-fsd-s0 --sentence 'A man is not eating.'"
)(analyze)
app.command(
    epilog="Examples: limbeck report studies/first -o report.html   |   limbeck report runs/glue-rte-* -o rte.html"
)(report)
app.command(epilog="Example: limbeck glue runs/glue-*-kd-s*")(glue)
app.command(
    epilog="Examples: limbeck export runs/rte-kd-s0 --to onnx-int8 -o rte-small   |   "
    "limbeck export runs/rte-kd-s0 --licence mit --with runs/rte-kd-s1 --with runs/rte-kd-s2   |   "
    "limbeck export my-model --task glue/rte --data-dir data/glue --to onnx"
)(export)
app.command(
    epilog="Examples: limbeck predict runs/rte-kd-s0 new.csv --text sentence1 --text sentence2 -o predictions.csv   "
    "|   limbeck predict rte-small new.parquet --text sentence1 --text sentence2 -o predictions.parquet"
)(predict)
app.command(
    epilog="Examples: limbeck bench runs/teacher runs/kd exported/onnx exported/onnx-int8 -o bench.json   |   "
    "limbeck bench runs/teacher runs/kd --batch-size 1 --length 64 --threads 1 --plot bench.svg"
)(bench)
app.command(
    epilog="Examples: limbeck shrink --model bert-base-uncased --data intents.csv --text text --label intent "
    "--budget 0.5x   |   "
    "limbeck shrink --model runs/teacher --data train.csv --dev dev.csv --text text --label intent --budget 20ms"
)(shrink)
app.command(epilog="Example: limbeck studies")(studies)
app.command(
    epilog="Examples: limbeck profile table task.train=train.csv task.text=text task.label=intent "
    "--model bert-base-uncased   |   limbeck profile glue/rte --data-dir data/glue --model bert-base-uncased"
)(profile)
app.command(epilog="Example: limbeck methods kd")(methods)
app.command(epilog="Example: limbeck tasks table")(tasks)
app.command(epilog="Examples: limbeck recipes   |   limbeck recipes mrpc")(recipes)
app.command(epilog="Example: limbeck validate my-recipe.yaml train.epochs=1")(validate)
app.command(epilog="Example: limbeck doctor")(doctor)


@app.command(epilog="Examples: limbeck demo   |   limbeck demo --task-dir data/glue/RTE --model bert-base-uncased")
def demo(
    task_dir: Annotated[Path | None, typer.Option(help="A GLUE task's folder, e.g. data/glue/RTE: real data.")] = None,
    model: Annotated[str | None, typer.Option(help="A pre-trained encoder to make the teacher from.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the run directories.")] = Path("demo-runs"),
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Fine-tune a teacher, distil it by the methods of the four papers, and print a table: offline, in minutes."""
    from limbeck.demo import run_demo

    done = run_demo(output, task_dir=task_dir, model=model, seed=seed)
    show_demo(done.rows)
    out.print(f"Run directories: {output}", highlight=False)
    if done.report is not None:
        out.print(f"Report: {done.report}", highlight=False)


_NOT_WRITTEN = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)
_STATUS: dict[type, int] = {Interrupted: 130, Terminated: 143}  # as shells count signals


def main() -> None:
    """Entry point; processes that a launcher started end in a way of their own."""
    try:
        _answer()
    except SystemExit as end:
        if "WORLD_SIZE" in os.environ:
            from limbeck._internal.processes import exit_launched

            exit_launched(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _answer() -> None:
    """A mistake of the user's becomes one message and a non-zero exit, without a traceback."""
    _set_up_logging()
    if "WORLD_SIZE" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is loaded
    if _place() > 0:
        _be_silent()
    try:
        app()
    except LimbeckError as error:
        _fail(error, str(error), _STATUS.get(type(error), 1))
    except OSError as error:
        name = shortened(str(error.filename), 100)
        if error.errno in _NO_PATH:
            _fail(error, f"'{name}' cannot be used as a path: {error.strerror}. Give another.", 1)
        if error.errno not in _NOT_WRITTEN:
            raise
        _fail(error, f"{error.strerror}: {name if error.filename else 'while writing'}. Nothing finished was lost.", 1)


def _place() -> int:
    """Which of the processes this is that a launcher (torchrun, accelerate) started; the first one speaks for all."""
    return int(os.environ.get("RANK") or 0)


def _be_silent() -> None:
    os.environ[QUIET] = "1"
    logging.getLogger("limbeck").setLevel(logging.CRITICAL)
    out.quiet = True


def _fail(error: BaseException, message: str, status: int) -> None:
    if os.environ.get("LIMBECK_DEBUG"):
        raise error
    if _place() > 0 and not isinstance(error, Fault):
        sys.exit(status)
    Console(stderr=True).print(f"Error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(status)


def _set_up_logging() -> None:
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, show_level=False)
    logger = logging.getLogger("limbeck")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    # transformers reports loads and its own bars on every call; what matters of it, limbeck says itself
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def _run(recipe: Any, output: Path | None, resume: bool) -> None:
    from limbeck._internal.files import file_name
    from limbeck.training.execute import execute

    folder = output or Path("runs") / file_name(recipe.task.name, recipe.method.name, f"s{recipe.seed}")
    try:
        run = execute(recipe, folder, resume=resume)
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted. The same command with --resume continues {folder}.") from None
    show_run(run.path, run.metrics())

"""Assemble the command line: the list of commands, the options of all of them, and what becomes of an error.

Commands import what they need when they run, so that --help answers at once.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler

from limbeck import __version__
from limbeck._internal.console import plain_console
from limbeck._internal.machine import disk_full, out_of_memory
from limbeck._internal.progress import QUIET
from limbeck._internal.signals import stopping_on_signals
from limbeck._internal.tuning import bound_spinning, keep_freed_memory
from limbeck.cli.deploy import bench, export, predict, push, shrink
from limbeck.cli.listings import doctor, methods, profile, recipes, studies, tasks, validate
from limbeck.cli.options import expanding_home, with_imports, with_json, with_threads
from limbeck.cli.render import out
from limbeck.cli.results import analyze, compare, evaluate, glue, report, rivals
from limbeck.cli.serve import serve
from limbeck.cli.stopping import AGAIN
from limbeck.cli.train import cache, demo, distill, finetune, study
from limbeck.errors import Fault, LimbeckError, RunError, Stopped, Terminated, shorten

app = typer.Typer(
    name="limbeck",
    help="Distil pre-trained language models through their hidden representations.",
    epilog="Start with: limbeck demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"limbeck {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _check_working_directory()
    if quiet:
        os.environ[QUIET] = "1"
        logging.getLogger("limbeck").setLevel(logging.WARNING)
    if debug:
        os.environ["LIMBECK_DEBUG"] = "1"


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise RunError(
            "The folder in which this command was started does not exist any more, or cannot be read "
            f"({error.strerror}). Change to one that does (cd) and try again."
        ) from error


app.command(
    epilog="Example: limbeck finetune glue/rte --model bert-base-uncased --data-dir data/glue -o runs/teacher-rte"
)(finetune)
app.command(
    epilog="Examples: limbeck distill kd-rte teacher.model=runs/teacher-rte   |   "
    "limbeck distill --method kd --task glue/rte --data-dir data/glue --teacher runs/teacher-rte --keep first:6"
)(distill)
app.command(
    epilog="Examples: limbeck cache fsd/rte fcd/rte teacher.model=runs/teacher-rte -o caches/rte   |   "
    "limbeck cache --method kd --method fsd --task glue/rte --data-dir data/glue --teacher runs/teacher-rte "
    "-o caches/rte"
)(cache)
app.command(
    epilog="Examples: limbeck evaluate runs/rte-kd-s0   |   "
    "limbeck evaluate my-model --task glue/rte --data-dir data/glue   |   "
    "limbeck evaluate runs/rte-kd-s0 --split test --submission out"
)(evaluate)
app.command(
    epilog="Examples: limbeck study first task.data_dir=data/glue   |   "
    "limbeck study fsd/small task.data_dir=data/glue   |   limbeck study my-study.yaml --workers 2 --dry-run"
)(study)
app.command(
    epilog="Examples: limbeck compare runs/glue-rte-* --baseline ft   |   "
    "limbeck compare runs/rte-kd-s0 runs/rte-fsd-s0   |   limbeck compare studies/rte-small -o table.tex"
)(compare)
app.command(
    epilog="Examples: limbeck rivals runs/glue-rte-*   |   limbeck rivals studies/first   |   "
    "limbeck rivals runs/rte-kd-s0 --model bert-base-uncased task.data_dir=data/glue"
)(rivals)
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
    epilog="Examples: limbeck push runs/rte-kd-s0 you/rte-small --licence mit   |   "
    "limbeck push exports/rte-kd-s0-onnx-int8 you/rte-small-onnx --private"
)(push)
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
app.command(
    epilog="Examples: limbeck serve shrunk/intents   |   "
    "limbeck serve rte-small-int8 --teacher runs/teacher-rte --run runs/rte-kd"
)(serve)
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
app.command(
    epilog="Examples: limbeck demo   |   limbeck demo --quick   |   "
    "limbeck demo --task-dir data/glue/RTE --model bert-base-uncased"
)(demo)

_COMPUTING = (finetune, distill, cache, evaluate, study, rivals, analyze, export, push, predict, bench, shrink, demo)
_LOADING = (*_COMPUTING, report, methods, profile, serve)
_WITHOUT_TABLES = (cache, export, predict, push, report, serve)  # which name the files that they wrote
for info in app.registered_commands:
    assert info.callback is not None
    command = run = info.callback
    run = with_imports(run) if command in _LOADING else run
    run = with_threads(run) if command in _COMPUTING else run
    info.callback = expanding_home(run if command in _WITHOUT_TABLES else with_json(run))

_MAKE_ROOM, _BAD_DISK = "Make room, then try again.", "See to the disk, then try again."
_ADVICE = {  # what to do about errors of the machine
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EACCES: "Ask for the right to it, or give another path.",
    errno.EROFS: "Give another path.",
    errno.EIO: _BAD_DISK,
    errno.ESTALE: _BAD_DISK,
}
_OUT_OF_MEMORY = (
    "Out of memory, or of threads. Give the command more (ulimit -v and -u, or a container's limit, may hold it back), "
    "or less to do at once: smaller batches, shorter texts, fewer workers. Nothing finished was lost."
)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)


def main() -> None:
    """Run the command that was typed, and end this process as a launcher (torchrun, accelerate) needs it to."""
    try:
        with stopping_on_signals() as stopper:
            try:
                _run_command()
            except Stopped as stop:
                _fail_stopped(stop)
            except Exception:
                if stopper.stop is None:
                    raise
                _fail_stopped(stopper.stop)  # what else went wrong on the way out is no news
    except SystemExit as end:
        if "WORLD_SIZE" in os.environ:
            from limbeck._internal.processes import exit_launched

            exit_launched(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _fail_stopped(stop: Stopped) -> None:
    status = 143 if isinstance(stop, Terminated) else 130  # as shells count signals
    _fail(stop, f"{stop} {stop.advice or AGAIN}", status)


def _run_command() -> None:
    """Turn a mistake of the user's into one message and a non-zero exit, without a traceback."""
    _set_up_logging()
    keep_freed_memory()
    bound_spinning()
    if "WORLD_SIZE" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is loaded
    if _rank() > 0:
        _silence()
    try:
        app()
    except LimbeckError as error:
        _fail(error, str(error), 1)
    except OSError as error:
        if out_of_memory(error):
            _fail_out_of_memory(error)
        name = shorten(str(error.filename), 100)
        if error.errno in _NO_PATH:
            _fail(error, f"'{name}' cannot be used as a path: {error.strerror}. Give another.", 1)
        if error.errno not in _ADVICE:
            raise
        where = name if error.filename else "while reading or writing"
        _fail(error, f"{error.strerror}: {where}. Nothing finished was lost. {_ADVICE[error.errno]}", 1)
    except Exception as error:  # of a library, which has its own words for the same
        if out_of_memory(error):
            _fail_out_of_memory(error)
        if not disk_full(error):
            raise
        _fail(error, f"No space left on device: while writing. Nothing finished was lost. {_MAKE_ROOM}", 1)


def _rank() -> int:
    """Return this process's number among those that a launcher started; the first one, 0, speaks for all."""
    return int(os.environ.get("RANK") or 0)


def _silence() -> None:
    os.environ[QUIET] = "1"
    logging.getLogger("limbeck").setLevel(logging.CRITICAL)
    out.quiet = True


def _fail(error: BaseException, message: str, status: int) -> None:
    if os.environ.get("LIMBECK_DEBUG"):
        raise error
    if _rank() > 0 and not isinstance(error, Fault):
        sys.exit(status)
    plain_console(stderr=True).print(f"Error: {message}", style="red", highlight=False, soft_wrap=True)
    sys.exit(status)


def _fail_out_of_memory(error: BaseException) -> None:
    """Say so by the plainest means: rich would load modules, for which there may be no memory either."""
    if os.environ.get("LIMBECK_DEBUG"):
        raise error
    error.__traceback__ = None  # and with it what filled the memory
    print(f"Error: {_OUT_OF_MEMORY}", file=sys.stderr, flush=True)
    sys.exit(1)


def _set_up_logging() -> None:
    handler = RichHandler(console=plain_console(stderr=True), show_time=False, show_path=False, show_level=False)
    logger = logging.getLogger("limbeck")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    # transformers reports loads and its own bars on every call; what matters of it, limbeck says itself
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

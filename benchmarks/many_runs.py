"""Show where the time of a study of many small runs goes: training steps, and everything around them.

    python benchmarks/many_runs.py                       # 42 runs of CoLA, 3 epochs each: an hour and more on 2 cores
    python benchmarks/many_runs.py --seeds 1             # the same methods, 7 runs
    python benchmarks/many_runs.py --quick               # 7 runs on a few rows: does it run?
    python benchmarks/many_runs.py --check               # exit with status 1 if too little of the time is steps

The study is one as a user would write it: seven methods with as many seeds, students of 6 of the 12 layers of --model,
all else as it is by default; its rivals are left out, because they are no runs. The teacher is given. Times are those
of one process; those of what runs inside of something else count once, for the inner one.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from _table import parser
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

from limbeck import fit_head
from limbeck.study.engines import InProcess
from limbeck.study.jobs import CacheJob
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study
from limbeck.training import layer_choosing, session
from limbeck.training.trainer import RunTrainer

SHARED = Path(__file__).parents[2] / "shared"
METHODS = ("ft", "kd", "cka", "fsd_il", "fcd", "pkd", "rkd")
SHARE = 0.95  # of the study's time, at least, in steps
STEPS = "training steps"
QUICK_ROWS = 200


class Stopwatch:
    """Add up the seconds of named parts of a program; of nested ones, the outer counts without the inner."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[float] = []  # seconds of what ended inside of each part that is open

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        self._open.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            self.seconds[name] += took - self._open.pop()
            if self._open:
                self._open[-1] += took

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Time all calls of a function or method from now on."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*args, **options)

        setattr(owner, attribute, timed)


class TimeSteps(TrainerCallback):
    """Time each step from its batch to the optimiser's end."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch, self._part = watch, None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._part = self._watch.part(STEPS)
        self._part.__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._part.__exit__(None, None, None)


def instrument() -> Stopwatch:
    """Time the parts of every run of this process."""
    watch = Stopwatch()
    for owner, attribute, name in (
        (session, "assemble", "load task and models"),
        (layer_choosing, "assemble", "load task and models"),
        (session, "load_data", "tokenise"),
        (session, "examine_teacher", "score the teacher"),
        (session, "start_head", "fit the head"),
        (session, "data_of", "fingerprints"),
        (session.TrainingSession, "_score", "evaluate the student"),
        (session.TrainingSession, "_finish", "write results"),
        (RunTrainer, "save_model", "checkpoints"),
        (CacheJob, "run", "write the teacher's cache"),
    ):
        watch.watch(owner, attribute, name)
    make = RunTrainer.__init__

    def with_times(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.add_callback(TimeSteps(watch))

    RunTrainer.__init__ = with_times  # type: ignore[method-assign]
    return watch


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = some_rows(options.data, folder) if options.quick else options.data
        make_teacher(options.model, data, folder / "teacher")
        (folder / "study.yaml").write_text(yaml.safe_dump(description(data, folder / "teacher", options)))
        study, watch = load_study(folder / "study.yaml"), instrument()
        with watch.part("all else"):
            found = run_study(study, folder / "out", InProcess(options.threads))
    runs = sum(len(entry["runs"]) for entry in found["entries"])
    if runs < len(METHODS) * options.seeds:
        sys.exit(f"Only {runs} runs ended well: {next(entry['why'] for entry in found['entries'] if entry['why'])}")
    finish(runs, watch.seconds, options)


def _options() -> Namespace:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", type=Path, default=SHARED / "data" / "glue", help="the GLUE folder")
    reader.add_argument("--model", default=str(SHARED / "models" / "gte-small"), help="a 12-layer encoder")
    reader.add_argument("--seeds", type=int, default=6, help="of each of the seven methods")
    reader.add_argument("--epochs", type=float, default=3.0)
    options = reader.parse_args()
    if options.quick:
        options.seeds, options.epochs = 1, 1.0
    os.environ.setdefault("LIMBECK_QUIET", "1")
    return options


def description(data: Path, teacher: Path, options: Namespace) -> dict[str, Any]:
    return {
        "tasks": ["glue/cola"],
        "task": {"data_dir": str(data)},
        "teacher": {"fine_tuned": str(teacher), "confirmed": True},
        "student": {"from": "teacher", "keep": "spread:6"},
        "train": {"epochs": options.epochs},
        "methods": list(METHODS),
        "seeds": list(range(options.seeds)),
        "rivals": False,
    }


def some_rows(data: Path, folder: Path) -> Path:
    """Copy the beginning of CoLA."""
    for file in ("train.tsv", "dev.tsv"):
        lines = (data / "CoLA" / file).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "glue" / "CoLA").mkdir(parents=True, exist_ok=True)
        (folder / "glue" / "CoLA" / file).write_text("".join(lines[:QUICK_ROWS]), encoding="utf-8")
    return folder / "glue"


def make_teacher(model: str, data: Path, folder: Path) -> None:
    """Save the model with a head that is fitted to some of CoLA: better than chance, in seconds."""
    network = AutoModelForSequenceClassification.from_pretrained(
        model, id2label={0: "unacceptable", 1: "acceptable"}, label2id={"unacceptable": 0, "acceptable": 1}
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    with (data / "CoLA" / "train.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) == 4][:2_000]
    fit_head(network, tokenizer, [row[3] for row in rows], [int(row[1]) for row in rows])
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def finish(runs: int, seconds: Counter[str], options: Namespace) -> None:
    """Print the table, write the file, and exit as ``--check`` asks."""
    total = sum(seconds.values())
    title = f"A study of {runs} runs of CoLA, {options.epochs:g} epochs each, {torch.get_num_threads()} threads"
    table = Table("part", "seconds", "of each run", "share", title=title)
    for name, took in seconds.most_common():
        table.add_row(name, f"{took:.1f}", f"{took / runs:.2f}", f"{took / total:.1%}")
    share = seconds[STEPS] / total
    met = share >= SHARE
    table.add_section()
    table.add_row(
        "all", f"{total:.1f}", f"{total / runs:.2f}", f"target: steps >= {SHARE:.0%}: {'yes' if met else 'NO'}"
    )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json:
        options.json.write_text(json.dumps({"runs": runs, "seconds": dict(seconds), "share": share}, indent=1) + "\n")
    if options.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Score what 'limbeck shrink' makes on test files that it never saw, and what each of its pieces adds, against time.

    python benchmarks/quality.py --data FOLDER --model MODEL            # all: about 75 minutes on two quiet cores
    python benchmarks/quality.py --data FOLDER --model MODEL --only sst2 --no-pieces
    python benchmarks/quality.py --data FOLDER --model MODEL --only banking77 --no-pieces --picture docs/front.png
    python benchmarks/quality.py --data FOLDER --model MODEL --quick    # few rows and steps: does it run?
    python benchmarks/quality.py --data FOLDER --model MODEL --check    # exit with status 1 if a target is missed

FOLDER holds banking77/, clinc150/ and glue/SST-2/. Of SST-2 the first 10,000 training rows train, and the official
development file is the test, because the test file has no labels. 'shrink' runs with its defaults, as a command, with
``--minutes`` (10). The pieces are trainings of one epoch each: the head fresh or fitted, layers first or chosen, each
method; beside them a plain loop of transformers, and the linear rivals.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _table import conclude, parser
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

from limbeck import execute, load_recipe, load_task
from limbeck.inference.logits import logits_in_order
from limbeck.inference.served import TorchServed, load_served
from limbeck.models.loading import load_for_training, load_tokenizer
from limbeck.report.drawing import ReportFigure, save_as, style
from limbeck.report.tradeoff import Mark, draw_marks
from limbeck.rivals.frozen import frozen_rivals
from limbeck.rivals.tfidf import tfidf_rival
from limbeck.shrink.page import LOOKS
from limbeck.shrink.summary import findings
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

Rows = list[tuple[str, str]]
QUICK_ROWS = 400
METHODS = ("ft", "kd", "cka", "shape", "fsd", "fcd", "ics")


@dataclass
class Line:
    """Hold one line of the table: what, what it scores, what it took, and what was promised."""

    data: str
    case: str
    score: float | None = None
    seconds: float | None = None
    note: str = ""
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Targets:
    """Hold what 'shrink' promises for one data set; losses are in points against the teacher."""

    teacher: float | None  # None: at least the frozen linear model
    six: float | None
    three: float | None
    six_loss: float | None = None
    three_loss: float | None = None


TARGETS = {
    "banking77": Targets(93.0, 92.5, 91.5),
    "clinc150": Targets(None, None, None, 1.0, 2.0),
    "sst2": Targets(None, None, None, 1.5, 3.0),
}


def banking77(folder: Path) -> tuple[Rows, Rows]:
    def read(file: Path) -> Rows:
        with file.open(newline="", encoding="utf-8") as opened:
            return [(row["text"], row["category"]) for row in csv.DictReader(opened)]

    return read(folder / "banking77" / "train.csv"), read(folder / "banking77" / "test.csv")


def clinc150(folder: Path) -> tuple[Rows, Rows]:
    """Return all that is not for testing, with the out-of-scope texts as a class of their own, and the test."""
    parts = json.loads((folder / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    rows = {name: [(text, label) for text, label in part] for name, part in parts.items()}
    return [row for name in ("train", "val", "oos_train", "oos_val") for row in rows[name]], [
        *rows["test"],
        *rows["oos_test"],
    ]


def sst2(folder: Path) -> tuple[Rows, Rows]:
    def read(file: Path) -> Rows:
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        return [(text, {"0": "negative", "1": "positive"}[label]) for text, label in (one.split("\t") for one in lines)]

    return read(folder / "glue" / "SST-2" / "train.tsv")[:10_000], read(folder / "glue" / "SST-2" / "dev.tsv")


DATA: dict[str, Callable[[Path], tuple[Rows, Rows]]] = {"banking77": banking77, "clinc150": clinc150, "sst2": sst2}


def main() -> None:
    options = _options()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or DATA:
            home = options.keep / name if options.keep else Path(folder) / name
            home.mkdir(parents=True, exist_ok=True)
            train, test = DATA[name](options.data)
            if options.quick:
                train, test = train[:: -(-len(train) // QUICK_ROWS)], test[:: -(-len(test) // QUICK_ROWS)]
            for file, rows in (("train.csv", train), ("test.csv", test)):
                with (home / file).open("w", newline="", encoding="utf-8") as opened:
                    csv.writer(opened).writerows([("text", "label"), *rows])
            rivals = list(measure_rivals(name, home, options))
            lines += [*rivals, *measure_shrink(name, home, rivals, options)]
            if not options.no_pieces:
                lines += measure_pieces(name, home, options)
    finish(lines, options)


def _options() -> Namespace:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    reader.add_argument("--model", required=True, help="a pre-trained encoder: a folder or a name on the hub")
    reader.add_argument("--minutes", type=float, default=10.0, help="of each 'limbeck shrink'")
    reader.add_argument("--only", nargs="+", choices=list(DATA), help="these data sets")
    reader.add_argument("--no-pieces", action="store_true", help="only shrink and the rivals")
    reader.add_argument("--picture", type=Path, help="draw accuracy against latency of a single data set's models here")
    reader.add_argument("--keep", type=Path, help="keep what is made in this folder; what is there is not made again")
    options = reader.parse_args()
    if options.picture and len(options.only or DATA) > 1:
        reader.error("--picture shows one data set: name it with --only.")
    if options.quick:
        options.minutes = 0.5
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


def _task(home: Path) -> Task:
    """Load the test file as what is scored, all of the training file as what is fitted."""
    return load_task(
        "table", train=str(home / "train.csv"), validation=str(home / "test.csv"), text="text", label="label"
    )


def measure_rivals(name: str, home: Path, options: Namespace) -> Iterator[Line]:
    """Fit the linear models to the whole training file, and score them on the test file."""
    task = _task(home)
    tokenizer = load_tokenizer(options.model)
    majority = task.majority(
        {"labels": task.split("train")["label"]}, task.split("validation").rename_column("label", "labels")
    )
    yield Line(name, "most frequent label", 100 * majority["accuracy"])
    begin = time.perf_counter()
    rival = tfidf_rival(task)
    yield Line(name, "linear on TF-IDF", 100 * rival.metrics["accuracy"], time.perf_counter() - begin, rival.about)
    begin = time.perf_counter()
    model, _ = load_for_training(options.model, task, tokenizer)
    (frozen,) = frozen_rivals(task, model, tokenizer, [model.config.num_hidden_layers], name="frozen")
    yield Line(name, "frozen linear", 100 * frozen.metrics["accuracy"], time.perf_counter() - begin, frozen.about)


def measure_shrink(name: str, home: Path, rivals: list[Line], options: Namespace) -> Iterator[Line]:
    """Run the command with its defaults, and score all of its models on the test file."""
    output = home / "shrunk"
    words = ["shrink", "--model", options.model, "--data", str(home / "train.csv"), "--text", "text"]
    words += ["--label", "label", "--minutes", str(options.minutes), "-o", str(output)]
    done = (output / "summary.json").is_file()
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "limbeck", *words], check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - begin
    summary = json.loads((output / "summary.json").read_text())
    took = summary["seconds"] if done else took
    late = 60 * options.minutes * 1.15
    yield Line(
        name, "shrink, in all", seconds=took, target=f"<= {late:.0f} s", met=took <= late if not options.quick else None
    )
    task = _task(home)
    figures = {model["name"]: model for model in summary["models"]}
    by_name = {line.case: line.score for line in rivals}
    found: dict[str, float] = {}
    folders = {}
    for own in ("teacher", *summary["students"]):
        words = {"teacher": "teacher", "1": "1 layer"}.get(own, f"{own} layers")
        folders |= {words: output / "students" / own / "model"}
        folders |= {f"{words}, int8": output / "students" / own / "onnx-int8"}
    for model, folder in folders.items():
        if folder.is_dir():
            found[model] = 100 * accuracy(load_served(folder, task=task), task)
            yield dataclasses.replace(
                Line(name, f"shrink: {model}", found[model], note=_figures(figures.get(model, {}))),
                **_promised(name, model, found, by_name, summary),
            )
    yield from _small_and_fast(name, found, figures)
    if options.picture:
        save_as(front_of(name, found, by_name, figures), options.picture)


def front_of(
    name: str, found: dict[str, float], rivals: dict[str, float | None], figures: dict[str, Any]
) -> ReportFigure:
    """Draw accuracy on the test file against the time of one text; of the frozen models the deepest."""
    linear = [model for model, own in figures.items() if own["kind"] == "rival"]
    scores = {model: (model, score) for model, score in found.items()}
    scores |= {linear[0]: ("linear, TF-IDF", rivals["linear on TF-IDF"] or 0.0)}
    scores |= {linear[-1]: ("linear, frozen", rivals["frozen linear"] or 0.0)}
    marks = []
    for model, (words, score) in scores.items():
        own, share = figures[model], score / 100
        marks.append(Mark(words, own["p50_ms"], share, (share, share), own.get("disk_bytes"), LOOKS[own["kind"]]))
    across = "one text (ms, logarithmic)"
    with style():
        return draw_marks(marks, metric="accuracy", across=across, name="front", title=f"{name}: test file", caption="")


def _figures(own: dict[str, Any]) -> str:
    if not own:
        return ""
    return f"{own['p50_ms']:.2f} ms ({own['latency_ratio']:.2f}x), {own['disk_bytes'] / 1e6:.1f} MB"


def _promised(
    name: str, model: str, found: dict[str, float], rivals: dict[str, float | None], summary: dict[str, Any]
) -> dict[str, Any]:
    """Return target and verdict of a model, where something was promised of it."""
    own, score = TARGETS[name], found[model]
    if model == "teacher":
        least = own.teacher if own.teacher is not None else rivals["frozen linear"] or 0.0
        return {"target": f">= {least:.1f}", "met": score >= least}
    if model == "1 layer":
        tfidf = rivals["linear on TF-IDF"] or 0.0
        said = any("Not better than linear on TF-IDF" in one for one in findings(summary))
        return {"target": f"> TF-IDF ({tfidf:.1f}), or said", "met": score > tfidf or said}
    for layers, least, loss in (("6 layers", own.six, own.six_loss), ("3 layers", own.three, own.three_loss)):
        if model == layers and (least is not None or loss is not None):
            bound = least if least is not None else found["teacher"] - (loss or 0.0)
            return {"target": f">= {bound:.1f}", "met": score >= bound}
    return {}


def _small_and_fast(name: str, found: dict[str, float], figures: dict[str, Any]) -> Iterator[Line]:
    """Hold the promises about three layers in int8; the float student has the whole vocabulary."""
    int8, teacher = figures.get("3 layers, int8"), figures["teacher"]
    if int8 is None:
        return
    size, ratio = int8["disk_bytes"] / 1e6, int8["p50_ms"] / teacher["p50_ms"]
    yield Line(name, "3 layers, int8: disk", note=f"{size:.2f} MB", target="<= 8 MB", met=size <= 8)
    yield Line(name, "3 layers, int8: latency", note=f"{ratio:.3f}x", target="<= 0.2x", met=ratio <= 0.2)
    loss = found["3 layers"] - found["3 layers, int8"]
    yield Line(
        *(name, "3 layers, int8: below float"), note=f"{loss:.2f} points", target="<= 0.3 points", met=loss <= 0.3
    )


def accuracy(served: Any, task: Task) -> float:
    """Score a model as it is served on the test file."""
    length, _ = task.suggest_length(served.tokenizer, 512)
    encoded = task.encode("validation", served.tokenizer, length)
    logits = logits_in_order(served.logits, encoded, Collator(served.tokenizer), 32, "score")
    return float(np.mean(task.predictions(logits) == np.asarray(encoded["labels"][:])))


def measure_pieces(name: str, home: Path, options: Namespace) -> Iterator[Line]:
    """Train single pieces for an epoch each, and score them on the test file."""
    task = {"name": "table", "train": str(home / "train.csv"), "validation": str(home / "test.csv")}
    task |= {"text": "text", "label": "label"}
    train = {"epochs": 1, "batch_size": 32, "eval_strategy": "no", "save_strategy": "no"}
    if options.quick:
        train |= {"max_steps": 3}
    yield plain_loop(name, home, options)

    def run(case: str, values: dict[str, Any], rate: float) -> Line:
        folder = home / "pieces" / "".join(letter if letter.isalnum() else "-" for letter in case)
        begin = time.perf_counter()
        values = {"task": task, "train": train | {"learning_rate": rate}, "seed": 0, **values}
        done = execute(load_recipe(values=values), folder, resume=True).metrics()
        start = done.get("start", {}).get("score")
        note = "" if start is None else f"{100 * start:.2f} before training"
        return Line(name, case, 100 * done["score"], time.perf_counter() - begin, note)

    for head in ("fresh", "fitted"):
        student = {"model": options.model, "head": head}
        yield run(f"whole model, {head} head", {"student": student, "method": {"name": "ft"}}, 1e-4)
    teacher = {"model": str(home / "pieces" / "whole-model--fitted-head"), "confirmed": True}
    first = {"from": options.model, "keep": "first:6", "head": "fresh"}
    yield run("first 6 of the pre-trained, fresh head, ft", {"student": first, "method": {"name": "ft"}}, 2.5e-4)
    for keep in ("first:6", "spread:6", "ends:6", "best:6"):
        for head in ("kept", "fitted"):
            if keep in ("first:6", "best:6") or head == "fitted":
                student = {"from": "teacher", "keep": keep, "head": head}
                values = {
                    "teacher": teacher,
                    "student": student,
                    "method": {"name": "kd", "alpha": 0.3, "temperature": 3},
                }
                yield run(f"{keep} of the teacher, {head} head, kd", values, 2.5e-4)
    for method in METHODS:
        student = {"from": "teacher", "keep": "ends:6", "head": "fitted"}
        yield run(
            f"ends:6, fitted head, {method}",
            {"teacher": teacher, "student": student, "method": {"name": method}},
            2.5e-4,
        )


def plain_loop(name: str, home: Path, options: Namespace) -> Line:
    """Fine-tune the whole model as most people would: transformers, AdamW at 5e-5, a linear decay, one epoch."""
    task = _task(home)
    begin = time.perf_counter()
    torch.manual_seed(0)
    tokenizer = load_tokenizer(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=task.num_labels, dtype=torch.float32
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    rows = task.split("train").shuffle(seed=0)
    batches = [rows[start : start + 32] for start in range(0, len(rows), 32)][: 3 if options.quick else None]
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(batches))
    model.train()
    for batch in batches:
        inputs = tokenizer(batch["text"], padding=True, truncation=True, max_length=128, return_tensors="pt")
        model(**inputs, labels=torch.tensor(batch["label"])).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    took = time.perf_counter() - begin
    model.save_pretrained(home / "plain")
    tokenizer.save_pretrained(home / "plain")
    return Line(name, "plain loop, whole model", 100 * accuracy(TorchServed(home / "plain"), task), took)


def finish(lines: list[Line], options: Namespace) -> None:
    """Print the table, write the file, and exit as ``--check`` asks."""
    table = Table(title=f"Accuracy on test files, {torch.get_num_threads()} threads")
    for column in ("data", "case"):
        table.add_column(column)
    for column in ("score", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("target", "met", "note"):
        table.add_column(column)
    for line in lines:
        score = "" if line.score is None else f"{line.score:.2f}"
        seconds = "" if line.seconds is None else f"{line.seconds:.0f}"
        met = {True: "yes", False: "NO", None: ""}[line.met]
        table.add_row(line.data, line.case, score, seconds, line.target, met, line.note)
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(line) for line in lines], indent=1) + "\n")
    missed = [f"{line.data}: {line.case}" for line in lines if line.met is False]
    conclude(missed, options)


if __name__ == "__main__":
    main()

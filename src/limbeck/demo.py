"""Run the whole job on an embedded default: fine-tune a teacher, distil it by several methods, compare."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from limbeck._internal.links import refuse_links
from limbeck.analysis.analyze import analyze
from limbeck.analysis.record import Record
from limbeck.errors import DataError, MissingExtra
from limbeck.models.loading import depth_of
from limbeck.models.vocabulary import make_wordpiece
from limbeck.recipes.recipe import load_recipe
from limbeck.report.page import write_report
from limbeck.runs.directory import RunDirectory
from limbeck.tasks import load_task
from limbeck.tasks.glue import GLUE
from limbeck.tasks.task import Task
from limbeck.training.execute import execute

logger = logging.getLogger("limbeck")

# Without --model the teacher starts from nothing, so it is small and learns fast.
_SCRATCH_TEACHER = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "initializer_range": 0.05,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SCRATCH_STUDENT = {"num_hidden_layers": 1}
_SCRATCH_TRAIN = {"epochs": 6, "batch_size": 32, "learning_rate": 6e-4}
_SCRATCH_STUDENT_TRAIN = _SCRATCH_TRAIN | {"epochs": 4}
_MAX_LENGTH = 128
# The methods of the four papers and the two that everybody knows: a first look in five minutes.
_METHODS = ("ft", "kd", "cka", "shape", "fsd", "fcd", "ics")
# With --quick: enough to see the whole job in a minute, too little for the scores to say anything.
_QUICK_METHODS = ("ft", "kd", "fcd")
_SIZE, _QUICK_SIZE = 10_000, 3_000
_QUICK_EPOCHS = 0.5  # of the usual ones
_PRETRAINED_TRAIN = {"epochs": 3, "batch_size": 32, "learning_rate": 5e-5}


@dataclass(frozen=True)
class Row:
    """Hold one line of the demo's table."""

    model: str
    method: str
    metric: str
    score: float
    agreement: str
    parameters: int
    milliseconds: float


class Demo(NamedTuple):
    """Hold what the demo found: the rows of its table, and its report."""

    rows: list[Row]
    report: Path | None  # the page; None where what draws it is not installed


def run_demo(
    output: Path, *, task_dir: Path | None = None, model: str | None = None, seed: int = 0, quick: bool = False
) -> Demo:
    """Run the comparison into folders under ``output``; finished parts of an earlier call are used again."""
    refuse_links(output)
    block = _task_block(task_dir, _QUICK_SIZE if quick else _SIZE)
    task = load_task(**block)
    parts = (task.name.replace("/", "-"), Path(model).name if model else "scratch", f"s{seed}", *["quick"] * quick)
    home = output / "-".join(parts)
    teacher_recipe, student = _models(task, model, home)
    common = {"task": block | {"max_length": _MAX_LENGTH}, "seed": seed}
    train, student_train = (_PRETRAINED_TRAIN,) * 2 if model else (_SCRATCH_TRAIN, _SCRATCH_STUDENT_TRAIN)
    if quick:
        train, student_train = (usual | {"epochs": _QUICK_EPOCHS * usual["epochs"]} for usual in (train, student_train))
    logger.info("Teacher: fine-tuning on %s (%s training examples).", task.name, f"{len(task.split('train')):,}")
    values = common | {"student": teacher_recipe, "method": {"name": "ft"}, "train": train}
    teacher = execute(load_recipe(values=values), home / "teacher", resume=True)
    runs = {}
    for name in _QUICK_METHODS if quick else _METHODS:
        logger.info("Student: %s.", name)
        values = common | {
            "teacher": {"model": str(teacher.path), "confirmed": True},  # made here: its labels are the task's
            "student": student,
            "method": {"name": name},
            "train": student_train,
        }
        runs[name] = execute(load_recipe(values=values), home / name, resume=True, show_data=False)
    records = dict(zip(runs, analyze([run.path for run in runs.values()]), strict=True))
    return Demo(_rows(teacher, runs, records), _report(home))


def _report(home: Path) -> Path | None:
    try:
        write_report([home], home / "report.html", None)
    except MissingExtra as error:
        logger.info("No report: %s", error)
        return None
    return home / "report.html"


def _task_block(task_dir: Path | None, size: int) -> dict[str, Any]:
    if task_dir is None:
        return {"name": "reviews", "size": size}
    folders = {spec.folder.lower(): name for name, spec in GLUE.items()}
    name = folders.get(task_dir.resolve().name.lower())
    if name is None:
        known = ", ".join(sorted(spec.folder for spec in GLUE.values()))
        raise DataError(f"--task-dir must be a GLUE task's folder, named as GLUE names it ({known}); seen: {task_dir}.")
    return {"name": f"glue/{name}", "data_dir": str(task_dir)}


def _models(task: Task, model: str | None, home: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how the teacher and its students are made, as student blocks of their recipes."""
    if model is not None:
        return {"model": model}, {"from": "teacher", "keep": f"first:{max(1, depth_of(model) // 2)}"}
    folder = home / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        train = task.split("train")
        make_wordpiece((text for column in task.text_columns for text in train[column]), folder)
    return {"config": _SCRATCH_TEACHER, "tokenizer": str(folder)}, {"config": _SCRATCH_STUDENT}


def _rows(teacher: RunDirectory, runs: dict[str, RunDirectory], records: dict[str, Record]) -> list[Row]:
    costs = {name: record.values["cost"] for name, record in records.items()}
    results = teacher.metrics()
    score = (results["metric"], results["score"])
    (milliseconds, *_) = (cost["teacher_milliseconds"] for cost in costs.values())  # all were timed in one session
    rows = [Row("teacher", "ft", *score, "", results["parameters"], milliseconds)]
    for name, run in runs.items():
        results = run.metrics()
        agreement = f"{100 * results['teacher']['agreement']:.1f}%"
        score = (results["metric"], results["score"])
        rows.append(Row("student", name, *score, agreement, results["parameters"], costs[name]["milliseconds"]))
    return rows

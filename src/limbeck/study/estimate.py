"""Estimate a study's time and disk: roughly from sizes and lengths, better once some of its runs are done."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from limbeck.distillation.pair import ModelShape, Pair
from limbeck.errors import LimbeckError
from limbeck.methods.costs import loss_cost
from limbeck.models.families import blocks_of
from limbeck.models.heads import model_class
from limbeck.models.kept_layers import stand_in
from limbeck.models.loading import count_parameters, load_config, load_tokenizer
from limbeck.models.students import from_config
from limbeck.recipes.files import set_value
from limbeck.rivals.frozen import FROZEN_ROWS
from limbeck.runs.directory import RunDirectory
from limbeck.study.chains import all_points, first_point, possible_values, waits_for
from limbeck.study.description import reference_in
from limbeck.study.plan import Plan
from limbeck.tasks import load_task
from limbeck.tasks.task import Task
from limbeck.training.cache_policy import flops

_BYTES_OF_A_WEIGHT = 4
_PASSES = 3  # forward once, backward twice
_READING = ("max_length", "padding", "too_long")  # what a task block says beside the task's own options
_FIT_SECONDS = 30  # of the linear models of 10,000 texts
_LENGTHS = ("train.epochs", "train.max_steps")
_WITH_VALIDATION = 1.2  # the texts that are answered, beside those that are fitted to


@dataclass(frozen=True)
class PlanLine:
    """Hold the cost of a method on a task, or of a task's teacher.

    What cannot be known here (a model on the hub, a stream) is None.
    """

    task: str
    label: str
    settings: tuple[int, ...]  # in each step of its search
    after: tuple[str, ...]  # the methods that are searched first
    runs: int
    done: int
    seconds: float | None  # that the runs still to be done will take
    bytes: int | None  # that the students kept will take


@dataclass(frozen=True)
class _Size:
    blocks: int  # parameters in the blocks
    all: int


def estimate_costs(plan: Plan) -> list[PlanLine]:
    """Return a line for each task's teacher and each method."""
    study, lines, ratios = plan.study, [], []
    for task in study.tasks:
        teachers = plan.teacher_jobs(task)
        source = plan.teacher_shape(task)
        if teachers:
            costs = [_cost(job.values, source) for job in teachers]
            for job, (seconds, _) in zip(teachers, costs, strict=True):
                ratios += _slowdowns([Path(job.folder)], seconds)
            runs, size, finished = len(teachers), costs[0][1], sum(job.finished() for job in teachers)
            size = None if size is None else size * (runs if study.keep == "all" else 1)
            lines.append(PlanLine(task, "teacher", (runs,), (), runs, finished, _mean_known(costs), size))
        for label in study.labels(task):
            first = plan.train_job(task, label, first_point(study, task, label), study.seeds[0], "kept")
            costs = [_cost(values, source) for values in _with_each_length(plan, task, label, first.values)]
            seconds, size = _mean_known(costs), costs[0][1]
            done = plan.finished_runs(task, label)
            ratios += _slowdowns(done, seconds)
            runs = plan.count_runs(task, label)
            reported = len(study.seeds) if study.has_row(label) else 0
            kept = {"none": 0, "reported": reported, "all": runs}[study.keep]
            size = None if size is None else kept * size
            settings = tuple(plan.count_settings(task, label)) or (1,)
            after = tuple(waits_for(study, task, label))
            lines.append(PlanLine(task, label, settings, after, runs, min(runs, len(done)), seconds, size))
    pace = median(ratios) if ratios else 1.0
    return [_with_time_left(line, pace) for line in lines]


def estimate_rivals(plan: Plan) -> float | None:
    """Return the seconds that the linear models still to be made will take; None where that cannot be known here."""
    seconds = 0.0
    for task in plan.study.tasks:
        job = plan.rivals_job(task)
        if job is None or job.finished():
            continue
        options = {key: value for key, value in job.task.items() if key not in _READING}
        source = plan.teacher_shape(task)
        try:
            tokens, rows = _count_tokens(json.dumps(options), source, job.task.get("max_length", "auto"))
            read = tokens * min(1.0, FROZEN_ROWS / rows) * _WITH_VALIDATION
            seconds += _FIT_SECONDS + read * 2 * _model_size(source).blocks / flops()
        except (LimbeckError, TypeError):
            return None
    return seconds


def _with_time_left(line: PlanLine, pace: float) -> PlanLine:
    """Replace the time of one run by that of all runs that are left, at the pace of those that are done."""
    seconds = None if line.seconds is None else line.seconds * pace * (line.runs - line.done)
    return replace(line, seconds=seconds)


def _with_each_length(plan: Plan, task: str, label: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recipe with each length of training that a search may give it; the mean of them is expected."""
    study = plan.study
    taken = [key for key, value in study.changes(label).items() if reference_in(value)]
    searched = [key for space in study.steps(task, label) for key in space]
    lengths = {key: possible_values(study, task, label, key) for key in [*taken, *searched] if key.endswith(_LENGTHS)}
    found = []
    for point in all_points(lengths):
        found.append(copy.deepcopy(values))
        for key, value in point.items():
            set_value(found[-1], key, value)
    return found


def _mean_known(costs: list[tuple[float | None, int | None]]) -> float | None:
    seconds = [seconds for seconds, _ in costs]
    return None if None in seconds else fmean(value for value in seconds if value is not None)


def _cost(values: dict[str, Any], source: str) -> tuple[float | None, int | None]:
    """Return the seconds of a run's training, and the bytes of its student; ``source`` has the teacher's shape."""
    try:
        size = _student_size(json.dumps(values["student"]), source)
    except LimbeckError:
        return None, None
    stages = values.get("stages") or [{}]
    options = {key: value for key, value in values["task"].items() if key not in _READING}
    if (values.get("method") or {}).get("name") == "ft":  # which leaves rows without labels out
        options = {key: value for key, value in options.items() if not key.startswith("unlabelled")}
    try:
        tokens, rows = _count_tokens(json.dumps(options), source, values["task"].get("max_length", "auto"))
    except (LimbeckError, TypeError):
        return None, size.all * _BYTES_OF_A_WEIGHT
    seconds = 0.0
    for stage in stages:
        train = values.get("train", {}) | stage.get("train", {})
        # YAML reads 1e1 as text, which a recipe takes for a number
        passes, steps = float(train.get("epochs", 3.0)), float(train.get("max_steps", -1))
        if steps > 0:
            passes = steps * float(train.get("batch_size", 32)) / rows
        seconds += passes * tokens * 2 * _PASSES * size.blocks / flops()
        batch = int(float(train.get("batch_size", 32)))
        method = stage.get("method") or values.get("method") or {}
        seconds += passes * rows / batch * _PASSES * _loss_flops(
            json.dumps(method), json.dumps(values["student"]), source, batch, max(1, round(tokens / rows))
        ) / flops()  # fmt: skip
    return seconds, size.all * _BYTES_OF_A_WEIGHT


@cache
def _student_size(block: str, source: str) -> _Size:
    values = json.loads(block)
    if values.get("from") and values.get("keep"):
        whole = _model_size(source if values["from"] == "teacher" else values["from"])
        depth = int(load_config(source if values["from"] == "teacher" else values["from"]).num_hidden_layers)
        blocks = whole.blocks * len(stand_in(values["keep"], depth)) // depth
        return _Size(blocks, whole.all - whole.blocks + blocks)
    if values.get("model"):
        return _model_size(values["model"])
    with torch.device("meta"):
        model = from_config(values["config"], load_config(source))
    return _Size(count_parameters(blocks_of(model)), count_parameters(model))


@cache
def _loss_flops(method: str, student: str, source: str, batch: int, length: int) -> int:
    """Return the operations of a loss's forward pass; 0 where they are not known: they are few beside the models'."""
    options, block = json.loads(method), json.loads(student)
    try:
        teacher = ModelShape.named(source)
        shape = teacher
        if block.get("from") and block.get("keep"):
            shape = teacher if block["from"] == "teacher" else ModelShape.named(block["from"])
            shape = replace(shape, depth=len(stand_in(block["keep"], shape.depth)))
        elif block.get("model"):
            shape = ModelShape.named(block["model"])
        cost = loss_cost(options.pop("name"), Pair(shape, teacher, "classification", 2), batch, length, **options)
    except (LimbeckError, TypeError, ValueError, KeyError):
        return 0
    return cost.flops if cost is not None else 0


@cache
def _model_size(source: str) -> _Size:
    config = load_config(source)
    with torch.device("meta"):
        model = model_class("classification", config).from_config(config)
    return _Size(count_parameters(blocks_of(model)), count_parameters(model))


@cache
def _count_tokens(task: str, source: str, max_length: Any) -> tuple[float, int]:
    """Return how many tokens one pass over the training data reads, and how many examples it has."""
    options = json.loads(task)
    loaded: Task = load_task(options.pop("name"), **options)
    rows = len(loaded.split("train"))
    if (more := loaded.unlabelled) is not None:  # an epoch ends when each row of both kinds has come
        unlabelled = sum(len(part.rows[loaded.text_columns[0]]) for part in more.parts())
        rows = math.ceil(max(rows / (1 - more.share), unlabelled / more.share))
    lengths = loaded.lengths("train", load_tokenizer(source))
    if max_length != "auto":
        lengths = lengths.clip(max=max_length)
    return float(lengths.mean() * rows), rows


def _slowdowns(folders: list[Path], expected: float | None) -> list[float]:
    """Return how many times longer finished runs took than was expected of them."""
    runs = [RunDirectory(folder) for folder in folders]
    found = [run.metrics()["train_seconds"] for run in runs if run.finished]
    return [seconds / expected for seconds in found] if expected else []

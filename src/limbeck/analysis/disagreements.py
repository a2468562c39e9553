"""List the validation examples on which a run's student and its teacher differ most, with their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.compare.answers import Answers, prediction_columns, read_answers
from limbeck.errors import DataError
from limbeck.metrics import answer_scores
from limbeck.recipes.recipe import load_task_block
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import label_names, own_task
from limbeck.runtime.answers import sigmoid, softmax
from limbeck.tasks import load_task
from limbeck.tasks.task import Task

_SHOWN = 5  # labels of each side


def disagreements(run: str | Path) -> list[dict[str, Any]]:
    """Return texts, known label and both answers of each validation example of a run, those furthest apart first.

    ``difference`` is the share of probability that lies elsewhere (total variation); of several labels the largest of
    their differences; of numbers, how far apart they are; of tags the share of words; of answers 1 - F1. Raises where
    the run keeps no answers of a teacher.
    """
    directory = RunDirectory(Path(run))
    answers = read_answers(directory.predictions())
    columns = prediction_columns(directory.predictions(), ("logits", "teacher_logits", "teacher_prediction"))
    if "teacher_prediction" not in columns:
        raise DataError(f"{run} was trained without a teacher, so there is nothing to disagree with.")
    block = load_task_block(own_task(run) or {})
    task = load_task(block.name, **block.options)
    texts = _texts(task, answers)
    names = list(task.label_names) or label_names(directory)
    rows = _SIDES[answers.kind](answers, columns, names)
    examples = [
        {"texts": text, "label": label, "student": ours, "teacher": theirs, "difference": round(float(difference), 6)}
        for text, (label, ours, theirs, difference) in zip(texts, rows, strict=True)
    ]
    return sorted(examples, key=lambda example: -example["difference"])


def _texts(task: Task, answers: Answers) -> list[list[str]]:
    data = task.split("validation")
    if len(data) != len(answers.labels):
        raise DataError(
            f"{answers.file} has {len(answers.labels):,} predictions, but the validation data of {task.name} now have "
            f"{len(data):,} rows. Put back the data of the run."
        )
    return [list(parts) for parts in zip(*task.inputs(data[:]), strict=True)]


Row = tuple[str, list[dict[str, Any]], list[dict[str, Any]], float]  # label, student, teacher, difference


def _one(label: str) -> list[dict[str, Any]]:
    return [{"label": label, "score": None}]


def _best(shares: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    order = np.argsort(-shares, kind="stable")[:_SHOWN]
    return [{"label": names[place], "score": round(float(shares[place]), 6)} for place in order]


def _of_classes(answers: Answers, columns: dict[str, list[Any]], names: Sequence[str]) -> list[Row]:
    ours, theirs = (softmax(np.array(columns[name], np.float64)) for name in ("logits", "teacher_logits"))
    apart = np.abs(ours - theirs).sum(1) / 2
    return [
        (names[label], _best(mine, names), _best(taught, names), difference)
        for label, mine, taught, difference in zip(answers.labels, ours, theirs, apart, strict=True)
    ]


def _of_labels(answers: Answers, columns: dict[str, list[Any]], names: Sequence[str]) -> list[Row]:
    ours, theirs = (sigmoid(np.array(columns[name], np.float64)) for name in ("logits", "teacher_logits"))
    apart = np.abs(ours - theirs).max(1)
    return [
        (_joined(flags, names), _one(_joined(mine > 0.5, names)), _one(_joined(taught > 0.5, names)), difference)
        for flags, mine, taught, difference in zip(answers.labels, ours, theirs, apart, strict=True)
    ]


def _joined(flags: Sequence[Any], names: Sequence[str]) -> str:
    return ", ".join(name for name, on in zip(names, flags, strict=True) if on) or "no label"


def _of_numbers(answers: Answers, columns: dict[str, list[Any]], names: Sequence[str]) -> list[Row]:
    rows = zip(answers.labels, answers.predictions, columns["teacher_prediction"], strict=True)
    return [
        (f"{label:g}", _one(f"{ours:.3f}"), _one(f"{theirs:.3f}"), abs(ours - theirs)) for label, ours, theirs in rows
    ]


def _of_tags(answers: Answers, columns: dict[str, list[Any]], names: Sequence[str]) -> list[Row]:
    def told(tags: Sequence[int]) -> str:
        return " ".join(names[tag] for tag in tags)

    rows = zip(answers.labels, answers.predictions, columns["teacher_prediction"], strict=True)
    return [
        (told(label), _one(told(ours)), _one(told(theirs)), float(np.mean(np.array(ours) != np.array(theirs))))
        for label, ours, theirs in rows
    ]


def _of_questions(answers: Answers, columns: dict[str, list[Any]], names: Sequence[str]) -> list[Row]:
    rows = zip(answers.labels, answers.predictions, columns["teacher_prediction"], strict=True)
    return [
        (
            " / ".join(label) or "no answer",
            _one(ours or "no answer"),
            _one(theirs or "no answer"),
            1 - answer_scores(ours, [theirs] if theirs else [], True)[1],
        )
        for label, ours, theirs in rows
    ]


_SIDES: dict[str, Callable[[Answers, dict[str, list[Any]], Sequence[str]], list[Row]]] = {
    "classes": _of_classes,
    "labels": _of_labels,
    "numbers": _of_numbers,
    "tags": _of_tags,
    "questions": _of_questions,
}

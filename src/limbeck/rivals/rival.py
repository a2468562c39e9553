"""Hold a trivial model that was fitted to a task, and score it as students are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from limbeck.errors import DataError
from limbeck.models.linear import LinearProblem
from limbeck.tasks.held_out import text_key
from limbeck.tasks.task import Task, named_after_split

SEED = 0
TUNED_ON = 2_000  # rows, or words, by which settings are chosen: more cost time and hardly change the choice
_KEPT = ("id", "label", "prediction")  # of what a task answers: enough to compare with a student row by row


@dataclass(frozen=True)
class Rival:
    """Hold a fitted trivial model: what it is, what it scores, and what it answers to the validation data."""

    name: str  # in tables: "linear on TF-IDF"
    about: str
    metrics: dict[str, float]  # of all validation data, named as a student's
    answers: dict[str, dict[str, Any]]  # by split: the columns id, label and prediction
    seconds: float  # to fit it and to answer the validation data
    parameters: int
    details: dict[str, Any]  # what was chosen and on how much: strength, features, rows, ...
    predict: Callable[..., Any]  # from columns of texts, one or two, to classes, rows of 0 and 1, or numbers


def score_rival(
    task: Task, answer: Callable[[str], tuple[Any, Any]]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Score logits on all of a task's validation data; ``answer`` gives them for a split, with the encoded rows."""
    metrics: dict[str, float] = {}
    answers = {}
    for split in task.dev_splits:
        logits, encoded = answer(split)
        scores = task.score(logits, encoded)
        metrics |= named_after_split(split, scores) if metrics else scores
        found = task.answers(logits, encoded)
        answers[split] = {name: found[name] for name in _KEPT}
    return metrics, answers


def why_no_rivals(task: Task) -> str:
    """Say why a task has no trivial rivals; empty where it has."""
    reasons = {
        "span": "a linear model does not find where an answer starts and ends",
        "language_model": "plain text has no labels that a linear model could be fitted to",
    }
    return reasons.get(task.problem, "")


def linear_problem(task: Task) -> LinearProblem:
    """Say what is fitted: words are classified one by one."""
    if reason := why_no_rivals(task):
        raise DataError(f"{task.name} has no trivial rivals: {reason}.")
    return "classification" if task.problem == "tokens" else cast(LinearProblem, task.problem)


def tuning_metric(task: Task) -> str:
    """Name the metric that settings are chosen by: the task's own; of single words, one that rare tags count in."""
    return "macro_f1" if task.problem == "tokens" else task.metrics[0]


def with_fewer_rows(task: Task, most: int) -> Task:
    """Return the task with so many random training rows at most, in their order, the same ones every time."""
    train = task.split("train")
    if len(train) <= most:
        return task
    chosen = np.sort(np.random.default_rng(SEED).permutation(len(train))[:most])
    return dataclasses.replace(task, splits={**task.splits, "train": train.select(chosen)})


def count_rows(task: Task, given: Task) -> str:
    """Say how many training rows a rival was fitted to."""
    used, there = len(task.split("train")), len(given.split("train"))
    return f"{used:,} training rows" if used == there else f"{used:,} random ones of {there:,} training rows"


def row_groups(task: Task, rows: Mapping[str, Any]) -> np.ndarray:
    """Return a number for each row, the same for equal texts."""
    keys = [text_key(*texts) for texts in zip(*task.inputs(rows), strict=True)]
    numbers: np.ndarray = np.unique(keys, return_inverse=True)[1]
    return numbers


def some_rows(rows: int) -> np.ndarray:
    """Choose the rows by which settings are chosen."""
    return np.sort(np.random.default_rng(SEED).permutation(rows)[:TUNED_ON])

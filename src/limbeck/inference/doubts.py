"""Find out whether a model may mean other labels by its numbers than its task does, and say how to state the order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.models.heads import has_generic_names, names_of_labels
from limbeck.tasks.answer_file import AnswerFile
from limbeck.tasks.labels import order_option
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")


@dataclass(frozen=True)
class Doubts:
    """Hold why a model may not know its task, in sentences for people; empty where there is no such reason."""

    names: str  # nothing tells which label is which
    score: str  # it is not better than the most frequent answer
    below: bool  # it is worse

    def warn(self) -> None:
        """Log what there is."""
        for text in filter(None, (self.names, self.score)):
            logger.warning("%s", text)

    def against_teaching(self) -> str:
        """Return what speaks against learning from the model; to be as good as the most frequent answer does not."""
        return " ".join(filter(None, (self.names, self.score if self.below else "")))


def find_doubts(
    source: str | Path,
    config: Any,
    task: Task,
    scores: Mapping[str, float] | None = None,
    majority: Mapping[str, float] | None = None,
) -> Doubts:
    """Look at the names of a model's labels and at its scores beside those of the most frequent answer, if known."""
    names = ""
    if task.label_order != "stated" and (seen := unnamed_labels(source, config, task)):
        names = f"{seen} {_how_to_state(task)}"
    remedy = (
        f"{_why_so_low(config, task)}Fine-tune it first where it does not know the task: "
        f"limbeck finetune {task.name} --model {source}"
    )
    return Doubts(names, *_beside_majority(source, scores, majority, remedy))


def find_doubts_of_answers(
    answers: AnswerFile,
    task: Task,
    scores: Mapping[str, float] | None = None,
    majority: Mapping[str, float] | None = None,
) -> Doubts:
    """Look at a file that answers for a teacher in the same way."""
    names = "" if answers.says_order else answers.how_to_state()
    remedy = f"See that its {answers.kind} stand under the right labels, and beside the right texts."
    return Doubts(names, *_beside_majority(answers.path, scores, majority, remedy))


def _beside_majority(
    source: str | Path, scores: Mapping[str, float] | None, majority: Mapping[str, float] | None, remedy: str
) -> tuple[str, bool]:
    """Say where somebody scores no more than the most frequent answer does, and whether it is less."""
    if not scores or not majority:
        return "", False
    metric = next(iter(scores))  # the main one, of a split that has its own too
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    ours, theirs = sign * scores[metric], sign * majority[metric]
    if ours > theirs:
        return "", False
    found, frequent = (readable_score(metric, values[metric]) for values in (scores, majority))
    said = (
        f"{source} is no better than an answer that is always the same: its {metric} is {found}, that of the most "
        f"frequent answer {frequent}. {remedy}"
    )
    return said, ours < theirs


def majority_of(task: Task, encoded: Any) -> dict[str, float]:
    """Score the most frequent answer of the task's training data; empty where there is none."""
    train = task.splits.get("train")
    if task.scored_by_loss or train is None or "label" not in train.column_names:
        return {}
    return task.majority({"labels": train["label"]}, encoded)


def unnamed_labels(source: str | Path, config: Any, task: Task) -> str:
    """Say what a model's labels are taken for where its config has no names for them; empty where it has."""
    if not task.label_names or not has_generic_names(config):
        return ""
    return (
        f"{source} calls its labels {_listed(names_of_labels(source, config))}, so that nothing tells which is which. "
        f"They are taken for {_listed(task.label_names)}, in this order."
    )


def _how_to_state(task: Task) -> str:
    if task.label_order == "fixed":
        return f"See that the model was trained with the labels of {task.name} in this order."
    return (
        f"Where that is right, say so: {order_option(task.label_names)}. Where it is not, name them in its own order."
    )


def _why_so_low(config: Any, task: Task) -> str:
    """Say what the order of the labels may have to do with a low score, with a sentence's blank."""
    if not task.label_names or task.label_order == "fixed":
        return ""
    if has_generic_names(config):
        other = order_option(task.label_names[::-1])
        return f"It may number the labels in another order than {_listed(task.label_names)}: state it, e.g. {other}. "
    return (
        f"Its config names its labels {_listed(task.label_names)}, in this order; where they are not, correct id2label "
        "there (task.labels states the order where a config has no names). "
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")

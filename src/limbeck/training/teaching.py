"""Put the teachers of a run before its data: models as they are or cached, files by the ids of their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from limbeck.distillation.distiller import Distiller, Teacher
from limbeck.distillation.ensemble import Ensemble
from limbeck.distillation.file_teacher import FileTeacher
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import DataError
from limbeck.tasks.answer_file import AnswerFile, keys_of
from limbeck.tasks.mixing import MixedRows
from limbeck.tasks.task import Logits, Task
from limbeck.training.assemble import Data, Parts
from limbeck.training.team import Member

logger = logging.getLogger("limbeck")

_SHOWN = 40  # characters of a text without an answer
_ROWS = 10_000  # whose keys are made at a time


def taught(parts: Parts, ready: Mapping[int, Teacher]) -> Distiller:
    """Return the distiller with all teachers of the run: those that are ``ready``, by their place, and live models."""
    team = parts.team
    if not team.several:
        return parts.distiller.taught_by(ready[0]) if ready else parts.distiller
    teachers = [ready[place] if place in ready else _live(member) for place, member in enumerate(team.members)]
    weights = [member.weight for member in team.members]
    return parts.distiller.taught_by(Ensemble(teachers, weights, parts.task.problem, team.place))


def _live(member: Member) -> LiveTeacher:
    assert member.model is not None
    return LiveTeacher(member.model)


def file_teachers(parts: Parts, data: Data) -> dict[int, Teacher]:
    """Return the teachers that are files, by their place; raise where one has no answer to a row that is trained on."""
    members = enumerate(parts.team.members)
    found = {place: member.answers for place, member in members if member.answers is not None}
    return {place: file_teacher(answers, parts.task, data) for place, answers in found.items()}


def file_teacher(answers: AnswerFile, task: Task, data: Data) -> FileTeacher:
    """Find the answers to all rows that are trained on; raise where there is none to one of them."""
    train, trained = task.split("train"), set(data.splits["train"]["id"])
    ids, numbers = np.asarray(train["id"][:], dtype=np.int64), answers.find(_keys(task, train))
    kept = np.array([number in trained for number in ids.tolist()])  # others are held out for something else
    _require_all(
        answers, numbers[kept], "training rows", lambda row: _text(task, train[int(np.flatnonzero(kept)[row])])
    )
    found = [(ids[kept], numbers[kept])]
    if isinstance(data.training, MixedRows):
        more = _unlabelled_numbers(answers, task)
        if task.id_column and len(shared := np.intersect1d(numbers[kept], more)):
            raise DataError(
                f"task.unlabelled: {len(shared):,} rows have an id ('{task.id_column}') that a labelled row has too, "
                "and would be answered like it. Give every row an id of its own, or leave task.id out."
            )
        found.append((data.training.unlabelled.first_id + np.arange(len(more)), more))
    return FileTeacher(answers, *(np.concatenate(parts) for parts in zip(*found, strict=True)))


def file_logits(answers: AnswerFile, task: Task, split: str) -> Logits | None:
    """Return the answers to all rows of a split; None where the file does not have all of them."""
    numbers = answers.find(_keys(task, task.split(split)))
    return None if (numbers < 0).any() else answers.logits(numbers)


def say_what_is_missing(answers: AnswerFile, task: Task, split: str) -> None:
    """Log how many rows of a split a file does not answer, so that it is not scored on them."""
    numbers = answers.find(_keys(task, task.split(split)))
    logger.info(
        "%s has no answer to %s of the %s %s rows: the results say nothing of what it knows, and how far the student "
        "agrees with it.",
        *(answers.path, f"{(numbers < 0).sum():,}", f"{len(numbers):,}", split),
    )


def _keys(task: Task, rows: Any) -> Iterator[int]:
    for start in range(0, len(rows), _ROWS):
        yield from keys_of(task, rows[start : start + _ROWS])


def _unlabelled_numbers(answers: AnswerFile, task: Task) -> np.ndarray:
    assert task.unlabelled is not None
    found = [np.empty(0, dtype=np.int64)]
    for part in task.unlabelled.parts():
        numbers = answers.find(keys_of(task, part.rows))
        texts = part.rows[task.text_columns[0]]
        _require_all(answers, numbers, "rows without a label", lambda row, texts=texts: str(texts[row]))  # type: ignore[misc]
        found.append(numbers)
    return np.concatenate(found)


def _require_all(answers: AnswerFile, numbers: np.ndarray, what: str, text_of: Callable[[int], str]) -> None:
    missing = np.flatnonzero(numbers < 0)
    if not len(missing):
        return
    text = text_of(int(missing[0]))
    shown = repr(text[:_SHOWN] + "..." if len(text) > _SHOWN else text)
    by = f"the column '{answers.task.id_column}'" if answers.task.id_column else "their texts"
    raise DataError(
        f"{answers.path} has no answer to {len(missing):,} of {len(numbers):,} {what}, found by {by}; the first is "
        f"{shown}. Every row that is trained on needs one: add them (limbeck predict --probabilities makes such a "
        "file), or leave the rows out."
    )


def _text(task: Task, row: Mapping[str, Any]) -> str:
    return str(row[task.text_columns[0]])

"""Write down which data and which teacher a run is made with, and stop where a run would go on with others."""

from __future__ import annotations

import json
from typing import Any

from limbeck._internal.files import write_text
from limbeck.recipes.recipe import Recipe
from limbeck.runs.data import check_data
from limbeck.runs.directory import RunDirectory
from limbeck.tasks import load_task
from limbeck.tasks.fingerprint import data_fingerprint
from limbeck.tasks.task import Task
from limbeck.training.assemble import Parts
from limbeck.training.team import Team

_REMEDY = "Put back what the run was made with, or choose another --output."


def data_of(parts: Parts) -> dict[str, Any]:
    """Return the fingerprint of a task's rows and labels, of a teacher, and of the pieces that were kept, if any."""
    vocabulary = {"vocabulary": parts.trimming.digest} if parts.trimming is not None else {}
    return _fingerprint(parts.task, parts.teacher_digest()) | vocabulary


def data_named_by(recipe: Recipe) -> dict[str, Any]:
    """Read the data and the teacher that a recipe of one stage names, and return their fingerprint."""
    task = load_task(recipe.task.name, **recipe.task.options)
    return _fingerprint(task, Team.load(recipe.teacher, task).digest())


def _fingerprint(task: Task, teacher: str | None) -> dict[str, Any]:
    more = {"unlabelled": task.unlabelled.digest()} if task.unlabelled is not None else {}
    return data_fingerprint(task) | more | ({"teacher": teacher} if teacher is not None else {})


def keep_data(run: RunDirectory, now: dict[str, Any]) -> None:
    """Write down what a run is made with."""
    write_text(run.data, json.dumps(now, indent=1) + "\n")


def check_not_changed(run: RunDirectory, now: dict[str, Any]) -> None:
    """Raise where a run that began, or ended, was made with other data or another teacher than there are now."""
    check_data(run, now, _REMEDY)

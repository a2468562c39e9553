"""Find and load tasks: what to load, how to encode it, how to score it.

Every entry of ``TASKS`` is a function whose keyword-only signature is the schema of its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from limbeck.errors import RecipeError, unknown
from limbeck.problems import Problem
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.files import file_format
from limbeck.tasks.glue import GLUE, glue
from limbeck.tasks.reviews import reviews
from limbeck.tasks.squad import squad_1, squad_2
from limbeck.tasks.table import read_texts, table
from limbeck.tasks.task import Task
from limbeck.tasks.text import text
from limbeck.tasks.tokens import tokens
from limbeck.tasks.writing import write_table

__all__ = [
    "TASKS",
    "Collator",
    "Problem",
    "Task",
    "describe",
    "encode",
    "file_format",
    "find_task",
    "load_task",
    "read_texts",
    "write_table",
]


def _glue_entry(name: str) -> Callable[..., Task]:
    def load(*, data_dir: str | None = None) -> Task:
        return glue(name, data_dir=data_dir)

    load.__name__ = load.__qualname__ = f"glue_{name}"
    load.__doc__ = f"GLUE {GLUE[name].folder}: {GLUE[name].about}"
    return load


TASKS: dict[str, Callable[..., Task]] = {
    **{f"glue/{name}": _glue_entry(name) for name in GLUE},
    "table": table,
    "squad/1.1": squad_1,
    "squad/2.0": squad_2,
    "tokens": tokens,
    "text": text,
    "reviews": reviews,
}


def load_task(name: str, **options: Any) -> Task:
    """Load a task by its name in ``TASKS``."""
    function = find_task(name)
    parameters = inspect.signature(function).parameters
    for option in options:
        if option not in parameters:
            remedy = f"'{name}' takes {', '.join(parameters)}."
            raise RecipeError(unknown(f"option of task '{name}':", option, parameters, remedy))
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    missing = [key for key in required if key not in options]
    if missing:
        raise RecipeError(f"The task '{name}' needs {', '.join(f'task.{key}' for key in missing)}.")
    return function(**options)


def describe(name: str) -> str:
    """Return one line about a task, for a listing."""
    return (inspect.getdoc(find_task(name)) or "").partition("\n")[0]


def find_task(name: str) -> Callable[..., Task]:
    """Return the loader of that name; an unknown name is an error with a suggestion."""
    if name not in TASKS:
        raise RecipeError(unknown("task", name, TASKS, "Run 'limbeck tasks'."))
    return TASKS[name]

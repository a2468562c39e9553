"""Spell out recipes over tiny tables and models, as values and as words of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck import Recipe, load_recipe


def table_task(files: tuple[Path, Path]) -> dict[str, Any]:
    """Return the task block of a recipe over a training and a validation file of ``write_csv``."""
    train, dev = (str(path) for path in files)
    return {"name": "table", "train": train, "validation": dev, "text": "text", "label": "label", "max_length": 16}


def recipe_values(
    task: dict[str, Any] | tuple[Path, Path],
    teacher: Path,
    method: str | dict[str, Any] = "kd",
    *,
    keep: str = "first:2",
    **blocks: Any,
) -> dict[str, Any]:
    """Return a recipe's values: two steps of a method on a student that is some of its teacher's layers and its head.

    ``task`` is a block or the two files of a table, ``method`` a block or a name; ``blocks`` replace whole blocks.
    """
    values: dict[str, Any] = {
        "task": task if isinstance(task, dict) else table_task(task),
        "teacher": {"model": str(teacher), "confirmed": True},  # most were never trained
        "student": {"from": "teacher", "keep": keep, "head": "kept"},
        "method": {"name": method} if isinstance(method, str) else method,
        "train": {"max_steps": 2, "batch_size": 16},
    }
    return values | blocks


def tiny_recipe(*given: Any, **blocks: Any) -> Recipe:
    """Return the recipe of ``recipe_values``."""
    return load_recipe(values=recipe_values(*given, **blocks))


def table_words(files: tuple[Path, Path]) -> list[str]:
    """Return the options of a command that name the task of ``table_task``."""
    options = [f"task.{key}={value}" for key, value in table_task(files).items() if key != "name"]
    return ["--task", "table", *options]


def distill_words(files: tuple[Path, Path], teacher: Path, *more: Any) -> list[Any]:
    """Return the options of ``distill`` and ``cache`` for the job of ``recipe_values``."""
    pair = ["--teacher", teacher, "teacher.confirmed=true", "--keep", "first:2", "student.head=kept"]
    return [*table_words(files), *pair, "--batch-size", 16, *more]

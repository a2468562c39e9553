"""A finished run, as the files in its directory tell it.

They are read here directly, because ``limbeck.run`` imports torch and tables of results need no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck.runs.files import read_mapping
from limbeck.errors import RunError

WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # what reading a damaged file may raise


@dataclass(frozen=True)
class Reported:
    """What a paper reports, as printed there: shares in percent."""

    metric: str
    value: float
    sd: float | None
    where: str


@dataclass(frozen=True, eq=False)
class Run:
    """What a run left behind; scores are fractions, the main metric's first."""

    path: Path
    task: str
    method: str
    seed: int
    scores: dict[str, float]
    examples: int | None
    parameters: int | None
    teacher: str  # its name or folder; empty where there is none
    teacher_scores: dict[str, float]
    teacher_parameters: int | None
    majority: dict[str, float]  # of always answering what is most frequent in the training data
    reported: tuple[Reported, ...]
    settings: dict[str, Any]  # recipe.yaml


def is_run(path: Path) -> bool:
    return (path / "recipe.yaml").is_file() or (path / "metrics.json").is_file()


def is_finished(path: Path) -> bool:
    return (path / "metrics.json").is_file()


def own_task(model: str | Path) -> dict[str, Any] | None:
    """The task block that a run was trained with, the last of several; None of what is no run directory."""
    file = Path(model) / "recipe.yaml"
    if not file.is_file():
        return None
    recipe = read_mapping(file)
    try:
        return dict((recipe.get("stages") or [recipe])[-1]["task"])
    except WRONG as error:
        raise damaged(file, "the recipe of a run", error) from error


def read_run(path: Path) -> Run:
    """A finished run; anything that is missing or damaged is an error that names the file."""
    if not is_finished(path):
        seen = "it has no metrics.json yet" if path.is_dir() else "there is no such folder"
        raise RunError(f"{path} is no finished run: {seen}. An interrupted run goes on with --resume.")
    file, recipe = path / "metrics.json", path / "recipe.yaml"
    if not recipe.is_file():
        raise RunError(f"{path} has no recipe.yaml, so that nothing tells how it was trained. Copy the whole folder.")
    results, settings = read_mapping(file), read_mapping(recipe)
    try:
        # with stages the last one's, whose results the run's are
        last = settings["stages"][-1] if settings.get("stages") else settings
        teacher_name = str((last.get("teacher") or {}).get("model", ""))
        reported = read_reported(settings.get("reported"))
    except WRONG as error:
        raise damaged(recipe, "the recipe of a run", error) from error
    try:
        teacher = results.get("teacher") or {}
        scores = _numbers(results["metrics"])
        main = str(results["metric"])
        return Run(
            path=path,
            task=str(results["task"]),
            method=str(results["method"]),
            seed=int(results["seed"]),
            scores={main: scores[main]} | scores,
            examples=_maybe(int, results.get("examples")),
            parameters=_maybe(int, results.get("parameters")),
            teacher=teacher_name,
            teacher_scores=_numbers(teacher.get("metrics") or {}),
            teacher_parameters=_maybe(int, teacher.get("parameters")),
            majority=_numbers(results.get("majority") or {}),
            reported=reported,
            settings=settings,
        )
    except WRONG as error:
        raise damaged(file, "the results of a run", error) from error


def read_reported(values: Any) -> tuple[Reported, ...]:
    return tuple(
        Reported(str(item["metric"]), float(item["value"]), _maybe(float, item.get("sd")), str(item["where"]))
        for item in values or ()
    )


def damaged(file: Path, what: str, error: Exception) -> RunError:
    seen = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return RunError(f"{file} does not hold {what}: {seen}. Copy it again or repeat the run.")


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def _maybe(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)

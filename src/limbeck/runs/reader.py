"""Read finished runs from the files in their directories; tables of results need no model, so nothing imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.errors import RunError
from limbeck.runs.directory import RESULTS, RunDirectory
from limbeck.runs.files import COPY_AGAIN, MALFORMED, damaged, read_mapping

_RECIPE = "the recipe of a run"


@dataclass(frozen=True)
class Reported:
    """Hold what a paper reports, as printed there: shares in percent."""

    metric: str
    value: float
    sd: float | None
    where: str


@dataclass(frozen=True, eq=False)
class Run:
    """Hold what a run left behind; scores are fractions, the main metric's first."""

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
    settings: dict[str, Any]  # the recipe

    @property
    def directory(self) -> RunDirectory:
        """Point to the files of the run."""
        return RunDirectory(self.path)


def read_run(path: Path) -> Run:
    """Read a finished run; anything that is missing or damaged is an error that names the file."""
    run = RunDirectory(path)
    check_finished(run)
    if not run.recipe.is_file():
        raise RunError(f"{path} has no {run.recipe.name}, so nothing tells how it was trained. Copy the whole folder.")
    results, settings = run.metrics(), read_recipe(run)
    try:
        teacher_name = " + ".join(teacher_names(last_stage(settings)))
        reported = parse_reported(settings.get("reported"))
    except MALFORMED as error:
        raise damaged(run.recipe, _RECIPE, error) from error
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
    except MALFORMED as error:
        raise damaged(run.results, RESULTS, error) from error


def check_finished(run: RunDirectory) -> None:
    """Raise an error where a folder holds no finished run."""
    if seen := run.why_unfinished():
        seen = seen if run.path.is_dir() else "there is no such folder"
        advice = (
            COPY_AGAIN
            if run.results.is_file()
            else "Name run directories of 'finetune' or 'distill'; an interrupted run goes on with --resume."
        )
        raise RunError(f"{run.path} is no finished run: {seen}. {advice}")


def read_recipe(run: RunDirectory) -> dict[str, Any]:
    """Read the resolved recipe of a run, as plain values."""
    return read_mapping(run.recipe, _RECIPE)


def read_history(run: RunDirectory) -> list[dict[str, Any]]:
    """Read the log of a training: an entry for each time that a loss or a score was logged."""
    try:
        lines = run.history.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        seen = " ".join(str(error).split())
        raise RunError(f"{run.history} is damaged ({seen}). Copy it again or repeat the run.") from error
    return [entry for entry in entries if isinstance(entry, dict)]


def label_names(run: RunDirectory) -> list[str]:
    """Read which label each number stands for; a run whose student was removed does not tell."""
    try:
        names = json.loads(run.student_config.read_text(encoding="utf-8"))["id2label"]
        return [str(names[str(number)]) for number in range(len(names))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def own_task(model: str | Path) -> dict[str, Any] | None:
    """Read the task block that a run was trained with, the last of several; None if there is no run directory."""
    run = RunDirectory(Path(model))
    if not run.recipe.is_file():
        return None
    recipe = read_recipe(run)
    try:
        return dict(last_stage(recipe)["task"])
    except MALFORMED as error:
        raise damaged(run.recipe, _RECIPE, error) from error


def last_stage(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pick the last stage of a recipe, whose results are the run's; a recipe without stages is one itself."""
    stage: Mapping[str, Any] = recipe["stages"][-1] if recipe.get("stages") else recipe
    return stage


def teacher_names(stage: Mapping[str, Any]) -> list[str]:
    """Return the name or path of each teacher of a stage, a model or a file of answers."""
    kinds = ("model", "probabilities", "logits")
    return [str(block[kind]) for block in _teacher_blocks(stage) for kind in kinds if block.get(kind)]


def leading_teacher(stage: Mapping[str, Any]) -> str:
    """Return the model from whose layers a student can be made; empty where no teacher is a model."""
    models = [block for block in _teacher_blocks(stage) if block.get("model")]
    chosen = [block for block in models if block.get("followed")]
    return next((str(block["model"]) for block in [*chosen, *models]), "")


def _teacher_blocks(stage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = stage.get("teacher") or []
    return found if isinstance(found, list) else [found]


def parse_reported(values: Any) -> tuple[Reported, ...]:
    """Turn the ``reported`` block of a recipe into objects."""
    return tuple(
        Reported(str(item["metric"]), float(item["value"]), _maybe(float, item.get("sd")), str(item["where"]))
        for item in values or ()
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def _maybe(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)

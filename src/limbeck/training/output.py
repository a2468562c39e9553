"""Create and check the folder that a run writes to."""

from __future__ import annotations

import json
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck._internal.files import write_text
from limbeck._internal.locks import LOCK
from limbeck.errors import RunError
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.training.environment import environment


def check_output(run: RunDirectory, recipe: Recipe, resume: bool) -> None:
    """Raise where this recipe may not be run into, or resumed in, the folder."""
    if run.path.is_file():
        raise RunError(f"{run.path} is a file; --output must be a folder.")
    if not run.path.is_dir() or all(file.name == LOCK for file in run.path.iterdir()):
        return
    if not run.recipe.is_file():
        raise RunError(f"{run.path} holds other files and is no run directory. Choose another --output.")
    if not resume:
        state = "a finished run" if run.finished else "an unfinished run"
        raise RunError(
            f"{run.path} already holds {state}. Choose another --output, or add --resume to continue the same recipe."
        )
    ours = plain_yaml.load(recipe.to_yaml())
    theirs = _recipe_in(run)
    # where the teacher's features are kept changes no result, and must change where a disk is full
    different = sorted(found for found in _differences(ours, theirs) if "teacher.cache" not in found.split()[0])
    if different:
        raise RunError(
            f"{run.path} holds a run of another recipe; it differs in: {', '.join(different)}. "
            "Resume with the same settings, or choose another --output."
        )


def create_run(run: RunDirectory, recipe: Recipe) -> None:
    """Make the folder of a run, with its recipe and what its results may depend on."""
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{run.path} cannot be made: {error.strerror}. Choose another --output.") from error
    run.pruned.unlink(missing_ok=True)
    write_text(run.recipe, recipe.to_yaml())
    write_text(run.environment, json.dumps(environment(), indent=2) + "\n")


def _recipe_in(run: RunDirectory) -> Any:
    try:
        return plain_yaml.load(run.recipe.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise RunError(f"{run.recipe} is damaged: {why}. Choose another --output.") from error


def _differences(ours: Any, theirs: Any, where: str = "") -> set[str]:
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = (dict(enumerate(values, start=1)) for values in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        parts = [_differences(ours.get(key), theirs.get(key), f"{where}.{key}".lstrip(".")) for key in keys]
        return set().union(*parts)
    chosen = ours == "auto" and where.endswith("task.max_length")  # which stands for what the run chose
    return set() if ours == theirs or chosen else {f"{where} ({theirs!r} there, {ours!r} now)"}

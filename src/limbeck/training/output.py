"""Create and check the folder that a run writes to."""

from __future__ import annotations

import json
import re
from typing import Any

from limbeck._internal import yaml as plain_yaml
from limbeck._internal.files import make_folder, remove_leftovers, write_text
from limbeck._internal.links import refuse_links
from limbeck._internal.locks import holds_nothing
from limbeck.errors import RunError
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import read_recipe
from limbeck.training.environment import environment
from limbeck.training.layer_choosing import LayerChoice, with_known_layers


def check_output(run: RunDirectory, recipe: Recipe, resume: bool) -> None:
    """Raise where this recipe may not be run into, or resumed in, the folder."""
    if run.path.is_file():
        raise RunError(f"{run.path} is a file; --output must be a folder.")
    refuse_links(run.path)
    if not run.path.is_dir() or holds_nothing(run.path, beside=(run.layer_choice.name,)):
        return
    if not run.recipe.is_file():
        raise RunError(f"{run.path} holds other files and is no run directory. Choose another --output.")
    if not resume:
        state = "an unfinished run" if run.why_unfinished() else "a finished run"
        raise RunError(
            f"{run.path} already holds {state}. Choose another --output, or add --resume to continue the same recipe."
        )
    theirs = _recipe_in(run)
    ours = plain_yaml.load(with_known_layers(recipe, run).to_yaml())
    # where the teacher's features are kept changes no result, and must change where a disk is full; to confirm a
    # teacher does neither
    free = ("teacher.cache", "teacher.confirmed")
    different = sorted(
        found
        for found in _differences(ours, theirs)
        if not any(key in re.sub(r"\.\d+\b", "", found.split()[0]) for key in free)
    )
    if different:
        raise RunError(
            f"{run.path} holds a run of another recipe; it differs in: {', '.join(different)}. "
            "Resume with the same settings, or choose another --output."
        )


def create_run(run: RunDirectory, recipe: Recipe, layers: LayerChoice | None = None) -> None:
    """Make the folder of a run, with its recipe, how its layers were chosen, and what its results may depend on."""
    try:
        make_folder(run.path)
    except OSError as error:
        raise RunError(f"{run.path} cannot be made: {error.strerror}. Choose another --output.") from error
    run.pruned.unlink(missing_ok=True)
    if layers is not None:  # before the recipe, whose layers it explains
        write_text(run.layer_choice, layers.to_json())
    write_text(run.recipe, recipe.to_yaml())
    remove_leftovers(run.path)  # which is a run directory now
    write_text(run.environment, json.dumps(environment(), indent=2) + "\n")


def _recipe_in(run: RunDirectory) -> Any:
    try:
        return read_recipe(run)
    except RunError as error:
        raise RunError(
            f"{error} Without it nothing tells whether the run is of this recipe: remove the folder {run.path} to "
            "start it again, or choose another --output."
        ) from error


def _differences(ours: Any, theirs: Any, where: str = "") -> set[str]:
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = (dict(enumerate(values, start=1)) for values in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        parts = [_differences(ours.get(key), theirs.get(key), f"{where}.{key}".lstrip(".")) for key in keys]
        return set().union(*parts)
    # which stand for what the run chose
    open_ones = ("task.max_length", "train.precision")
    chosen = (ours == "auto" and where.endswith(open_ones)) or (ours is None and where == "student.head")
    return set() if ours == theirs or chosen else {f"{where} ({theirs!r} there, {ours!r} now)"}

"""Split a recipe into its stages: several trainings, one after the other, of the same student.

The blocks ``task``, ``teacher``, ``method`` and ``train`` at the top of a recipe are what its stages share; a stage
gives what differs. A method with an option ``stage`` has a stage for each of its choices, unless the recipe names one.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable
from typing import Any

from limbeck.errors import RecipeError, unknown
from limbeck.options import Location, Mistake, schema_of
from limbeck.recipes.files import set_value

_MARKER = "\0"  # a value that no recipe holds
BLOCKS = ("task", "teacher", "method", "train")


def check_stage_list(values: dict[str, Any]) -> list[Mistake]:
    """Find what is wrong with the list of stages itself; their blocks are checked as those of plain recipes."""
    stages = values.get("stages")
    if stages is None:
        return []
    if not isinstance(stages, list) or not stages:
        return [Mistake(("stages",), f"is a list of stages, each with its method and train blocks; seen: {stages!r}.")]
    mistakes = []
    for number, stage in enumerate(stages, start=1):
        if not isinstance(stage, dict):
            mistakes.append(Mistake(("stages", number), f"is a mapping with {', '.join(BLOCKS)}; seen: {stage!r}."))
            continue
        if "student" in stage:
            message = "belongs to the whole recipe: the first stage makes it and the others go on with it."
            mistakes.append(Mistake(("stages", number, "student"), message))
        others = [key for key in stage if key not in (*BLOCKS, "student")]
        mistakes += [Mistake(("stages", number, key), unknown("key", str(key), BLOCKS)) for key in others]
    return mistakes


def split_stages(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of each stage as a plain recipe; a recipe without stages is its own only stage."""
    shared = {name: block for name, block in values.items() if name != "stages"}
    return [_merged(shared, stage) for stage in copy.deepcopy(values.get("stages") or [{}])]


def locate_mistake(mistake: Mistake, stage: int, values: dict[str, Any]) -> Mistake:
    """Point a mistake in the values of stage number ``stage`` to where it is written: in the stage, or shared."""
    own = values["stages"][stage - 1] if values["stages"] else {}
    where = mistake.where
    if where and where[0] in own and (len(where) == 1 or _has(own, where[:2]) or not _has(values, where[:2])):
        return Mistake(("stages", stage, *where), mistake.message)
    return mistake


def is_used_by_a_stage(path: str, values: dict[str, Any]) -> bool:
    """Tell whether a setting at ``path`` counts in some stage; it does not if each stage has its own instead."""
    if path.partition(".")[0] not in BLOCKS or check_stage_list(values):
        return True
    trial = copy.deepcopy(values)
    set_value(trial, path, _MARKER)
    return any(_has_marker(stage) for stage in split_stages(trial))


def stages_of_method(method: Any, find_method: Callable[[str], Any]) -> list[dict[str, Any]] | None:
    """Return the stages that a method brings: the choices of its option ``stage``, unless one is chosen."""
    if not isinstance(method, dict) or not isinstance(method.get("name"), str) or "stage" in method:
        return None
    try:
        stage = schema_of(find_method(method["name"])).model_fields.get("stage")
    except RecipeError:
        return None  # an unknown method, which is said where the block is checked
    return [{"method": {"stage": choice}} for choice in typing.get_args(stage.annotation)] if stage else None


def _merged(shared: dict[str, Any], stage: dict[str, Any]) -> dict[str, Any]:
    """Lay the stage's keys over the shared blocks; a task or method of another name takes nothing over."""
    merged = copy.deepcopy(shared)
    for name, block in stage.items():
        common = merged.get(name)
        if isinstance(block, dict) and isinstance(common, dict) and block.get("name") in (None, common.get("name")):
            merged[name] = common | block
        else:
            merged[name] = block
    return merged


def _has(values: Any, where: Location) -> bool:
    for part in where:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def _has_marker(values: Any) -> bool:
    inside = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return values == _MARKER or any(map(_has_marker, inside))

"""Read recipe files: plain ones, and families that hold the rows of a paper's tables as changes to one base.

A family is a YAML file with ``base`` (a recipe) and ``tables``. Each table names where it is printed, its metrics, what
it sets for all of its rows (``set``), and the rows: what each sets, and what the paper reports. The row ``rte-cka-kd``
of the family ``alignment`` is the recipe ``alignment/rte-cka-kd``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from limbeck._internal.yaml import parse
from limbeck.errors import RecipeError, unknown
from limbeck.options import Location


@dataclass(frozen=True)
class RecipeText:
    """Hold a recipe as written: its values, and the line of each key where the file is a plain recipe."""

    name: str
    values: dict[str, Any]
    about: str = ""
    lines: dict[Location, int] = field(default_factory=dict)


def read_recipe(source: str | Path) -> RecipeText:
    """Read a YAML file, a row of a family file (``my.yaml/row``), or a shipped recipe by name."""
    name = os.path.expanduser(str(source))
    if Path(name).is_file():
        found = _read(Path(name), name)
        if name not in found:
            raise RecipeError(f"{name} holds several recipes; name one of its rows: {', '.join(found)}.")
        return found[name]
    if name in shipped_recipes():
        return shipped_recipes()[name]
    family, _, row = name.rpartition("/")
    if family and Path(family).is_file():
        rows = _read(Path(family), family)
        if name in rows:
            return rows[name]
        raise RecipeError(unknown(f"row of {family}", row, [key.rpartition("/")[2] for key in rows]))
    known = shipped_recipes()
    raise RecipeError(unknown("recipe", name, known, "Give a YAML file, or a name from 'limbeck recipes'."))


def rows_of(source: str | Path) -> list[str]:
    """Name the rows of a file that holds several recipes, or of a shipped one; none of anything else."""
    name = os.path.expanduser(str(source))
    if Path(name).is_file():
        return [row for row in _read(Path(name), name) if row != name]
    return [row for row in shipped_recipes() if row.startswith(f"{name}/")]


@cache
def shipped_recipes() -> dict[str, RecipeText]:
    """Return every recipe that comes with limbeck, rows of families included, by name."""
    recipes: dict[str, RecipeText] = {}
    for path in sorted(Path(str(resources.files("limbeck.recipes") / "library")).glob("*.yaml")):
        recipes |= _read(path, path.stem)
    return recipes


def set_value(values: dict[str, Any], path: str, value: Any) -> None:
    """Set ``a.b.c`` in nested mappings; stages are counted from 1: ``stages.2.train.epochs``."""
    *parents, last = path.split(".")
    if len(parents) > 1 and parents[0] == "stages":
        values = _stage(values.get("stages"), parents[1], path)
        parents = parents[2:]
    for number, parent in enumerate(parents):
        inner = values.setdefault(parent, {})
        if parent == "teacher" and isinstance(inner, list) and all(isinstance(block, dict) for block in inner):
            for block in inner:  # several teachers: of each
                set_value(block, ".".join([*parents[number + 1 :], last]), value)
            return
        if not isinstance(inner, dict):
            raise RecipeError(f"'{path}': {parent} is {inner!r}, not a block with keys.")
        values = inner
    values[last] = value


def get_value(values: dict[str, Any], path: str) -> Any:
    """Look up ``a.b.c`` in nested mappings, as ``set_value`` writes it; None where it is not there."""
    found: Any = values
    for name in path.split("."):
        if isinstance(found, list) and name.isdecimal() and 1 <= int(name) <= len(found):
            found = found[int(name) - 1]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def _stage(stages: Any, number: str, path: str) -> dict[str, Any]:
    known = len(stages) if isinstance(stages, list) else 0
    if not number.isdecimal() or not 1 <= int(number) <= known or not isinstance(stages[int(number) - 1], dict):
        raise RecipeError(f"'{path}': the recipe has {known} stages, counted from 1; seen: stage {number}.")
    stage: dict[str, Any] = stages[int(number) - 1]
    return stage


def _read(path: Path, family: str) -> dict[str, RecipeText]:
    """Read the recipe in a file under the name ``family``, or the rows of a family under ``family/row``."""
    content, lines, about = read_yaml(path)
    if "tables" not in content:
        return {family: RecipeText(family, content, about, lines)}
    try:
        return _rows(content, family)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"{path}: a family has base (a recipe) and tables, a list whose entries have where, metrics and rows; "
            f"seen: {type(error).__name__} {error}."
        ) from error


def _rows(content: dict[str, Any], family: str) -> dict[str, RecipeText]:
    rows = {}
    for table in content["tables"]:
        for name, row in table["rows"].items():
            values = copy.deepcopy(content["base"])
            for key, value in (table.get("set", {}) | row.get("set", {})).items():
                set_value(values, key, copy.deepcopy(value))
            reported = row.get("reported", [])  # in the order of the table's metrics, or by their names
            named = reported if isinstance(reported, dict) else dict(zip(table["metrics"], reported, strict=False))
            scores = list(named.items())
            values["reported"] = [_reported(metric, score, table["where"]) for metric, score in scores]
            about = ", ".join(f"{metric} {_readable(score)}" for metric, score in scores)
            rows[f"{family}/{name}"] = RecipeText(f"{family}/{name}", values, f"{table['where']}: {about}".rstrip(": "))
    return rows


def _reported(metric: str, score: Any, where: str) -> dict[str, Any]:
    value, sd = score if isinstance(score, list) else (score, None)
    return {"metric": metric, "value": value, "where": where} | ({"sd": sd} if sd is not None else {})


def _readable(score: Any) -> str:
    return f"{score[0]} (±{score[1]})" if isinstance(score, list) else str(score)


def read_yaml(
    file: Path, what: str = "a recipe is a mapping with task, student and method"
) -> tuple[dict[str, Any], dict[Location, int], str]:
    """Return the values in a file, the line of each key, and what its first line says if that is a comment."""
    try:
        text = file.read_text(encoding="utf-8")
        values, node = parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read as text ({error}).") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{file}: not valid YAML. {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: {what}; seen: {values!r}.")
    first = text.partition("\n")[0]
    return values, dict(_key_lines(node, ())), first.lstrip("# ") if first.startswith("#") else ""


def _key_lines(node: Any, where: Location) -> Iterable[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*where, key.value), key.start_mark.line + 1
            yield from _key_lines(value, (*where, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value, start=1):
            yield (*where, number), value.start_mark.line + 1
            yield from _key_lines(value, (*where, number))

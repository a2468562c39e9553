"""Find and read study files, and report everything that is wrong with one before anything of it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from limbeck._internal import own_code
from limbeck.compare.glue_table import AVERAGES
from limbeck.compare.significance import MARKS
from limbeck.errors import LimbeckError, RecipeError, unknown
from limbeck.options import Mistake, check
from limbeck.recipes.files import RecipeText, read_yaml, set_value
from limbeck.recipes.method_block import CodePolicy
from limbeck.recipes.recipe import apply_override, check_recipe, report_mistakes
from limbeck.study.chains import check_chain, first_point, possible_values
from limbeck.study.description import RECIPE_BLOCKS, STUDY_KEYS, Study, reference_in
from limbeck.tasks import find_task

_VARIANTS = "'variants' holds them by name, each a mapping from settings to values."


def shipped_studies() -> dict[str, Path]:
    """Return the files of the studies that come with limbeck, by name."""
    return {path.stem: path for path in sorted(Path(str(resources.files("limbeck.study") / "library")).glob("*.yaml"))}


def list_studies() -> dict[str, str]:
    """Describe each shipped study by its file's first line, each variant by the comment that begins with its name."""
    listing: dict[str, str] = {}
    for name, file in shipped_studies().items():
        values, _, about = read_yaml(file)
        listing[name] = about
        for variant in values.get("variants", {}):
            line = re.search(rf"^# {variant}: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            listing[f"{name}/{variant}"] = line[1] if line else ""
    return listing


def load_study(source: str | Path, overrides: Sequence[str] = (), *, allow_code: bool = False) -> Study:
    """Read a study file or shipped study, with ``key=value`` overrides; raise every mistake in it at once.

    ``fsd/small`` is the variant ``small`` of the study ``fsd``: with the changes that it names under ``variants``.
    A method ``module:function`` is imported only where ``overrides`` name it, or with ``allow_code``.
    """
    file, variant = find_study(str(source))
    values, lines, title = read_yaml(file, "a study is a mapping with tasks, teacher, methods and seeds")
    values = _without_aliases(values)
    text = RecipeText(str(source), values, title, lines)
    variants = values.pop("variants", {})
    if not isinstance(variants, dict) or (variant and not isinstance(variants.get(variant), dict)):
        raise RecipeError(
            unknown(f"variant of {file.stem}", variant, variants if isinstance(variants, dict) else (), _VARIANTS)
        )
    for key, value in variants.get(variant, {}).items():
        set_value(values, str(key), value)
    own_code.allow_typed(overrides)
    for override in overrides:
        apply_override(override, values)
    study, mistakes = check(Study, values)
    if study is not None:
        mistakes = _check_names(study) or _check_recipes(study, "allowed" if allow_code else "refused")
    if study is None or mistakes:
        raise RecipeError(report_mistakes(mistakes, text, "study"))
    return study


def _without_aliases(values: Any) -> Any:
    """Copy every block: to change one must not change another that YAML's ``*name`` repeats."""
    if isinstance(values, dict):
        return {key: _without_aliases(value) for key, value in values.items()}
    return [_without_aliases(value) for value in values] if isinstance(values, list) else values


def find_study(source: str) -> tuple[Path, str]:
    """Return a study's file, and the variant that is meant (empty: the study as it is)."""
    known = shipped_studies()
    for name, variant in ((source, ""), source.rpartition("/")[::2]):
        file = Path(name) if Path(name).is_file() else known.get(name)
        if file is not None:
            return file, variant
    raise RecipeError(unknown("study", source, known, "Give a YAML file, or a name from 'limbeck studies'."))


def _check_names(study: Study) -> list[Mistake]:
    mistakes = [*_check_baselines(study), *_check_method_tasks(study), *_check_settings(study), *_check_rows(study)]
    mistakes += _check_tables(study)
    return mistakes or _check_spaces(study) or _check_chains(study)


def _check_baselines(study: Study) -> list[Mistake]:
    names, mistakes = study.baselines or [], []
    if len(names) > len(MARKS):
        message = f"a table has marks for {len(MARKS)} at most; seen: {', '.join(names)}."
        mistakes.append(Mistake(("baselines",), message))
    for name in names:
        if name not in study.methods:
            mistakes.append(Mistake(("baselines",), unknown("method", name, study.methods)))
    return mistakes


def _check_rows(study: Study) -> list[Mistake]:
    mistakes = [
        Mistake(("methods", label, "row"), f"is true or false; seen: {entry['row']!r}.")
        for label, entry in study.methods.items()
        if not isinstance(entry.get("row", True), bool)
    ]
    for label in study.baselines or []:
        if label in study.methods and not study.has_row(label):
            mistakes.append(Mistake(("baselines",), f"{label} has no row to compare with (row: false)."))
    if not any(map(study.has_row, study.methods)):
        mistakes.append(Mistake(("methods",), "none has a row: at least one must be without row: false."))
    return mistakes


def _check_tables(study: Study) -> list[Mistake]:
    """Find tables beside that of scores which nothing could fill."""
    named = [("relative_to", study.relative_to)] if study.relative_to else []
    named += [("pooled", label) for labels in study.pooled.values() for label in labels]
    mistakes = [
        Mistake((key,), unknown("method", label, study.methods)) for key, label in named if label not in study.methods
    ]
    if study.average is not None and study.average not in AVERAGES:
        mistakes.append(Mistake(("average",), unknown("average", study.average, AVERAGES)))
    return mistakes


def _check_chains(study: Study) -> list[Mistake]:
    found = (
        mistake for task in study.tasks for label in study.labels(task) for mistake in check_chain(study, task, label)
    )
    return list(dict.fromkeys(found))


def _check_method_tasks(study: Study) -> list[Mistake]:
    mistakes = []
    for label, entry in study.methods.items():
        if not isinstance(entry.get("tasks", []), list):
            message = f"is a list of tasks; seen: {entry['tasks']!r}."
            mistakes.append(Mistake(("methods", label, "tasks"), message))
            continue
        # one that an override left out of the study is no mistake
        for name in entry.get("tasks", []):
            if str(name) not in study.tasks and (wrong := _unknown_task(str(name))):
                mistakes.append(Mistake(("methods", label, "tasks"), wrong))
    return mistakes


def _check_settings(study: Study) -> list[Mistake]:
    mistakes = []
    for where, named in (("tasks", study.tasks), ("methods", study.methods)):
        places = RECIPE_BLOCKS | ({"teacher"} if where == "tasks" else set())
        for name, changes in named.items():
            for key in changes:
                if key.partition(".")[0] not in places and not (where == "methods" and key in STUDY_KEYS):
                    known = [
                        *(f"{place}.…" for place in sorted(places)),
                        *(STUDY_KEYS if where == "methods" else ()),
                    ]
                    mistakes.append(Mistake((where, name, key), f"is no setting; there are {', '.join(known)}."))
    return mistakes


def _unknown_task(name: str) -> str:
    try:
        find_task(name)
    except LimbeckError as error:
        return str(error)
    return ""


def _check_recipes(study: Study, code: CodePolicy) -> list[Mistake]:
    """Return what is wrong with the recipes that the study stands for, each mistake once."""
    mistakes: dict[Mistake, None] = {}
    for task in study.tasks:
        for found in _check_task(study, task, code):
            mistakes.setdefault(found)
    return list(mistakes)


def _check_task(study: Study, task: str, code: CodePolicy) -> list[Mistake]:
    try:
        teacher = study.teacher_values(task)
    except pydantic.ValidationError as error:
        return [Mistake(("tasks", task), f"teacher: {item['msg']}") for item in error.errors()]
    mistakes = []
    if teacher is not None:
        searched = teacher | {"grid": study.teacher_space(task)}
        mistakes = [_located(mistake, ("teacher",)) for mistake in check_recipe(searched, code)[1]]
    for label in study.labels(task):
        where = ("methods", label)
        try:
            values = study.values(task, label, first_point(study, task, label), study.seeds[0], "teacher", "off")
            taken = dict.fromkeys(key for key, value in study.changes(label).items() if reference_in(value))
            ranges = {
                key: [value["low"], value["high"]]
                for space in study.steps(task, label)
                for key, value in space.items()
                if isinstance(value, dict)
            }
            keys = taken | dict.fromkeys(key for space in study.steps(task, label) for key in space)
            choices = {key: ranges.get(key) or possible_values(study, task, label, key) for key in keys}
        except RecipeError as error:
            mistakes.append(Mistake(where, str(error)))
            continue
        mistakes += [_located(mistake, where) for mistake in check_recipe(values | {"grid": choices}, code)[1]]
    return mistakes


def _located(mistake: Mistake, where: tuple[str, ...]) -> Mistake:
    """Point a mistake to the method that brings it, unless it is in the task or in what all runs share."""
    shared = mistake.where[:1] in (("task",), ("student",)) or (
        where != ("teacher",) and mistake.where[:1] == ("train",)
    )
    return mistake if shared else Mistake((*where, *mistake.where), mistake.message)


def _check_spaces(study: Study) -> list[Mistake]:
    mistakes: dict[Mistake, None] = {}
    for task in study.tasks:
        for label in study.labels(task):
            try:
                steps = study.steps(task, label)
            except RecipeError as error:
                mistakes[Mistake(("methods", label), str(error))] = None
                continue
            for key, message in (item for space in steps for item in _check_space(study, space).items()):
                mistakes[Mistake(("methods", label, "grid", key), message)] = None
    return list(mistakes)


def _check_space(study: Study, space: Any) -> dict[str, str]:
    if not isinstance(space, dict):
        return {"": f"is a mapping from settings to lists of choices, or a list of such; seen: {space!r}."}
    wrong = {}
    for key, choices in space.items():
        if str(key).partition(".")[0] not in RECIPE_BLOCKS:
            wrong[key] = f"cannot be searched; there are {', '.join(f'{place}.…' for place in sorted(RECIPE_BLOCKS))}."
            continue
        if isinstance(choices, list) and choices:
            continue
        if not isinstance(choices, dict) or not {"low", "high"} <= choices.keys() <= {"low", "high", "log"}:
            wrong[key] = (
                f"is a list of choices, or {{low: …, high: …, log: true}} for the sampler tpe; seen: {choices!r}."
            )
        elif study.search.sampler != "tpe":
            wrong[key] = "a range can only be searched by Optuna: write search: {sampler: tpe}, or list the choices."
        elif not _is_range(choices):
            wrong[key] = f"low and high are numbers, low the smaller, and above 0 with log; seen: {choices!r}."
    return wrong


def _is_range(choices: dict[str, Any]) -> bool:
    ends = (choices["low"], choices["high"])
    if not all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends):
        return False
    return (
        ends[0] < ends[1] and isinstance(choices.get("log", False), bool) and not (choices.get("log") and ends[0] <= 0)
    )

"""Describe a study, methods x settings x seeds on one or more tasks, and make the recipes that it stands for.

A study holds blocks of a recipe that all of its runs share, and lists of what differs: tasks, methods, seeds. Each task
and each method is a set of changes, ``train.epochs: 5``, as in a recipe's overrides.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import yaml
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt

from limbeck._internal.files import file_name
from limbeck.recipes.files import read_recipe, set_value
from limbeck.recipes.recipe import Head, Recipe

Source = Annotated[str, pydantic.AfterValidator(os.path.expanduser)]  # a folder or a name on the hub
GridPoint = dict[str, Any]  # one choice from a grid: what is set, by its place in the recipe
RECIPE_BLOCKS = {"task", "student", "method", "train", "stages"}  # in which methods and settings may differ
SearchSpace = dict[str, Any]  # by place in the recipe a list of choices, or ``{low, high, log}``
STUDY_KEYS = ("recipe", "grid", "tasks", "row")  # keys of a method that are no settings of its recipe
TASK_PLACEHOLDER = "{task}"  # stands for the task's short name in the names of recipes and teachers


class Reference(NamedTuple):
    """Name a setting that another method's search chose."""

    best: str
    of: str


def reference_in(value: Any) -> Reference | None:
    """Read ``{best: method.alpha, of: VKD}``; None where a value is something else."""
    named = isinstance(value, dict) and value.keys() == {"best", "of"}
    return Reference(str(value["best"]), str(value["of"])) if named else None


class _Block(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")


class StudyTeacher(_Block):
    """Name the teacher: ``model`` is fine-tuned for each task; ``fine_tuned`` already is (``runs/bert-{task}``)."""

    model: Source | None = None
    fine_tuned: Source | None = None
    train: dict[str, Any] = Field(default_factory=dict)
    seed: NonNegativeInt = 0
    cache: Literal["auto", "off"] = "auto"
    cache_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    confirmed: bool = False  # as in a recipe
    head: Head | None = None  # that fine-tuning starts with, as of a recipe's student
    grid: dict[str, list[Any]] = Field(default_factory=dict)  # train.…: settings, of which the best on dev teaches

    @pydantic.field_validator("cache", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a plain off as false

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> StudyTeacher:
        if (self.model is None) == (self.fine_tuned is None):
            raise ValueError("give model (a pre-trained model, fine-tuned here) or fine_tuned (one that is), not both.")
        if self.grid and self.model is None:
            raise ValueError("grid: a teacher that is fine-tuned already has no settings to search.")
        wrong = [key for key, choices in self.grid.items() if not key.startswith("train.") or not choices]
        if wrong:
            raise ValueError(f"grid: settings of train, each with a list of choices; seen: {', '.join(wrong)}.")
        return self


class Search(_Block):
    """Say how the settings of a method are searched: all of its grid, or ``trials`` that Optuna's TPE proposes."""

    sampler: Literal["grid", "tpe"] = "grid"
    trials: PositiveInt = 20
    prune: bool = False  # stop trials that fall behind the median of those before, after any epoch but the last
    seed: NonNegativeInt = 0


class Study(_Block):
    """Hold what a study's file says, and make the recipe of each of its runs."""

    tasks: dict[str, dict[str, Any]] = Field(min_length=1)
    task: dict[str, Any] = Field(default_factory=dict)
    teacher: StudyTeacher
    student: dict[str, Any] | None = None
    train: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    grid: SearchSpace | list[SearchSpace] | None = None
    seeds: list[NonNegativeInt] = Field(min_length=1)
    select_seeds: list[NonNegativeInt] | None = Field(default=None, min_length=1)  # None: the reported ones choose too
    search: Search = Field(default_factory=Search)
    baselines: list[str] | None = None
    test: Literal["welch", "paired", "mcnemar", "bootstrap"] = "welch"
    sided: Literal["two", "greater", "observed"] = "two"
    level: float = Field(default=0.05, gt=0, lt=1)
    correction: Literal["holm", "none"] = "holm"  # for the number of tests in the table
    against: Literal["each", "best"] = "each"  # every baseline, or the best one of each column
    relative_to: str | None = None  # beside the table, each method's change in percent of this one's mean
    pooled: dict[str, list[str]] = Field(default_factory=dict)  # and the deviation over the runs of several methods
    average: str | None = None  # and the average over GLUE's tasks: glue, or fcd
    rivals: bool = True  # whether the table has rows for linear models, which a student must beat
    keep: Literal["reported", "all", "none"] = "reported"  # whose weights stay; scores and predictions always do

    @pydantic.field_validator("tasks", "methods", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return {name: {} for name in value}
        return {name: _flat(changes or {}) for name, changes in value.items()} if isinstance(value, dict) else value

    @pydantic.field_validator("seeds", "select_seeds")
    @classmethod
    def _once_each(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"each seed counts once; seen: {value}.")
        return value

    @property
    def choosing_seeds(self) -> list[int]:
        """Return the seeds whose mean dev score chooses among a method's settings."""
        return self.select_seeds or self.seeds

    @property
    def present_baselines(self) -> list[str]:
        """Return the baselines that the study has on any task: of those named, or of ``ft`` and ``kd``."""
        there = {label for task in self.tasks for label in self.labels(task)}
        return [name for name in (("ft", "kd") if self.baselines is None else self.baselines) if name in there]

    def selection_note(self) -> str:
        """Tell readers of the table how settings were chosen."""
        if not any(self.steps(task, label) for task in self.tasks for label in self.labels(task)):
            return "Nothing was searched: each method has fixed settings."
        ours, theirs = (", ".join(map(str, seeds)) for seeds in (self.choosing_seeds, self.seeds))
        if set(self.choosing_seeds) == set(self.seeds):
            theirs = "all of them"
        seeds = "seed" if len(self.choosing_seeds) == 1 else "seeds"
        if set(self.choosing_seeds).isdisjoint(self.seeds):
            return f"Settings were chosen by dev scores on {seeds} {ours}, and are reported on others: {theirs}."
        verb = "is" if len(self.choosing_seeds) == 1 else "are"
        which = "which" if set(self.choosing_seeds) <= set(self.seeds) else "some of which"
        return (
            f"Settings were chosen by dev scores on {seeds} {ours}, {which} {verb} reported too ({theirs}), as papers "
            "often do: the scores of searched methods are optimistic."
        )

    def to_yaml(self) -> str:
        """Return the study as the text of a file that ``load_study`` reads."""
        return yaml.safe_dump(self.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True)

    def steps(self, task: str, label: str) -> list[SearchSpace]:
        """Return what is searched, one space after the other; nothing where settings are fixed."""
        own = self.methods[label].get("grid", self.grid)
        if own is None:
            own = self._recipe_of(task, label).get("grid")
        return [space for space in (own if isinstance(own, list) else [own]) if space]

    def has_row(self, label: str) -> bool:
        """Tell whether a method is reported; one that is not is searched for others, which take its settings."""
        return self.methods[label].get("row") is not False

    def teacher_space(self, task: str) -> SearchSpace:
        """Return the settings among which this task's teacher is chosen."""
        return self._teacher_of(task).grid

    def teacher_values(self, task: str, point: GridPoint | None = None) -> dict[str, Any] | None:
        """Return the recipe that fine-tunes this task's teacher; None where one is given."""
        teacher = self._teacher_of(task)
        if teacher.model is None:
            return None
        values = {
            "task": self._task_block(task, {}),
            "student": {"model": teacher.model} | ({"head": teacher.head} if teacher.head is not None else {}),
            "method": {"name": "ft"},
            "train": copy.deepcopy(teacher.train),
            "seed": teacher.seed,
        }
        for key, value in (point or {}).items():
            set_value(values, key, copy.deepcopy(value))
        return values

    def given_teacher(self, task: str) -> str:
        """Return the path or name of this task's teacher, where one is given."""
        return (self._teacher_of(task).fine_tuned or "").replace(TASK_PLACEHOLDER, short_task(task))

    def labels(self, task: str) -> list[str]:
        """Return the methods that run on a task: all that do not name others as their ``tasks``."""
        return [label for label, entry in self.methods.items() if task in entry.get("tasks", self.tasks)]

    def values(self, task: str, label: str, point: GridPoint, seed: int, teacher: str, cache: str) -> dict[str, Any]:
        """Return the recipe of one run."""
        changes = self.changes(label)
        written = self._recipe_of(task, label)
        values: dict[str, Any] = {key: written[key] for key in ("method", "stages") if key in written}
        values["task"] = self._task_block(task, written.get("task", {}))
        given = self._teacher_of(task)
        values["teacher"] = {"model": teacher, "cache": cache, "cache_dtype": given.cache_dtype}
        values["teacher"]["confirmed"] = given.confirmed
        values["student"] = copy.deepcopy(self.student or written.get("student") or {})
        values["train"] = copy.deepcopy(written.get("train", {}) | self.train)
        values.setdefault("method", {"name": label})
        own = {key: value for key, value in self.tasks[task].items() if not key.startswith("teacher.")}
        for key, value in (own | changes | point).items():
            set_value(values, key, copy.deepcopy(value))
        return values | {"seed": seed}

    def changes(self, label: str) -> dict[str, Any]:
        """Return the settings that a method has of its own, some of which may be what other methods chose."""
        return {key: value for key, value in self.methods[label].items() if key not in STUDY_KEYS}

    def method(self, task: str, label: str) -> str:
        """Return the name of the method that a label stands for."""
        return str(self.values(task, label, {}, self.seeds[0], "", "off")["method"].get("name"))

    def reported(self, task: str, label: str) -> list[dict[str, Any]]:
        """Return the scores that the paper of a method reports, as the recipe behind it has them."""
        reported = self._recipe_of(task, label).get("reported") or []
        return [reported] if isinstance(reported, dict) else reported

    def _recipe_of(self, task: str, label: str) -> dict[str, Any]:
        name = self.methods[label].get("recipe")
        return copy.deepcopy(read_recipe(str(name).replace(TASK_PLACEHOLDER, short_task(task))).values) if name else {}

    def _task_block(self, task: str, written: dict[str, Any]) -> dict[str, Any]:
        block = {"task": written | copy.deepcopy(self.task) | {"name": task}}
        for key, value in self.tasks[task].items():
            if key.startswith("task."):
                set_value(block, key, value)
        return block["task"]

    def _teacher_of(self, task: str) -> StudyTeacher:
        block = {"teacher": self.teacher.model_dump()}
        for key, value in self.tasks[task].items():
            if key.startswith("teacher."):
                set_value(block, key, value)
        return StudyTeacher.model_validate(block["teacher"])


def _flat(changes: Any) -> Any:
    """Give each setting in a block its own key: ``train: {epochs: 5}`` changes the epochs, not the whole block.

    So does the override ``methods.kd.train.epochs=5``. A student or a method with its name replaces its whole block.
    """
    if not isinstance(changes, dict):
        return changes
    flat: dict[Any, Any] = {}
    for key, value in changes.items():
        whole = key not in ("task", "teacher", "method", "train") or not isinstance(value, dict)
        if whole or (key == "method" and "name" in value):
            flat[key] = value
        else:
            flat |= {f"{key}.{name}": item for name, item in value.items()}
    return flat


def short_task(task: str) -> str:
    """Return the last part of a task's name: ``rte`` of ``glue/rte``."""
    return task.rpartition("/")[2]


def run_key(recipe: Recipe) -> str:
    """Return a name for a run's folder: words for people, and a hash of everything that decides the result."""
    values = yaml.safe_load(recipe.model_copy(update={"reported": None, "grid": None}).to_yaml())
    for block in (values, *values.get("stages", [])):
        (block.get("teacher") or {}).pop("confirmed", None)  # it decides whether there is a result, not which
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return file_name(recipe.task.name, recipe.method.name, f"s{recipe.seed}", digest[:10])

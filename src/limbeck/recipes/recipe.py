"""Load recipes: task, teacher, student, method and training as plain YAML, checked as a whole before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt

from limbeck._internal import own_code
from limbeck._internal import yaml as plain_yaml
from limbeck.errors import RecipeError, shorten
from limbeck.models.kept_layers import parse_keep
from limbeck.options import Mistake, OpenBlock, Share, check, check_options
from limbeck.recipes.files import RecipeText, read_recipe, set_value
from limbeck.recipes.method_block import CodePolicy, MethodBlock, check_method
from limbeck.recipes.stages import (
    BLOCKS,
    check_stage_list,
    is_used_by_a_stage,
    locate_mistake,
    split_stages,
    stages_of_method,
)
from limbeck.recipes.teacher_block import Named, TeacherBlock
from limbeck.recipes.train_block import TrainBlock, check_training, with_defaults

# Methods and tasks are imported inside functions for start-up time only: methods load torch, which takes seconds that
# the listing of studies and the reading of a task block would wait for. Both lie below recipes, so there is no cycle.

_MAX_PLACE, _MAX_MESSAGE = 100, 300  # characters, so that one does not hide the others


class _Block(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class AugmentBlock(_Block):
    """Say how copies of training texts are made (Jiao et al. 2020): which models propose words, and how many.

    ``share`` is the chance that a word is replaced, ``candidates`` how many words are proposed for its place.
    """

    model: Named  # a masked language model
    vectors: Named | None = None  # a file in GloVe's form, for words of several pieces, which stay without it
    copies: PositiveInt = 20
    share: Share = 0.4
    candidates: PositiveInt = 15


class TaskBlock(OpenBlock):
    """Name a task and its options, and say how long its texts may be."""

    name: str
    max_length: PositiveInt | Literal["auto"] = "auto"  # auto: so that few texts are cut
    too_long: Literal["cut", "refuse"] = "cut"
    padding: Literal["longest", "max_length"] = "longest"
    augment: AugmentBlock | None = None  # more training texts, with other words

    @pydantic.field_validator("max_length", mode="before")
    @classmethod
    def _length(cls, value: Any) -> Any:
        if value == "auto" or (type(value) is int and value > 0):
            return value
        raise ValueError("write a whole number of tokens, at least 1, or auto")


Head = Literal["fitted", "fresh", "kept"]


class StudentBlock(_Block):
    """Say what the student is: ``{from: teacher, keep: "first:6"}``, ``{model: ...}`` or ``{config: {...}}``.

    ``head`` is its start: ``fitted`` to the training rows, ``fresh`` at random, or ``kept`` as the source has it (and
    fresh where it has none). Without, what suits the source.
    """

    from_: Named | None = Field(default=None, alias="from")
    keep: str | list[PositiveInt] | None = None
    model: Named | None = None
    config: dict[str, Any] | None = None
    tokenizer: Named | None = None
    head: Head | None = None
    vocabulary: Literal["whole", "trimmed"] = "whole"  # trimmed: only the pieces that the training texts use
    vocabulary_texts: Named | None = None  # a text file whose pieces are kept too

    @pydantic.field_validator("keep", mode="before")
    @classmethod
    def _layers(cls, value: Any) -> Any:
        return None if value is None else parse_keep(value)

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> StudentBlock:
        given = [
            name
            for name, value in (("from", self.from_), ("model", self.model), ("config", self.config))
            if value is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of from (with keep), model or config; seen: {', '.join(given) or 'none of them'}."
            )
        if (self.keep is None) != (self.from_ is None):
            raise ValueError("from and keep belong together, e.g. {from: teacher, keep: 'first:6'}.")
        if self.vocabulary_texts is not None and self.vocabulary == "whole":
            raise ValueError("vocabulary_texts says what a trimmed vocabulary keeps: set vocabulary: trimmed too.")
        return self


class ReportedScore(_Block):
    """Hold the score that a paper reports for this setting."""

    metric: str
    value: float
    sd: float | None = None
    where: str


class Stage(_Block):
    """Describe one of several trainings; what it leaves out is as at the top of the recipe."""

    task: TaskBlock | None = None
    teacher: TeacherBlock | None = None
    method: MethodBlock | None = None
    train: TrainBlock | None = None


class Recipe(_Block):
    """Describe one training; with ``stages``, the last of them, whose results are the run's."""

    task: TaskBlock
    teacher: TeacherBlock | None = None
    student: StudentBlock
    method: MethodBlock
    train: TrainBlock = Field(default_factory=TrainBlock)
    stages: list[Stage] | None = None
    seed: NonNegativeInt = 0
    reported: list[ReportedScore] | None = None
    # What the paper searched over, for studies, one grid after the other. A run uses the blocks above.
    grid: list[dict[str, list[Any]]] | None = None
    _tasks: tuple[TaskBlock, ...] = pydantic.PrivateAttr(default=())  # of a stage: those of all stages

    @pydantic.field_validator("grid", mode="before")
    @classmethod
    def _one_grid(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @pydantic.field_validator("reported", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    def to_yaml(self) -> str:
        """Write every setting, defaults included, as a recipe that runs the same again."""
        values = self.model_dump(by_alias=True, exclude_none=True, exclude=set(BLOCKS) if self.stages else None)
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    def later_student(self, folder: Path) -> StudentBlock:
        """Return the student of a later stage: what an earlier one left in ``folder``, with its head."""
        # one that a new kind of task needs is fitted, unless the recipe wants none of that
        return StudentBlock(model=str(folder), head=None if self.student.head in (None, "fitted") else "kept")

    def with_head(self, head: Head | None) -> Recipe:
        """Return the recipe with the start of the head that was chosen, where it leaves that open.

        With stages, each stage's own recipe has it.
        """
        if self.stages is not None or self.student.head is not None or head is None:
            return self
        return self.model_copy(update={"student": self.student.model_copy(update={"head": head})})

    def settled(self, max_length: int) -> Recipe:
        """Return the recipe with the length that was chosen, where the last (or only) stage left it open."""
        open_task = self.stages[-1].task if self.stages else self.task
        if open_task is None or open_task.max_length != "auto":
            return self
        task = open_task.model_copy(update={"max_length": max_length})
        if self.stages is None:
            return self.model_copy(update={"task": task})
        last = self.stages[-1].model_copy(update={"task": task})
        return self.model_copy(update={"stages": [*self.stages[:-1], last]})

    def split(self) -> list[Recipe]:
        """Return each stage as a recipe of its own, from the same student; one without stages is its only one."""
        if self.stages is None:
            return [self]
        alone = {"stages": None, "reported": None, "grid": None}
        recipes = [
            self.model_copy(update=alone | {name: getattr(stage, name) for name in BLOCKS}) for stage in self.stages
        ]
        for recipe in recipes:
            recipe._tasks = tuple(other.task for other in recipes)
        return recipes

    @property
    def tasks(self) -> tuple[TaskBlock, ...]:
        """Return the tasks of all stages of the run that this training belongs to."""
        return self._tasks or (self.task,)


def load_recipe(
    source: str | Path | None = None,
    overrides: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    *,
    allow_code: bool = False,
) -> Recipe:
    """Load a recipe file, a shipped recipe (by name) or ``values``, with ``key=value`` overrides, fully checked.

    Every mistake is reported at once, with the line of the file where there is one. A method ``module:function`` is
    imported only where ``overrides`` name it, or with ``allow_code``.
    """
    return _load(source, overrides, values, "allowed" if allow_code else "refused")


def load_without_code(
    source: str | Path | None = None, overrides: Sequence[str] = (), values: dict[str, Any] | None = None
) -> Recipe:
    """Load a recipe for reading: a method that is code of somebody's own is neither imported nor checked."""
    return _load(source, overrides, values, "unchecked")


def _load(
    source: str | Path | None, overrides: Sequence[str], values: dict[str, Any] | None, code: CodePolicy
) -> Recipe:
    text = RecipeText("", values or {}) if source is None else read_recipe(source)
    values = copy.deepcopy(text.values)
    own_code.allow_typed(overrides)
    if code == "allowed":
        own_code.allow(own_code.names_in(values))
    _apply_all(overrides, values)
    recipe, mistakes = check_recipe(values, code)
    if recipe is None:
        raise RecipeError(report_mistakes(mistakes, text))
    return recipe


def check_recipe(values: dict[str, Any], code: CodePolicy = "refused") -> tuple[Recipe | None, list[Mistake]]:
    """Return the recipe with every option's default filled in, or all that is wrong with it."""
    from limbeck.methods import find_method

    if code == "allowed":
        own_code.allow(own_code.names_in(values))
    mistakes = check_stage_list(values)
    if mistakes:
        return None, mistakes
    values = values | {"stages": values.get("stages") or stages_of_method(values.get("method"), find_method)}
    recipes = []
    for number, stage in enumerate(split_stages(values), start=1):
        recipe, wrong = _check_stage(stage, code, first=number == 1)
        recipes.append(recipe)
        placed = [locate_mistake(mistake, number, values) for mistake in wrong]
        mistakes += [mistake for mistake in placed if mistake not in mistakes]
    last = recipes[-1]
    if last is not None and not mistakes:
        mistakes = _check_grid(last.grid or [], values, code)
    if last is None or mistakes:
        return None, mistakes
    if values["stages"]:
        blocks = [{name: getattr(recipe, name) for name in BLOCKS} for recipe in recipes]
        last = last.model_copy(update={"stages": [Stage.model_construct(**own) for own in blocks]})
    return last, []


def _check_stage(values: dict[str, Any], code: CodePolicy, first: bool) -> tuple[Recipe | None, list[Mistake]]:
    """Check one training; only the first must make a student, later ones go on with it."""
    from limbeck.tasks import find_task

    recipe, mistakes = check(Recipe, values)
    task, wrong_task = check_options("task", values.get("task"), TaskBlock, find_task)
    method, wrong_method = check_method(values.get("method"), code)
    train, wrong_train = check_training(values.get("train"))
    mistakes += wrong_task + wrong_method + wrong_train
    if recipe is not None and first:
        mistakes += _check_teacher(recipe)
    if recipe is None or mistakes:
        return None, mistakes
    recipe.task.__pydantic_extra__ = task
    recipe.method.__pydantic_extra__ = method
    recipe.train.__pydantic_extra__ = with_defaults(train, recipe.train.warmup_epochs)
    return recipe, []


def _check_grid(grids: list[dict[str, list[Any]]], values: dict[str, Any], code: CodePolicy) -> list[Mistake]:
    """Find the choices of grids that are not valid where they go."""
    mistakes = []
    for key, choices in (item for grid in grids for item in grid.items()):
        for choice in choices:
            trial = copy.deepcopy({name: value for name, value in values.items() if name != "grid"})
            set_value(trial, key, choice)
            wrong = check_recipe(trial, code)[1]
            mistakes += [Mistake(("grid", key), f"{choice!r}: {mistake.message}") for mistake in wrong]
    return mistakes


def load_task_block(values: dict[str, Any], overrides: Sequence[str] = ()) -> TaskBlock:
    """Load a task block on its own, for example that of a run whose method is a file that is not here."""
    from limbeck.tasks import find_task

    wrapped = {"task": dict(values)}
    for override in overrides:
        apply_override(override, wrapped)
    block, mistakes = check(TaskBlock, wrapped["task"], ("task",))
    options, wrong = check_options("task", wrapped["task"], TaskBlock, find_task)
    if block is None or wrong:
        raise RecipeError(report_mistakes(mistakes + wrong, RecipeText("", {})))
    block.__pydantic_extra__ = options
    return block


def _check_teacher(recipe: Recipe) -> list[Mistake]:
    teacher = recipe.teacher
    modelled = teacher is not None and any(block.model for block in teacher.members)
    if not modelled and recipe.student.from_ == "teacher":
        seen = f"it is a file ({teacher.source})" if teacher is not None else "the recipe has no teacher"
        remedy = "name the model to start from" if teacher is not None else "set teacher.model"
        return [Mistake(("student", "from"), f"'teacher' is named, but {seen}: {remedy}.")]
    if not modelled and recipe.student.config is not None and recipe.student.tokenizer is None:
        whose = "without a model as the teacher" if teacher is not None else "without a teacher"
        return [Mistake(("student",), f"a config {whose} also needs a tokenizer: a folder or a hub name.")]
    return []


def _apply_all(overrides: Sequence[str], values: dict[str, Any]) -> None:
    """Apply the overrides of single stages last, because others may choose the method that brings the stages."""
    from limbeck.methods import find_method

    of_stages = [override for override in overrides if override.startswith("stages.")]
    shared = [override for override in overrides if not override.startswith("stages.")]
    for override in shared:
        apply_override(override, values)
    if of_stages and "stages" not in values:
        values["stages"] = stages_of_method(values.get("method"), find_method)
    for override in of_stages:
        apply_override(override, values)
    for override in shared:
        path = override.partition("=")[0]
        if not is_used_by_a_stage(path, values):
            raise RecipeError(
                f"'{override}' changes nothing: each stage has its own {path}. Name the stage: stages.1.{override}"
            )


def apply_override(override: str, values: dict[str, Any]) -> None:
    """Set what ``key=value`` says in ``values``; the value is YAML."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise RecipeError(f"'{override}' is not an override: write key=value, e.g. train.epochs=1.")
    try:
        value = plain_yaml.load(text)
    except yaml.YAMLError:
        value = text
    set_value(values, path, value)


def report_mistakes(mistakes: list[Mistake], text: RecipeText, kind: str = "recipe") -> str:
    """Write everything that is wrong with a file, a line each, with its place."""
    lines = text.lines
    title = f"{text.name}: " if text.name else ""
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    rows = []
    for mistake in mistakes:
        # the deepest part of the place that is written in the file
        known = [lines[mistake.where[:n]] for n in range(len(mistake.where), 0, -1) if mistake.where[:n] in lines]
        line = f"line {known[0]}: " if known else ""
        place = shorten(".".join(map(str, mistake.where)), _MAX_PLACE) or kind
        rows.append(f"  {line}{place}: {shorten(mistake.message, _MAX_MESSAGE)}")
    return f"{title}{count} in the {kind}:\n" + "\n".join(rows)

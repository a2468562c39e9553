"""Load what a recipe names and see that it fits together: task, teacher, student, objective and data."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from transformers import set_seed

from limbeck.distillation.distiller import Distiller
from limbeck.distillation.method import Method
from limbeck.distillation.pair import Pair
from limbeck.errors import CacheError, ModelError, RecipeError
from limbeck.methods import find_method
from limbeck.models.families import blocks_of, family_of
from limbeck.models.heads import label_config
from limbeck.models.loading import (
    check_same_tokenizer,
    checked_length,
    load_for_training,
    load_teacher,
    load_tokenizer,
    longest_input,
)
from limbeck.models.students import check_not_deeper, from_config, keep_layers, layers_to_keep
from limbeck.recipes.recipe import Recipe
from limbeck.tasks import load_task
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import TRAINING_COLUMNS, Collator
from limbeck.tasks.packing import Blocks, Packing
from limbeck.tasks.task import Task
from limbeck.tasks.text import TextTask

logger = logging.getLogger("limbeck")


@dataclass(frozen=True)
class Parts:
    """Everything a recipe names, loaded and checked against each other."""

    task: Task
    tokenizer: Any
    student: Any
    teacher: Any | None
    method: Method
    distiller: Distiller
    max_length: int
    why_this_length: str  # empty where the recipe gives it


@dataclass(frozen=True)
class Data:
    """The task's splits as the models read them."""

    splits: dict[str, Any]  # split -> token ids, or a stream of blocks
    collate: Collator
    batch_size: int

    def batches(self, split: str) -> Batches:
        return Batches(self.splits[split], self.collate, self.batch_size)


def assemble(recipe: Recipe) -> Parts:
    """Load the task and the models that a recipe names; raise a clear error where they do not fit together."""
    set_seed(recipe.seed)
    task = load_task(recipe.task.name, **recipe.task.options)
    teacher, no_head = load_teacher(recipe.teacher.model, task) if recipe.teacher else (None, None)
    tokenizer = _tokenizer(recipe)
    student = _student(recipe, task, teacher, tokenizer)
    method, distiller = _distiller(recipe, task, student, teacher, no_head)
    length, reason = _max_length(recipe, task, tokenizer, student, teacher)
    return Parts(task, tokenizer, student, teacher, method, distiller, length, reason)


def check_stages_fit(stages: list[Recipe]) -> None:
    """What does not fit must show now, not after hours of the first stage."""
    first = assemble(stages[0])
    for stage in stages[1:]:
        _check_later(stage, first)


def _check_later(recipe: Recipe, first: Parts) -> None:
    """Raise what is wrong with a later stage, whose student will have the first one's shape."""
    task = load_task(recipe.task.name, **recipe.task.options)
    teacher, no_head = load_teacher(recipe.teacher.model, task) if recipe.teacher else (None, None)
    if recipe.teacher is not None:
        check_same_tokenizer(first.tokenizer, load_tokenizer(recipe.teacher.model))
    student = from_config(label_config(task), first.student.config, task.problem)
    _distiller(recipe, task, student, teacher, no_head)
    if recipe.task.max_length != "auto":
        _max_length(recipe, task, first.tokenizer, student, teacher)


def _distiller(
    recipe: Recipe, task: Task, student: Any, teacher: Any | None, no_head: ModelError | None
) -> tuple[Method, Distiller]:
    """Raise what does not fit; ``no_head`` is what to say if the teacher's predictions are needed and it has none."""
    if teacher is not None:
        check_not_deeper(student, teacher)
    function = find_method(recipe.method.name)
    pair = Pair.of(student, teacher, task.problem, task.class_weights)
    method = Method.of(function(pair, **recipe.method.options))
    distiller = Distiller.of(method, student, teacher)
    if no_head is not None and distiller.needs.teacher.logits:
        raise no_head
    reason = cannot_cache(task, method)
    if reason and recipe.teacher is not None and recipe.teacher.cache_folder is not None:
        raise CacheError(f"{recipe.method.name}: {reason} Set teacher.cache=off.")
    return method, distiller


def cannot_cache(task: Task, method: Method) -> str:
    """Why what the teacher computes cannot be kept; empty where it can."""
    if method.make_teacher is not None:
        return "The teacher of this method learns while it teaches, so what it computed before is out of date."
    if isinstance(task, TextTask):
        return "The masks and blocks of plain text change with every epoch, and the teacher's features with them."
    if method.objective.needs().teacher.padding:
        return "This method counts padding (mask_padding=false), and a cache keeps the features of real tokens only."
    return ""


def load_data(recipe: Recipe, parts: Parts) -> Data:
    """The training and validation data as token ids."""
    task, tokenizer, spec = parts.task, parts.tokenizer, recipe.task
    if parts.why_this_length:
        chosen = f"task.max_length: {parts.max_length} tokens"
        logger.info("%s (%s). Set it to choose another.", chosen, parts.why_this_length)
    names = ("train", *task.dev_splits)
    if isinstance(task, TextTask):
        packing = Packing(tokenizer, parts.max_length, family_of(parts.student).causal, task.mask)
        splits: dict[str, Any] = {
            name: Blocks(task.split(name), packing, recipe.seed, shuffle=name == "train") for name in names
        }
        splits["validation"].count()
        if recipe.train.options.get("max_steps", -1) <= 0:  # epochs need the length of the stream
            splits["train"].count()
    else:
        splits = {name: task.encode(name, tokenizer, parts.max_length, spec.too_long) for name in names}
        train = splits["train"]
        splits["train"] = train.select_columns([name for name in train.column_names if name in TRAINING_COLUMNS])
    if parts.method.held_out:
        splits |= _hold_out(splits["train"], parts.method.held_out, recipe)
    fixed = parts.max_length if spec.padding == "max_length" else None
    collate = Collator(tokenizer, fixed, task.problem)
    return Data(splits, collate, recipe.train.batch_size)


def _hold_out(train: Any, share: float, recipe: Recipe) -> dict[str, Any]:
    """A seeded share of the training data for a teacher that is examined; never of the validation data."""
    if isinstance(train, Blocks):
        raise RecipeError(f"{recipe.method.name} holds out examples, which a stream of text does not allow.")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(recipe.seed)).tolist()
    held = max(1, round(share * len(train)))
    if held >= len(train):
        raise RecipeError(f"{recipe.method.name} would hold out all {len(train)} training examples. Give it more data.")
    return {"train": train.select(sorted(order[held:])), "quiz": train.select(sorted(order[:held]))}


def _tokenizer(recipe: Recipe) -> Any:
    spec = recipe.student
    own = spec.tokenizer or spec.model or (spec.from_ if spec.from_ != "teacher" else None)
    if recipe.teacher is None:
        return load_tokenizer(own or "")
    tokenizer = load_tokenizer(recipe.teacher.model)
    if own is not None:
        check_same_tokenizer(load_tokenizer(own), tokenizer)
    return tokenizer


def _student(recipe: Recipe, task: Task, teacher: Any | None, tokenizer: Any) -> Any:
    spec = recipe.student
    if spec.model is not None:
        return load_for_training(spec.model, task, tokenizer)
    if spec.config is not None:
        inherited = label_config(task) | {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        return from_config(spec.config, teacher.config if teacher is not None else None, task.problem, **inherited)
    source: Any = teacher if spec.from_ == "teacher" else load_for_training(spec.from_ or "", task, tokenizer)
    return keep_layers(source, layers_to_keep(spec.keep or "", len(blocks_of(source))))


def _max_length(recipe: Recipe, task: Task, tokenizer: Any, student: Any, teacher: Any | None) -> tuple[int, str]:
    """As the recipe says, or as the data suggest and the models can read: then with the reason."""
    model = min((student, student if teacher is None else teacher), key=longest_input)
    if recipe.task.max_length == "auto":
        return task.suggest_length(tokenizer, longest_input(model))
    return checked_length(recipe.task.max_length, model), ""

"""Load what a recipe names and see that it fits together: task, teacher, student, objective and data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import set_seed

from limbeck._internal.processes import process_count
from limbeck.distillation.distiller import Distiller
from limbeck.distillation.fingerprint import model_digest
from limbeck.distillation.method import Method
from limbeck.distillation.pair import Pair
from limbeck.errors import CacheError, ModelError, RecipeError
from limbeck.methods import find_method
from limbeck.methods.ft import TaskLoss
from limbeck.models.families import blocks_of, family_of
from limbeck.models.features import Needs
from limbeck.models.heads import has_generic_names, label_config
from limbeck.models.kept_layers import stand_in
from limbeck.models.loading import (
    checked_length,
    count_parameters,
    load_for_training,
    load_teacher,
    load_tokenizer,
    longest_input,
)
from limbeck.models.students import SourceHead, check_not_deeper, from_config, keep_layers
from limbeck.protocols import EncodedData, Model, Tokenizer
from limbeck.recipes.recipe import Recipe
from limbeck.tasks import load_task
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator
from limbeck.tasks.mixing import MixedRows, encode_unlabelled
from limbeck.tasks.task import Encoding, Task
from limbeck.training.augmentation import augment
from limbeck.training.held_out import hold_out
from limbeck.training.vocabulary import NamedTeacher, Trimming, fit_to_student, trim_parts

logger = logging.getLogger("limbeck")

HELD_OUT = "held_out"  # the split of a method that keeps a share of the training data for its teacher


@dataclass(frozen=True)
class Parts:
    """Hold everything that a recipe names, loaded and checked against each other."""

    task: Task
    tokenizer: Tokenizer
    student: Model
    teacher: Model | None
    method: Method
    distiller: Distiller
    max_length: int
    why_this_length: str  # empty where the recipe gives it
    source_head: SourceHead
    trimming: Trimming | None = None
    named_teacher: NamedTeacher | None = None  # where ``teacher`` is a trimmed copy

    @property
    def needs(self) -> Needs:
        """Return what the objective needs captured on each side."""
        return self.distiller.needs

    def require_teacher(self) -> Model:
        """Return the teacher, where there must be one."""
        assert self.teacher is not None
        return self.teacher

    def teacher_digest(self) -> str | None:
        """Return a short text for the teacher as its files hold it; None where there is none."""
        if self.named_teacher is not None:
            return self.named_teacher.digest
        return None if self.teacher is None else model_digest(self.teacher)

    def teacher_parameters(self) -> int:
        """Count the parameters of the teacher as its files hold it."""
        return self.named_teacher.parameters if self.named_teacher else count_parameters(self.require_teacher())

    def why_not_cached(self) -> str:
        """Say why what the teacher computes cannot be kept; empty where it can."""
        return _why_not_cached(self.task, self.method)


@dataclass(frozen=True)
class Data:
    """Hold the task's splits as the models read them."""

    splits: dict[str, EncodedData]  # token ids, or a stream of blocks
    collate: Collator
    batch_size: int
    mixed: Callable[[], MixedRows] | None = None  # reads the rows without labels and mixes them into the training data

    @cached_property
    def training(self) -> EncodedData:
        """Return what is trained on: the split, and the rows without labels, which are read when this is asked for."""
        return self.splits["train"] if self.mixed is None else self.mixed()

    def batches(self, split: str, times: int = 1) -> Batches:
        """Return a split in batches of the recipe's size, or of so many times that size.

        The training data are whole, with the rows that have no label.
        """
        rows = self.training if split == "train" else self.splits[split]
        return Batches(rows, self.collate, times * self.batch_size)


def assemble(recipe: Recipe, like: Tokenizer | None = None) -> Parts:
    """Load the task and the models that a recipe names; raise a clear error where they do not fit together.

    ``like`` is the tokenizer of a finished run, where the recipe trims the vocabulary: it is trimmed to the same.
    """
    set_seed(recipe.seed)
    task = load_task(recipe.task.name, **recipe.task.options)
    teacher, no_head = load_teacher(recipe.teacher.model, task) if recipe.teacher else (None, None)
    named = teacher
    tokenizer, teacher, trimming = _tokenizer(recipe, task, teacher)
    student, source_head = _student(recipe, task, teacher, tokenizer)
    _name_labels(student, task)
    if recipe.student.vocabulary == "trimmed":
        tokenizer, student, teacher, trimming = trim_parts(recipe, task, tokenizer, student, teacher, like)
    method, distiller = _distiller(recipe, task, student, teacher, no_head)
    length, reason = _max_length(recipe, task, tokenizer, student, teacher)
    named_teacher = NamedTeacher.of(named) if named is not None and teacher is not named else None
    models = (task, tokenizer, student, teacher, method, distiller)
    return Parts(*models, length, reason, source_head, trimming, named_teacher)


def check_stages_fit(stages: list[Recipe]) -> None:
    """Raise what does not fit in any stage now, not after hours of the first one."""
    first = assemble(stages[0])
    for stage in stages[1:]:
        _check_later(stage, first)


def _check_later(recipe: Recipe, first: Parts) -> None:
    """Raise what is wrong with a later stage, whose student will have the first one's shape."""
    task = load_task(recipe.task.name, **recipe.task.options)
    teacher, no_head = load_teacher(recipe.teacher.model, task) if recipe.teacher else (None, None)
    if recipe.teacher is not None and teacher is not None:
        _, teacher, _ = fit_to_student(first.tokenizer, teacher, load_tokenizer(recipe.teacher.model), task)
    student = from_config(label_config(task), first.student.config, task.problem)
    _distiller(recipe, task, student, teacher, no_head)
    if recipe.task.max_length != "auto":
        _max_length(recipe, task, first.tokenizer, student, teacher)


def _distiller(
    recipe: Recipe, task: Task, student: Model, teacher: Model | None, no_head: ModelError | None
) -> tuple[Method, Distiller]:
    """Raise what does not fit; ``no_head`` is what to say if the teacher's predictions are needed and it has none."""
    if teacher is not None:
        check_not_deeper(student, teacher)
    function = find_method(recipe.method.name)
    pair = Pair.of(student, teacher, task.problem, task.class_weights)
    method = Method.of(function(pair, **recipe.method.options))
    _check_gradient_checkpointing(recipe, method, student)
    distiller = Distiller.of(method, student, teacher, _micro_batch_size(recipe, method))
    if no_head is not None and distiller.needs.teacher.logits:
        raise no_head
    reason = _why_not_cached(task, method)
    if reason and recipe.teacher is not None and recipe.teacher.cache_folder is not None:
        raise CacheError(f"{recipe.method.name}: {reason} Set teacher.cache=off.")
    return method, distiller


def _micro_batch_size(recipe: Recipe, method: Method) -> int | None:
    """Return how many examples are in memory at once, where a step relates more than that."""
    size, related = recipe.train.batch_size, recipe.train.relation_batch
    if related is None:
        return None
    if related < size:
        raise RecipeError(
            f"train.relation_batch ({related}) must be at least train.batch_size ({size}), the part that is in memory."
        )
    if method.make_teacher is not None or method.run_student is not None:
        raise RecipeError(
            f"{recipe.method.name} changes its models in every pass, so a step cannot be computed in parts. "
            "Leave train.relation_batch out."
        )
    return size


def _check_gradient_checkpointing(recipe: Recipe, method: Method, student: Model) -> None:
    """Raise where a student's layers cannot be computed a second time as they were the first."""
    if not recipe.train.options.get("gradient_checkpointing"):
        return
    if method.make_teacher is not None or method.run_student is not None:
        raise RecipeError(
            f"{recipe.method.name} changes its models in every pass, so layers computed again would be others. "
            "Leave train.gradient_checkpointing out."
        )
    if not getattr(student, "supports_gradient_checkpointing", False):
        raise RecipeError(
            f"{student.config.model_type} models have no gradient checkpointing. Leave train.gradient_checkpointing "
            "out; train.relation_batch saves memory too."
        )


def _why_not_cached(task: Task, method: Method) -> str:
    if method.make_teacher is not None:
        return "The teacher of this method learns while it teaches, so what it computed before is out of date."
    if reason := task.why_not_cached():
        return reason
    if method.objective.needs().teacher.padding:
        return "This method counts padding (mask_padding=false), and a cache keeps the features of real tokens only."
    return ""


def load_data(recipe: Recipe, parts: Parts) -> Data:
    """Return the training and validation data as token ids."""
    if parts.trimming is not None:
        parts.trimming.report()
    if parts.why_this_length:
        chosen = f"task.max_length: {parts.max_length} tokens"
        logger.info("%s (%s). Set it to choose another.", chosen, parts.why_this_length)
    by_epochs = recipe.train.options.get("max_steps", -1) <= 0
    causal = family_of(parts.student).causal
    how = Encoding(parts.tokenizer, parts.max_length, recipe.task.too_long, causal, recipe.seed, by_epochs)
    task = parts.task if recipe.task.augment is None else augment(parts.task, recipe.task.augment, recipe.seed)
    splits = task.encode_all(("train", *task.dev_splits), how)
    if parts.method.held_out:
        kept, held = hold_out(splits["train"], parts.method.held_out, recipe.seed, recipe.method.name)
        splits |= {"train": kept, HELD_OUT: held}
    fixed = parts.max_length if recipe.task.padding == "max_length" else None
    collate = Collator(parts.tokenizer, fixed, parts.task.problem)
    mixed = _mixing(recipe, parts, splits["train"], how)
    return Data(splits, collate, recipe.train.batch_size, mixed)


def _mixing(recipe: Recipe, parts: Parts, train: Any, how: Encoding) -> Callable[[], MixedRows] | None:
    """Return what mixes the rows without labels into the training data; None where there are none to learn from."""
    more = parts.task.unlabelled
    if more is None:
        return None
    if all(isinstance(term, TaskLoss) for term in parts.method.objective):
        logger.info("%s learns from labels alone: the rows of task.unlabelled are left out.", recipe.method.name)
        return None

    def mixed() -> MixedRows:
        return MixedRows(train, encode_unlabelled(parts.task, how, max(train["id"]) + 1), more.share)

    return mixed


def hand_over_held_out(parts: Parts, data: Data) -> None:
    """Give the teacher the examples that its method held out for it, if it did."""
    if parts.method.use_held_out is not None:
        # as many in every process as one alone would take
        parts.method.use_held_out(parts.distiller.teacher, data.batches(HELD_OUT, times=process_count()))


def _tokenizer(recipe: Recipe, task: Task, teacher: Model | None) -> tuple[Tokenizer, Model | None, Trimming | None]:
    """Return the tokenizer of both models, and the teacher as it reads by it, trimmed where its student is."""
    spec = recipe.student
    own = spec.tokenizer or spec.model or (spec.from_ if spec.from_ != "teacher" else None)
    if recipe.teacher is None or teacher is None:
        return load_tokenizer(own or ""), None, None
    tokenizer = load_tokenizer(recipe.teacher.model)
    if own is None:
        return tokenizer, teacher, None
    return fit_to_student(load_tokenizer(own), teacher, tokenizer, task)


def _student(recipe: Recipe, task: Task, teacher: Model | None, tokenizer: Tokenizer) -> tuple[Model, SourceHead]:
    spec = recipe.student
    if spec.model is not None:
        model, trained = load_for_training(spec.model, task, tokenizer)
        return model, "whole" if trained else "new"
    if spec.config is not None:
        inherited = label_config(task) | {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        base = teacher.config if teacher is not None else None
        return from_config(spec.config, base, task.problem, **inherited), "random"
    source: Any
    source, trained = (
        (teacher, True) if spec.from_ == "teacher" else load_for_training(spec.from_ or "", task, tokenizer)
    )
    depth = len(blocks_of(source))
    # a training has put the layers that it chose in the place of best:N; who estimates or checks needs their number
    student = keep_layers(source, stand_in(spec.keep or "", depth))
    return student, "new" if not trained else "whole" if len(blocks_of(student)) == depth else "cut"


def _name_labels(student: Any, task: Task) -> None:
    """Give a student of a teacher without names for its labels those that the task has for them."""
    if task.label_names and has_generic_names(student.config):
        for name, value in label_config(task).items():
            setattr(student.config, name, value)


def _max_length(
    recipe: Recipe, task: Task, tokenizer: Tokenizer, student: Model, teacher: Model | None
) -> tuple[int, str]:
    """Choose as the recipe says, or as the data suggest and the models can read: then with the reason."""
    model = min((student, student if teacher is None else teacher), key=longest_input)
    if recipe.task.max_length == "auto":
        return task.suggest_length(tokenizer, longest_input(model))
    return checked_length(recipe.task.max_length, model), ""

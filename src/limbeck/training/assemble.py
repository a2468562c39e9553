"""Load what a recipe names and see that it fits together: task, teacher, student, objective and data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers import set_seed

from limbeck._internal.processes import process_count
from limbeck.distillation.distiller import Distiller
from limbeck.distillation.method import Method
from limbeck.distillation.pair import Pair
from limbeck.errors import CacheError, ModelError
from limbeck.methods import find_method
from limbeck.methods.ft import TaskLoss
from limbeck.models.families import blocks_of, family_of
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.heads import has_generic_names, label_config
from limbeck.models.kept_layers import stand_in
from limbeck.models.loading import (
    checked_length,
    load_for_training,
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
from limbeck.training.fit_checks import check_gradient_checkpointing, check_team, micro_batch_size, why_not_cached
from limbeck.training.held_out import hold_out
from limbeck.training.team import NOBODY, Member, Team
from limbeck.training.vocabulary import Trimming, fit_to_student, trim_parts

logger = logging.getLogger("limbeck")

HELD_OUT = "held_out"  # the split of a method that keeps a share of the training data for its teacher


@dataclass(frozen=True)
class Parts:
    """Hold everything that a recipe names, loaded and checked against each other."""

    task: Task
    tokenizer: Tokenizer
    student: Model
    teacher: Model | None  # of several, the one whose hidden states are compared
    method: Method
    distiller: Distiller
    max_length: int
    why_this_length: str  # empty where the recipe gives it
    source_head: SourceHead
    trimming: Trimming | None = None
    team: Team = NOBODY
    asked: Wanted | None = None  # of this teacher, where it is one of several: less than the objective needs

    @property
    def needs(self) -> Needs:
        """Return what the objective needs captured on each side."""
        needs = self.distiller.needs
        return needs if self.asked is None else Needs(needs.student, self.asked)

    def require_teacher(self) -> Model:
        """Return the teacher, where there must be one."""
        assert self.teacher is not None
        return self.teacher

    def teacher_digest(self) -> str | None:
        """Return a short text for the teachers as their files hold them; None where there is none."""
        return self.team.digest()

    def teacher_parameters(self) -> int:
        """Count the parameters of the teachers as their files hold them."""
        return sum(member.parameters() or 0 for member in self.team.members)

    def of_member(self, member: Member) -> Parts:
        """Return the parts as they would be with this teacher alone, asked for what the run asks of it."""
        followed = member is self.team.followed
        asked = self.needs.teacher if followed else Wanted(logits=self.needs.teacher.logits)
        return replace(self, teacher=member.model, team=Team((replace(member, weight=1.0),)), asked=asked)

    def why_not_cached(self) -> str:
        """Say why what the teacher computes cannot be kept; empty where it can."""
        return why_not_cached(self.task, self.method)


def views(recipe: Recipe, parts: Parts) -> list[tuple[Recipe, Parts]]:
    """Return recipe and parts as they would be with each teacher alone; with one teacher, as they are."""
    if not parts.team.several:
        return [(recipe, parts)]
    return [
        (recipe.model_copy(update={"teacher": member.block}), parts.of_member(member)) for member in parts.team.members
    ]


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
    team = Team.load(recipe.teacher, task)
    tokenizer, teacher, trimming = _tokenizer(recipe, task, team)
    student, source_head = _student(recipe, task, teacher, tokenizer)
    _name_labels(student, task)
    if recipe.student.vocabulary == "trimmed":
        tokenizer, student, teacher, trimming = trim_parts(recipe, task, tokenizer, student, teacher, like)
    team = team.fitted(tokenizer, teacher, task)
    method, distiller = _distiller(recipe, task, student, team)
    length, reason = _max_length(recipe, task, tokenizer, student, team)
    models = (task, tokenizer, student, teacher, method, distiller)
    return Parts(*models, length, reason, source_head, trimming, team)


def check_stages_fit(stages: list[Recipe]) -> None:
    """Raise what does not fit in any stage now, not after hours of the first one."""
    first = assemble(stages[0])
    for stage in stages[1:]:
        _check_later(stage, first)


def _check_later(recipe: Recipe, first: Parts) -> None:
    """Raise what is wrong with a later stage, whose student will have the first one's shape."""
    task = load_task(recipe.task.name, **recipe.task.options)
    team = Team.load(recipe.teacher, task).fitted(first.tokenizer, None, task)
    student = from_config(label_config(task), first.student.config, task.problem)
    _distiller(recipe, task, student, team)
    if recipe.task.max_length != "auto":
        _max_length(recipe, task, first.tokenizer, student, team)


def _distiller(recipe: Recipe, task: Task, student: Model, team: Team) -> tuple[Method, Distiller]:
    """Make the method and what computes its loss; raise what does not fit."""
    teacher = team.followed.model if team.followed is not None else None
    if teacher is not None:
        check_not_deeper(student, teacher)
    function = find_method(recipe.method.name)
    pair = Pair.of(student, teacher, task.problem, task.class_weights)
    if team.members and teacher is None:  # to learn what the method asks of a teacher, which a file may not have
        pair = replace(pair, teacher=pair.student)
    method = Method.of(function(pair, **recipe.method.options))
    check_gradient_checkpointing(recipe, method, student)
    check_team(recipe, method, team)
    size = micro_batch_size(recipe, method)
    if team.members and teacher is None:
        distiller = Distiller(student, method.objective, _before_its_data, micro_batch_size=size)
    else:
        distiller = Distiller.of(method, student, teacher, size)
    reason = why_not_cached(task, method)
    if reason and recipe.teacher is not None and any(block.cache_folder for block in recipe.teacher.members):
        raise CacheError(f"{recipe.method.name}: {reason} Set teacher.cache=off.")
    return method, distiller


def _before_its_data(batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
    """Stand for a file that teaches until the data are there, by whose ids it answers."""
    raise ModelError("A file teaches by the ids of the data: ask for the distiller of the data (training/teaching.py).")


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
    first_id = 1 + max(splits["train"]["id"]) if parts.task.unlabelled is not None else 0
    if parts.method.held_out:
        kept, held = hold_out(splits["train"], parts.method.held_out, recipe.seed, recipe.method.name)
        splits |= {"train": kept, HELD_OUT: held}
    fixed = parts.max_length if recipe.task.padding == "max_length" else None
    collate = Collator(parts.tokenizer, fixed, parts.task.problem)
    mixed = _mixing(recipe, parts, splits["train"], how, first_id)
    return Data(splits, collate, recipe.train.batch_size, mixed)


def _mixing(recipe: Recipe, parts: Parts, train: Any, how: Encoding, first_id: int) -> Callable[[], MixedRows] | None:
    """Return what mixes the rows without labels into the training data; None where there are none to learn from."""
    more = parts.task.unlabelled
    if more is None:
        return None
    if all(isinstance(term, TaskLoss) for term in parts.method.objective):
        logger.info("%s learns from labels alone: the rows of task.unlabelled are left out.", recipe.method.name)
        return None

    def mixed() -> MixedRows:
        return MixedRows(train, encode_unlabelled(parts.task, how, first_id), more.share)

    return mixed


def hand_over_held_out(parts: Parts, data: Data) -> None:
    """Give the teacher the examples that its method held out for it, if it did."""
    if parts.method.use_held_out is not None:
        # as many in every process as one alone would take
        parts.method.use_held_out(parts.distiller.teacher, data.batches(HELD_OUT, times=process_count()))


def _tokenizer(recipe: Recipe, task: Task, team: Team) -> tuple[Tokenizer, Model | None, Trimming | None]:
    """Return the tokenizer of both models, and the teacher as it reads by it, trimmed where its student is."""
    spec = recipe.student
    own = spec.tokenizer or spec.model or (spec.from_ if spec.from_ != "teacher" else None)
    followed = team.followed
    if followed is None or followed.model is None:
        return load_tokenizer(own or ""), None, None
    tokenizer = load_tokenizer(followed.block.source)
    if own is None:
        return tokenizer, followed.model, None
    return fit_to_student(load_tokenizer(own), followed.model, tokenizer, task)


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


def _max_length(recipe: Recipe, task: Task, tokenizer: Tokenizer, student: Model, team: Team) -> tuple[int, str]:
    """Choose as the recipe says, or as the data suggest and the models can read: then with the reason."""
    teachers = [member.model for member in team.members if member.model is not None]
    model = min((student, *teachers), key=longest_input)
    if recipe.task.max_length == "auto":
        return task.suggest_length(tokenizer, longest_input(model))
    return checked_length(recipe.task.max_length, model), ""

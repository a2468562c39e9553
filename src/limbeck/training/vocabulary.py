"""Trim the vocabulary that a run's student and its teacher share, as the recipe or an earlier training says."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from limbeck._internal.files import expand_home
from limbeck.distillation.fingerprint import model_digest
from limbeck.errors import ModelError
from limbeck.models.loading import check_same_tokenizer, count_parameters, load_tokenizer
from limbeck.models.trimmed_tokenizer import kept_by, trim_tokenizer
from limbeck.models.trimming import Unseen, choose_pieces, trim_checked, trim_model, unseen_pieces
from limbeck.protocols import Model, Tokenizer
from limbeck.recipes.recipe import Recipe
from limbeck.tasks import load_task
from limbeck.tasks.files import check_exists, lines
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

_CHECKED = 2_000  # texts on which the trimmed tokenizer is compared with the whole one
_COUNTED = 10_000  # texts of which the lost pieces are counted
_MANY = 0.05  # of the pieces: a model then reads many words letter by letter


class NamedTeacher(NamedTuple):
    """Hold what is known of a teacher as its files hold it, where the run works with a trimmed copy."""

    digest: str
    parameters: int

    @classmethod
    def of(cls, teacher: Model) -> NamedTeacher:
        """Take down what a trimmed copy does not tell."""
        return cls(model_digest(teacher), count_parameters(teacher))


@dataclass(frozen=True)
class Trimming:
    """Hold which pieces of a vocabulary were kept, by their old ids, and what that means for a task's texts."""

    whole: Tokenizer
    kept: tuple[int, ...]
    task: Task

    @property
    def digest(self) -> str:
        """Return a short text that differs where other pieces were kept."""
        return hashlib.sha256(json.dumps(self.kept).encode()).hexdigest()

    @cached_property
    def unseen(self) -> dict[str, Unseen]:
        """Count what is no longer there of the pieces of the training and validation texts."""
        names = ("train", self.task.dev_splits[0])
        return {
            name: unseen_pieces(self.whole, self.kept, islice(self.task.all_texts(name), _COUNTED)) for name in names
        }

    def report(self) -> None:
        """Log how many pieces were kept, and which share of the texts' pieces is lost; warn where that is much."""
        kept = f"{len(self.kept):,} of {len(self.whole):,} pieces"
        for split, found in self.unseen.items():
            if split == "train" and not found.lost:
                continue
            said = (
                f"student.vocabulary: {kept} are kept; {found.lost:.1%} of the pieces of the {split} texts are not "
                f"among them and are written with shorter ones, {found.unknown:.1%} are unknown to the model anyway."
            )
            if found.lost > _MANY:
                logger.warning("%s Give texts like them as student.vocabulary_texts=FILE.", said)
            else:
                logger.info("%s", said)

    def to_dict(self) -> dict[str, float]:
        """Return what results say about it."""
        lost = self.unseen[self.task.dev_splits[0]].lost
        return {"kept": len(self.kept), "of": len(self.whole), "unseen_validation": lost}


def fit_to_student(
    own: Tokenizer, teacher: Model, whole: Tokenizer, task: Task
) -> tuple[Tokenizer, Model, Trimming | None]:
    """Return the tokenizer that both read by; a teacher is trimmed where its student was trimmed before.

    Raise where the two tokenizers are different ones.
    """
    kept = kept_by(own, whole)
    if kept is None:
        check_same_tokenizer(own, whole)
        return whole, teacher, None
    check_same_tokenizer(own, trim_tokenizer(whole, kept))
    return own, trim_model(teacher, kept), Trimming(whole, kept, task)


class Trimmed(NamedTuple):
    """Hold what a run goes on with once its vocabulary is trimmed."""

    tokenizer: Tokenizer
    student: Model
    teacher: Model | None
    trimming: Trimming


def trim_parts(
    recipe: Recipe, task: Task, tokenizer: Tokenizer, student: Model, teacher: Model | None, like: Tokenizer | None
) -> Trimmed:
    """Trim both models to the pieces of the training texts, or to those of ``like``, trimmed by an earlier call."""
    models = [model for model in (student, teacher) if model is not None]
    if like is None:
        kept = choose_pieces(tokenizer, _all_texts(recipe, task), models)
        trimmed = trim_checked(tokenizer, kept, list(islice(task.all_texts("train"), _CHECKED)))
    else:
        found = kept_by(like, tokenizer)
        if found is None and like.get_vocab() != tokenizer.get_vocab():
            raise ModelError(
                "The vocabulary of this run's student is not a part of that of the model it was made from. "
                "Name the teacher or model that the run was made with, or repeat the run."
            )
        kept, trimmed = found or tuple(range(len(tokenizer))), like
    return Trimmed(
        trimmed,
        trim_model(student, kept),
        None if teacher is None else trim_model(teacher, kept),
        Trimming(tokenizer, kept, task),
    )


def run_tokenizer(recipe: Recipe, run: Path) -> Tokenizer | None:
    """Load the tokenizer of a finished run where its recipe trims it: the texts need not be read again."""
    return load_tokenizer(run) if recipe.student.vocabulary == "trimmed" else None


def _all_texts(recipe: Recipe, task: Task) -> Iterator[str]:
    """Yield the training texts of all stages, which share a vocabulary, and the texts that the recipe adds."""
    blocks = [block for block in recipe.tasks if (block.name, block.options) != (recipe.task.name, recipe.task.options)]
    others = (load_task(block.name, **block.options) for block in blocks)
    further: Iterator[str] = iter(())
    if recipe.student.vocabulary_texts is not None:
        path = expand_home(recipe.student.vocabulary_texts)
        check_exists(path)
        further = lines(path)
    named_tasks = (task, *others)
    trained = chain.from_iterable(named.all_texts("train") for named in named_tasks)
    unlabelled = chain.from_iterable(named.unlabelled.texts() for named in named_tasks if named.unlabelled is not None)
    return chain(trained, unlabelled, further)

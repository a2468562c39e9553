"""Compute the loss of a method in any training loop, on batches as transformers' models take them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from limbeck._internal.own_code import is_own_code
from limbeck.distillation.distiller import Distiller
from limbeck.distillation.method import Method
from limbeck.distillation.pair import Pair
from limbeck.errors import ModelError, RecipeError
from limbeck.methods import MethodFunction, find_method
from limbeck.models.families import family_of
from limbeck.models.heads import problem_of_model
from limbeck.models.students import check_not_deeper
from limbeck.options import check, schema_of
from limbeck.problems import IGNORED, Problem
from limbeck.protocols import Model

ID = "id"  # a column of the data; ``ids`` in a batch
_ANSWER = ("start_positions", "end_positions")  # as transformers calls what limbeck has as two labels


class DistillationLoss(Distiller):
    """Compute a method's loss: ``distillation_loss(...)(**batch)`` returns ``loss``, ``logits`` and ``terms``."""

    @property
    def config(self) -> Any:
        """Show the student's config to what reads a model's: loggers, the model card, Trainer itself."""
        return self.student.config

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        """Return ``loss``, ``logits`` and ``terms`` of a batch."""
        return super().forward(**self.as_terms_read(batch))

    def counts(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        return super().counts([self.as_terms_read(batch) for batch in batches])

    def as_terms_read(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch with one tensor of labels for an answer, the next token as label of each, and ``ids``."""
        batch = dict(batch)
        if "attention_mask" not in batch:
            raise ModelError(
                "The batch has no attention_mask, without which padding cannot be told from text. Keep what the "
                "tokenizer gives; a Trainer pads by the tokenizer that it is given as processing_class."
            )
        if ID in batch:
            batch["ids"] = batch.pop(ID)
        if set(_ANSWER) <= batch.keys():
            batch["labels"] = torch.stack([batch.pop(name) for name in _ANSWER], 1)
        elif "labels" in batch and _predicts_next(self.student):
            batch["labels"] = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
        return batch


def distillation_loss(
    student: Model,
    teacher: Model | None = None,
    method: str | MethodFunction = "kd",
    *,
    problem: Problem | None = None,
    class_weights: Sequence[float] | None = None,
    **method_options: Any,
) -> DistillationLoss:
    """Return a module that computes a method's loss for two models of transformers.

    ``method`` is a name of `limbeck.METHODS` or a function of your own; further keywords are its options.
    ``problem`` is told by the student's head and config; name it for several labels at once where
    ``config.problem_type`` does not.
    A method that owns parameters (a projector) trains them too: give the optimiser those of the module, not of the
    student. The teacher is frozen.

    Example:

        distill = limbeck.distillation_loss(student, teacher, "fcd")
        optimizer = torch.optim.AdamW(distill.parameters(), lr=1e-4)
        for batch in batches:
            distill(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    check_models(student, teacher)
    problem = problem or problem_of_model(student)
    return make_loss(make_method(student, teacher, method, problem, class_weights, method_options), student, teacher)


def make_method(
    student: Model,
    teacher: Model | None,
    method: str | MethodFunction,
    problem: Problem,
    class_weights: Sequence[float] | None,
    options: Mapping[str, Any],
) -> Method:
    """Build a method for two models."""
    function = _function_of(method)
    checked, mistakes = check(schema_of(function), dict(options))
    if checked is None:
        said = " ".join(f"{mistake.where[0]}: {mistake.message}" for mistake in mistakes)
        raise RecipeError(f"The options of {name_of(method)!r} cannot be used. {said}")
    weights = None if class_weights is None else tuple(map(float, class_weights))
    return Method.of(function(Pair.of(student, teacher, problem, weights), **checked.model_dump(exclude_none=True)))


def name_of(method: str | MethodFunction) -> str:
    """Name a method for people."""
    return method if isinstance(method, str) else getattr(method, "__name__", "method")


def _function_of(method: str | MethodFunction) -> MethodFunction:
    if not isinstance(method, str):
        return method
    if is_own_code(method):
        raise RecipeError(f"Import {method!r} yourself and give the function: method={method.partition(':')[2]}.")
    return find_method(method)


def make_loss(method: Method, student: Model, teacher: Model | None) -> DistillationLoss:
    """Make the module of a method."""
    loss = DistillationLoss.of(method, student, teacher)
    assert isinstance(loss, DistillationLoss)
    return loss


def _predicts_next(student: Any) -> bool:
    return problem_of_model(student) == "language_model" and family_of(student).causal


def check_models(student: Any, teacher: Any) -> None:
    """Refuse what are no models, and two models that do not fit together."""
    for name, model in (("student", student), ("teacher", teacher)):
        if isinstance(model, str | os.PathLike):
            raise ModelError(
                f"{name} must be a model, not the name of one: load it first, with "
                f"AutoModelForSequenceClassification.from_pretrained({str(model)!r}) or the class of your task."
            )
    if teacher is None:
        return
    check_not_deeper(student, teacher)
    ours, theirs = (model.get_input_embeddings().num_embeddings for model in (student, teacher))
    if ours != theirs:
        raise ModelError(
            f"The student has embeddings of {ours:,} pieces and the teacher of {theirs:,}, so they cannot read the "
            "same token ids. Make the student of the teacher (limbeck.keep_layers), or trim both "
            "(limbeck.trim_vocabulary)."
        )

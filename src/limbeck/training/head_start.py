"""Decide what head a student starts with, and fit it before the first step."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from limbeck._internal.files import write_text
from limbeck._internal.memo import Memo
from limbeck.distillation.fingerprint import fingerprint
from limbeck.errors import DataError, ModelError
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.models.fitted_heads import ROWS, FittedHead, fit_head, last_linear
from limbeck.models.students import SourceHead
from limbeck.recipes.recipe import Head, Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.fingerprint import data_fingerprint
from limbeck.training.assemble import Data, Parts
from limbeck.training.precision import computing_as, precision_of
from limbeck.training.results import answer_validation, validation_scores

logger = logging.getLogger("limbeck")

_DEFAULTS: dict[SourceHead, Head] = {"whole": "kept", "cut": "fitted", "new": "fitted", "random": "fresh"}
# Below, a fitted head needs weights so large that dropout alone makes the first losses large. On some of banking77,
# gte-small has 0.005 after its first three layers, and first losses above 100; 0.2 after layers 4, 8, 12, and 1 to 5.
_LITTLE_SPREAD = 0.02
_TRAINED = ("whole", "cut")  # sources that have a head of the task
_CUT_ROWS = 2_000  # of a model that lost layers, all of which is trained right away


@dataclass(frozen=True)
class HeadStart:
    """Hold what a student's head was before the first step, for the results, and its weights where they changed."""

    record: dict[str, Any]
    weights: dict[str, torch.Tensor] | None = None

    def apply(self, parts: Parts) -> None:
        """Give the student in this process the weights."""
        if self.weights is not None:
            last_linear(parts.student).load_state_dict(self.weights)

    def write(self, run: RunDirectory) -> None:
        """Keep the record for the results, which a resumed run may write."""
        write_text(run.start, json.dumps(self.record) + "\n")


def choose_head(recipe: Recipe, parts: Parts) -> Head | None:
    """Return what the recipe says, or what suits the student; None for a language model, which keeps its head."""
    asked = recipe.student.head
    if parts.task.problem == "language_model":
        if asked in ("fitted", "fresh"):
            logger.warning("student.head=%s changes nothing for a language model, which keeps its head.", asked)
        return None
    if asked is not None:
        if asked == "fitted":
            last_linear(parts.student)  # raises where there is none, before anything is written
        return asked
    if parts.method.run_student is not None or not parts.needs.student.logits:
        # the head is given other features than the student's own, or none that are trained
        return "kept" if parts.source_head in _TRAINED else "fresh"
    return _DEFAULTS[parts.source_head]


def start_head(recipe: Recipe, parts: Parts, data: Data, head: Head, device: torch.device) -> HeadStart:
    """Make the student's head as it was chosen, and say what it reaches before training.

    Where nobody asked for a fitted head and it cannot be fitted, the head stays as it is, with a warning.
    """
    record = {"head": head, "trained": bool(parts.needs.student.logits)}
    if head == "fitted":
        parts.student.to(device)
        try:
            return _fitted(recipe, parts, data, record)
        except (DataError, ModelError) as error:
            if recipe.student.head == "fitted":
                raise
            head = "kept" if parts.source_head in _TRAINED else "fresh"
            logger.warning("%s Training starts with the head as it is (%s).", error, head)
            return HeadStart(record | {"head": head})
    if head == "fresh" and parts.source_head in _TRAINED:
        return HeadStart(record, _reset(last_linear(parts.student), parts.student.config, recipe.seed))
    if head == "kept" and parts.source_head not in _TRAINED:
        return HeadStart(record | {"head": "fresh"})
    return HeadStart(record)


def _fitted(recipe: Recipe, parts: Parts, data: Data, record: dict[str, Any]) -> HeadStart:
    fit = _FITS.get(_key(recipe, parts, data), lambda: _fit(recipe, parts, data))
    _report(fit.head, fit.found["metric"], fit.found["score"], fit.found.get("kept"))
    return HeadStart(record | fit.found, fit.weights)


@dataclass(frozen=True)
class _Fit:
    """Hold a head that was fitted, what the results say of it, and its weights."""

    head: FittedHead
    found: dict[str, Any]
    weights: dict[str, torch.Tensor]


# The runs of a study have one for each seed and student, whatever their methods.
_FITS = Memo[_Fit](32)


def _key(recipe: Recipe, parts: Parts, data: Data) -> str:
    """Name all that a fit depends on."""
    student, task = parts.student, parts.task
    read = fingerprint(student, parts.tokenizer, data.splits["train"], parts.max_length)
    how = (recipe.seed, precision_of(recipe), data.batch_size, data.collate.pad_to, parts.source_head)
    where = (str(student.device), torch.get_num_threads())
    about = (task.problem, task.metrics, task.class_weights, data_fingerprint(task))
    return json.dumps([read, *how, *where, *about], default=str)


def _fit(recipe: Recipe, parts: Parts, data: Data) -> _Fit:
    metric = parts.task.metrics[0]
    before = _validation_score(parts, data, metric) if parts.source_head in _TRAINED else None
    # in batches of a size that is not the recipe's: several processes, with smaller ones, must get the same digits
    with computing_as(recipe, parts.student.device):
        fitted = fit_head(
            *(parts.student, data.splits["train"], data.collate, parts.task.problem),
            metric=metric,
            rows=_CUT_ROWS if parts.source_head == "cut" else ROWS,
            seed=recipe.seed,
            class_weights=parts.task.class_weights,
        )
    found = {
        "metric": metric,
        "score": _validation_score(parts, data, metric),
        "kept": before,
        "cross_validated": {"metric": fitted.metric, "score": None if math.isnan(fitted.score) else fitted.score},
        "rows": fitted.rows,
        "strength": fitted.strength,
        "spread": fitted.spread,
    }
    known = {name: value for name, value in found.items() if value is not None}
    return _Fit(fitted, known, _weights(last_linear(parts.student)))


def _validation_score(parts: Parts, data: Data, metric: str) -> float:
    return validation_scores(parts, data, answer_validation(parts, data))[metric]


def _report(fitted: FittedHead, metric: str, score: float, before: float | None) -> None:
    logger.info(
        "Head fitted to %s training rows: %s %s on validation before training (cross-validated %s %s).",
        f"{fitted.rows:,}",
        metric,
        readable_score(metric, score),
        fitted.metric,
        readable_score(fitted.metric, fitted.score),
    )
    if fitted.spread < _LITTLE_SPREAD:
        logger.warning(
            "What the head receives hardly differs between texts (by %.2g of its size), so the fitted weights are "
            "large, and so are the first losses. Keep the last layer too (student.keep='[1, 2, 12]' of 12), or compare "
            "with student.head=kept.",
            fitted.spread,
        )
    if before is not None and (score > before if metric in SMALLER_IS_BETTER else score < before):
        logger.warning(
            "The fitted head starts worse than the one it replaces (%s %s, before it %s). "
            "student.head=kept starts with the old one.",
            *(metric, readable_score(metric, score), readable_score(metric, before)),
        )


def _reset(layer: nn.Linear, config: Any, seed: int) -> dict[str, torch.Tensor]:
    """Draw the layer's weights anew, as transformers draws those of new heads."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(layer.weight.shape, generator=generator) * getattr(config, "initializer_range", 0.02)
    weights = {"weight": drawn}
    if layer.bias is not None:
        weights["bias"] = torch.zeros(layer.bias.shape)
    return weights


def _weights(layer: nn.Linear) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in layer.state_dict().items()}

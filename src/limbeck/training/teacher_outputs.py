"""Ask a teacher about validation data, once for all runs that share a cache."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch

from limbeck._internal.memo import Memo
from limbeck.distillation.cache_files import VALIDATION
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, ModelError
from limbeck.inference.doubts import Doubts, find_doubts
from limbeck.inference.logits import check_finite_logits, example_name, predict_logits
from limbeck.models.features import Wanted
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.task import Logits
from limbeck.training.assemble import Data, Parts
from limbeck.training.cache_policy import fingerprint_of

logger = logging.getLogger("limbeck")

_WHO = "The teacher"  # in errors


def examine_teacher(
    recipe: Recipe, parts: Parts, data: Data, device: torch.device, *, warn_only: bool = False
) -> Logits | None:
    """Return what the teacher predicts for the validation data; raise where it is doubtful and nobody confirmed it.

    A method that asks nothing of its teacher goes on with a warning. None where a teacher is not scored.
    """
    if recipe.teacher is None or parts.task.scored_by_loss:
        return None
    source, config = recipe.teacher.model, parts.require_teacher().config
    stops = not recipe.teacher.confirmed and not warn_only and bool(parts.needs.teacher)
    if stops:
        _require_no_doubts(find_doubts(source, config, parts.task))  # before any time is spent
    logits = teacher_logits(recipe, parts, data, device)
    scores = parts.task.score(logits, data.splits["validation"])
    majority = parts.task.majority(data.splits["train"], data.splits["validation"])
    doubts = find_doubts(source, config, parts.task, scores, majority)
    if stops:
        _require_no_doubts(doubts)
    if not recipe.teacher.confirmed:
        doubts.warn()
    return logits


def _require_no_doubts(doubts: Doubts) -> None:
    if seen := doubts.against_teaching():
        raise ModelError(f"{seen} To learn from this teacher all the same, add teacher.confirmed=true.")


def teacher_logits(recipe: Recipe, parts: Parts, data: Data, device: torch.device) -> Logits:
    """Return what the teacher predicts for the validation data; runs that share a cache compute it once."""
    assert recipe.teacher is not None
    teacher = parts.require_teacher()
    validation = data.splits["validation"]
    home = recipe.teacher.cache_folder
    if parts.method.make_teacher is None and home is not None:
        try:
            cache = split_cache(parts, data, "validation", home)
            cache.fill(LiveTeacher(teacher), data.collate, data.batch_size, Wanted(logits=True), device)
        except CacheError as error:  # it would have saved time; the results of a long run must not depend on it
            logger.warning("%s", error)
        else:
            logits = cache.logits()
            check_finite_logits(logits, _WHO, lambda row: example_name(validation, row))
            return logits

    def ask() -> Logits:
        return predict_logits(
            teacher.to(device), validation, data.collate, data.batch_size, "evaluate the teacher", who=_WHO
        )

    about = (fingerprint_of(parts, data, "validation"), data.batch_size, data.collate.pad_to, str(device))
    return _ANSWERS.get(json.dumps([*about, torch.get_num_threads()]), ask)


# The runs of a study ask the same teacher about the same texts.
_ANSWERS = Memo[Logits](4)


def split_cache(parts: Parts, data: Data, split: str, home: Path) -> FeatureCache:
    """Open a cache for what the teacher computes beside a run's training, in a folder of its own inside ``home``."""
    made_for = fingerprint_of(parts, data, split)
    folder = home / VALIDATION / f"{made_for['teacher'][:8]}-{made_for['data'][:8]}"
    return FeatureCache(folder, data.splits[split], made_for)

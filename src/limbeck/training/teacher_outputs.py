"""Ask a teacher about validation data, once for all runs that share a cache."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from limbeck.distillation.cache_files import VALIDATION
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError
from limbeck.inference.logits import predict_logits
from limbeck.models.features import Wanted
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.task import Logits
from limbeck.training.assemble import Data, Parts
from limbeck.training.cache_policy import fingerprint_of

logger = logging.getLogger("limbeck")


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
            return cache.logits()
    return predict_logits(teacher.to(device), validation, data.collate, data.batch_size, "evaluate the teacher")


def split_cache(parts: Parts, data: Data, split: str, home: Path) -> FeatureCache:
    """Open a cache for what the teacher computes beside a run's training, in a folder of its own inside ``home``."""
    made_for = fingerprint_of(parts, data, split)
    folder = home / VALIDATION / f"{made_for['teacher'][:8]}-{made_for['data'][:8]}"
    return FeatureCache(folder, data.splits[split], made_for)

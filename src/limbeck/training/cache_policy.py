"""Decide whether a run's teacher is cached, and where: as the recipe says, or where it costs less."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from limbeck._internal.files import readable_size
from limbeck._internal.processes import launched_processes, on_rank_zero, rank_zero_first
from limbeck.distillation.feature_cache import DTYPES, FeatureCache, count_numbers
from limbeck.distillation.fingerprint import fingerprint
from limbeck.distillation.teachers import LiveTeacher
from limbeck.models.families import blocks_of
from limbeck.models.features import Features, Wanted
from limbeck.models.loading import count_parameters
from limbeck.protocols import Model
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.batching import token_counts
from limbeck.training.assemble import Data, Parts, views
from limbeck.training.precision import computing_as, precision_of

logger = logging.getLogger("limbeck")

# Rough speeds of one machine of each kind. Fixed, not measured: the same recipe must decide the same every time.
_FLOPS = {"cpu": 1e11, "cuda": 3e13}
_BYTES_READ = {"cpu": 1e9, "cuda": 3e9}
_BYTES_WRITTEN = 3e8
_WORTH_SECONDS = 10.0
_SHARE_OF_FREE_DISK = 0.5


def named_caches(recipe: Recipe, parts: Parts, data: Data) -> dict[int, FeatureCache]:
    """Open the caches in the folders that the recipe names, by the place of the teacher; write nothing."""
    found = {place: named_cache(*view, data) for place, view in enumerate(views(recipe, parts))}
    return {place: cache for place, cache in found.items() if cache is not None}


def named_cache(recipe: Recipe, parts: Parts, data: Data) -> FeatureCache | None:
    """Open the cache in the folder that the recipe names; raise where it is of something else. Write nothing."""
    if recipe.teacher is None or recipe.teacher.cache_folder is None or not parts.needs.teacher:
        return None
    return _training_cache(recipe.teacher.cache_folder, recipe, parts, data)


def automatic_caches(
    recipe: Recipe, parts: Parts, data: Data, folder: Path, device: torch.device, resumed: bool
) -> dict[int, FeatureCache]:
    """Open caches in ``folder`` for teachers whose caches the recipe leaves open and that pay, by their place."""
    found = {}
    for place, view in enumerate(views(recipe, parts)):
        home = folder / f"teacher-{place + 1}" if parts.team.several else folder
        if (cache := automatic_cache(*view, data, home, device, resumed)) is not None:
            found[place] = cache
    return found


def automatic_cache(
    recipe: Recipe, parts: Parts, data: Data, folder: Path, device: torch.device, resumed: bool
) -> FeatureCache | None:
    """Open a cache in ``folder`` where the recipe leaves it open and it pays. A resumed run goes on as it began."""
    wanted = parts.needs.teacher
    if recipe.teacher is None or parts.teacher is None or not wanted:
        return None
    if recipe.teacher.cache != "auto" or parts.why_not_cached():
        return None
    passes = teacher_passes(recipe, parts, data)
    use = on_rank_zero(
        lambda: folder.exists() if resumed else pays(recipe, parts, data, wanted, passes, folder, device)
    )
    return _training_cache(folder, recipe, parts, data) if use else None


def fill_for_run(cache: FeatureCache, recipe: Recipe, parts: Parts, data: Data, device: torch.device) -> None:
    """Complete a cache for what a run needs of its teacher; of several processes, the first one computes."""
    rank_zero_first(lambda: fill_cache(cache, recipe, parts, data, parts.needs.teacher, device))
    logger.info("The teacher's features are read from %s.", cache.folder)


def fill_cache(
    cache: FeatureCache, recipe: Recipe, parts: Parts, data: Data, wanted: Wanted, device: torch.device
) -> None:
    """Let the teacher compute what is missing, in the precision in which it would answer during the steps."""
    cache.fill(_TeacherOfSteps(parts.require_teacher(), recipe), data.collate, data.batch_size, wanted, device)


class _TeacherOfSteps(LiveTeacher):
    """Run a teacher as a step of a recipe does; what is done with its features is not computed so."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        super().__init__(model)
        self._recipe = recipe

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        with computing_as(self._recipe, batch["input_ids"].device):
            return super().__call__(batch, wanted)


def _training_cache(folder: Path, recipe: Recipe, parts: Parts, data: Data) -> FeatureCache:
    assert recipe.teacher is not None
    return FeatureCache(folder, data.training, made_for(recipe, parts, data), recipe.teacher.cache_dtype)


def made_for(recipe: Recipe, parts: Parts, data: Data) -> dict[str, str]:
    """Return what a teacher's features of the training data depend on in a run of this recipe."""
    precision = precision_of(recipe)
    return fingerprint_of(parts, data) | ({"precision": precision} if precision != "float32" else {})


def fingerprint_of(parts: Parts, data: Data, split: str = "train") -> dict[str, str]:
    """Return what features of this split depend on."""
    rows = data.training if split == "train" else data.splits[split]
    return fingerprint(parts.require_teacher(), parts.tokenizer, rows, parts.max_length)


def flops() -> float:
    """Estimate what this machine computes in a second, roughly."""
    return _FLOPS["cuda" if torch.cuda.is_available() else "cpu"]


def teacher_passes(recipe: Recipe, parts: Parts, data: Data) -> float:
    """Count how often a run asks its teacher about all of the training data."""
    passes, options = recipe.train.epochs, recipe.train.options
    if (steps := options.get("max_steps", -1)) > 0:
        batch = (recipe.train.relation_batch or recipe.train.batch_size) * launched_processes()
        examples = steps * batch * options.get("gradient_accumulation_steps", 1)
        passes = examples / len(data.training)
    return passes + sum(term.passes for term in parts.method.objective)


def pays(
    recipe: Recipe, parts: Parts, data: Data, wanted: Wanted, passes: float, folder: Path, device: torch.device
) -> bool:
    """Tell whether reading the features costs clearly less than running the teacher in each pass over the data."""
    assert recipe.teacher is not None
    kind = "cpu" if device.type == "cpu" else "cuda"
    lengths = token_counts(data.training)
    tokens = int(lengths.sum())
    numbers = count_numbers(parts.require_teacher(), wanted.names(), len(lengths), tokens)
    needed = numbers * DTYPES[recipe.teacher.cache_dtype].itemsize
    live = 2 * count_parameters(blocks_of(parts.require_teacher())) * tokens / _FLOPS[kind]
    saved = (passes - 1) * live - passes * needed / _BYTES_READ[kind] - needed / _BYTES_WRITTEN
    existing = next(parent for parent in folder.absolute().parents if parent.exists())
    if saved < _WORTH_SECONDS or needed > _SHARE_OF_FREE_DISK * shutil.disk_usage(existing).free:
        return False
    logger.info("The teacher runs once and not %.3g times: its features (%s) are kept.", passes, readable_size(needed))
    return True

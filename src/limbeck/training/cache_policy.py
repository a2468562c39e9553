"""Whether a run's teacher is cached, and where: what the recipe says, or what costs less."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from limbeck._internal.files import readable_size
from limbeck._internal.processes import join_processes, launched_processes, on_rank_zero, rank_zero_first
from limbeck.distillation.cache_files import VALIDATION
from limbeck.distillation.feature_cache import DTYPES, CachedTeacher, FeatureCache, count_numbers
from limbeck.distillation.fingerprint import fingerprint
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, LimbeckError
from limbeck.inference.logits import predict_logits
from limbeck.models.families import blocks_of
from limbeck.models.features import Wanted
from limbeck.models.loading import count_parameters
from limbeck.recipes.recipe import Recipe
from limbeck.tasks.task import Logits
from limbeck.training.assemble import Data, Parts, assemble, cannot_cache, load_data

logger = logging.getLogger("limbeck")

# Rough speeds of one machine of each kind. Fixed, not measured: the same recipe must decide the same every time.
_FLOPS = {"cpu": 1e11, "cuda": 3e13}
_BYTES_READ = {"cpu": 1e9, "cuda": 3e9}
_BYTES_WRITTEN = 3e8
_WORTH_SECONDS = 10.0
_SHARE_OF_FREE_DISK = 0.5


def named_cache(recipe: Recipe, parts: Parts, data: Data) -> FeatureCache | None:
    """The cache in the folder that the recipe names; raises where it was made for something else. Writes nothing."""
    if recipe.teacher is None or recipe.teacher.cache_folder is None or not parts.distiller.needs.teacher:
        return None
    return _cache(recipe.teacher.cache_folder, recipe, parts, data)


def automatic_cache(
    recipe: Recipe, parts: Parts, data: Data, folder: Path, device: torch.device, resumed: bool
) -> FeatureCache | None:
    """The cache in ``folder``, where the recipe leaves it open and it pays. A resumed run goes on as it began."""
    if recipe.teacher is None or recipe.teacher.cache != "auto" or cannot_cache(parts.task, parts.method):
        return None
    wanted = parts.distiller.needs.teacher
    if not wanted:
        return None
    passes = _passes(recipe, parts, data)
    use = on_rank_zero(
        lambda: folder.exists() if resumed else _pays(recipe, parts, data, wanted, passes, folder, device)
    )
    return _cache(folder, recipe, parts, data) if use else None


def use_cache(cache: FeatureCache, parts: Parts, data: Data, device: torch.device) -> None:
    """Complete the cache for what the distiller needs of its teacher, and have it read from there."""
    live, wanted = LiveTeacher(parts.teacher), parts.distiller.needs.teacher
    rank_zero_first(lambda: cache.fill(live, data.collate, data.batch_size, wanted, device))
    parts.distiller.teacher = CachedTeacher(cache)
    logger.info("The teacher's features are read from %s.", cache.folder)


def teacher_logits(recipe: Recipe, parts: Parts, data: Data, device: torch.device) -> Logits:
    """What the teacher predicts for the validation data; runs that share a cache compute it once."""
    assert recipe.teacher is not None and parts.teacher is not None
    validation = data.splits["validation"]
    home = recipe.teacher.cache_folder
    if parts.method.make_teacher is None and home is not None:
        try:
            cache = split_cache(parts, data, "validation", home)
            cache.fill(LiveTeacher(parts.teacher), data.collate, data.batch_size, Wanted(logits=True), device)
        except CacheError as error:  # it would have saved time; the results of a long run must not depend on it
            logger.warning("%s", error)
        else:
            return cache.logits()
    return predict_logits(parts.teacher.to(device), validation, data.collate, data.batch_size, "evaluate the teacher")


def split_cache(parts: Parts, data: Data, split: str, home: Path) -> FeatureCache:
    """For what the teacher computes beside the training data of a run, in a folder of its own inside ``home``."""
    made_for = _fingerprint(parts, data, split)
    folder = home / VALIDATION / f"{made_for['teacher'][:8]}-{made_for['data'][:8]}"
    return FeatureCache(folder, data.splits[split], made_for)


def _cache(folder: Path, recipe: Recipe, parts: Parts, data: Data) -> FeatureCache:
    assert recipe.teacher is not None
    return FeatureCache(folder, data.splits["train"], _fingerprint(parts, data), recipe.teacher.cache_dtype)


def _fingerprint(parts: Parts, data: Data, split: str = "train") -> dict[str, str]:
    return fingerprint(parts.teacher, parts.tokenizer, data.splits[split], parts.max_length)


def build_cache(recipes: Sequence[Recipe], folder: Path) -> tuple[Wanted, int]:
    """One pass of the teacher for all that these recipes need of it; returns that and the bytes that it takes.

    Of several processes the first one makes it.
    """
    join_processes()
    return on_rank_zero(lambda: _build_cache(recipes, folder))


def _build_cache(recipes: Sequence[Recipe], folder: Path) -> tuple[Wanted, int]:
    stages = [stage for recipe in recipes for stage in recipe.split()]
    first, wanted, found = None, Wanted(), []
    for recipe in stages:
        parts = assemble(recipe)
        if recipe.teacher is None or not parts.distiller.needs.teacher:
            continue
        if reason := cannot_cache(parts.task, parts.method):
            raise CacheError(f"{recipe.method.name}: {reason}")
        data = load_data(recipe, parts)
        found.append((_fingerprint(parts, data), recipe.teacher.cache_dtype))
        if found[0] != found[-1]:
            raise CacheError(
                f"One cache is for one teacher and one data set, but {recipe.method.name} on {recipe.task.name} has "
                "another teacher, other data or another cache_dtype than those before it. Cache it into another folder."
            )
        first = first or (parts, data)
        wanted = wanted | parts.distiller.needs.teacher
    if first is None:
        raise CacheError("Nothing to cache: these methods ask nothing of a teacher.")
    parts, data = first
    made_for, dtype = found[0]
    cache = FeatureCache(folder, data.splits["train"], made_for, dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cache.fill(LiveTeacher(parts.teacher), data.collate, data.batch_size, wanted, device)
    return wanted, cache.estimate(parts.teacher, wanted)


def cache_for_runs(recipes: Mapping[str, tuple[Recipe, int]], folder: Path) -> list[str]:
    """One pass of the teacher for recipes that run several times each, where that pays; the names of those it serves.

    Left out are recipes that cannot use it: other texts or another teacher than the first one's, a teacher that
    changes, or a mistake.
    """
    served, wanted, passes, first = [], Wanted(), 0.0, None
    for name, (recipe, runs) in recipes.items():
        for stage in recipe.split():
            try:
                parts = assemble(stage)
            except LimbeckError:  # its own runs will say what is wrong
                break
            needed = parts.distiller.needs.teacher
            if stage.teacher is None or not needed or cannot_cache(parts.task, parts.method):
                break
            data = load_data(stage, parts)
            made_for = _fingerprint(parts, data)
            first = first or (stage, parts, data, made_for)
            if made_for != first[3]:
                break
            wanted, passes = wanted | needed, passes + runs * _passes(stage, parts, data)
        else:
            served.append(name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if first is None or not served or not _pays(*first[:3], wanted, passes, folder, device):
        return []
    stage, parts, data, made_for = first
    assert stage.teacher is not None
    cache = FeatureCache(folder, data.splits["train"], made_for, stage.teacher.cache_dtype)
    cache.fill(LiveTeacher(parts.teacher), data.collate, data.batch_size, wanted, device)
    return served


def flops() -> float:
    """What this machine computes in a second, roughly."""
    return _FLOPS["cuda" if torch.cuda.is_available() else "cpu"]


def _passes(recipe: Recipe, parts: Parts, data: Data) -> float:
    """How often a run asks its teacher about all of the training data."""
    passes, options = recipe.train.epochs, recipe.train.options
    if (steps := options.get("max_steps", -1)) > 0:
        batch = (recipe.train.relation_batch or recipe.train.batch_size) * launched_processes()
        examples = steps * batch * options.get("gradient_accumulation_steps", 1)
        passes = examples / len(data.splits["train"])
    return passes + sum(term.passes for term in parts.distiller.objective)


def _pays(
    recipe: Recipe, parts: Parts, data: Data, wanted: Wanted, passes: float, folder: Path, device: torch.device
) -> bool:
    """Whether reading the features costs clearly less than running the teacher in each pass over the data."""
    assert recipe.teacher is not None
    kind = "cpu" if device.type == "cpu" else "cuda"
    lengths = [len(ids) for ids in data.splits["train"]["input_ids"]]
    numbers = count_numbers(parts.teacher, wanted.names(), len(lengths), sum(lengths))
    needed = numbers * DTYPES[recipe.teacher.cache_dtype].itemsize
    live = 2 * count_parameters(blocks_of(parts.teacher)) * sum(lengths) / _FLOPS[kind]
    saved = (passes - 1) * live - passes * needed / _BYTES_READ[kind] - needed / _BYTES_WRITTEN
    existing = next(parent for parent in folder.absolute().parents if parent.exists())
    if saved < _WORTH_SECONDS or needed > _SHARE_OF_FREE_DISK * shutil.disk_usage(existing).free:
        return False
    logger.info("The teacher runs once and not %.3g times: its features (%s) are kept.", passes, readable_size(needed))
    return True

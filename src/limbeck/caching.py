"""Whether a run's teacher is cached, and where: what the recipe says, or what costs less."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from limbeck.assemble import Data, Parts, assemble, load_data
from limbeck.cache import FeatureCache, size
from limbeck.errors import CacheError
from limbeck.families import blocks_of
from limbeck.features import Wanted
from limbeck.fingerprint import fingerprint
from limbeck.inference import predict_logits
from limbeck.models import parameters
from limbeck.recipe import Recipe
from limbeck.tasks.text import TextTask
from limbeck.teacher import CachedTeacher, LiveTeacher

logger = logging.getLogger("limbeck")

# Rough speeds of one machine of each kind. Fixed, not measured: the same recipe must decide the same every time.
_FLOPS = {"cpu": 1e11, "cuda": 3e13}
_BYTES_READ = {"cpu": 1e9, "cuda": 3e9}
_BYTES_WRITTEN = 3e8
_WORTH_SECONDS = 10.0
_SHARE_OF_FREE_DISK = 0.5


def cache_teacher(recipe: Recipe, parts: Parts, data: Data, home: Path, device: torch.device, resumed: bool) -> None:
    """Give the distiller a cached teacher if the recipe asks for one, or leaves it open and it pays.

    ``home`` is where the caches of this run go unless the recipe names a folder. A resumed run goes on as it began.
    """
    wanted = parts.distiller.needs.teacher
    if recipe.teacher is None or not wanted or recipe.teacher.cache == "off":
        return
    automatic = recipe.teacher.cache == "auto"
    if reason := _impossible(parts, wanted):
        if automatic:
            return
        raise CacheError(f"{reason} Set teacher.cache=off.")
    made_for = fingerprint(parts.teacher, parts.tokenizer, data.splits["train"], recipe.task.max_length)
    folder = home / f"{made_for['teacher'][:8]}-{made_for['data'][:8]}" if automatic else Path(recipe.teacher.cache)
    cache = FeatureCache(folder, data.splits["train"], made_for, recipe.teacher.cache_dtype)
    if automatic and not (folder.exists() if resumed else _pays(recipe, parts, cache, home, device)):
        return
    cache.fill(LiveTeacher(parts.teacher), data.collate, data.batch_size, wanted, device)
    parts.distiller.teacher = CachedTeacher(cache)
    logger.info("The teacher's features are read from %s.", folder)


def teacher_logits(recipe: Recipe, parts: Parts, data: Data, device: torch.device) -> np.ndarray:
    """What the teacher predicts for the validation data; runs that share a cache compute it once."""
    assert recipe.teacher is not None and parts.teacher is not None
    validation = data.splits["validation"]
    if parts.method.make_teacher is not None or recipe.teacher.cache in ("auto", "off"):
        teacher = parts.teacher.to(device)
        return predict_logits(teacher, validation, data.collate, data.batch_size, "evaluate the teacher")
    made_for = fingerprint(parts.teacher, parts.tokenizer, validation, recipe.task.max_length)
    cache = FeatureCache(Path(recipe.teacher.cache) / "validation", validation, made_for)
    cache.fill(LiveTeacher(parts.teacher), data.collate, data.batch_size, Wanted(logits=True), device)
    return cache.logits()


def build_cache(recipes: Sequence[Recipe], folder: Path) -> tuple[Wanted, int]:
    """One pass of the teacher for all that these recipes need of it; returns that and the bytes that it takes."""
    stages = [stage for recipe in recipes for stage in recipe.split()]
    first, wanted, found = None, Wanted(), []
    for recipe in stages:
        parts = assemble(recipe)
        if recipe.teacher is None or not parts.distiller.needs.teacher:
            continue
        if reason := _impossible(parts, parts.distiller.needs.teacher):
            raise CacheError(f"{recipe.method.name}: {reason}")
        data = load_data(recipe, parts)
        made_for = fingerprint(parts.teacher, parts.tokenizer, data.splits["train"], recipe.task.max_length)
        found.append((made_for, recipe.teacher.cache_dtype))
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


def _impossible(parts: Parts, wanted: Wanted) -> str:
    """Why this teacher's features cannot be kept; empty where they can."""
    if parts.method.make_teacher is not None:
        return "The teacher of this method learns while it teaches, so what it computed before is out of date."
    if isinstance(parts.task, TextTask):
        return "The masks and blocks of plain text change with every epoch, and the teacher's features with them."
    if wanted.padding:
        return "This method counts padding (mask_padding=false), and a cache keeps the features of real tokens only."
    return ""


def _pays(recipe: Recipe, parts: Parts, cache: FeatureCache, home: Path, device: torch.device) -> bool:
    """Whether reading the features costs clearly less than running the teacher in each pass over the data."""
    train, kind = recipe.train, "cpu" if device.type == "cpu" else "cuda"
    passes = train.epochs
    if (steps := train.options.get("max_steps", -1)) > 0:
        passes = steps * train.batch_size * train.options.get("gradient_accumulation_steps", 1) / len(cache.lengths)
    passes += sum(term.passes for term in parts.distiller.objective)
    needed = cache.estimate(parts.teacher, parts.distiller.needs.teacher)
    live = 2 * parameters(blocks_of(parts.teacher)) * int(cache.lengths.sum()) / _FLOPS[kind]
    saved = (passes - 1) * live - passes * needed / _BYTES_READ[kind] - needed / _BYTES_WRITTEN
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    if saved < _WORTH_SECONDS or needed > _SHARE_OF_FREE_DISK * shutil.disk_usage(existing).free:
        return False
    logger.info("The teacher runs once and not %.3g times: its features (%s) are kept.", passes, size(needed))
    return True

"""Run a teacher once for several recipes, and keep what all of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from limbeck._internal.processes import join_processes, on_rank_zero
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.errors import CacheError, LimbeckError
from limbeck.models.features import Wanted
from limbeck.recipes.recipe import Recipe
from limbeck.training.assemble import assemble, load_data
from limbeck.training.cache_policy import fill_cache, made_for, pays, teacher_passes
from limbeck.training.teacher_outputs import examine_teacher


def build_cache(recipes: Sequence[Recipe], folder: Path) -> tuple[Wanted, int]:
    """Compute all that these recipes need of their teacher in one pass; return that and the bytes that it takes.

    Of several processes the first one makes it.
    """
    join_processes()
    return on_rank_zero(lambda: _build_cache(recipes, folder))


def _build_cache(recipes: Sequence[Recipe], folder: Path) -> tuple[Wanted, int]:
    stages = [stage for recipe in recipes for stage in recipe.split()]
    first, wanted, found = None, Wanted(), []
    for recipe in stages:
        parts = assemble(recipe)
        if recipe.teacher is None or parts.teacher is None or not parts.needs.teacher:
            continue
        if parts.team.several:
            raise CacheError("One cache is for one teacher, and this recipe has several: each run caches them itself.")
        if reason := parts.why_not_cached():
            raise CacheError(f"{recipe.method.name}: {reason}")
        data = load_data(recipe, parts)
        found.append((made_for(recipe, parts, data), recipe.teacher.cache_dtype))
        if found[0] != found[-1]:
            raise CacheError(
                f"One cache is for one teacher and one data set, but {recipe.method.name} on {recipe.task.name} has "
                "another teacher, other data or another cache_dtype than those before it. Cache it into another folder."
            )
        first = first or (recipe, parts, data)
        wanted = wanted | parts.needs.teacher
    if first is None:
        raise CacheError("Nothing to cache: these methods ask nothing of a teacher.")
    first_recipe, parts, data = first
    fingerprint, dtype = found[0]
    cache = FeatureCache(folder, data.training, fingerprint, dtype)
    examine_teacher(first_recipe, parts, data, _device(), warn_only=True)
    fill_cache(cache, first_recipe, parts, data, wanted, _device())
    return wanted, cache.estimate(parts.require_teacher(), wanted)


def cache_for_runs(recipes: Mapping[str, tuple[Recipe, int]], folder: Path) -> list[str]:
    """Run the teacher once for recipes that run several times each, where that pays; name those that it serves.

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
            needed = parts.needs.teacher
            if parts.teacher is None or parts.team.several or not needed or parts.why_not_cached():
                break
            data = load_data(stage, parts)
            fingerprint = made_for(stage, parts, data)
            first = first or (stage, parts, data, fingerprint)
            if fingerprint != first[3]:
                break
            wanted, passes = wanted | needed, passes + runs * teacher_passes(stage, parts, data)
        else:
            served.append(name)
    if first is None or not served or not pays(*first[:3], wanted, passes, folder, _device()):
        return []
    stage, parts, data, fingerprint = first
    assert stage.teacher is not None
    examine_teacher(stage, parts, data, _device())  # whom no run would learn from is not run on the training data
    cache = FeatureCache(folder, data.training, fingerprint, stage.teacher.cache_dtype)
    fill_cache(cache, stage, parts, data, wanted, _device())
    return served


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

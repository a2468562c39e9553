"""Compute what surrounds a training in the precision of its steps: what a head receives, what a teacher answers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from limbeck.recipes.recipe import Recipe

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def precision_of(recipe: Recipe) -> str:
    """Return the key of the train block by which a recipe asks for half precision; empty where it does not."""
    return next((key for key in _DTYPES if recipe.train.options.get(key)), "")


def computing_as(recipe: Recipe, device: torch.device) -> AbstractContextManager[object]:
    """Compute inside the block as a step of this recipe does."""
    key = precision_of(recipe)
    return torch.autocast(device.type, _DTYPES[key]) if key else nullcontext()

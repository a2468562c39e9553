"""Compute in the precision that a recipe names, or that suits the machine: steps, teachers, what a head receives."""

from __future__ import annotations

import functools
import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import torch

from limbeck.errors import RecipeError, RunError, unknown
from limbeck.recipes.recipe import Recipe
from limbeck.recipes.train_block import Precision, TrainBlock
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import read_recipe

logger = logging.getLogger("limbeck")

PRECISION_VARIABLE = "LIMBECK_PRECISION"  # what auto stands for, where several machines must agree
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_UNITS = {"avx512_bf16", "amx_bf16"}  # of processors
_CLEARLY_FASTER = 1.15
_SECONDS, _ROWS, _WIDTH = 0.5, 512, 768  # of a measurement, and of what is measured: a layer of a BERT


def computing_as(recipe: Recipe, device: torch.device) -> AbstractContextManager[object]:
    """Compute inside the block as a step of this recipe does."""
    return computing_in(precision_of(recipe), device)


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Compute inside the block in this precision; losses keep their statistics in float32 anyway."""
    dtype = _DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def precision_of(recipe: Recipe) -> Precision:
    """Return the precision of a recipe's steps, on this machine where it leaves that open."""
    asked = recipe.train.precision
    return automatic_precision() if asked == "auto" else asked


def settle_precision(recipe: Recipe, run: RunDirectory) -> Recipe:
    """Return the recipe with the precision that ``auto`` stands for: that of the run, where it has begun."""
    blocks = [recipe.train] if recipe.stages is None else [stage.train or TrainBlock() for stage in recipe.stages]
    began = _begun_in(run) if any(block.precision == "auto" for block in blocks) else []
    settled = [
        block if block.precision != "auto" else _with_precision(block, began[place] if began else automatic_precision())
        for place, block in enumerate(blocks)
    ]
    for precision in {block.precision for block in settled}:
        check_precision(precision)
    if recipe.stages is None:
        return recipe.model_copy(update={"train": settled[0]})
    stages = [stage.model_copy(update={"train": block}) for stage, block in zip(recipe.stages, settled, strict=True)]
    return recipe.model_copy(update={"stages": stages, "train": settled[-1]})


def _with_precision(block: TrainBlock, precision: Precision) -> TrainBlock:
    return block.model_copy(update={"precision": precision})


def _begun_in(run: RunDirectory) -> list[Precision]:
    """Return the precision of each stage of the run in this folder; nothing where there is none yet."""
    if not run.recipe.is_file():
        return []
    try:
        written: Any = read_recipe(run)
    except RunError:  # whoever checks the folder says so
        return []
    blocks = [stage.get("train") or {} for stage in written.get("stages") or [written]]
    return [block.get("precision", "float32") for block in blocks]


def check_precision(precision: Precision) -> None:
    """Raise where this machine cannot train so; warn where it is slow at it."""
    if precision == "float16" and not torch.accelerator.is_available():
        raise RecipeError("train.precision: float16 needs a GPU, and there is none here. Write bfloat16 or float32.")
    if precision == "bfloat16" and not has_bfloat16_units():
        logger.warning(
            "train.precision: this machine has no units for bfloat16: a layer takes %.1f times as long as in float32.",
            1 / bfloat16_speed(),
        )


@functools.cache
def automatic_precision() -> Precision:
    """Return what ``train.precision: auto`` stands for here: bfloat16 where it is clearly faster, else float32."""
    asked = os.environ.get(PRECISION_VARIABLE)
    known = [name for name in get_args(Precision) if name != "auto"]
    if asked in known:
        return asked  # type: ignore[return-value]
    if asked is not None:
        raise RecipeError(unknown("precision in LIMBECK_PRECISION", asked, known, f"Known: {', '.join(known)}."))
    if not has_bfloat16_units():
        return "float32"
    return "bfloat16" if torch.cuda.is_available() or bfloat16_speed() > _CLEARLY_FASTER else "float32"


def has_bfloat16_units() -> bool:
    """Tell whether the GPU, or the processor where there is none, has units for bfloat16."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:  # not Linux
        return False
    return bool(_UNITS & set(flags.split()))


@functools.cache
def bfloat16_speed() -> float:
    """Measure how many times as fast as in float32 a layer computes in bfloat16, on the processor, in a second."""
    layer, rows = torch.nn.Linear(_WIDTH, _WIDTH), torch.randn(_ROWS, _WIDTH)
    sides: dict[Precision, list[float]] = {"float32": [], "bfloat16": []}
    end = time.perf_counter() + 2 * _SECONDS
    with torch.inference_mode():
        while time.perf_counter() < end and len(sides["float32"]) < 30:
            for precision, took in sides.items():
                with computing_in(precision, rows.device):
                    layer(rows)  # what is first done in a precision is prepared
                    begin = time.perf_counter()
                    layer(rows)
                    took.append(time.perf_counter() - begin)
    return min(sides["float32"]) / min(sides["bfloat16"])

"""A finished run opened again: its teacher, its student before and after training, and data to measure them on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import yaml
from torch import Tensor

from limbeck._internal.progress import muted_messages
from limbeck.distillation.feature_cache import CachedTeacher
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import RunError
from limbeck.models.features import Wanted
from limbeck.models.loading import load_fine_tuned
from limbeck.recipes.recipe import Recipe, StudentBlock, load_recipe
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.text import TextTask
from limbeck.training.assemble import Data, Parts, assemble, load_data
from limbeck.training.cache_policy import split_cache

logger = logging.getLogger("limbeck")

_TRAINING_EXAMPLES = 128  # enough for a batch to time, and for what a method prepares before training
_BATCH_SIZE = 32
_FEWEST_BATCHES = 8  # where there are few examples, batches are smaller: a heat map needs several
_SMALLEST_BATCH = 4  # below which CKA does not exist


@dataclass(frozen=True)
class LoadedRun:
    run: RunDirectory
    recipe: Recipe  # of the last stage, with the student that it started from
    parts: Parts  # whose student is the one before training
    data: Data  # a few training examples, and validation examples in random order
    examples: int  # how many of the latter are looked at
    device: torch.device

    @cached_property
    def after(self) -> Any:
        return load_fine_tuned(self.run.path, self.parts.task).to(self.device).eval()

    @cached_property
    def before(self) -> Any:
        return self.parts.student.to(self.device).eval()

    @property
    def batch_size(self) -> int:
        return min(_BATCH_SIZE, max(_SMALLEST_BATCH, self.examples // _FEWEST_BATCHES))

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """The validation examples; in random order, so that batches are samples of the data."""
        rows = islice(iter(self.data.splits["validation"]), self.examples)
        while batch := list(islice(rows, self.batch_size)):
            yield {name: value.to(self.device) for name, value in self.data.collate(batch).items()}

    def teacher(self, split: str, wanted: Wanted, folder: Path) -> CachedTeacher | LiveTeacher:
        """Runs once for all models and runs that it is compared with: into the recipe's cache, or one in ``folder``."""
        assert self.parts.teacher is not None and self.recipe.teacher is not None
        live = LiveTeacher(self.parts.teacher.to(self.device))
        if isinstance(self.parts.task, TextTask):
            return live
        cache = split_cache(self.parts, self.data, split, self.recipe.teacher.cache_folder or folder)
        cache.fill(live, self.data.collate, self.batch_size, wanted, self.device)
        return CachedTeacher(cache)

    def checkpoints(self) -> Iterator[tuple[int, Any]]:
        """The student at each checkpoint that was kept, by its step."""
        folders = self.run.checkpoints.glob("checkpoint-*")
        for step, folder in sorted((int(folder.name.rpartition("-")[2]), folder) for folder in folders):
            try:
                weights = safetensors.torch.load_file(folder / "model.safetensors")
            except (OSError, safetensors.SafetensorError) as error:
                logger.warning("%s is left out: %s", folder, error)
                continue
            own = {name.removeprefix("student."): w for name, w in weights.items() if name.startswith("student.")}
            if not own:
                logger.warning("%s is left out: it holds no weights of a student.", folder)
                continue
            model = load_fine_tuned(self.run.path, self.parts.task)
            model.load_state_dict(own, strict=False)  # tied weights are kept once
            yield step, model.to(self.device).eval()


def load_run(path: Path, examples: int, overrides: Sequence[str] = ()) -> LoadedRun:
    """Load a finished run and up to so many of its validation examples."""
    run = RunDirectory(path)
    if not run.finished:
        seen = "is not finished: continue it with --resume" if path.is_dir() else "is not there"
        raise RunError(f"{path} {seen}. Only finished runs can be analysed.")
    if not run.student.is_dir():
        raise RunError(f"{path} does not keep its student, so that nothing can be measured. Repeat the run.")
    stages = load_recipe(run.recipe).split()
    recipe = stages[-1]
    if len(stages) > 1:
        started_from = StudentBlock(model=str(run.stage(len(stages) - 1).path))
        recipe = recipe.model_copy(update={"student": started_from})
    if overrides:  # of the stage alone, so that the same words do for runs with and without stages
        recipe = load_recipe(values=yaml.safe_load(recipe.to_yaml()), overrides=overrides)
    parts = assemble(recipe)
    if not isinstance(parts.task, TextTask):
        # a batch, or for FSD's memory as many examples as it has centroids
        least = max(recipe.train.batch_size, recipe.method.options.get("memory", 0))
        sizes = {"train": max(_TRAINING_EXAMPLES, least), "validation": examples}
        splits = {name: _some(parts.task.split(name), count) for name, count in sizes.items()}
        task = dataclasses.replace(parts.task, splits=splits, dev_splits=("validation",))
        parts = dataclasses.replace(parts, task=task)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with muted_messages():  # the run itself said what it read
        data = load_data(recipe, parts)
    return LoadedRun(run, recipe, parts, data, min(examples, len(data.splits["validation"])), device)


def _some(split: Any, count: int) -> Any:
    """Random rows, the same ones every time."""
    return split.select(np.random.default_rng(0).permutation(len(split))[:count])

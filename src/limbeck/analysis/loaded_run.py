"""Load a finished run again: its teacher, its student before and after training, and data to measure them on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor

from limbeck._internal.progress import muted_messages
from limbeck.distillation.cache_files import is_cache
from limbeck.distillation.feature_cache import CachedTeacher
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import RunError
from limbeck.inference.relation_difference import measured_batch_size
from limbeck.models.features import Wanted
from limbeck.models.finite import find_non_finite
from limbeck.models.loading import load_fine_tuned
from limbeck.recipes.method_block import MethodBlock, foreign_code
from limbeck.recipes.recipe import Recipe, load_recipe, load_without_code
from limbeck.runs.data import check_data
from limbeck.runs.directory import RunDirectory
from limbeck.training.assemble import Data, Parts, assemble, load_data
from limbeck.training.checkpoint_folders import MODEL, checkpoint_folders, step_of
from limbeck.training.data_record import data_of
from limbeck.training.teacher_outputs import split_cache
from limbeck.training.vocabulary import run_tokenizer

logger = logging.getLogger("limbeck")

_TRAINING_EXAMPLES = 128  # enough for a batch to time, and for what a method prepares before training
_REMEDY = "Name what it was made with, e.g. task.data_dir=FOLDER teacher.model=FOLDER, or repeat the run."


@dataclass(frozen=True)
class LoadedRun:
    """Hold a finished run with its models and data."""

    run: RunDirectory
    recipe: Recipe  # of the last stage, with the student that it started from
    parts: Parts  # whose student is the one before training
    data: Data  # a few training examples, and validation examples in random order
    examples: int  # how many of the latter are looked at
    device: torch.device
    chosen_batch_size: int | None = None
    foreign_code: str = ""  # the method's name, where it is code that was not imported: ``parts`` are then those of ft

    @cached_property
    def after(self) -> Any:
        """Load the trained student."""
        return load_fine_tuned(self.run.path, self.parts.task).to(self.device).eval()

    @cached_property
    def before(self) -> Any:
        """Return the student as it was before training."""
        return self.parts.student.to(self.device).eval()

    @property
    def batch_size(self) -> int:
        """Return how many examples a mini-batch has."""
        return self.chosen_batch_size or measured_batch_size(self.examples)

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """Iterate over the validation examples in random order, so that batches are samples of the data."""
        rows = islice(iter(self.data.splits["validation"]), self.examples)
        while batch := list(islice(rows, self.batch_size)):
            yield {name: value.to(self.device) for name, value in self.data.collate(batch).items()}

    def teacher(self, split: str, wanted: Wanted, folder: Path) -> CachedTeacher | LiveTeacher:
        """Run the teacher once for all that it is compared with: into the recipe's cache, or one in ``folder``."""
        assert self.recipe.teacher is not None
        live = self.live_teacher()
        if self.parts.task.why_not_cached():
            return live
        leading = self.recipe.teacher.leading
        kept = leading.cache_folder if leading is not None else None
        # a run may come from elsewhere, and its recipe must not say where folders are made
        cache = split_cache(self.parts, self.data, split, kept if kept is not None and is_cache(kept) else folder)
        cache.fill(live, self.data.collate, self.batch_size, wanted, self.device)
        return CachedTeacher(cache)

    def live_teacher(self) -> LiveTeacher:
        """Return the teacher itself, which keeps nothing of what it computes."""
        assert self.parts.teacher is not None
        return LiveTeacher(self.parts.teacher.to(self.device))

    def checkpoints(self) -> Iterator[tuple[int, Any]]:
        """Load the student at each checkpoint that was kept, by its step."""
        for folder in checkpoint_folders(self.run.checkpoints):
            try:
                weights = safetensors.torch.load_file(folder / MODEL)
            except (OSError, safetensors.SafetensorError) as error:
                logger.warning("%s is left out: %s", folder, error)
                continue
            own = {name.removeprefix("student."): w for name, w in weights.items() if name.startswith("student.")}
            if not own:
                logger.warning("%s is left out: it holds no weights of a student.", folder)
                continue
            if where := find_non_finite(own.items()):
                logger.warning("%s is left out: its weights are nan or inf: %s.", folder, where)
                continue
            model = load_fine_tuned(self.run.path, self.parts.task)
            model.load_state_dict(own, strict=False)  # tied weights are kept once
            yield step_of(folder), model.to(self.device).eval()


def load_run(
    path: Path,
    examples: int,
    overrides: Sequence[str] = (),
    allow_code: bool = False,
    batch_size: int | None = None,
) -> LoadedRun:
    """Load a finished run and up to so many of its validation examples, in mini-batches of a chosen size.

    A method that is code of somebody's own is imported with ``allow_code`` only; the models and data need none of it.
    """
    run = RunDirectory(path)
    if why := run.why_unfinished():
        seen = f"is not finished ({why}): continue it with --resume" if path.is_dir() else "is not there"
        raise RunError(f"{path} {seen}. Only finished runs can be analysed.")
    if not run.student.is_dir():
        raise RunError(f"{path} does not keep its student, so that nothing can be measured. Repeat the run.")
    recipe, foreign = last_recipe(run, overrides, allow_code)
    parts = assemble(recipe, run_tokenizer(recipe, path))
    if run.data.is_file():
        check_data(run, data_of(parts), _REMEDY, ordered=False)
    # a batch, or for FSD's memory as many examples as it has centroids
    least = max(recipe.train.batch_size, recipe.method.options.get("memory", 0))
    task = parts.task.sample({"train": max(_TRAINING_EXAMPLES, least), "validation": examples})
    parts = dataclasses.replace(parts, task=task)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with muted_messages():  # the run itself said what it read
        data = load_data(recipe, parts)
    examples = min(examples, len(data.splits["validation"]))
    return LoadedRun(run, recipe, parts, data, examples, device, batch_size, foreign)


def last_recipe(run: RunDirectory, overrides: Sequence[str], allow_code: bool) -> tuple[Recipe, str]:
    """Return the recipe of a run's last stage, and the name of its method where that may not be imported.

    Such a recipe has ft, which needs nothing but the student, in the method's place.
    """
    load = partial(load_recipe, allow_code=True) if allow_code else load_without_code
    stages = load(run.recipe).split()
    recipe = stages[-1]
    if len(stages) > 1:
        started_from = recipe.later_student(run.stage(len(stages) - 1).path)
        recipe = recipe.model_copy(update={"student": started_from})
    if overrides:  # of the stage alone, so that the same words do for runs with and without stages
        recipe = load(values=yaml.safe_load(recipe.to_yaml()), overrides=overrides)
    foreign = foreign_code(recipe.method)
    return (recipe.model_copy(update={"method": MethodBlock(name="ft")}) if foreign else recipe), foreign

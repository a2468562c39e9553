"""Put layers in the place of ``student.keep: best:6``: those that a comparison on training rows finds, or found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from limbeck._internal.files import make_folder, write_text
from limbeck._internal.progress import muted_messages
from limbeck.distillation.fingerprint import model_digest
from limbeck.errors import RecipeError, RunError
from limbeck.metrics import readable_score
from limbeck.models.families import blocks_of, family_of
from limbeck.models.kept_layers import WITHOUT_BEST, measured_count
from limbeck.models.layer_choice import (
    Candidate,
    block_influence,
    choice_sample,
    compare_layers,
    metric_of_decisions,
    propose_layers,
)
from limbeck.models.loading import load_for_training
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.runs.files import MALFORMED, damaged, read_mapping
from limbeck.runs.reader import read_recipe
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator
from limbeck.tasks.held_out import choose_rows, text_key
from limbeck.tasks.task import Encoding, Task
from limbeck.training.assemble import Parts, assemble

logger = logging.getLogger("limbeck")

_SEED = 0  # not the recipe's: runs that differ in their seed alone train the same layers
_ROWS = 1000
_ROWS_FOR_INFLUENCE = 128
_BATCH_SIZE = 32


@dataclass(frozen=True)
class LayerChoice:
    """Hold the sets of layers that were compared; the first one was chosen."""

    metric: str
    rows: int
    influence: list[float]  # of each block of the source
    candidates: list[Candidate]

    @property
    def layers(self) -> list[int]:
        """Return the layers that were chosen."""
        return self.candidates[0].layers

    def to_json(self) -> str:
        """Write the comparison as a file holds it."""
        values = {"chosen": self.layers} | dataclasses.asdict(self)
        for candidate in values["candidates"]:
            unknown = {name: None for name in ("score", "deviation") if math.isnan(candidate[name])}
            candidate.update(unknown)  # which JSON has no number for
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def read(cls, file: Path) -> LayerChoice:
        """Read a comparison from its file."""
        values = read_mapping(file, "a choice of layers")
        try:
            candidates = [
                Candidate(**one | {name: math.nan for name in ("score", "deviation") if one[name] is None})
                for one in values["candidates"]
            ]
            return cls(values["metric"], values["rows"], values["influence"], candidates)
        except MALFORMED as error:
            raise damaged(file, "a choice of layers", error) from error

    def lines(self) -> list[str]:
        """Tell which sets were compared, and why the first one was chosen."""
        metric = f"cross-validated {self.metric} of a fitted head, {self.rows:,} training rows"
        rows = [f"Sets of layers ({metric}):"]
        for candidate in self.candidates:
            if math.isnan(candidate.score):
                score = "not measured"
            else:
                score = f"{readable_score(self.metric, candidate.score)} ± "
                score += readable_score(self.metric, candidate.deviation)
            tie = "  tied with the best" if candidate.tied and len(self.candidates) > 1 else ""
            names = ", ".join(candidate.proposed_by)
            rows.append(f"  {score:>15}  {', '.join(map(str, candidate.layers))}  ({names}){tie}")
        return [*rows, f"The student keeps the layers {self.layers}."]


def with_known_layers(recipe: Recipe, run: RunDirectory) -> Recipe:
    """Return the recipe with the layers that a run of it has chosen; as it is where none were asked for or chosen."""
    count = measured_count(recipe.student.keep)
    if count is None or not run.recipe.is_file() or not run.layer_choice.is_file():
        return recipe
    student = read_recipe(run).get("student")
    kept = student.get("keep") if isinstance(student, dict) else None
    return _with_layers(recipe, kept) if isinstance(kept, list) and len(kept) == count else recipe


def settle_layers(recipe: Recipe, run: RunDirectory, shared: Path | None) -> tuple[Recipe, LayerChoice | None]:
    """Return the recipe with the layers that ``best:N`` stands for, and how they were chosen if they were just now.

    What is found is kept in the folder ``shared``, if there is one, for runs of the same teacher and data.
    """
    recipe = with_known_layers(recipe, run)
    count = measured_count(recipe.student.keep)
    if count is None:
        return recipe, None
    choice = _choose(recipe.split()[0], count, shared)
    for line in choice.lines():
        logger.info("%s", line)
    if all(math.isnan(candidate.score) for candidate in choice.candidates):
        logger.warning(
            "student.keep: the sets of layers could not be compared: %d training rows are too few. The student keeps "
            "%s (%s); name others with --keep.",
            *(choice.rows, choice.layers, choice.candidates[0].proposed_by[0]),
        )
    return _with_layers(recipe, choice.layers), choice


def _with_layers(recipe: Recipe, layers: list[int]) -> Recipe:
    return recipe.model_copy(update={"student": recipe.student.model_copy(update={"keep": layers})})


def _choose(recipe: Recipe, count: int, shared: Path | None) -> LayerChoice:
    """Compare layers of the model that the student is made of; ``recipe`` is that of the first stage."""
    with muted_messages():  # the training itself says what it reads
        parts = assemble(recipe)
    if parts.task.problem == "language_model":
        raise RecipeError(
            f"student.keep: 'best:{count}' compares layers by a head fitted to labels, and {parts.task.name} has none. "
            f"Write {WITHOUT_BEST}."
        )
    source = _source(recipe, parts)
    with muted_messages():
        sample = choice_sample(_encoded(recipe, parts), parts.task.problem, _ROWS, _SEED)
    file = None
    if shared is not None:
        digest = hashlib.sha256(json.dumps([count, parts.task.metrics[0], model_digest(source)]).encode())
        digest.update(json.dumps([sample["input_ids"][:], sample["labels"][:]]).encode())
        file = shared / f"{count}-{digest.hexdigest()[:16]}.json"
        if (known := _known(file)) is not None:
            return known
    choice = _compare(recipe, parts, source, sample, count)
    if file is not None:
        make_folder(file.parent)
        write_text(file, choice.to_json())
    return choice


def _known(file: Path) -> LayerChoice | None:
    try:
        return LayerChoice.read(file) if file.is_file() else None
    except RunError as error:
        logger.warning("%s The layers are compared again.", error)
        return None


def _compare(recipe: Recipe, parts: Parts, source: Any, sample: Any, count: int) -> LayerChoice:
    fixed = parts.max_length if recipe.task.padding == "max_length" else None
    collate = Collator(parts.tokenizer, fixed, parts.task.problem)
    few = choice_sample(sample, parts.task.problem, _ROWS_FOR_INFLUENCE, _SEED)
    influence = block_influence(source, Batches(few, collate, _BATCH_SIZE))
    proposed = propose_layers(len(blocks_of(source)), count, influence)
    metric, problem = parts.task.metrics[0], parts.task.problem
    found = compare_layers(source, sample, collate, problem, proposed, metric=metric, rows=len(sample), seed=_SEED)
    return LayerChoice(metric_of_decisions(metric, problem), len(sample), influence, found)


def _source(recipe: Recipe, parts: Parts) -> Any:
    """Return the model whose layers are kept, where it computes fastest."""
    name = recipe.student.from_ or ""
    if name == "teacher":
        source: Any = parts.require_teacher()
    else:
        set_seed(_SEED)  # of a new head
        source, _ = load_for_training(name, parts.task, parts.tokenizer)
    return source.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _encoded(recipe: Recipe, parts: Parts) -> Any:
    """Encode the training rows that are compared on: not all of a large data set, which takes minutes."""
    how = Encoding(parts.tokenizer, parts.max_length, recipe.task.too_long, family_of(parts.student).causal)
    return _sampled(parts.task).encode_all(("train",), how)["train"]


def _sampled(task: Task) -> Task:
    train = task.split("train")
    if len(train) <= _ROWS:
        return task
    texts = task.inputs(train[:])
    keys = [text_key(*map(str, row)) for row in zip(*texts, strict=True)]
    classes = list(train["label"]) if task.problem == "classification" else None
    chosen = choose_rows(keys, _ROWS / len(train), _SEED, classes)
    return dataclasses.replace(task, splits={**task.splits, "train": train.select(chosen or range(_ROWS))})

"""Score a trained model, and write what an official evaluation takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.distillation.distiller import Distiller
from limbeck.distillation.pair import Pair
from limbeck.errors import RecipeError, RunError
from limbeck.inference.doubts import find_doubts, majority_of
from limbeck.inference.logits import dev_loss, logits_in_order
from limbeck.inference.served import load_served
from limbeck.methods import find_method
from limbeck.models.families import family_of
from limbeck.models.loading import checked_length, count_parameters, load_fine_tuned, load_tokenizer, longest_input
from limbeck.recipes.recipe import TaskBlock, load_task_block
from limbeck.runs.data import check_data
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import own_task
from limbeck.tasks import load_task
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator
from limbeck.tasks.fingerprint import data_fingerprint
from limbeck.tasks.submission import check_folder, write_submission
from limbeck.tasks.task import Encoding, Task, named_after_split

logger = logging.getLogger("limbeck")

_REMEDY = "Put back the data of the run, or name others: task.validation=FILE, or --task with all of its options."


@dataclass(frozen=True)
class Evaluation:
    """Hold the scores of a model on one or more splits of a task."""

    task: str
    split: str  # several are joined by " + "
    examples: int
    metrics: dict[str, float]  # none of splits without labels
    parameters: int
    files: tuple[str, ...] = ()  # names of the files written for an official evaluation


def evaluate(
    model: str | Path,
    *,
    task: str | None = None,
    split: str | None = None,
    overrides: Sequence[str] = (),
    batch_size: int = 32,
    submission: str | Path | None = None,
) -> Evaluation:
    """Score a run directory, a checkpoint or an export; a run directory knows its own task.

    Without ``split``, on all of the task's validation data. ``submission`` is a folder for the files that the task's
    official evaluation takes; they need no labels.
    """
    block = task_block_for(model, task, overrides)
    loaded = load_task(block.name, **block.options)
    splits = _splits(loaded, split, submission)
    if task is None:
        _check_own_data(model, loaded, splits, named=any(word.startswith("task") for word in overrides))
    if loaded.scored_by_loss:
        return _evaluate_text(model, loaded, splits[0], block, batch_size)
    served = load_served(model, task=loaded)
    max_length = input_length(block, loaded, served.tokenizer, served)
    collate = Collator(served.tokenizer, problem=loaded.problem)
    scores: dict[str, float] = {}
    files: dict[str, str] = {}
    for name in splits:
        encoded = loaded.encode(name, served.tokenizer, max_length, block.too_long)
        labelled = "labels" in encoded.column_names
        if not labelled and submission is None:
            raise _no_labels(loaded, name)
        logits = logits_in_order(served.logits, encoded, collate, batch_size, f"evaluate on {name}", str(model))
        if labelled:
            found = loaded.score(logits, encoded)
            if name == splits[0]:
                find_doubts(model, served.config, loaded, found, majority_of(loaded, encoded)).warn()
            scores |= found if name == splits[0] else named_after_split(name, found)
        if submission is not None:
            files |= loaded.submission(name, logits, encoded)
    if submission is not None:
        write_submission(Path(submission), files)
    examples = sum(len(loaded.split(name)) for name in splits)
    return Evaluation(loaded.name, " + ".join(splits), examples, scores, served.parameters, tuple(files))


def _check_own_data(model: str | Path, task: Task, splits: Sequence[str], named: bool) -> None:
    """Raise where a run's data have changed since it was scored on them; warn where the user names other data."""
    try:
        check_same_data(model, task, splits)
    except RunError as error:
        if not named:
            raise
        logger.warning("These are not the data of the run: %s", error)


def check_same_data(model: str | Path, task: Task, splits: Sequence[str] | None = None) -> None:
    """Raise where a run directory was made with other data than ``task``; their order does not matter to a score."""
    run = RunDirectory(Path(model))
    if run.data.is_file():
        check_data(run, data_fingerprint(task, splits or task.dev_splits), _REMEDY, ordered=False)


def _no_labels(task: Task, split: str) -> RecipeError:
    return RecipeError(
        f"The split '{split}' of {task.name} has no labels to score against: use 'limbeck predict', "
        "or --submission FOLDER where an official evaluation scores it (GLUE, SQuAD)."
    )


def _splits(task: Task, split: str | None, submission: str | Path | None) -> tuple[str, ...]:
    """Return the splits to predict; what cannot be submitted is an error now, not after the predictions."""
    names = task.dev_splits if split is None else (split,)
    if submission is None:
        return names
    submitted = tuple(other for name in names for other in task.submission_splits(name))
    check_folder(Path(submission))
    return submitted


def _evaluate_text(model: str | Path, task: Task, split: str, block: TaskBlock, batch_size: int) -> Evaluation:
    """Score how well a language model predicts the tokens of the texts; their masks are the same in every call."""
    network, tokenizer = load_fine_tuned(model, task), load_tokenizer(model)
    how = Encoding(tokenizer, input_length(block, task, tokenizer, network), causal=family_of(network).causal)
    blocks = task.encode_all((split,), how)[split]
    batches = Batches(blocks, Collator(tokenizer, problem="language_model"), batch_size)
    distiller = Distiller.of(find_method("ft")(Pair.of(network, None, task.problem)), network)
    scores = dev_loss(distiller, batches, f"evaluate on {split}")
    return Evaluation(task.name, split, len(blocks), scores, count_parameters(network))


def input_length(block: TaskBlock, task: Task, tokenizer: Any, network: Any) -> int:
    """Return how many tokens of a text are read."""
    if block.max_length != "auto":
        return checked_length(block.max_length, network)
    return task.suggest_length(tokenizer, longest_input(network))[0]


def task_block_for(model: str | Path, task: str | None, overrides: Sequence[str]) -> TaskBlock:
    """Return the task block of the run's own recipe, or of a recipe made from the name and the overrides."""
    own = own_task(model)
    if task is None and own is None:
        raise RecipeError(
            f"{model} is not a run directory, so its task is not known: add --task, e.g. --task glue/rte."
        )
    return load_task_block({"name": task} if task is not None else own or {}, overrides)

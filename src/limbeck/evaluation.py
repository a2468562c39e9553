"""Score a trained model on a task's split, and predict for a file of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from limbeck.batches import Batches
from limbeck.blocks import Blocks, Packing
from limbeck.distiller import Distiller
from limbeck.errors import ModelError, RecipeError
from limbeck.families import family_of
from limbeck.inference import dev_loss, predict_logits
from limbeck.methods import find_method
from limbeck.models import PROBLEM_TYPE, load_fine_tuned, load_tokenizer, parameters
from limbeck.pair import Pair
from limbeck.recipe import TaskBlock, load_task_block
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.files import file_format, write_table
from limbeck.tasks.table import read_texts
from limbeck.tasks.task import Problem, Task
from limbeck.tasks.text import TextTask

_PROBLEM: dict[str | None, Problem] = {name: problem for problem, name in PROBLEM_TYPE.items()}


@dataclass(frozen=True)
class Evaluation:
    task: str
    split: str
    examples: int
    metrics: dict[str, float]
    parameters: int


def evaluate(
    model: str | Path,
    *,
    task: str | None = None,
    split: str = "validation",
    overrides: Sequence[str] = (),
    batch_size: int = 32,
) -> Evaluation:
    """Score a run directory or a checkpoint; a run directory knows its own task."""
    block = _task_of(model, task, overrides)
    loaded = load_task(block.name, **block.options)
    if isinstance(loaded, TextTask):
        return _evaluate_text(model, loaded, split, block.max_length, batch_size)
    network, tokenizer = load_fine_tuned(model, loaded), load_tokenizer(model)
    encoded = encode(loaded, loaded.split(split), tokenizer, block.max_length, block.too_long)
    if "labels" not in encoded.column_names:
        raise RecipeError(
            f"The split '{split}' of {loaded.name} has no labels to score against: use 'limbeck predict'."
        )
    logits = predict_logits(network, encoded, Collator(tokenizer), batch_size, f"evaluate on {split}")
    scores = loaded.score(logits, np.asarray(encoded["labels"][:]))
    return Evaluation(loaded.name, split, len(logits), scores, parameters(network))


def _evaluate_text(model: str | Path, task: TextTask, split: str, max_length: int, batch_size: int) -> Evaluation:
    """How well a language model predicts the tokens of the texts; their masks are the same in every call."""
    network, tokenizer = load_fine_tuned(model, task), load_tokenizer(model)
    packing = Packing(tokenizer, max_length, family_of(network).causal, task.mask)
    blocks = Blocks(task.split(split), packing, seed=0, shuffle=False)
    blocks.count()
    batches = Batches(blocks, Collator(tokenizer, token_labels=True), batch_size)
    distiller = Distiller.of(find_method("ft")(Pair.of(network, None, task.problem)), network)
    scores = dev_loss(distiller, batches, f"evaluate on {split}")
    return Evaluation(task.name, split, len(blocks), scores, parameters(network))


def predict_file(
    model: str | Path,
    file: str | Path,
    output: str | Path,
    *,
    text: Sequence[str] = (),
    max_length: int | None = None,
    batch_size: int = 32,
) -> int:
    """Write a prediction and the probability of every label for each row of ``file``, in its order."""
    file_format(output, writing=True)  # before the work, not after it
    network, tokenizer = load_fine_tuned(model), load_tokenizer(model)
    own = _own_task(model)
    block = load_task_block(own) if own is not None else None
    columns = list(text) or _columns_of(block)
    dataset = read_texts(file, columns)
    length = max_length or (block.max_length if block else 128)
    encoded = encode(columns, dataset, tokenizer, length)
    logits = predict_logits(network, encoded, Collator(tokenizer), batch_size)
    write_table(output, _predictions(_answers(network), logits))
    return len(logits)


def _task_of(model: str | Path, task: str | None, overrides: Sequence[str]) -> TaskBlock:
    """The task block of the run's own recipe, or of a recipe made from the name and the overrides."""
    own = _own_task(model)
    if task is None and own is None:
        raise RecipeError(
            f"{model} is not a run directory, so its task is not known: add --task, e.g. --task glue/rte."
        )
    return load_task_block({"name": task} if task is not None else own or {}, overrides)


def _own_task(model: str | Path) -> dict[str, Any] | None:
    file = Path(model) / "recipe.yaml"
    if not file.is_file():
        return None
    recipe: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    own: dict[str, Any] = recipe["stages"][-1]["task"] if "stages" in recipe else recipe["task"]
    return own


def _columns_of(block: TaskBlock | None) -> list[str]:
    if block is not None and block.name == "table":
        columns = block.options["text"]
        return [columns] if isinstance(columns, str) else list(columns)
    raise RecipeError("Name the text columns of the file: --text sentence, or --text question --text answer for pairs.")


def _answers(network: Any) -> Task:
    """What the model predicts, from its own config: prediction needs no data set."""
    config = network.config
    problem = _PROBLEM.get(config.problem_type, "regression" if config.num_labels == 1 else "classification")
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    if len(set(names)) != len(names):
        raise ModelError(f"The model's config gives two labels the same name: {', '.join(names)}. Rename one.")
    return Task("predict", problem, (), () if problem == "regression" else names, (), {})


def _predictions(answers: Task, logits: np.ndarray) -> dict[str, Any]:
    predicted = answers.predictions(logits)
    if answers.problem == "regression":
        return {"prediction": predicted}
    if answers.problem == "multi_label":
        chosen = [[name for name, on in zip(answers.label_names, row, strict=True) if on] for row in predicted]
        columns: dict[str, Any] = {"prediction": [",".join(names) for names in chosen]}
    else:
        columns = {"prediction": [answers.label_names[index] for index in predicted]}
    probabilities = answers.probabilities(logits)
    return columns | {f"p({name})": probabilities[:, i] for i, name in enumerate(answers.label_names)}

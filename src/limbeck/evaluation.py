"""Score a trained model, write what an official evaluation takes, and predict for a file of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.batches import Batches
from limbeck.blocks import Blocks, Packing
from limbeck.compare.finished import WRONG, damaged, read_mapping
from limbeck.distiller import Distiller
from limbeck.errors import ModelError, RecipeError
from limbeck.families import family_of
from limbeck.inference import dev_loss, predict_logits
from limbeck.methods import find_method
from limbeck.models import checked_length, load_fine_tuned, load_tokenizer, longest_input, parameters, problem_of
from limbeck.pair import Pair
from limbeck.recipe import TaskBlock, load_task_block
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator
from limbeck.tasks.files import file_format, write_table
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.submission import check_folder, write_submission
from limbeck.tasks.table import read_texts
from limbeck.tasks.task import Task, of_split
from limbeck.tasks.text import TextTask
from limbeck.tasks.tokens import TokenTask

_LONGEST = 512  # tokens that are read where nothing else is known


@dataclass(frozen=True)
class Evaluation:
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
    """Score a run directory or a checkpoint; a run directory knows its own task.

    Without ``split``, on all of the task's validation data. ``submission`` is a folder for the files that the task's
    official evaluation takes; they need no labels.
    """
    block = _task_of(model, task, overrides)
    loaded = load_task(block.name, **block.options)
    splits = _splits(loaded, split, submission)
    if isinstance(loaded, TextTask):
        return _evaluate_text(model, loaded, splits[0], block, batch_size)
    network, tokenizer = load_fine_tuned(model, loaded), load_tokenizer(model)
    max_length = _length(block, loaded, tokenizer, network)
    collate = Collator(tokenizer, problem=loaded.problem)
    scores: dict[str, float] = {}
    files: dict[str, str] = {}
    for name in splits:
        encoded = loaded.encode(name, tokenizer, max_length, block.too_long)
        labelled = "labels" in encoded.column_names
        if not labelled and submission is None:
            raise RecipeError(
                f"The split '{name}' of {loaded.name} has no labels to score against: use 'limbeck predict', "
                "or --submission FOLDER where an official evaluation scores it (GLUE, SQuAD)."
            )
        logits = predict_logits(network, encoded, collate, batch_size, f"evaluate on {name}")
        if labelled:
            found = loaded.score(logits, encoded)
            scores |= found if name == splits[0] else of_split(name, found)
        if submission is not None:
            files |= loaded.submission(name, logits, encoded)
    if submission is not None:
        write_submission(Path(submission), files)
    examples = sum(len(loaded.split(name)) for name in splits)
    return Evaluation(loaded.name, " + ".join(splits), examples, scores, parameters(network), tuple(files))


def _splits(task: Task, split: str | None, submission: str | Path | None) -> tuple[str, ...]:
    """The splits to predict; what cannot be submitted is an error now, not after the predictions."""
    names = task.dev_splits if split is None else (split,)
    if submission is None:
        return names
    together = tuple(other for name in names for other in task.submission_splits(name))
    check_folder(Path(submission))
    return together


def _evaluate_text(model: str | Path, task: TextTask, split: str, block: TaskBlock, batch_size: int) -> Evaluation:
    """How well a language model predicts the tokens of the texts; their masks are the same in every call."""
    network, tokenizer = load_fine_tuned(model, task), load_tokenizer(model)
    packing = Packing(tokenizer, _length(block, task, tokenizer, network), family_of(network).causal, task.mask)
    blocks = Blocks(task.split(split), packing, seed=0, shuffle=False)
    blocks.count()
    batches = Batches(blocks, Collator(tokenizer, problem="language_model"), batch_size)
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
    task = _task_of_texts(network, read_texts(file, columns), columns, block)
    own_length = block.max_length if block is not None and block.max_length != "auto" else _LONGEST
    length = checked_length(max_length, network) if max_length else min(own_length, longest_input(network))
    encoded = task.encode("predict", tokenizer, length)
    logits = predict_logits(network, encoded, Collator(tokenizer, problem=task.problem), batch_size)
    answers = task.readable(logits, encoded)
    write_table(output, answers)
    return len(answers["prediction"])


def _length(block: TaskBlock, task: Task, tokenizer: Any, network: Any) -> int:
    if block.max_length != "auto":
        return checked_length(block.max_length, network)
    return task.suggest_length(tokenizer, longest_input(network))[0]


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
    recipe = read_mapping(file)
    try:
        return dict((recipe.get("stages") or [recipe])[-1]["task"])
    except WRONG as error:
        raise damaged(file, "the recipe of a run", error) from error


def _columns_of(block: TaskBlock | None) -> list[str]:
    if block is not None and block.name == "table":
        columns = block.options["text"]
        return [columns] if isinstance(columns, str) else list(columns)
    if block is not None and block.name.startswith("squad/"):
        return ["question", "context"]
    raise RecipeError("Name the text columns of the file: --text sentence, or --text question --text answer for pairs.")


def _task_of_texts(network: Any, texts: Any, columns: Sequence[str], block: TaskBlock | None) -> Task:
    """What the model predicts, from its own config: prediction needs no data set."""
    config = network.config
    problem = problem_of(config)
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    if len(set(names)) != len(names):
        raise ModelError(f"The model's config gives two labels the same name: {', '.join(names)}. Rename one.")
    if problem == "tokens":
        return TokenTask.of_texts(texts, columns, names)
    if problem == "span":
        options = block.options if block is not None and block.name.startswith("squad/") else {}
        decoding = {name: value for name, value in options.items() if name != "data_dir"}
        return SpanTask.of_texts(texts, columns, unanswerable="threshold" in decoding, **decoding)
    return Task("predict", problem, tuple(columns), () if problem == "regression" else names, (), {"predict": texts})

"""Make the teacher: the model as it is where it knows the task, else with a fitted head, fine-tuned as time allows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from limbeck._internal.files import replacing_folder
from limbeck._internal.progress import muted_messages
from limbeck.errors import ModelError
from limbeck.inference.doubts import unnamed_labels
from limbeck.inference.logits import predict_logits
from limbeck.metrics import readable_score
from limbeck.models.fitted_heads import fit_head
from limbeck.models.loading import load_config, load_fine_tuned, load_for_training, load_tokenizer, longest_input
from limbeck.models.trimming import trim_vocabulary
from limbeck.recipes.recipe import Recipe, StudentBlock
from limbeck.shrink.between import Between, best_point
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.task import Task
from limbeck.training.assemble import assemble, load_data
from limbeck.training.execute import execute
from limbeck.training.precision import computing_as

logger = logging.getLogger("limbeck")

_ROWS = 512  # validation rows that show whether a model knows its task


def reason_to_fine_tune(model: str, task: Task) -> str:
    """Say why a model must be fine-tuned before it can teach; empty if it knows the task.

    It does if it predicts the task's labels, and better than by always giving the most frequent one.
    """
    load_config(model)  # one that is not there is an error of its own
    try:
        network = load_fine_tuned(model, task)
    except ModelError as error:
        logger.info("%s", error)
        return "which has no trained head for these labels"
    score, majority = _scores(network, load_tokenizer(model), task)
    if score <= majority:
        return "whose head does not know these labels"
    if seen := unnamed_labels(model, network.config, task):
        found, frequent = (readable_score(task.metrics[0], value) for value in (score, majority))
        logger.warning(
            "%s Its %s, %s where the most frequent answer has %s, says that they are.",
            *(seen, task.metrics[0], found, frequent),
        )
    return ""


def _scores(network: Any, tokenizer: Any, task: Task) -> tuple[float, float]:
    """Return the model's main score on some of the validation rows, and that of the most frequent answer."""
    rows = task.split("validation")
    some = rows.select(range(0, len(rows), -(-len(rows) // _ROWS)))
    length, _ = task.suggest_length(tokenizer, longest_input(network))
    encoded = encode(task.text_columns, some, tokenizer, length)
    logits = predict_logits(network, encoded, Collator(tokenizer, problem=task.problem), job="try the model")
    majority = task.majority({"labels": task.split("train")["label"]}, encoded)
    return task.score(logits, encoded)[task.metrics[0]], majority[task.metrics[0]]


def save_trimmed(model: str, task: Task, texts: Iterable[str], knows_task: bool, folder: Path) -> dict[str, Any]:
    """Save the model with the pieces of its vocabulary that these texts use; say what was kept, or why all was.

    Training is then exactly that of the whole vocabulary, and faster. A model that knows the task keeps its head.
    """
    tokenizer = load_tokenizer(model)
    network: Any = load_fine_tuned(model, task) if knows_task else load_for_training(model, task, tokenizer)[0]
    try:
        trimmed = trim_vocabulary(network, tokenizer, texts)
    except ModelError as error:
        logger.warning("The vocabulary stays whole: %s", error)
        return {"model": model, "pieces": len(tokenizer), "of_pieces": len(tokenizer), "why": str(error)}
    with replacing_folder(folder) as temporary:
        smaller: Any = trimmed.model if knows_task else trimmed.model.base_model
        smaller.save_pretrained(temporary)
        trimmed.tokenizer.save_pretrained(temporary)
    logger.info(
        "Vocabulary: training works with the %s of %s pieces that these texts use; the students get the others back.",
        *(f"{len(trimmed.kept):,}", f"{len(tokenizer):,}"),
    )
    return {"model": str(folder), "pieces": len(trimmed.kept), "of_pieces": len(tokenizer)}


@dataclass(frozen=True)
class TeacherFolders:
    """Say where a teacher is made: with a fitted head only, fine-tuned as a run, and the best point between the two."""

    fitted: Path
    run: Path
    best: Path


def train_teacher(recipe: Recipe, task: Task, folders: TeacherFolders) -> dict[str, Any]:
    """Fit a head, fine-tune, and return which model teaches: the best point between the two."""
    if not folders.fitted.is_dir():
        save_fitted(recipe, folders.fitted)
    student = StudentBlock(model=str(folders.fitted), head="kept")
    trained = execute(recipe.model_copy(update={"student": student}), folders.run, resume=True)
    between = Between(folders.fitted, trained.student, task)
    points = between.compare()
    best = best_point(points, task.metrics[0])
    metric = task.metrics[0]
    for point in points:
        logger.info(
            "%3.0f%% of what fine-tuning changed: %s %s, loss %.3f%s",
            *(100 * point.share, metric, readable_score(metric, point.score), point.loss),
            "  <- the teacher" if point is best else "",
        )
    between.save(best.share, folders.best)
    return {"model": str(folders.best), "share": best.share, "points": [asdict(point) for point in points]}


def save_fitted(recipe: Recipe, folder: Path) -> None:
    """Save the model of a recipe as it is before its first step, with its fitted head."""
    with muted_messages():
        parts = assemble(recipe)
        data = load_data(recipe, parts)
        task = parts.task
        with computing_as(recipe, parts.student.device):
            fit_head(
                *(parts.student, data.splits["train"], data.collate, task.problem),
                metric=task.metrics[0],
                seed=recipe.seed,
                class_weights=task.class_weights,
            )
    with replacing_folder(folder) as temporary:
        parts.student.save_pretrained(temporary)
        parts.tokenizer.save_pretrained(temporary)

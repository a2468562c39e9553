"""What came of a run: the student's scores and predictions, beside its teacher's."""

from __future__ import annotations

import json
from typing import Any

from limbeck._internal.files import write_text
from limbeck.inference.logits import dev_loss, predict_logits
from limbeck.models.loading import count_parameters
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.task import of_split
from limbeck.tasks.text import TextTask
from limbeck.tasks.writing import write_table
from limbeck.training.assemble import Data, Parts
from limbeck.training.cache_policy import teacher_logits


def answer_validation(parts: Parts, data: Data) -> Any:
    """The student on the validation data: its logits, or a language model's scores."""
    if isinstance(parts.task, TextTask):
        return dev_loss(parts.distiller, data.batches("validation"))
    validation = data.splits["validation"]
    return predict_logits(parts.student, validation, data.collate, data.batch_size, "evaluate on validation")


def scores_of(parts: Parts, data: Data, dev: Any) -> dict[str, float]:
    return dev if isinstance(parts.task, TextTask) else parts.task.score(dev, data.splits["validation"])


def write_results(recipe: Recipe, parts: Parts, data: Data, dev: Any, run: RunDirectory, cost: dict[str, Any]) -> None:
    scores = scores_of(parts, data, dev)
    metric = parts.task.metrics[0]
    results = {
        "task": parts.task.name,
        "split": "validation",
        "method": recipe.method.name,
        "seed": recipe.seed,
        "metric": metric,
        "score": scores[metric],
        "parameters": count_parameters(parts.student),
        **cost,
        # questions, not the windows over their texts
        "examples": len((data.splits if isinstance(parts.task, TextTask) else parts.task.splits)["validation"]),
        "metrics": scores | _other_scores(parts, data, run),
    }
    if majority := parts.task.majority(data.splits["train"], data.splits["validation"]):
        results["majority"] = majority
    answers = {} if isinstance(parts.task, TextTask) else parts.task.answers(dev, data.splits["validation"])
    if parts.teacher is not None:
        results["teacher"], theirs = _beside_the_teacher(recipe, parts, data, dev)
        answers |= {f"teacher_{name}": theirs[name] for name in ("prediction", "logits") if name in theirs}
    if answers:
        write_table(run.predictions(), answers)
    # last, because it marks the run as finished
    write_text(run.results, json.dumps(results, indent=2) + "\n")


def _other_scores(parts: Parts, data: Data, run: RunDirectory) -> dict[str, float]:
    """The student's scores on the task's other validation data (MNLI's mismatched), whose predictions are written."""
    scores: dict[str, float] = {}
    for split in parts.task.dev_splits[1:]:
        encoded = data.splits[split]
        logits = predict_logits(parts.student, encoded, data.collate, data.batch_size, f"evaluate on {split}")
        scores |= of_split(split, parts.task.score(logits, encoded))
        write_table(run.predictions(split), parts.task.answers(logits, encoded))
    return scores


def _beside_the_teacher(recipe: Recipe, parts: Parts, data: Data, dev: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The teacher's results, and its answers to the validation data."""
    results: dict[str, Any] = {"parameters": count_parameters(parts.teacher)}
    if isinstance(parts.task, TextTask):
        return results, {}
    validation = data.splits["validation"]
    logits = teacher_logits(recipe, parts, data, parts.student.device)
    results["metrics"] = scores_of(parts, data, logits)
    results["agreement"] = parts.task.agreement(dev, logits, validation)
    return results, parts.task.answers(logits, validation)

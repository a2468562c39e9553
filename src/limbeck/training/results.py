"""Write what came of a run: the student's scores and predictions, beside its teacher's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from limbeck._internal.files import write_text
from limbeck.inference.logits import dev_loss, predict_logits
from limbeck.metrics import METRICS
from limbeck.models.loading import count_parameters
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.runs.files import read_mapping
from limbeck.tasks.mixing import MixedRows
from limbeck.tasks.task import Logits, Task, named_after_split
from limbeck.tasks.writing import write_table
from limbeck.training.assemble import Data, Parts, views
from limbeck.training.teacher_outputs import teacher_logits


def answer_validation(parts: Parts, data: Data) -> Any:
    """Return the student's logits for the validation data, or a language model's scores on them."""
    if parts.task.scored_by_loss:
        return dev_loss(parts.distiller, data.batches("validation"))
    return _student_logits(parts, data, "validation")


def _student_logits(parts: Parts, data: Data, split: str) -> Logits:
    how = (data.collate, data.batch_size, f"evaluate on {split}")
    return predict_logits(parts.student, data.splits[split], *how, who="The student")


def validation_scores(parts: Parts, data: Data, answers: Any) -> dict[str, float]:
    """Score what :func:`answer_validation` returned."""
    return parts.task.score(answers, data.splits["validation"])


def write_results(
    recipe: Recipe,
    parts: Parts,
    data: Data,
    answers: Any,
    teacher_answers: Logits | None,
    run: RunDirectory,
    cost: dict[str, Any],
) -> None:
    """Write predictions and, last, the scores that mark the run as finished.

    ``teacher_answers`` are the teacher's logits for the validation data, where they are known.
    """
    task, validation = parts.task, data.splits["validation"]
    scores = validation_scores(parts, data, answers)
    metric = task.metrics[0]
    results = {
        "task": task.name,
        "split": "validation",
        "method": recipe.method.name,
        "seed": recipe.seed,
        "metric": metric,
        "score": scores[metric],
        "parameters": count_parameters(parts.student),
        **cost,
        "examples": task.count_examples("validation", validation),
        "metrics": scores | _other_scores(parts, data, run),
    }
    if run.start.is_file():
        results["start"] = read_mapping(run.start)
    if isinstance(data.training, MixedRows):
        results["unlabelled"] = data.training.to_dict()
    if parts.trimming is not None:
        results["vocabulary"] = parts.trimming.to_dict()
    if majority := task.majority(data.splits["train"], validation):
        results["majority"] = majority
    columns = task.answers(answers, validation)
    if parts.team.members:
        results["teacher"], theirs = _teacher_results(recipe, parts, data, answers, teacher_answers)
        columns |= {f"teacher_{name}": theirs[name] for name in ("prediction", "logits") if name in theirs}
    if parts.team.several:
        results["teachers"] = _member_results(recipe, parts, data, answers)
    if columns:
        write_table(run.predictions(), columns)
    write_text(run.results, json.dumps(results, indent=2) + "\n")


def _other_scores(parts: Parts, data: Data, run: RunDirectory) -> dict[str, float]:
    """Score the task's other validation data (MNLI's mismatched), and write the predictions for them."""
    scores: dict[str, float] = {}
    for split in parts.task.dev_splits[1:]:
        encoded = data.splits[split]
        logits = _student_logits(parts, data, split)
        scores |= named_after_split(split, parts.task.score(logits, encoded))
        write_table(run.predictions(split), parts.task.answers(logits, encoded))
    return scores


def _teacher_results(
    recipe: Recipe, parts: Parts, data: Data, answers: Any, logits: Logits | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the teacher's results, and its answers to the validation data; of several, those of all together."""
    results: dict[str, Any] = {}
    if parts.team.followed is not None:
        results["parameters"] = parts.teacher_parameters()
    if parts.task.scored_by_loss:
        return results, {}
    validation = data.splits["validation"]
    if logits is None:
        logits = teacher_logits(recipe, parts, data, parts.student.device)
    if logits is None:  # a file that does not have them
        return results, {}
    results["metrics"] = validation_scores(parts, data, logits)
    results["agreement"] = parts.task.agreement(answers, logits, validation)
    return results, parts.task.answers(logits, validation)


def _member_results(recipe: Recipe, parts: Parts, data: Data, answers: Any) -> list[dict[str, Any]]:
    """Return the results of each of several teachers, and how far the student restores its answers."""
    found = []
    for (own, view), member in zip(views(recipe, parts), parts.team.members, strict=True):
        results = _teacher_results(own, view, data, answers, None)
        about = {"name": member.block.source, "weight": member.weight}
        found.append(about | results[0] | _restoration(parts.task, answers, results[1].get("prediction")))
    return found


def _restoration(task: Task, answers: Any, theirs: Any) -> dict[str, Any]:
    """Score the student's answers as if a teacher's were the truth (Jung et al. 2023), where answers are of texts."""
    measures = {"classification": "macro_f1", "multi_label": "macro_f1", "regression": "spearman"}
    if theirs is None or task.problem not in measures:
        return {}
    name = measures[task.problem]
    return {"restoration": {name: METRICS[name](task.predictions(answers), np.asarray(theirs))}}

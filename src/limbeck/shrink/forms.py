"""Export a student in every form it can be served in, score each on rows that chose nothing, and time it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.progress import muted_messages
from limbeck.deploy.bench import MeasuredModel, bench
from limbeck.deploy.export import export
from limbeck.errors import ExportError, MissingExtra, ModelError
from limbeck.inference.logits import logits_in_order
from limbeck.inference.served import EXPORT_FORMS, load_served
from limbeck.runs.reader import own_task
from limbeck.shrink.budget import Budget
from limbeck.shrink.scores import TEACHER_NAME, ModelScores
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

STUDENT_NAME = "student"
_FOLDERS = {"hf": "model"}  # others are named by their form
_BATCH_SIZES = (1, 32)
_SECONDS = 20.0
# what int8 may cost: a part of the score, or so many answers where rows are few; the summary tells what it does cost
_MAX_DROP, _MAX_ROWS = 0.02, 3


def export_forms(
    run: Path, teacher: str, task: dict[str, Any], rows: int, output: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """Export the student of ``run``; return the folder of each model, by its name, and why some forms were refused.

    ``rows`` is the number of validation rows, on which int8 may lose a few answers.
    The teacher's own int8 form is made too: where it is fast enough, nobody needs a student.
    """
    found, refused = {TEACHER_NAME: Path(teacher)}, {}
    wanted = [(_name(STUDENT_NAME, form), str(run), form, _FOLDERS.get(form, form)) for form in EXPORT_FORMS]
    int8 = EXPORT_FORMS[-1]
    wanted.append((_name(TEACHER_NAME, int8), teacher, int8, f"{TEACHER_NAME}-{int8}"))
    for name, source, form, folder in wanted:
        most = max(_MAX_DROP, _MAX_ROWS / rows)
        try:
            with muted_messages():
                export(source, form, output / folder, task=task, max_drop=most, force=True)
        except MissingExtra as error:
            return found, {"ONNX": str(error)}
        except (ExportError, ModelError) as error:  # it would answer otherwise, or the family has no such form
            shutil.rmtree(output / folder, ignore_errors=True)  # what an interrupted call left is of another student
            logger.warning("%s: %s", name, error)
            refused[name] = str(error)
        else:
            found[name] = output / folder
    return found, refused


def _name(model: str, form: str) -> str:
    return model if form == "hf" else f"{model}, {form}"


def measure_forms(
    paths: Mapping[str, Path], scores: ModelScores, method: str, task: Task, run: Path, budget: Budget, length: int
) -> dict[str, Any]:
    """Score and time the models as they are served, and return the entries of the summary about them."""
    predictions = {STUDENT_NAME: scores.predictions[method]}
    for name, path in paths.items():
        if name not in (TEACHER_NAME, STUDENT_NAME):
            predictions[name] = _predictions(path, task, run)
    scores = scores.with_predictions(predictions)
    found = bench(list(paths.values()), batch_sizes=_BATCH_SIZES, lengths=[length], seconds=_SECONDS, memory=False)
    reference = found.models[0].cell(1, length).timing.p50_ms
    models = [
        _model_entry(name, measured, scores, budget, length, reference)
        for name, measured in zip(paths, found.models, strict=True)
    ]
    students = [model for model in models if model["name"].startswith(STUDENT_NAME)]
    # as it is trained, if that is fast enough, else in the first form that is
    served = next((model for model in students if model["within_budget"]), min(students, key=_latency))
    return {
        "models": models,
        "budget": {
            "length": length,
            "limit_ms": budget.limit(reference),
            "teacher_ms": reference,
            "p50_ms": served["p50_ms"],
            "form": served["form"],
            "met": served["within_budget"],
        },
        "conditions": {"processor": found.processor, "threads": found.threads, "versions": found.versions},
    }


def _model_entry(
    name: str, measured: MeasuredModel, scores: ModelScores, budget: Budget, length: int, reference: float
) -> dict[str, Any]:
    timing = measured.cell(1, length).timing
    return {
        "name": name,
        "form": measured.form,
        "score": scores.score(name),
        "agreement": None if name == TEACHER_NAME else scores.agreement(name),
        "parameters": measured.parameters,
        "disk_bytes": measured.disk_bytes,
        "p50_ms": timing.p50_ms,
        "p95_ms": timing.p95_ms,
        "latency_ratio": timing.p50_ms / reference,
        "batch_ms": measured.cell(_BATCH_SIZES[-1], length).timing.p50_ms,
        "within_budget": budget.met(timing.p50_ms, reference),
    }


def _latency(model: Mapping[str, Any]) -> float:
    return float(model["p50_ms"])


def _predictions(path: Path, task: Task, run: Path) -> np.ndarray:
    """Return what an exported model predicts for the validation rows, read as the run read them."""
    served = load_served(path, task=task)
    with muted_messages():
        encoded = task.encode("validation", served.tokenizer, (own_task(run) or {})["max_length"])
    collate = Collator(served.tokenizer, problem=task.problem)
    logits = logits_in_order(served.logits, encoded, collate, _BATCH_SIZES[-1], f"evaluate {path.name}")
    return np.asarray(task.predictions(logits))

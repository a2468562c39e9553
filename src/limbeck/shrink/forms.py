"""The forms that a student is served in: exported, scored on rows that chose nothing, and timed beside its teacher."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.progress import muted_messages
from limbeck.deploy.bench import bench
from limbeck.deploy.export import export
from limbeck.errors import LimbeckError, MissingExtra
from limbeck.inference.logits import logits_in_order
from limbeck.inference.served import EXPORT_FORMS, load_served
from limbeck.runs.reader import own_task
from limbeck.shrink.budget import Budget
from limbeck.shrink.scores import TEACHER, ModelScores
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

STUDENT = "student"
_FOLDERS = {"hf": "model"}  # others are named by their form
_BATCH_SIZES = (1, 32)
_SECONDS = 20.0
# of the score that int8 may cost, or of few rows so many; the summary tells what it does
_MAX_DROP, _MAX_ROWS = 0.02, 3


def export_forms(
    run: Path, teacher: str, task: dict[str, Any], rows: int, output: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """Where each model is, by its name, and why some forms are not there; ``rows`` of the task are for validation.

    The teacher's own int8 form is made too: where it is fast enough, nobody needs a student.
    """
    found, refused = {TEACHER: Path(teacher)}, {}
    wanted = [(_name(STUDENT, form), str(run), form, _FOLDERS.get(form, form)) for form in EXPORT_FORMS]
    wanted.append((_name(TEACHER, EXPORT_FORMS[-1]), teacher, EXPORT_FORMS[-1], f"{TEACHER}-{EXPORT_FORMS[-1]}"))
    for name, source, form, folder in wanted:
        shutil.rmtree(output / folder, ignore_errors=True)  # what an interrupted call left may be of another student
        try:
            with muted_messages():
                export(source, form, output / folder, task=task, max_drop=max(_MAX_DROP, _MAX_ROWS / rows))
        except MissingExtra as error:
            return found, {"ONNX": str(error)}
        except LimbeckError as error:  # it would answer otherwise, or the family has no such form
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
    """The entries of a summary about the models as they are served."""
    predictions = {STUDENT: scores.predictions[method]}
    for name, path in paths.items():
        if name not in (TEACHER, STUDENT):
            predictions[name] = _predictions(path, task, run)
    scores = scores.with_predictions(predictions)
    found = bench(list(paths.values()), batch_sizes=_BATCH_SIZES, lengths=[length], seconds=_SECONDS, memory=False)
    reference = found.models[0].cell(1, length).timing.p50_ms
    models: list[dict[str, Any]] = []
    for name, measured in zip(paths, found.models, strict=True):
        timing = measured.cell(1, length).timing
        models.append(
            {
                "name": name,
                "form": measured.form,
                "score": scores.score(name),
                "agreement": None if name == TEACHER else scores.agreement(name),
                "parameters": measured.parameters,
                "disk_bytes": measured.disk_bytes,
                "p50_ms": timing.p50_ms,
                "p95_ms": timing.p95_ms,
                "latency_ratio": timing.p50_ms / reference,
                "batch_ms": measured.cell(_BATCH_SIZES[-1], length).timing.p50_ms,
                "within_budget": budget.met(timing.p50_ms, reference),
            }
        )
    students = [model for model in models if model["name"].startswith(STUDENT)]
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


def _latency(model: Mapping[str, Any]) -> float:
    return float(model["p50_ms"])


def _predictions(path: Path, task: Task, run: Path) -> np.ndarray:
    """What an exported model says to the validation rows, read as the run read them."""
    served = load_served(path, task=task)
    with muted_messages():
        encoded = task.encode("validation", served.tokenizer, (own_task(run) or {})["max_length"])
    collate = Collator(served.tokenizer, problem=task.problem)
    logits = logits_in_order(served.logits, encoded, collate, _BATCH_SIZES[-1], f"evaluate {path.name}")
    return np.asarray(task.predictions(logits))

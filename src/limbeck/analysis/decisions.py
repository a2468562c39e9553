"""Compare a student's decisions with its teacher's, and tell how far they can be believed.

All of it from ``predictions.parquet``, without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from limbeck.compare.answers import Answers, agreement, prediction_columns, read_answers
from limbeck.metrics import METRICS, answer_scores
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import label_names

_BINS = 10


@dataclass(frozen=True)
class Restoration:
    """Hold scores of the student's answers as if the teacher's were the truth (Jung et al. 2023, figure 3).

    ``scores`` are precision, recall and f1 (of the second of two classes, of more classes their mean); of numbers
    pearson and spearman; of questions exact_match and f1.
    """

    scores: dict[str, float]
    per_class: tuple[dict[str, Any], ...] = ()  # class, precision, recall, f1, and how often the teacher answers it


@dataclass(frozen=True)
class Calibration:
    """Hold, for each bin of confidence, how many answers there are, how sure they are and how many are right."""

    edges: np.ndarray  # of the bins, one more than there are bins
    counts: np.ndarray
    confidence: np.ndarray  # mean of a bin, 0 of an empty one
    accuracy: np.ndarray
    error: float  # expected calibration error: |confidence - accuracy|, weighted by the counts
    brier: float  # mean squared difference between the probabilities and the truth, summed over classes


@dataclass(frozen=True)
class Decisions:
    """Hold what there is to say about one run; None where its answers are of another kind or had no teacher."""

    agreement: float | None = None  # share of equal answers; of numbers their correlation
    restoration: Restoration | None = None
    calibration: Calibration | None = None
    teacher_calibration: Calibration | None = None


def decisions_of(run: Path) -> Decisions:
    """Compute the decisions from the predictions that a run keeps; runs on plain text keep none."""
    file = RunDirectory(run).predictions()
    if not file.is_file():
        return Decisions()
    answers = read_answers(file)
    columns = prediction_columns(file, ("logits", "teacher_prediction", "teacher_logits"))
    student, teacher = (
        _calibration(columns[name], answers.labels) if answers.kind == "classes" and name in columns else None
        for name in ("logits", "teacher_logits")
    )
    if "teacher_prediction" not in columns:
        return Decisions(calibration=student)
    taught = columns["teacher_prediction"]
    alike = agreement(answers, replace(answers, predictions=taught))
    return Decisions(alike, _restored(answers, taught, run), student, teacher)


def _restored(answers: Answers, teacher: list[Any], run: Path) -> Restoration:
    student = answers.predictions
    if answers.kind == "numbers":
        return Restoration({name: METRICS[name](student, teacher) for name in ("pearson", "spearman")})
    if answers.kind == "questions":
        rated = np.array(
            [answer_scores(ours, [theirs], unanswerable=True) for ours, theirs in zip(student, teacher, strict=True)]
        )
        exact, f1 = rated.mean(axis=0).tolist()
        return Restoration({"exact_match": exact, "f1": f1})
    if answers.kind == "tags":
        student, teacher = ([tag for tags in rows for tag in tags] for rows in (student, teacher))
    return restoration(student, teacher, label_names(RunDirectory(run)))


def restoration(student: Any, teacher: Any, names: Sequence[str] = ()) -> Restoration:
    """Score class indices (N,) or a 0/1 matrix (N, labels); a class that neither side answers counts in no mean."""
    student, teacher = np.asarray(student), np.asarray(teacher)
    several = student.ndim == 2
    count = len(names) or (student.shape[1] if several else int(max(student.max(), teacher.max())) + 1)
    names = names or [str(number) for number in range(count)]
    ours, theirs = (side == 1 if several else side[:, None] == np.arange(count) for side in (student, teacher))
    rows = tuple(
        {
            "class": name,
            "precision": both / max(given, 1),
            "recall": both / max(wanted, 1),
            "f1": 2 * both / max(given + wanted, 1),
            "teacher": wanted,
        }
        for name, both, given, wanted in zip(
            names, *(side.sum(axis=0).tolist() for side in (ours & theirs, ours, theirs)), strict=True
        )
    )
    answered = (ours | theirs).any(axis=0)
    counted = [row for row, seen in zip(rows, answered, strict=True) if seen]
    if count == 2 and not several and answered[1]:
        counted = [rows[1]]
    # where neither side gives any text a label, nothing was lost
    means = {name: fmean(row[name] for row in counted) if counted else 1.0 for name in ("precision", "recall", "f1")}
    return Restoration(means, rows)


def calibration(probabilities: Any, labels: Any, bins: int = _BINS) -> Calibration:
    """Compare class probabilities (N, classes) with labels (N,)."""
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    # bins are open on the left, so that a confidence of 1 is in the last
    which = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(which, minlength=bins)
    filled = np.maximum(counts, 1)
    confidence = np.bincount(which, sure, minlength=bins) / filled
    accuracy = np.bincount(which, right, minlength=bins) / filled
    error = float((counts * np.abs(confidence - accuracy)).sum() / len(labels))
    truth = np.eye(probabilities.shape[1])[labels]
    brier = float(((probabilities - truth) ** 2).sum(axis=1).mean())
    return Calibration(np.linspace(0, 1, bins + 1), counts, confidence, accuracy, error, brier)


def _calibration(logits: Any, labels: Any) -> Calibration | None:
    """Compare logits with labels; None for a model that has diverged, which is sure of nothing, not even wrongly."""
    from scipy.special import softmax

    logits = np.asarray(logits, dtype=np.float64)
    return calibration(softmax(logits, axis=1), labels) if np.isfinite(logits).all() else None

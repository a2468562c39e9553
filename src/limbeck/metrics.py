"""Compute the official metrics: by name, functions ``(predictions, labels) -> float`` that return fractions.

scikit-learn and scipy do the arithmetic. They are imported inside the functions because both are slow to
import and most commands never score anything.
"""

from __future__ import annotations

import collections
import re
import string
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from limbeck.errors import DataError

SMALLER_IS_BETTER = ("mse", "loss", "perplexity")  # every other metric is a share or a correlation, shown in hundredths
_NOTHING = "There is nothing to score: no predictions were given. Check that the split has rows."
Metric = Callable[[Any, Any], float]


def readable_score(name: str, value: float) -> str:
    """Write a metric's value for people: 0.7123 of accuracy is 71.23."""
    return f"{value:.4g}" if name in SMALLER_IS_BETTER else f"{100 * value:.2f}"


def accuracy(predictions: Any, labels: Any) -> float:
    """Return the share of rows that are right; for multi-label, rows whose whole label set is right."""
    from sklearn.metrics import accuracy_score

    predictions, labels = _arrays(predictions, labels)
    return float(accuracy_score(labels, predictions))


def f1(predictions: Any, labels: Any) -> float:
    """Return the F1 of class 1, as GLUE reports it for MRPC and QQP; 0 if class 1 is never right."""
    return _f1(predictions, labels, "binary")


def macro_f1(predictions: Any, labels: Any) -> float:
    """Average the F1 of every class that occurs in the labels or the predictions."""
    return _f1(predictions, labels, "macro")


def micro_f1(predictions: Any, labels: Any) -> float:
    """Return the F1 over all decisions together."""
    return _f1(predictions, labels, "micro")


def mcc(predictions: Any, labels: Any) -> float:
    """Return Matthews' correlation coefficient; 0 where either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    predictions, labels = _arrays(predictions, labels)
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(predictions: Any, labels: Any) -> float:
    """Return the linear correlation; 0 where either side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, labels)


def spearman(predictions: Any, labels: Any) -> float:
    """Return the rank correlation (ties share their mean rank); 0 where either side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, labels)


def mse(predictions: Any, labels: Any) -> float:
    """Return the mean squared error, the one metric here where smaller is better."""
    predictions, labels = _finite(*_arrays(predictions, labels))
    return float(np.mean((predictions - labels) ** 2))


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, word after the last) of each entity in a row of BIO tags (BIOES and BILOU too).

    An I- without a beginning begins an entity, as the CoNLL evaluation counts it.
    """
    found, start, kind, before = set(), 0, "", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind_here = tag.partition("-")
        if kind and not (prefix in ("I", "E", "L") and kind_here == kind and before not in ("E", "L", "S", "U")):
            found.add((kind, start, place))
            kind = ""
        if not kind and tag != "O":
            start, kind = place, kind_here
        before = prefix
    return found


def entity_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return micro F1, precision and recall of whole entities: right only if type, first and last word are."""
    if not labels:
        raise DataError(_NOTHING)
    pairs = [(entities(ours), entities(theirs)) for ours, theirs in zip(predictions, labels, strict=True)]
    right = sum(len(ours & theirs) for ours, theirs in pairs)
    guessed, there = sum(len(ours) for ours, _ in pairs), sum(len(theirs) for _, theirs in pairs)
    return {
        "entity_f1": 2 * right / max(guessed + there, 1),
        "entity_precision": right / max(guessed, 1),
        "entity_recall": right / max(there, 1),
    }


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "mcc": mcc,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mse,
}


def _f1(predictions: Any, labels: Any, average: str) -> float:
    from sklearn.metrics import f1_score

    predictions, labels = _arrays(predictions, labels)
    return float(f1_score(labels, predictions, average=average, zero_division=0.0))


def _correlation(function: Callable[..., Any], predictions: Any, labels: Any) -> float:
    predictions, labels = _finite(*_arrays(predictions, labels))
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    with warnings.catch_warnings():
        # Nearly constant predictions are ordinary early in training; scipy warns that they are imprecise.
        warnings.simplefilter("ignore")
        value = float(function(predictions, labels).statistic)
    return value if np.isfinite(value) else 0.0


def _arrays(predictions: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape:
        raise ValueError(f"predictions have shape {predictions.shape} but labels {labels.shape}")
    if labels.size == 0:
        raise DataError(_NOTHING)
    return predictions, labels


def _finite(predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = predictions.astype(np.float64), labels.astype(np.float64)
    bad = int(np.count_nonzero(~np.isfinite(predictions)))
    if bad:
        raise DataError(
            f"{bad:,} of {predictions.size:,} predictions are not finite numbers, so they cannot be scored. "
            "The model has probably diverged; lower train.learning_rate."
        )
    return predictions, labels


_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = set(string.punctuation)


def normalized_answer(text: str) -> str:
    """Remove case, punctuation, articles and extra blanks, as SQuAD does before it compares answers."""
    kept = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def answer_scores(prediction: str, answers: Sequence[str], unanswerable: bool = False) -> tuple[float, float]:
    """Return SQuAD's exact match and F1: the best over the known answers.

    Where questions may have none (2.0), answers that are empty once normalised do not count, a question without answers
    is right if it is answered by nothing, and F1 against nothing is 1 or 0.
    """
    if unanswerable:
        answers = [answer for answer in answers if normalized_answer(answer)] or [""]
    ours = normalized_answer(prediction)
    exact = max((float(ours == normalized_answer(answer)) for answer in answers), default=0.0)
    return exact, max(
        (_token_f1(ours.split(), normalized_answer(answer).split(), unanswerable) for answer in answers), default=0.0
    )


def _token_f1(ours: list[str], theirs: list[str], unanswerable: bool) -> float:
    if unanswerable and not (ours and theirs):
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0

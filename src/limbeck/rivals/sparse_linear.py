"""Fit linear models to sparse features: support vectors for classes and labels, ridge for numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from limbeck.metrics import METRICS, SMALLER_IS_BETTER
from limbeck.models.linear import LinearProblem, fold_numbers, linear_predictions
from limbeck.rivals.rival import SEED, some_rows

STRENGTHS = (0.03, 0.1, 0.3, 1.0)  # scikit-learn's C; for ridge 1 / alpha


@dataclass(frozen=True)
class SparseLinear:
    """Hold weights (labels, D) and biases (labels,), and how they were chosen."""

    weight: np.ndarray
    bias: np.ndarray
    strength: float
    score: float  # cross-validated, of the best strength; NaN where there are too few different rows

    def logits(self, features: Any) -> np.ndarray:
        """Return (N, labels)."""
        found: np.ndarray = features @ self.weight.T + self.bias
        return found


def fit_sparse(
    features: Any, labels: np.ndarray, problem: LinearProblem, num_labels: int, metric: str, groups: np.ndarray
) -> SparseLinear:
    """Fit to sparse ``features`` (N, D), as strong as is best in a cross-validation of some of the rows.

    Rows of one group are never on both sides of a fold. Of equally good strengths, the smallest is taken.
    """
    some = some_rows(features.shape[0])
    folds = fold_numbers(len(some), groups[some].tolist(), SEED)
    scores = {
        strength: _cross_validate(features[some], labels[some], problem, num_labels, metric, folds, strength)
        for strength in STRENGTHS
    }
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    # nothing to choose by: as much as scikit-learn takes by itself
    strength = 1.0 if np.isnan(scores[1.0]) else max(scores, key=lambda one: sign * scores[one])
    return SparseLinear(*_fit(features, labels, problem, num_labels, strength), strength, scores[strength])


def _cross_validate(
    features: Any,
    labels: np.ndarray,
    problem: LinearProblem,
    num_labels: int,
    metric: str,
    folds: np.ndarray,
    strength: float,
) -> float:
    if len(np.unique(folds)) < 2:
        return float("nan")
    logits = np.empty((features.shape[0], num_labels))
    for fold in np.unique(folds):
        held = folds == fold
        weight, bias = _fit(features[~held], labels[~held], problem, num_labels, strength)
        logits[held] = features[held] @ weight.T + bias
    return METRICS[metric](linear_predictions(logits, problem), labels)


def _fit(
    features: Any, labels: np.ndarray, problem: LinearProblem, num_labels: int, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.linear_model import Ridge

    if problem == "regression":
        fitted = Ridge(alpha=1 / strength).fit(features, labels)
        return np.atleast_2d(fitted.coef_), np.atleast_1d(np.float64(fitted.intercept_))
    if problem == "multi_label":
        each = [_fit_classes(features, column.astype(np.int64), 2, strength) for column in labels.T]
        # of two opposite logits the difference, so that 0 decides
        return np.stack([w[1] - w[0] for w, _ in each]), np.array([b[1] - b[0] for _, b in each])
    return _fit_classes(features, labels, num_labels, strength)


def _fit_classes(features: Any, labels: np.ndarray, num_labels: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Fit one class against the rest, for each; a class without rows is never answered."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    present = np.unique(labels)
    weight, bias = np.zeros((num_labels, features.shape[1])), np.full(num_labels, -np.inf)
    if len(present) == 1:  # nothing to tell apart
        bias[:] = -1.0
        bias[present] = 1.0
        return weight, bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digit decides nothing
        fitted = LinearSVC(C=strength, random_state=SEED).fit(features, labels)
    if len(present) == 2:
        weight[present] = np.concatenate([-fitted.coef_, fitted.coef_]) / 2
        bias[present] = np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2
    else:
        weight[present], bias[present] = fitted.coef_, fitted.intercept_
    return weight, bias

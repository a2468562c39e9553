"""Fit a linear model to fixed features: what a head can know before anything else is trained.

Features are standardised, the regularisation is chosen by cross-validation on the given rows, and the scaling is folded
into the weights, so that a plain linear layer computes the same from the features as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from limbeck.metrics import METRICS, SMALLER_IS_BETTER
from limbeck.problems import Problem

LinearProblem = Literal["classification", "multi_label", "regression"]
_KINDS: dict[Problem, LinearProblem] = {"regression": "regression", "multi_label": "multi_label", "span": "multi_label"}
Scorer = Callable[[np.ndarray, np.ndarray], float]  # of logits and labels, more is better

# What errors cost against large weights (scikit-learn's C; for ridge 1 / alpha), tried outwards from the middle.
STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_START = 5
_FOLDS = 3
TUNED_ON = 3_000  # rows by which the strength is chosen: more take longer and hardly change the choice
_ITERATIONS = 300
_MANY_ROWS = 4_000
_SMALLEST_SCALE = 1e-6  # of a feature's deviation against the largest: one that hardly varies tells nothing


def linear_kind(problem: Problem) -> LinearProblem:
    """Say what a linear model of a problem's single decisions is: of a span, whether a token is its start, its end."""
    return _KINDS.get(problem, "classification")


@dataclass(frozen=True)
class LinearModel:
    """Hold a fitted linear model on raw features, and how well it answers rows that it was not fitted to."""

    weight: np.ndarray  # (labels, D)
    bias: np.ndarray  # (labels,)
    strength: float
    score: float  # of the metric it was asked for, cross-validated; NaN where there are too few rows

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return (N, labels); two labels of a classification are opposite numbers."""
        answers: np.ndarray = features.astype(np.float64) @ self.weight.T + self.bias
        return answers


def fit_linear(
    features: np.ndarray,
    labels: Any,
    problem: LinearProblem,
    *,
    num_labels: int,
    metric: str | Scorer,
    groups: Sequence[Any] | None = None,
    seed: int = 0,
    strengths: Sequence[float] = STRENGTHS,
    intercept: bool = True,
    class_weights: Sequence[float] | None = None,
) -> LinearModel:
    """Fit logistic regression (of each label alone for ``multi_label``), or ridge regression, to ``features`` (N, D).

    ``labels`` are class indices, rows of 0 and 1, or numbers. Rows of one group (equal texts, tokens of one sentence)
    are never on both sides of a fold. One strength in ``strengths`` is taken without a search. Without ``intercept``
    the bias is 0, for layers that have none. ``class_weights`` multiply the loss of a row of that class (of
    ``multi_label``: of a label that is there).
    """
    features = np.asarray(features, dtype=np.float32)
    labels = np.asarray(labels, dtype=np.int64 if problem == "classification" else np.float64)
    fit = _Fit(problem, num_labels, intercept, None if class_weights is None else np.asarray(class_weights))
    scorer = metric if callable(metric) else lambda logits, truth: _score(logits, truth, problem, metric)
    # a metric of its own may know which row is which, and is given all of them
    most = len(features) if callable(metric) else TUNED_ON
    folds, some = _some_folds(len(features), groups, seed, most)

    def cross_validated(strength: float) -> float:
        return _cross_validate(features[some], labels[some], fit, scorer, folds, strength)

    strength, score = _climb(cross_validated, strengths, metric not in SMALLER_IS_BETTER)
    weight, bias = fit(features, labels, strength)
    return LinearModel(weight, bias, strength, score)


def linear_predictions(logits: np.ndarray, problem: LinearProblem) -> np.ndarray:
    """Return the answers that logits (N, labels) stand for: classes, rows of 0 and 1, or numbers."""
    if problem == "regression":
        return logits[:, 0]
    answers: np.ndarray = logits.argmax(-1) if problem == "classification" else (logits > 0).astype(np.int64)
    return answers


def _some_folds(rows: int, groups: Sequence[Any] | None, seed: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the rows that cross-validate, about ``most`` of them in whole groups, and deal them out to folds."""
    if rows <= most:
        return fold_numbers(rows, groups, seed), np.arange(rows)
    _, owners = np.unique(np.arange(rows) if groups is None else np.asarray(groups), return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(owners.max() + 1)[owners]
    some = np.flatnonzero(drawn < (owners.max() + 1) * most / rows)
    return fold_numbers(len(some), owners[some].tolist(), seed), some


def fold_numbers(rows: int, groups: Sequence[Any] | None, seed: int) -> np.ndarray:
    """Deal the rows out to folds at random, those of one group together."""
    _, owners = np.unique(np.arange(rows) if groups is None else np.asarray(groups), return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(owners.max(initial=0) + 1)
    folds: np.ndarray = shuffled[owners] % _FOLDS
    return folds


def _climb(score: Callable[[float], float], strengths: Sequence[float], larger: bool) -> tuple[float, float]:
    """Walk from the middle of the strengths uphill, and return the best with its score; a tie is no step."""
    known: dict[int, float] = {}

    def value(place: int) -> float:
        if place not in known:
            known[place] = score(strengths[place])
        found = known[place]
        return -np.inf if np.isnan(found) else found if larger else -found

    best = min(_START, len(strengths) - 1)
    while True:
        around = [place for place in (best - 1, best, best + 1) if 0 <= place < len(strengths)]
        better = max(around, key=value)
        if better == best or value(better) == value(best):
            return strengths[best], known[best]
        best = better


def _cross_validate(
    features: np.ndarray, labels: np.ndarray, fit: _Fit, scorer: Scorer, folds: np.ndarray, strength: float
) -> float:
    """Answer each fold by a model fitted to the others, and score all answers together."""
    if len(np.unique(folds)) < 2:
        return float("nan")
    logits = np.empty((len(features), fit.num_labels))
    for fold in np.unique(folds):
        held = folds == fold
        weight, bias = fit(features[~held], labels[~held], strength)
        logits[held] = features[held] @ weight.T + bias
    return scorer(logits, labels)


def _score(logits: np.ndarray, labels: np.ndarray, problem: LinearProblem, metric: str) -> float:
    return METRICS[metric](linear_predictions(logits, problem), labels)


@dataclass(frozen=True)
class _Fit:
    """Fit to standardised features, and return weight and bias for the features as they are."""

    problem: LinearProblem
    num_labels: int
    intercept: bool
    class_weights: np.ndarray | None

    def __call__(self, features: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
        mean = features.mean(0, dtype=np.float64)
        deviation = features.std(0, dtype=np.float64)
        flat = deviation <= _SMALLEST_SCALE * deviation.max(initial=0.0)
        scale = np.where(flat, 0.0, 1.0 / np.where(flat, 1.0, deviation))
        moved = features - mean if self.intercept else features  # without a bias nothing could undo the move
        scaled = (moved * scale).astype(np.float32)
        fits = {"classification": self._classes, "multi_label": self._each_label, "regression": self._numbers}
        weight, bias = fits[self.problem](scaled, labels, strength)
        weight = weight * scale
        if self.intercept:
            return weight, bias - weight @ mean
        # what only a bias can say (a class without rows), as well as the features' mean can say it
        return weight + np.outer(bias, mean / max(float(mean @ mean), 1e-12)), np.zeros_like(bias)

    def _classes(self, scaled: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
        present, counts = np.unique(labels, return_counts=True)
        weight, bias = np.zeros((self.num_labels, scaled.shape[1])), _log_shares(labels, self.num_labels)
        if len(present) == 1:  # nothing to tell apart
            return weight, bias
        weights = None if self.class_weights is None else {name: self.class_weights[name] for name in present.tolist()}
        fitted = self._logistic(scaled, labels, strength, weights)
        coefficients, intercepts = fitted.coef_, np.broadcast_to(fitted.intercept_, len(fitted.coef_))
        if len(present) == 2:
            coefficients, intercepts = _as_two_classes(coefficients, intercepts)
        weight[present] = coefficients
        bias[present] = intercepts
        absent = np.setdiff1d(np.arange(self.num_labels), present)
        bias[absent] = intercepts.min() - np.log(2.0 * counts.min())  # below the rarest that was seen
        return weight, bias

    def _each_label(self, scaled: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = np.zeros((self.num_labels, scaled.shape[1])), np.zeros(self.num_labels)
        for number, column in enumerate(labels.astype(np.int64).T):
            if column.min() == column.max():
                share = (column.sum() + 0.5) / (len(column) + 1)
                bias[number] = np.log(share / (1 - share))
            else:
                weights = None if self.class_weights is None else {0: 1.0, 1: self.class_weights[number]}
                fitted = self._logistic(scaled, column, strength, weights)
                weight[number], bias[number] = fitted.coef_[0], np.ravel(fitted.intercept_)[0]
        return weight, bias

    def _logistic(self, scaled: np.ndarray, labels: np.ndarray, strength: float, weights: Any) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        # products this small are slower where threads share them
        threads = threadpool_limits(1, "blas") if len(scaled) < _MANY_ROWS else nullcontext()
        with warnings.catch_warnings(), threads:
            warnings.simplefilter("ignore", ConvergenceWarning)  # a start for training need not be the last digit
            # as where few rows compare layers: they are classes all the same
            warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
            model = LogisticRegression(
                C=strength, max_iter=_ITERATIONS, fit_intercept=self.intercept, class_weight=weights
            )
            return model.fit(scaled, labels)

    def _numbers(self, scaled: np.ndarray, labels: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.linear_model import Ridge

        fitted = Ridge(alpha=1 / strength, fit_intercept=self.intercept).fit(
            scaled, labels.reshape(len(labels), -1)[:, 0]
        )
        return fitted.coef_[None].astype(np.float64), np.atleast_1d(np.float64(fitted.intercept_))


def _as_two_classes(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn the logit of the second class against the first into a logit of each."""
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


def _log_shares(labels: np.ndarray, num_labels: int) -> np.ndarray:
    counts = np.bincount(labels, minlength=num_labels) + 0.5
    shares: np.ndarray = np.log(counts / counts.sum())
    return shares

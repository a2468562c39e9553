"""Compute metrics of examples that are drawn anew, for the bootstrap: many draws at once.

A draw is a row of weights, how often each example came up, and every metric is a function of weighted sums: nothing
loops over draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from limbeck.errors import DataError

ROUNDING = 1e-12  # relative; what differs by less is equal
_CELLS = 2**17  # weights that are held at once: few enough for a processor's cache

# (draws R, examples N) weights -> (predictions S, R) scores; a weight is how often the example was drawn
_Statistic = Callable[[np.ndarray], np.ndarray]


def draw_weights(examples: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield weights (R, N), R at a time: how often each example comes up in N draws with replacement."""
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS // examples)
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        drawn = generator.integers(examples, size=(rows, examples))
        drawn += examples * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * examples)
        yield counts.reshape(rows, examples).astype(np.float64)


def stack_predictions(
    metric: str, ours: Sequence[Any], theirs: Sequence[Any], labels: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Stack predictions (S, N) or (S, N, K), ours first, and labels (N,) or (N, K) (else the first predictions)."""
    if not len(ours) or not len(theirs):
        raise DataError(f"The bootstrap needs models on both sides; seen: {len(ours)} and {len(theirs)}.")
    if (labels is None) != (metric in ("mean", "entity_f1")):
        raise DataError(f"The bootstrap of {metric} {'needs' if labels is None else 'takes no'} labels.")
    try:
        sides = [np.asarray(one, dtype=np.float64) for one in (*ours, *theirs)]
        truth = sides[0] if labels is None else np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"The bootstrap of {metric} needs numbers, as many for each example; seen: {error}") from error
    shapes = [one.shape for one in (truth, *sides)]
    dimensions = {"entity_f1": (2,), "accuracy": (1, 2), "macro_f1": (1, 2), "micro_f1": (1, 2)}.get(metric, (1,))
    if len(set(shapes)) > 1 or not truth.size or truth.ndim not in dimensions:
        raise DataError(
            f"The bootstrap of {metric} needs the same examples for labels and all predictions, at least one, "
            f"in {' or '.join(map(str, dimensions))} dimension(s); seen: shapes {', '.join(map(str, shapes))}."
        )
    bad = sum(int(np.count_nonzero(~np.isfinite(one))) for one in ([truth] if labels is not None else []) + sides)
    if bad:
        raise DataError(f"{bad:,} predictions or labels are not finite numbers. Leave out the run that diverged.")
    return np.stack(sides), truth


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    right = predictions == labels
    return _mean(right.all(axis=2) if right.ndim == 3 else right, labels)


def _mse(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    return _mean((predictions - labels) ** 2, labels)


def _mean(values: np.ndarray, _: np.ndarray) -> _Statistic:
    values = values.astype(np.float64)
    return lambda weights: values @ weights.T / values.shape[1]


def _entity_f1(counts: np.ndarray, _: np.ndarray) -> _Statistic:
    if counts.shape[2] != 3:
        raise DataError(f"The bootstrap of entity_f1 needs 3 counts for each example; seen: {counts.shape[2]}.")

    def scores(weights: np.ndarray) -> np.ndarray:
        right, guessed, there = np.moveaxis(weights @ counts, -1, 0)
        return 2 * right / np.maximum(guessed + there, 1)

    return scores


def _f1(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    # class 1 alone, as a set of one label
    counts = _counts(predictions[..., None], labels[..., None])
    return lambda weights: _f1_of(*counts(weights))[..., 0]


def _macro_f1(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    counts = _counts(*_classes(predictions, labels))
    # a label that never occurs counts; a class that this draw left out does not
    sets = labels.ndim == 2 and labels.shape[1] > 1

    def scores(weights: np.ndarray) -> np.ndarray:
        right, guessed, there = counts(weights)
        return _f1_of(right, guessed, there).mean(axis=-1, where=sets | (guessed + there > 0))

    return scores


def _micro_f1(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    counts = _counts(*_classes(predictions, labels))
    return lambda weights: _f1_of(*(count.sum(axis=-1) for count in counts(weights)))


def _mcc(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    counts, examples = _counts(*_classes(predictions, labels)), len(labels)

    def scores(weights: np.ndarray) -> np.ndarray:
        right, guessed, there = counts(weights)
        together = examples * right.sum(axis=-1) - (guessed * there).sum(axis=-1)
        spreads = [examples**2 - (count**2).sum(axis=-1) for count in (guessed, there)]
        return _ratio(together, np.sqrt(spreads[0] * spreads[1]))

    return scores


def _classes(predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn classes into 0/1, (S, N, K) and (N, K); label sets are that already, but one label alone is two classes."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return predictions, labels
    predictions, labels = predictions.reshape(len(predictions), -1), labels.reshape(-1)
    classes = np.unique(np.append(predictions, labels))
    return predictions[..., None] == classes, labels[..., None] == classes


def _counts(guessed: np.ndarray, there: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Count for each class how often it is right, predicted, true; (S, R, K), (S, R, K), (R, K)."""
    guessed, there = guessed.astype(np.float64), there.astype(np.float64)
    if not (np.isin(guessed, (0, 1)).all() and np.isin(there, (0, 1)).all()):
        raise DataError("F1 of two classes or of label sets needs 0 and 1; seen: other values.")
    right = guessed * there
    return lambda weights: (weights @ right, weights @ guessed, weights @ there)


def _f1_of(right: np.ndarray, guessed: np.ndarray, there: np.ndarray) -> np.ndarray:
    return _ratio(2 * right, guessed + there)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide, with 0 where it is undefined."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    return lambda weights: _correlations(_columns(weights), (row[:, None] for row in predictions), labels[:, None])


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> _Statistic:
    rank_labels, *rank = [_ranks(values) for values in (labels, *predictions)]

    def scores(weights: np.ndarray) -> np.ndarray:
        weights = _columns(weights)
        return _correlations(weights, (of(weights) for of in rank), rank_labels(weights))

    return scores


def _columns(weights: np.ndarray) -> np.ndarray:
    """Turn to (N, R): an example's weights lie together, so that sorting the examples moves whole rows."""
    return np.ascontiguousarray(weights.T)


def _ranks(values: np.ndarray) -> _Statistic:
    """Turn weights (N, R) into ranks (N, R) inside each draw; equal values share their mean rank."""
    order = np.argsort(values)
    first, last = (np.searchsorted(values[order], values, side=side) for side in ("left", "right"))

    def ranks(weights: np.ndarray) -> np.ndarray:
        below = np.zeros((len(values) + 1, weights.shape[1]))
        np.cumsum(weights[order], axis=0, out=below[1:])
        return (below[first] + below[last] + 1) / 2

    return ranks


def _correlations(weights: np.ndarray, predictions: Iterable[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Correlate in each draw, a column here, around its own means: sums of raw squares would lose the digits."""
    labels, labels_vary = _centred(weights, labels)
    weighted = weights * labels
    spread = np.sqrt((weighted * labels).sum(axis=0))
    found = []
    for row in predictions:
        row, varies = _centred(weights, row)
        spreads = spread * np.sqrt((weights * row * row).sum(axis=0))
        found.append(_ratio((weighted * row).sum(axis=0), np.where(varies & labels_vary, spreads, 0.0)))
    return np.stack(found)


def _centred(weights: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (N, R) without the mean of each draw, and whether those that were drawn differ."""
    mean = (weights * values).sum(axis=0) / len(weights)
    values = values - mean
    farthest = (np.abs(values) * (weights > 0)).max(axis=0)
    return values, farthest > ROUNDING * np.abs(mean)


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray], _Statistic]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "mcc": _mcc,
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": _mse,
    "mean": _mean,
    "entity_f1": _entity_f1,
}

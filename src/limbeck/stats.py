"""Statistics of scores over seeds, and of predictions example by example: functions over plain numbers and arrays.

scipy has the distributions. It is imported inside the functions because it is slow to import.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from limbeck.errors import DataError, unknown
from limbeck.metrics import SMALLER_IS_BETTER

# two: is there a difference? greater: is ours better? observed: is the side that is ahead better, as paper 001 asks
# (section 4.4)? The last chooses its question after the answer: it is half the two-sided value, and false alarms are
# twice as frequent as it says.
Sided = Literal["two", "greater", "observed"]

_LEVEL = 0.95  # of the intervals of differences
_ROUNDING = 1e-12  # relative; what differs by less is equal
_FEW = 25  # examples that differ, from which the normal distribution is close enough
_CELLS = 2**17  # weights that are held at once: few enough for a processor's cache

# (resamples R, examples N) weights -> (predictions S, R) scores; a weight is how often the example was drawn
_Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Summary:
    """Scores over seeds; one score has neither deviation nor interval."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """A test of ours against theirs; ``test`` says for people which one."""

    test: str
    difference: float  # ours - theirs
    p: float
    low: float | None = None  # 95% interval of the difference, two-sided whatever the test is
    high: float | None = None


def summary(scores: Sequence[float], level: float = 0.95) -> Summary:
    """Mean, standard deviation (of a sample: n - 1) and the t interval of the mean."""
    from scipy import stats

    values = _finite(scores)
    if not values:
        raise DataError("There are no scores to summarise. Check that the runs are finished.")
    mean, count = fmean(values), len(values)
    if count == 1:
        return Summary(mean, None, None, None, 1)
    sd = stdev(values)
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * sd / math.sqrt(count)
    return Summary(mean, sd, mean - half, mean + half, count)


def t_test(ours: Sequence[float], theirs: Sequence[float], *, paired: bool = False, sided: Sided = "two") -> Comparison:
    """Of two means over seeds: Welch's test, or ``paired`` by position, for the same seeds on both sides.

    Larger scores count as better; give the scores with the opposite sign where smaller ones are. Constant scores have
    no t: p is 1 where they are equal and 0 (on the side that is ahead) where they are not.
    """
    from scipy import stats

    a, b = _finite(ours), _finite(theirs)
    if min(len(a), len(b)) < 2:
        raise DataError(
            f"A t-test needs at least 2 scores on each side; seen: {len(a)} and {len(b)}. Run more seeds, or compare "
            "the predictions of single runs by McNemar's test or the bootstrap."
        )
    if paired and len(a) != len(b):
        raise DataError(
            f"A paired t-test needs the same seeds on both sides; seen: {len(a)} and {len(b)} scores. "
            "Run the seeds that are missing, or use Welch's test."
        )
    name = f"paired t-test, {len(a)} seeds" if paired else f"Welch t-test, {len(a)} and {len(b)} seeds"
    difference = fmean(a) - fmean(b)
    # t does not depend on the scale, and at this one no square is too large or too small for a float
    scale = max(map(abs, a + b)) or 1.0
    x, y = np.array(a) / scale, np.array(b) / scale
    if (np.ptp(x - y) if paired else max(np.ptp(x), np.ptp(y))) <= _ROUNDING:
        ahead = difference / scale
        p = _p(float(ahead <= _ROUNDING), float(ahead >= -_ROUNDING), sided)
        return Comparison(name, difference, p, difference, difference)
    with warnings.catch_warnings():
        # scipy warns that the deviation of scores which hardly vary is imprecise, although one side may be constant
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=False)
    upper, lower = (float(stats.t.sf(sign * result.statistic, result.df)) for sign in (1, -1))
    low, high = (scale * float(end) for end in result.confidence_interval(_LEVEL))
    return Comparison(name, difference, _p(upper, lower, sided), low, high)


def mcnemar(ours_right: Any, theirs_right: Any, *, sided: Sided = "two") -> Comparison:
    """Of two models on the same examples in the same order, given which ones each got right.

    Only examples on which one is right and the other wrong count: by the binomial distribution where they are fewer
    than 25, else by the normal one with continuity correction (its square is the corrected chi-square). ``difference``
    is of the shares that are right. The test is about two models, not about the methods that made them.
    """
    ours_only, theirs_only, examples = _disagreements(ours_right, theirs_right)
    kind = "exact" if ours_only + theirs_only < _FEW else "corrected"
    return Comparison(
        f"McNemar, {kind}, {ours_only:,} and {theirs_only:,} of {examples:,} differ",
        (ours_only - theirs_only) / examples,
        _p(*_mcnemar_tails(ours_only, theirs_only), sided),
    )


def mcnemar_over_seeds(ours_right: Sequence[Any], theirs_right: Sequence[Any], *, sided: Sided = "two") -> Comparison:
    """A McNemar test for each seed (by position), and one p of them all.

    Pooling the seeds would count the same examples several times, as if they were new ones. Instead, of n values the
    k-th smallest times n/k is taken, k = n/2 rounded up: at most about twice their median. That is a valid p however
    the values depend on each other. Each direction is combined by itself, so that seeds which contradict each other
    are no evidence.
    """
    if len(ours_right) != len(theirs_right) or len(ours_right) == 0:
        raise DataError(
            f"McNemar's test over seeds needs as many runs of ours as of theirs, at least one; seen: {len(ours_right)} "
            f"and {len(theirs_right)}. Run the seeds that are missing."
        )
    if len(ours_right) == 1:
        return mcnemar(ours_right[0], theirs_right[0], sided=sided)
    counts = [_disagreements(*pair) for pair in zip(ours_right, theirs_right, strict=True)]
    tails = [_mcnemar_tails(ours_only, theirs_only) for ours_only, theirs_only, _ in counts]
    upper, lower = (_combined(side) for side in zip(*tails, strict=True))
    difference = fmean((ours_only - theirs_only) / examples for ours_only, theirs_only, examples in counts)
    return Comparison(f"McNemar, {len(counts)} seeds combined", difference, _p(upper, lower, sided))


def paired_bootstrap(
    metric: str,
    ours: Sequence[Any],
    theirs: Sequence[Any],
    labels: Any,
    *,
    resamples: int = 10_000,
    seed: int = 0,
    sided: Sided = "two",
) -> Comparison:
    """Of the mean of a metric over our models minus that over theirs, by drawing the examples anew.

    ``ours`` and ``theirs`` hold the predictions of each seed; one draw serves them all. The interval is of percentiles,
    p the share of draws on the other side of 0. Both are about other examples, not about other seeds.

    ``metric`` is one of ``metrics.METRICS``; or, with ``labels=None``, ``mean`` of values given instead of predictions,
    or ``entity_f1`` of counts (N, 3) instead: right, predicted, true. Counts of right, all, all words make it the share
    of right words. ``difference`` is ours minus theirs even for ``mse``, where "greater" asks whether ours is smaller.
    """
    if metric not in _STATISTICS:
        raise DataError(unknown("metric", metric, _STATISTICS, f"The bootstrap has {', '.join(_STATISTICS)}."))
    predictions, truth = _prepared(metric, ours, theirs, labels)
    statistic = _STATISTICS[metric](predictions, truth)

    def differences(weights: np.ndarray) -> np.ndarray:
        scores = statistic(weights)
        a, b = scores[: len(ours)].mean(axis=0), scores[len(ours) :].mean(axis=0)
        # the order of a sum must not decide who is ahead
        return np.where(np.abs(a - b) <= _ROUNDING * (np.abs(a) + np.abs(b)), 0.0, a - b)

    examples = predictions.shape[1]
    found = np.concatenate([differences(weights) for weights in _draws(examples, resamples, seed)])
    # what was seen is one more draw: no p is 0
    upper, lower = ((1 + int(np.count_nonzero(side))) / (resamples + 1) for side in (found <= 0, found >= 0))
    if metric in SMALLER_IS_BETTER:
        upper, lower = lower, upper
    low, high = np.percentile(found, [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)])
    return Comparison(
        f"paired bootstrap of {metric}, {resamples:,} draws of {examples:,} examples",
        float(differences(np.ones((1, examples)))[0]),
        _p(upper, lower, sided),
        float(low),
        float(high),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values, in the order given: below the level, they hold for all tests together."""
    values = np.array(p_values, dtype=np.float64)
    bad = values[~((values >= 0) & (values <= 1))]
    if bad.size:
        raise DataError(f"p-values must be from 0 to 1; seen: {bad[0]}. Leave out the tests that could not be made.")
    order = np.argsort(values, kind="stable")
    steps = np.arange(values.size, 0, -1) * values[order]
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in corrected]


def seeds_needed(comparisons: int = 1, level: float = 0.05, sided: Sided = "two") -> int:
    """The fewest seeds whose scores can differ significantly without the assumption that they are normal.

    If only signs count, the clearest result of n pairs of seeds is that all point the same way, which chance does
    with p = 2^(1-n), one-sided 2^-n. Holm's first step compares that with ``level / comparisons``.
    """
    if comparisons < 1 or not 0 < level < 1:
        raise DataError(
            "There must be at least 1 comparison, and a level between 0 and 1; "
            f"seen: {comparisons} and {level}. 0.05 is usual."
        )
    seeds = 2
    while _smallest_p(seeds, sided) >= level / comparisons:
        seeds += 1
    return seeds


def warning_about(seeds: int, comparisons: int = 1, level: float = 0.05, sided: Sided = "two") -> str:
    """For people: what so few seeds cannot show; empty where they are enough."""
    needed = seeds_needed(comparisons, level, sided)
    if seeds >= needed:
        return ""
    limit = f"{level:g}" + (f" / {comparisons} comparisons" if comparisons > 1 else "")
    if seeds < 2:
        seen = f"{seeds} seed{'s' * (seeds != 1)}"
        return f"With {seen} no test over seeds is possible; at least {needed} are needed for p < {limit}."
    return (
        f"With {seeds} seeds, a test that does not take the scores for normally distributed reaches p = "
        f"{_smallest_p(seeds, sided):.3g} at best; p < {limit} needs at least {needed} seeds. "
        "The t-test's smaller values rest on that assumption."
    )


def _smallest_p(seeds: int, sided: Sided) -> float:
    return 2.0 ** (1 - seeds if sided == "two" else -seeds)


def _p(upper: float, lower: float, sided: Sided) -> float:
    """From the tails: how probable a difference at least as far up, and at least as far down, is by chance."""
    if sided == "greater":
        return upper
    smaller = min(upper, lower)
    return min(1.0, 2 * smaller) if sided == "two" else smaller


def _finite(scores: Sequence[float]) -> list[float]:
    values = [float(score) for score in scores]
    bad = [value for value in values if not math.isfinite(value)]
    if bad:
        raise DataError(
            f"{len(bad)} of {len(values)} scores are not finite numbers (seen: {bad[0]}). "
            "A run has probably diverged: leave it out or run it again with a lower train.learning_rate."
        )
    return values


def _disagreements(ours_right: Any, theirs_right: Any) -> tuple[int, int, int]:
    """How many examples only ours got right, only theirs got right, and how many there are."""
    ours, theirs = np.asarray(ours_right), np.asarray(theirs_right)
    if ours.shape != theirs.shape or ours.ndim != 1 or not ours.size:
        raise DataError(
            "McNemar's test needs one value for each example, of the same examples on both sides; "
            f"seen: shapes {ours.shape} and {theirs.shape}. Compare runs on the same split."
        )
    if not (np.isin(ours, (0, 1)).all() and np.isin(theirs, (0, 1)).all()):
        raise DataError("McNemar's test needs right (1) or wrong (0) for each example; for other values use bootstrap.")
    ours, theirs = ours.astype(bool), theirs.astype(bool)
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum()), len(ours)


def _mcnemar_tails(ours_only: int, theirs_only: int) -> tuple[float, float]:
    from scipy import stats

    both = ours_only + theirs_only
    if both == 0:
        return 1.0, 1.0

    def tail(more: int) -> float:
        if both < _FEW:
            return float(stats.binomtest(more, both, alternative="greater").pvalue)
        return float(stats.norm.sf((2 * more - both - 1) / math.sqrt(both)))

    return tail(ours_only), tail(theirs_only)


def _combined(p_values: Sequence[float]) -> float:
    count = len(p_values)
    rank = -(-count // 2)
    return min(1.0, sorted(p_values)[rank - 1] * count / rank)


# The bootstrap. A draw is a row of weights, and every metric is a function of weighted sums: nothing loops over draws.


def _draws(examples: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Weights (R, N), R at a time: how often each example comes up in N draws with replacement."""
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS // examples)
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        drawn = generator.integers(examples, size=(rows, examples))
        drawn += examples * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * examples)
        yield counts.reshape(rows, examples).astype(np.float64)


def _prepared(metric: str, ours: Sequence[Any], theirs: Sequence[Any], labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (S, N) or (S, N, K), ours first, and labels (N,) or (N, K); none are the first predictions."""
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
    """As 0/1 for each class, (S, N, K) and (N, K); label sets are that already, but one label alone is two classes."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return predictions, labels
    predictions, labels = predictions.reshape(len(predictions), -1), labels.reshape(-1)
    classes = np.unique(np.append(predictions, labels))
    return predictions[..., None] == classes, labels[..., None] == classes


def _counts(guessed: np.ndarray, there: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """For each class: how often it is right, predicted, true; (S, R, K), (S, R, K), (R, K)."""
    guessed, there = guessed.astype(np.float64), there.astype(np.float64)
    if not (np.isin(guessed, (0, 1)).all() and np.isin(there, (0, 1)).all()):
        raise DataError("F1 of two classes or of label sets needs 0 and 1; seen: other values.")
    right = guessed * there
    return lambda weights: (weights @ right, weights @ guessed, weights @ there)


def _f1_of(right: np.ndarray, guessed: np.ndarray, there: np.ndarray) -> np.ndarray:
    return _ratio(2 * right, guessed + there)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where it is undefined."""
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
    """(N, R): an example's weights lie together, so that sorting the examples moves whole rows."""
    return np.ascontiguousarray(weights.T)


def _ranks(values: np.ndarray) -> _Statistic:
    """From weights (N, R) to ranks (N, R) inside each draw; equal values share their mean rank."""
    order = np.argsort(values)
    first, last = (np.searchsorted(values[order], values, side=side) for side in ("left", "right"))

    def ranks(weights: np.ndarray) -> np.ndarray:
        below = np.zeros((len(values) + 1, weights.shape[1]))
        np.cumsum(weights[order], axis=0, out=below[1:])
        return (below[first] + below[last] + 1) / 2

    return ranks


def _correlations(weights: np.ndarray, predictions: Iterable[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Of each draw, a column here, around its own means: sums of raw squares would lose the digits."""
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
    """Values (N, R) without the mean of each draw, and whether those that were drawn differ."""
    mean = (weights * values).sum(axis=0) / len(weights)
    values = values - mean
    farthest = (np.abs(values) * (weights > 0)).max(axis=0)
    return values, farthest > _ROUNDING * np.abs(mean)


_STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray], _Statistic]] = {
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

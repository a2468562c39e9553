"""Test scores over seeds, and predictions example by example: functions over plain numbers and arrays.

scipy has the distributions. It is imported inside the functions because it is slow to import.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from limbeck.errors import DataError, unknown
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.stats.bootstrap import ROUNDING, STATISTICS, draw_weights, stack_predictions

# two: is there a difference? greater: is ours better? observed: is the side that is ahead better? Section 5.1.1 of Jung
# et al. 2023 describes the last, which chooses its question after the answer: it is half the two-sided value and never
# above 0.5, and false alarms are twice as frequent as it says. The p of 0.521, 0.995 and 0.982 that they print where
# a baseline is ahead are those of "greater".
Sided = Literal["two", "greater", "observed"]

_LEVEL = 0.95  # of the intervals of differences
_FEW = 25  # examples that differ, from which the normal distribution is close enough


@dataclass(frozen=True)
class Summary:
    """Summarise scores over seeds; one score has neither deviation nor interval."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """Hold a test of ours against theirs; ``test`` says for people which one."""

    test: str
    difference: float  # ours - theirs
    p: float
    low: float | None = None  # 95% interval of the difference, two-sided whatever the test is
    high: float | None = None
    p_by_seed: tuple[float, ...] = ()  # of tests that were combined: each run against one run, corrected for nothing


def summary(scores: Sequence[float], level: float = 0.95) -> Summary:
    """Compute mean, standard deviation (of a sample: n - 1) and the t interval of the mean."""
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
    """Compare two means over seeds: Welch's test, or ``paired`` by position, for the same seeds on both sides.

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
    if (np.ptp(x - y) if paired else max(np.ptp(x), np.ptp(y))) <= ROUNDING:
        ahead = difference / scale
        p = _p(float(ahead <= ROUNDING), float(ahead >= -ROUNDING), sided)
        return Comparison(name, difference, p, difference, difference)
    with warnings.catch_warnings():
        # scipy warns that the deviation of scores which hardly vary is imprecise, although one side may be constant
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=False)
    upper, lower = (float(stats.t.sf(sign * result.statistic, result.df)) for sign in (1, -1))
    low, high = (scale * float(end) for end in result.confidence_interval(_LEVEL))
    return Comparison(name, difference, _p(upper, lower, sided), low, high)


def mcnemar(ours_right: Any, theirs_right: Any, *, sided: Sided = "two") -> Comparison:
    """Compare two models on the same examples in the same order, given which ones each got right.

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
    """Make a McNemar test for each seed (by position), and combine them into one p.

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
    return Comparison(
        f"McNemar, {len(counts)} seeds combined",
        difference,
        _p(upper, lower, sided),
        p_by_seed=tuple(_p(*pair, sided) for pair in tails),
    )


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
    """Compare the mean of a metric over our models with that over theirs, by drawing the examples anew.

    ``ours`` and ``theirs`` hold the predictions of each seed; one draw serves them all. The interval is of percentiles,
    p the share of draws on the other side of 0. Both are about other examples, not about other seeds.

    ``metric`` is one of ``metrics.METRICS``; or, with ``labels=None``, ``mean`` of values given instead of predictions,
    or ``entity_f1`` of counts (N, 3) instead: right, predicted, true. Counts of right, all, all words make it the share
    of right words. ``difference`` is ours minus theirs even for ``mse``, where "greater" asks whether ours is smaller.
    """
    if metric not in STATISTICS:
        raise DataError(unknown("metric", metric, STATISTICS, f"The bootstrap has {', '.join(STATISTICS)}."))
    predictions, truth = stack_predictions(metric, ours, theirs, labels)
    statistic = STATISTICS[metric](predictions, truth)

    def differences(weights: np.ndarray) -> np.ndarray:
        scores = statistic(weights)
        a, b = scores[: len(ours)].mean(axis=0), scores[len(ours) :].mean(axis=0)
        # the order of a sum must not decide who is ahead
        return np.where(np.abs(a - b) <= ROUNDING * (np.abs(a) + np.abs(b)), 0.0, a - b)

    examples = predictions.shape[1]
    found = np.concatenate([differences(weights) for weights in draw_weights(examples, resamples, seed)])
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


def bootstrap_interval(
    metric: str, predictions: Any, labels: Any, *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Find the scores between which 95% of the draws of one model lie; arguments as of ``paired_bootstrap``."""
    sides, truth = stack_predictions(metric, [predictions], [predictions], labels)
    statistic = STATISTICS[metric](sides[:1], truth)
    found = np.concatenate([statistic(weights)[0] for weights in draw_weights(sides.shape[1], resamples, seed)])
    low, high = np.percentile(found, [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by Holm's method, in the order given: below the level, they hold for all tests together."""
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
    """Count the fewest seeds whose scores can differ significantly without the assumption that they are normal.

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
    """Say for people what so few seeds cannot show; empty where they are enough."""
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
    """Combine the tails: how probable a difference at least as far up, and at least as far down, is by chance."""
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
    """Count the examples that only ours got right, that only theirs got right, and all."""
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

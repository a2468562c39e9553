"""Test which entries of a table differ from its baselines by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from limbeck.compare.answers import Sample, answers_of
from limbeck.compare.entries import Entry
from limbeck.errors import DataError, RecipeError, unknown
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.runs.reader import Run
from limbeck.stats import Comparison, Sided, holm, mcnemar_over_seeds, paired_bootstrap, t_test, warning_about

Test = Literal["welch", "paired", "mcnemar", "bootstrap"]
Correction = Literal["holm", "none"]  # for the number of tests in a table
Against = Literal["each", "best"]  # each baseline, or in each column the one with the best mean
MARKS = ("†", "‡", "§", "¶")  # of the first baseline, the second, ...
_OVER_SEEDS = ("welch", "paired")
_NAMES = {
    "welch": "Welch t-test over seeds",
    "paired": "paired t-test over seeds",
    "mcnemar": "McNemar test of the decisions",
    "bootstrap": "paired bootstrap of the examples",
}
_SIDES = {"two": "two-sided", "greater": "one-sided", "observed": "one-sided towards the side that is ahead"}


class Column(NamedTuple):
    """Name a column of a table of scores."""

    task: str
    metric: str
    main: bool  # the task's first metric


@dataclass(frozen=True)
class TestPlan:
    """Hold how the entries are compared, and with which of them."""

    baselines: tuple[str, ...]
    test: Test
    sided: Sided
    level: float
    correction: Correction
    against: Against

    def describe(self, tests: int) -> str:
        """Describe the tests for notes: ``p < 0.05, Welch t-test over seeds, two-sided, Holm over 12 tests``."""
        together = f"Holm over {tests} tests" if self.correction == "holm" else f"not corrected for {tests} tests"
        parts = [f"p < {self.level:g}", _NAMES[self.test], _SIDES[self.sided], *([together] if tests > 1 else [])]
        return ", ".join(parts)


@dataclass(frozen=True)
class Tested:
    """Hold the test of one entry against one baseline in one column."""

    column: Column
    ours: str
    theirs: str
    found: Comparison
    p_holm: float
    better: bool
    significant: bool


def mark_of(test: Tested, plan: TestPlan) -> str:
    """Return the mark of the baseline that an entry was compared with."""
    return MARKS[plan.baselines.index(test.theirs) if plan.against == "each" else 0]


def as_dict(column: Column, ours: str, theirs: str, found: Comparison, p_holm: float | None = None) -> dict[str, Any]:
    """Return a test as plain values, for programs."""
    names = {"task": column.task, "metric": column.metric, "ours": ours, "theirs": theirs}
    values = {"difference": found.difference, "low": found.low, "high": found.high, "p": found.p, "p_holm": p_holm}
    return names | values | {"test": found.test, "p_by_seed": list(found.p_by_seed)}


def make_plan(
    labels: Sequence[str],
    baselines: Sequence[str] = (),
    test: str = "welch",
    sided: str = "two",
    level: float = 0.05,
    correction: str = "holm",
    against: str = "each",
) -> TestPlan:
    """Check the wishes of a user or a study."""
    for kind, name, choices in (
        ("test", test, Test),
        ("side", sided, Sided),
        ("correction", correction, Correction),
        ("'against'", against, Against),
    ):
        known = get_args(choices)
        if name not in known:
            raise RecipeError(unknown(kind, name, known, f"There are {', '.join(known)}."))
    if not (isinstance(level, int | float) and 0 < level < 1):
        raise RecipeError(f"The level is a probability between 0 and 1, usually 0.05; seen: {level}.")
    for name in baselines:
        if name not in labels:
            raise RecipeError(unknown("baseline", name, labels, f"The table has {', '.join(labels)}."))
    named = tuple(dict.fromkeys(baselines))
    if len(named) > len(MARKS):
        raise RecipeError(f"{len(named)} baselines were named; a table has marks for {len(MARKS)}. Leave some out.")
    return TestPlan(named, test, sided, level, correction, against)  # type: ignore[arg-type]


def make_tests(entries: Sequence[Entry], columns: Sequence[Column], plan: TestPlan) -> tuple[list[Tested], list[str]]:
    """Test the entries against the baselines in every column, and warn of what such tests cannot show."""
    pairs: list[tuple[Column, Entry, Entry]] = []
    for column in columns:
        if plan.test == "mcnemar" and not column.main:
            continue  # it is about the decisions, whatever they are scored by
        there = {entry.label: entry for entry in entries if entry.task == column.task and _runs(entry, column)}
        pairs += [(column, there[ours], there[theirs]) for ours, theirs in _pairs(column, there, plan)]
    made: list[tuple[Column, Entry, Entry, Comparison]] = []
    refused: dict[str, dict[str, None]] = {}
    predictions = _Predictions()
    wrong: DataError | None = None
    for column, ours, theirs in pairs:
        try:
            found = _compare(column, ours, theirs, plan, predictions)
        except DataError as error:  # one task of several may not be for this test
            found, wrong = str(error).rstrip("."), error
        if isinstance(found, Comparison):
            made.append((column, ours, theirs, found))
        else:
            refused.setdefault(found, {})[f"{ours.label} and {theirs.label} on {column.task}"] = None
    if wrong is not None and not made:
        raise wrong
    corrected = holm([found.p for *_, found in made])
    tested = []
    for (column, ours, theirs, found), p_holm in zip(made, corrected, strict=True):
        smaller = column.metric in SMALLER_IS_BETTER and plan.test != "mcnemar"
        better = found.difference < 0 if smaller else found.difference > 0
        significant = (p_holm if plan.correction == "holm" else found.p) < plan.level
        tested.append(Tested(column, ours.label, theirs.label, found, p_holm, better, significant))
    warnings = [f"Not compared: {'; '.join(names)}: {why}." for why, names in refused.items()]
    if made and plan.test in _OVER_SEEDS:
        seeds = min(len(runs) for column, ours, theirs, _ in made for runs in _compared(column, ours, theirs, plan))
        about = warning_about(seeds, len(made) if plan.correction == "holm" else 1, plan.level, plan.sided)
        warnings += [about] if about else []
    return tested, warnings


def _pairs(column: Column, there: Mapping[str, Entry], plan: TestPlan) -> list[tuple[str, str]]:
    """List who is compared with whom in a column."""
    baselines = [name for name in plan.baselines if name in there]
    if plan.against == "each":
        # an earlier baseline has been compared with this one already
        return [
            (label, name)
            for number, name in enumerate(baselines)
            for label in there
            if label not in baselines[: number + 1]
        ]
    means = {name: fmean(run.scores[column.metric] for run in _runs(there[name], column)) for name in baselines}
    finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if not finite:
        return []
    best = (min if column.metric in SMALLER_IS_BETTER else max)(finite, key=lambda name: finite[name])
    return [(label, best) for label in there if label not in baselines]


def _runs(entry: Entry, column: Column) -> list[Run]:
    return [run for run in entry.runs if column.metric in run.scores]


def _compared(column: Column, ours: Entry, theirs: Entry, plan: TestPlan) -> tuple[list[Run], list[Run]]:
    """Find the runs of both sides that a test uses: for pairs, those with seeds that both have."""
    a, b = _runs(ours, column), _runs(theirs, column)
    if plan.test == "paired":
        common = {run.seed for run in a} & {run.seed for run in b}
        a, b = ([run for run in runs if run.seed in common] for runs in (a, b))
    return a, b


class _Predictions:
    """Read what tests need of each run's predictions once, however many tests there are."""

    def __init__(self) -> None:
        self.right = cache(right_of)
        self.sample = cache(sample_of)


def right_of(run: Run) -> np.ndarray:
    """Tell which examples a run got right."""
    return answers_of(run)[0].right()


def sample_of(run: Run, metric: str, names: tuple[str, ...] = ()) -> Sample | None:
    """Prepare the bootstrap of a metric for a run; None where the predictions do not tell it.

    ``names`` are those of the labels, where they are known.
    """
    answers, name = answers_of(run, metric)
    return replace(answers, names=names).sample(name)


def _compare(column: Column, ours: Entry, theirs: Entry, plan: TestPlan, predictions: _Predictions) -> Comparison | str:
    """Return the comparison, or why there is none."""
    both = _compared(column, ours, theirs, plan)
    if plan.test in _OVER_SEEDS:
        return _over_seeds(column.metric, *both, plan)
    if plan.test == "mcnemar":
        as_many = min(map(len, both))
        ours_right, theirs_right = ([predictions.right(run) for run in runs[:as_many]] for runs in both)
        return mcnemar_over_seeds(ours_right, theirs_right, sided=plan.sided)
    a, b = ([predictions.sample(run, column.metric) for run in runs] for runs in both)
    return compare_by_bootstrap(column.metric, a, b, plan.sided)


def compare_by_bootstrap(
    metric: str,
    ours: Sequence[Sample | None],
    theirs: Sequence[Sample | None],
    sided: Sided,
    resamples: int = 10_000,
) -> Comparison | str:
    """Compare two sides by drawing the examples anew, or say why that cannot be done."""
    known_ours, known_theirs = ([sample for sample in side if sample is not None] for side in (ours, theirs))
    if len(known_ours) + len(known_theirs) < len(ours) + len(theirs):
        return f"the predictions that are kept do not tell {metric} of other examples, which the bootstrap needs"
    name, _, labels = known_ours[0]
    a, b = ([sample.predictions for sample in side] for side in (known_ours, known_theirs))
    return paired_bootstrap(name, a, b, labels, sided=sided, resamples=resamples)


def _over_seeds(metric: str, ours: Sequence[Run], theirs: Sequence[Run], plan: TestPlan) -> Comparison | str:
    paired = plan.test == "paired"
    if min(len(ours), len(theirs)) < 2:
        seeds = "2 seeds that both have" if paired else "2 seeds of each"
        return f"a t-test needs at least {seeds}; --test mcnemar and --test bootstrap compare single runs"
    scores = [[run.scores[metric] for run in runs] for runs in (ours, theirs)]
    if not all(map(math.isfinite, scores[0] + scores[1])):
        return f"{metric} is not a finite number in every run"
    if metric not in SMALLER_IS_BETTER:
        return t_test(*scores, paired=paired, sided=plan.sided)
    found = t_test(*([-score for score in side] for side in scores), paired=paired, sided=plan.sided)
    low, high = (None if end is None else -end for end in (found.high, found.low))
    return replace(found, difference=-found.difference, low=low, high=high)

"""Check statistics against published examples, scipy, statsmodels and plain loops, and p where nothing differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from limbeck import stats
from limbeck.errors import DataError
from limbeck.metrics import METRICS, entities, entity_scores
from limbeck.stats import Comparison, Sided
from limbeck.stats import bootstrap as resampling

SIDES: tuple[Sided, ...] = ("two", "greater", "observed")
ALTERNATIVES = {"two": "two-sided", "greater": "greater"}

# Student (1908): hours of sleep gained by ten patients with each of two drugs
SLEEP = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0], [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def right_and_wrong(ours: int, theirs: int, both: int = 0, neither: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make two models' right answers: so many examples are right for ours only, theirs only, both, neither."""
    cells = np.repeat([0, 1, 2, 3], [ours, theirs, both, neither])
    return np.isin(cells, (0, 2)), np.isin(cells, (1, 2))


# Scores over seeds


def test_summary_by_hand() -> None:
    found = stats.summary([1, 2, 3, 4])
    half = 3.182446 * math.sqrt(5 / 3) / 2  # t of 3 degrees of freedom at 97.5%
    assert (found.mean, found.count) == (2.5, 4)
    assert found.sd == pytest.approx(math.sqrt(5 / 3))
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-6)
    narrower = stats.summary([1, 2, 3, 4], level=0.5)
    assert narrower.low == pytest.approx(2.5 - 0.764892 * math.sqrt(5 / 3) / 2, rel=1e-5)


def test_summary_of_one_score_and_of_equal_scores() -> None:
    assert stats.summary([0.7]) == stats.Summary(0.7, None, None, None, 1)
    found = stats.summary([0.1] * 3)
    assert found.sd == 0.0
    assert found.low == found.high == found.mean == pytest.approx(0.1)


def test_sleep_as_published() -> None:
    paired, welch = stats.t_test(*SLEEP, paired=True), stats.t_test(*SLEEP)
    assert paired.p == pytest.approx(0.002833, abs=5e-7)
    assert (paired.low, paired.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
    assert welch.p == pytest.approx(0.07939, abs=5e-6)
    assert (welch.low, welch.high) == pytest.approx((-3.3654832, 0.2054832), abs=1e-7)
    assert paired.difference == welch.difference == pytest.approx(-1.58)
    assert (paired.test, welch.test) == ("paired t-test, 10 seeds", "Welch t-test, 10 and 10 seeds")


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_t_tests_are_those_of_scipy(paired: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    ours, theirs = generator.normal(0.7, 0.01, 5), generator.normal(0.69, 0.03, 5 if paired else 3)
    found = {sided: stats.t_test(ours, theirs, paired=paired, sided=sided) for sided in SIDES}
    for sided, alternative in ALTERNATIVES.items():
        if paired:
            expected = scipy_stats.ttest_rel(ours, theirs, alternative=alternative)
        else:
            expected = scipy_stats.ttest_ind(ours, theirs, equal_var=False, alternative=alternative)
        assert found[sided].p == pytest.approx(expected.pvalue, rel=1e-9)
        if sided == "two":
            interval = expected.confidence_interval(0.95)
            assert all((one.low, one.high) == pytest.approx(tuple(interval), rel=1e-9) for one in found.values())
    assert found["observed"].p == pytest.approx(found["two"].p / 2)
    assert found["two"].difference == pytest.approx(ours.mean() - theirs.mean())


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs", "two", "greater"),
    [
        ([0.7] * 3, [0.7] * 3, 1, 1),
        ([0.7] * 3, [0.6] * 3, 0, 0),
        ([0.6] * 3, [0.7] * 3, 0, 1),
        ([0.0, 0.0], [0.0, 0.0], 1, 1),
        ([0.1 + 0.2] * 3, [0.3] * 3, 1, 1),  # equal but for rounding
    ],
)
def test_constant_scores(paired: bool, ours: list[float], theirs: list[float], two: int, greater: int) -> None:
    found = stats.t_test(ours, theirs, paired=paired)
    assert (found.p, found.low, found.high) == (two, found.difference, found.difference)
    assert stats.t_test(ours, theirs, paired=paired, sided="greater").p == greater


def test_differences_that_are_equal_but_for_rounding() -> None:
    ours, theirs = [0.7, 0.8, 0.3], [0.6, 0.7, 0.2]
    assert len({a - b for a, b in zip(ours, theirs, strict=True)}) > 1
    assert stats.t_test(ours, theirs, paired=True).p == 0
    assert stats.t_test(ours, theirs).p > 0.5
    assert stats.t_test([0.5, 0.5, 0.5], [0.5, 0.6, 0.7]).p == pytest.approx(0.2254, abs=1e-4)  # t = sqrt(3), df 2


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("paired", [False, True])
def test_scores_of_any_size(scale: float, paired: bool) -> None:
    expected = stats.t_test(*SLEEP, paired=paired)
    found = stats.t_test(*([scale * score for score in side] for side in SLEEP), paired=paired)
    assert found.p == pytest.approx(expected.p)
    assert (found.low, found.high) == pytest.approx((scale * expected.low, scale * expected.high), rel=1e-9, abs=0)


SCORES = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.7, 0.1 + 0.2, 1e-200, 1e200, -1e200, 5e-324])),
    min_size=2,
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(ours=SCORES, theirs=SCORES, paired=st.booleans())
def test_t_tests_of_any_scores(ours: list[float], theirs: list[float], paired: bool) -> None:
    size = min(len(ours), len(theirs)) if paired else None
    there, back = (
        [stats.t_test(a[:size], b[:size], paired=paired, sided=sided) for sided in SIDES]
        for a, b in ((ours, theirs), (theirs, ours))
    )
    for one in (*there, *back):
        assert 0 <= one.p <= 1
        assert all(type(value) is float for value in (one.difference, one.p, one.low, one.high))
        assert one.low is not None and one.high is not None
        slack = 1e-9 * max(map(abs, (*ours, *theirs)))
        assert one.low - slack <= one.difference <= one.high + slack
    assert there[0].p == pytest.approx(back[0].p, abs=1e-9)
    assert there[0].difference == -back[0].difference


@pytest.mark.parametrize(
    ("ours", "theirs", "paired", "message"),
    [
        ([0.7], [0.6, 0.7], False, r"at least 2 scores.*1 and 2"),
        ([], [], True, r"at least 2 scores.*0 and 0"),
        ([0.7, 0.8, 0.9], [0.6, 0.7], True, r"same seeds.*3 and 2"),
        ([0.7, float("nan")], [0.6, 0.7], False, r"1 of 2 scores are not finite.*nan"),
        ([0.7, 0.8], [0.6, float("inf")], True, r"1 of 2 scores are not finite.*inf"),
    ],
)
def test_scores_that_cannot_be_tested(ours: list[float], theirs: list[float], paired: bool, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stats.t_test(ours, theirs, paired=paired)


@pytest.mark.parametrize(("scores", "message"), [([], "no scores"), ([1.0, float("nan")], "not finite")])
def test_scores_that_cannot_be_summarised(scores: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        stats.summary(scores)


@pytest.mark.parametrize(("paired", "sided"), [(True, "two"), (False, "two"), (True, "greater")])
def test_p_of_t_tests_is_uniform_where_nothing_differs(paired: bool, sided: Sided) -> None:
    generator = np.random.default_rng(0)
    # a common part of each pair: a paired test must remove it, and Welch's gets none
    shared = generator.normal(size=(2000, 1, 6)) * paired
    data = generator.normal(size=(2000, 2, 6)) + shared
    found = [stats.t_test(*pair, paired=paired, sided=sided).p for pair in data]
    assert scipy_stats.kstest(found, "uniform").pvalue > 0.01


def test_interval_of_the_mean_covers_it() -> None:
    found = [stats.summary(row) for row in np.random.default_rng(1).normal(5, 2, size=(2000, 4))]
    assert np.mean([one.low <= 5 <= one.high for one in found]) == pytest.approx(0.95, abs=0.015)  # type: ignore[operator]


# Right and wrong


@pytest.mark.parametrize(
    ("cells", "p", "name"),
    [
        # Agresti (1990), p. 350, approval of the president in two surveys: chi-square 16.818 with correction
        ((150, 86, 794, 570), 4.115e-5, "McNemar, corrected, 150 and 86 of 1,600 differ"),
        # a diagnosis before and after treatment: 3.68 with correction, exact p 0.0525
        ((6, 16, 59, 80), 0.05248, "McNemar, exact, 6 and 16 of 161 differ"),
        (
            (121, 59, 101, 33),
            float(scipy_stats.chi2.sf(61**2 / 180, 1)),
            "McNemar, corrected, 121 and 59 of 314 differ",
        ),
        # two classifiers: chi-square 2.025; 2 * (1 + 12) / 2^12
        ((25, 15, 9945, 15), 0.1547, "McNemar, corrected, 25 and 15 of 10,000 differ"),
        ((11, 1, 9959, 29), 26 / 4096, "McNemar, exact, 11 and 1 of 10,000 differ"),
        ((0, 0, 5, 5), 1.0, "McNemar, exact, 0 and 0 of 10 differ"),
    ],
)
def test_published_tables(cells: tuple[int, ...], p: float, name: str) -> None:
    found = stats.mcnemar(*right_and_wrong(*cells))
    assert found.p == pytest.approx(p, rel=5e-4)
    assert found.test == name
    assert found.difference == pytest.approx((cells[0] - cells[1]) / sum(cells))
    assert found.low is found.high is None


@pytest.mark.parametrize("total", [1, 2, 7, 24, 25, 26, 60, 400])
def test_mcnemar_is_that_of_statsmodels(total: int) -> None:
    for ours in range(0, total + 1, max(1, total // 12)):
        theirs = total - ours
        found = stats.mcnemar(*right_and_wrong(ours, theirs, 10, 10)).p
        # statsmodels takes 1 off a difference of 0 too
        correct = ours != theirs
        expected = reference_mcnemar([[10, ours], [theirs, 10]], exact=total < 25, correction=correct).pvalue
        assert found == pytest.approx(expected, rel=1e-9)


def test_one_sided_mcnemar_by_hand() -> None:
    # 3 of 3: 1/8; at least 1 of 3: 7/8
    assert stats.mcnemar(*right_and_wrong(3, 0), sided="greater").p == pytest.approx(1 / 8)
    assert stats.mcnemar(*right_and_wrong(1, 2), sided="greater").p == pytest.approx(7 / 8)
    assert stats.mcnemar(*right_and_wrong(0, 3), sided="observed").p == pytest.approx(1 / 8)
    corrected = right_and_wrong(40, 24)
    assert stats.mcnemar(*corrected, sided="greater").p == pytest.approx(scipy_stats.norm.sf(15 / 8))
    # at least 24 of 64, with half a step towards the middle
    assert stats.mcnemar(*corrected[::-1], sided="greater").p == pytest.approx(scipy_stats.norm.sf(-17 / 8))


@pytest.mark.parametrize("sided", ["two", "greater"])
@pytest.mark.parametrize(("total", "slack"), [*((total, 1.0) for total in (1, 5, 12, 24)), (25, 1.03), (100, 1.03)])
def test_mcnemar_raises_few_false_alarms(total: int, sided: Sided, slack: float) -> None:
    """Count exactly: over all tables with so many differences, weighted by their probability where nothing differs."""
    p = np.array([stats.mcnemar(*right_and_wrong(k, total - k), sided=sided).p for k in range(total + 1)])
    probability = scipy_stats.binom.pmf(range(total + 1), total, 0.5)
    for level in (0.01, 0.05, 0.1, 0.25, 0.5, 0.9):
        assert probability[p <= level * (1 + 1e-12)].sum() <= level * slack


def seeds_of(cells: Sequence[tuple[int, int]], both: int = 50) -> tuple[list[np.ndarray], list[np.ndarray]]:
    pairs = [right_and_wrong(ours, theirs, both - ours - theirs) for ours, theirs in cells]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@pytest.mark.parametrize(
    ("cells", "rank", "factor"),
    [
        ([(8, 1)], 1, 1),
        ([(8, 1), (9, 3)], 1, 2),
        ([(8, 1), (9, 3), (6, 2)], 2, 3 / 2),
        ([(8, 1), (30, 9), (6, 2), (9, 3)], 2, 2),
        ([(8, 1), (9, 3), (6, 2), (12, 1), (7, 0)], 3, 5 / 3),
    ],
)
@pytest.mark.parametrize("sided", SIDES)
def test_seeds_are_combined_by_rank(cells: list[tuple[int, int]], rank: int, factor: float, sided: Sided) -> None:
    ours, theirs = seeds_of(cells)
    each = [stats.mcnemar(a, b, sided=sided) for a, b in zip(ours, theirs, strict=True)]
    found = stats.mcnemar_over_seeds(ours, theirs, sided=sided)
    assert found.p == pytest.approx(min(1, sorted(one.p for one in each)[rank - 1] * factor))
    assert found.difference == pytest.approx(np.mean([one.difference for one in each]))
    if len(cells) == 1:
        assert found == each[0]
    else:
        assert found.test == f"McNemar, {len(cells)} seeds combined"


def test_seeds_that_contradict_each_other_show_nothing() -> None:
    cells = [(20, 1), (1, 20), (20, 1), (1, 20), (20, 1)]
    assert stats.mcnemar_over_seeds(*seeds_of(cells[:3])).p < 0.001
    assert stats.mcnemar_over_seeds(*seeds_of([(20, 1), (1, 20), (10, 10)])).p > 0.5


def test_combined_seeds_raise_few_false_alarms() -> None:
    generator, found = np.random.default_rng(2), []
    for _ in range(400):
        # every seed is mostly the same model, so that pooling would take one accident for five
        models = generator.random((2, 1, 120)) < 0.7
        flipped = generator.random((2, 5, 120)) < 0.05
        found.append(stats.mcnemar_over_seeds(*(models ^ flipped)).p)
    for level in (0.05, 0.1, 0.3):
        assert np.mean(np.array(found) <= level) <= level


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([True, False], [True], r"same examples.*\(2,\) and \(1,\)"),
        ([], [], r"\(0,\) and \(0,\)"),
        ([[True]], [[True]], r"\(1, 1\)"),
        ([0.5, 1.0], [1.0, 1.0], "right.*wrong.*bootstrap"),
        ([1, 1], [1, 2], "right.*wrong"),
    ],
)
def test_answers_that_mcnemar_refuses(ours: Any, theirs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stats.mcnemar(ours, theirs)
    with pytest.raises(DataError, match=message):
        stats.mcnemar_over_seeds([[True], ours], [[True], theirs])


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (2, 1), (0, 1)])
def test_seeds_must_pair(ours: int, theirs: int) -> None:
    with pytest.raises(DataError, match=f"as many runs.*{ours} and {theirs}"):
        stats.mcnemar_over_seeds([[True, False]] * ours, [[True, True]] * theirs)


# The bootstrap


def data_for(metric: str, examples: int, models: int, seed: int, classes: int = 3) -> tuple[list[np.ndarray], Any]:
    """Draw predictions of each model that are often right, and the labels."""
    generator = np.random.default_rng(seed)
    if metric in ("pearson", "spearman", "mse"):
        labels = generator.normal(size=examples).round(1)  # rounded: ties
        return [(labels + generator.normal(size=examples)).round(1) for _ in range(models)], labels
    if metric == "mean":
        return [generator.random(examples) for _ in range(models)], None
    if metric == "entity_f1":
        return [generator.integers(0, 4, size=(examples, 3)) for _ in range(models)], None
    shape = (examples, classes) if metric.startswith("sets ") else (examples,)
    most = 2 if metric.startswith("sets ") or metric == "f1" else classes
    labels = generator.integers(most, size=shape)
    return [
        np.where(generator.random(shape) < 0.6, labels, generator.integers(most, size=shape)) for _ in range(models)
    ], labels


def score(metric: str, predictions: np.ndarray, labels: Any) -> float:
    if metric == "mean":
        return float(predictions.mean())
    if metric == "entity_f1":
        right, guessed, there = predictions.sum(axis=0)
        return 2 * right / max(guessed + there, 1)
    return METRICS[metric](predictions, labels)


def by_loop(
    metric: str, ours: list[np.ndarray], theirs: list[np.ndarray], labels: Any, resamples: int, seed: int
) -> Comparison:
    """Score one draw after the other, each as any predictions are."""

    def difference(rows: Any) -> float:
        truth = None if labels is None else labels[rows]
        a, b = (float(np.mean([score(metric, one[rows], truth) for one in side])) for side in (ours, theirs))
        return 0.0 if abs(a - b) <= 1e-12 * (abs(a) + abs(b)) else a - b

    examples = len(ours[0])
    draws = np.random.default_rng(seed).integers(examples, size=(resamples, examples))
    found = np.array([difference(rows) for rows in draws])
    tails = [(1 + (side * found <= 0).sum()) / (1 + resamples) for side in (1, -1)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Comparison("", difference(slice(None)), min(1, 2 * min(tails)), low, high)


def assert_same(found: Comparison, expected: Comparison, abs: float = 1e-12) -> None:
    for name in ("difference", "p", "low", "high"):
        assert type(getattr(found, name)) is float, name
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=abs), name


KINDS = [*METRICS, "sets accuracy", "sets macro_f1", "sets micro_f1", "mean", "entity_f1"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("examples", "ours", "theirs"), [(60, 2, 3), (4, 1, 1)])
def test_bootstrap_by_loop(kind: str, examples: int, ours: int, theirs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = kind.removeprefix("sets ")
    models, labels = data_for(kind, examples, ours + theirs, seed=3)
    sides = models[:ours], models[ours:]
    expected = by_loop(metric, *sides, labels, resamples=40, seed=5)
    assert_same(stats.paired_bootstrap(metric, *sides, labels, resamples=40, seed=5), expected)
    monkeypatch.setattr(resampling, "_CELLS", 7 * examples)  # 5 whole parts and a rest
    assert_same(stats.paired_bootstrap(metric, *sides, labels, resamples=40, seed=5), expected)


def test_every_metric_can_be_resampled() -> None:
    assert set(METRICS) < set(resampling.STATISTICS)


CLASSES = st.integers(1, 3).flatmap(
    lambda kinds: st.lists(st.tuples(*[st.integers(0, kinds - 1)] * 3), min_size=1, max_size=8)
)
TWO = st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=1, max_size=8)
NUMBERS = st.lists(
    st.tuples(*[st.one_of(st.integers(-2, 2).map(float), st.sampled_from([0.1, 1e3, -1e3]))] * 3),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_bootstrap_of_few_and_constant_examples(metric: str, data: st.DataObject) -> None:
    rows = data.draw({"f1": TWO, "pearson": NUMBERS, "spearman": NUMBERS, "mse": NUMBERS}.get(metric, CLASSES))
    ours, theirs, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = stats.paired_bootstrap(metric, [ours], [theirs], labels, resamples=12)
    scale = max(1.0, np.abs([ours, theirs, labels]).max() ** 2) if metric == "mse" else 1.0
    assert_same(found, by_loop(metric, [ours], [theirs], labels, resamples=12, seed=0), abs=1e-9 * scale)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), metric=st.sampled_from(["accuracy", "macro_f1", "micro_f1"]), width=st.integers(1, 3))
def test_bootstrap_of_few_label_sets(data: st.DataObject, metric: str, width: int) -> None:
    row = st.lists(st.integers(0, 1), min_size=width, max_size=width)
    rows = data.draw(st.lists(st.tuples(row, row, row), min_size=1, max_size=6))
    ours, theirs, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = stats.paired_bootstrap(metric, [ours], [theirs], labels.astype(float), resamples=12)
    assert_same(found, by_loop(metric, [ours], [theirs], labels, resamples=12, seed=0))


def test_numbers_far_from_zero_keep_their_digits() -> None:
    generator = np.random.default_rng(4)
    labels = generator.normal(size=50)
    ours, theirs = (labels + generator.normal(size=50) for _ in range(2))
    near = stats.paired_bootstrap("pearson", [ours], [theirs], labels, resamples=200)
    far = stats.paired_bootstrap("pearson", [1e6 + 1e-3 * ours], [theirs], labels - 1e6, resamples=200)
    assert_same(far, near, abs=1e-6)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_constant_numbers_score_zero_although_their_mean_is_rounded(metric: str) -> None:
    generator, same = np.random.default_rng(0), np.full(3, 0.1)
    assert same.sum() / 3 != 0.1
    for ours, theirs, labels in ((generator.random(3), generator.random(3), same), (same, same, generator.random(3))):
        found = stats.paired_bootstrap(metric, [ours], [theirs], labels, resamples=200)
        assert (found.p, found.difference, found.low, found.high) == (1, 0, 0, 0)


def test_entity_counts_give_the_f1_of_entities() -> None:
    labels = ["B-x I-x O", "O O", "B-y O B-x", "B-x"]
    guesses = [["B-x I-x O", "B-y O", "B-y O B-y", "O"], ["B-x O O", "O O", "B-y O B-x", "B-x"]]

    def counts(rows: list[str]) -> np.ndarray:
        pairs = [(entities(a.split()), entities(b.split())) for a, b in zip(rows, labels, strict=True)]
        return np.array([[len(a & b), len(a), len(b)] for a, b in pairs])

    a, b = (entity_scores([r.split() for r in rows], [r.split() for r in labels])["entity_f1"] for rows in guesses)
    found = stats.paired_bootstrap("entity_f1", [counts(guesses[0])], [counts(guesses[1])], None, resamples=50)
    assert found.difference == pytest.approx(a - b, abs=1e-12)


def test_no_entities_score_zero_without_a_warning() -> None:
    none, one = np.zeros((3, 3)), np.array([[1, 1, 1], [0, 0, 0], [0, 0, 0]])
    found = stats.paired_bootstrap("entity_f1", [one], [none], None, resamples=50)
    assert (found.difference, found.low, found.high) == (1, 0, 1)  # draws without the only entity, and with it


def test_share_of_right_words_from_counts() -> None:
    # 5 of 7 words against 3 of 7
    ours, theirs = [[4, 4, 4], [1, 3, 3]], [[1, 4, 4], [2, 3, 3]]
    assert stats.paired_bootstrap("entity_f1", [ours], [theirs], None).difference == pytest.approx(2 / 7)


def test_sides_of_the_bootstrap() -> None:
    labels = np.zeros(200)
    better = np.arange(200) % 10 == 0  # wrong answers
    worse = np.arange(200) % 4 == 0

    def p(metric: str, ours: np.ndarray, theirs: np.ndarray, sided: Sided) -> float:
        return stats.paired_bootstrap(metric, [ours], [theirs], labels, resamples=400, sided=sided).p

    for metric in ("accuracy", "mse"):  # fewer errors are better, whichever way the metric counts them
        assert p(metric, better, worse, "greater") < 0.01
        assert p(metric, worse, better, "greater") > 0.99
        for pair in ((better, worse), (worse, better)):
            assert p(metric, *pair, "observed") == p(metric, *pair, "two") / 2
    found = stats.paired_bootstrap("mse", [better], [worse], labels, resamples=400)
    assert found.difference == pytest.approx(-0.15)
    assert found.test == "paired bootstrap of mse, 400 draws of 200 examples"


def test_a_p_of_no_draw_is_not_zero() -> None:
    found = stats.paired_bootstrap("mean", [np.ones(5)], [np.zeros(5)], None, resamples=99)
    assert (found.p, found.difference, found.low, found.high) == (2 / 100, 1, 1, 1)


@pytest.mark.parametrize("metric", [*METRICS, "mean"])
def test_the_same_predictions_do_not_differ(metric: str) -> None:
    models, labels = data_for(metric, 30, 3, seed=6)
    found = stats.paired_bootstrap(metric, models, [models[i] for i in (2, 0, 1)], labels, resamples=300)
    assert (found.p, found.difference, found.low, found.high) == (1, 0, 0, 0)


def test_the_seed_decides_the_draws() -> None:
    models, labels = data_for("accuracy", 50, 2, seed=7)
    found = [
        stats.paired_bootstrap("accuracy", models[:1], models[1:], labels, resamples=500, seed=seed)
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1]
    assert (found[0].p, found[0].low, found[0].high) != (found[2].p, found[2].low, found[2].high)


def test_bootstrap_where_nothing_differs() -> None:
    """Expect few false alarms, and intervals that hold the true difference of 0, over models that make errors alike."""
    generator, found = np.random.default_rng(8), []
    for _ in range(500):
        hard = generator.random(150) < 0.5
        ours, theirs = (np.where(hard, generator.random(150) < 0.5, True) for _ in range(2))
        found.append(stats.paired_bootstrap("accuracy", [ours], [theirs], np.ones(150), resamples=400))
    assert 0.02 <= np.mean([one.p <= 0.05 for one in found]) <= 0.08
    assert np.mean([one.low <= 0 <= one.high for one in found]) == pytest.approx(0.95, abs=0.03)  # type: ignore[operator]
    one_sided = np.mean([one.difference > 0 and one.p <= 0.1 for one in found])
    assert 0.02 <= one_sided <= 0.08


def test_a_real_difference_is_found() -> None:
    generator = np.random.default_rng(9)
    labels = generator.integers(2, size=600)
    ours, theirs = ([labels ^ (generator.random(600) < rate) for _ in range(3)] for rate in (0.15, 0.25))
    for metric in ("accuracy", "f1", "mcc", "macro_f1"):
        found = stats.paired_bootstrap(metric, ours, theirs, labels, resamples=2000)
        assert found.p < 0.01
        assert found.low is not None and found.low > 0
    right = [[one == labels for one in side] for side in (ours, theirs)]
    assert stats.mcnemar_over_seeds(*right).p < 0.05
    scores = [[METRICS["accuracy"](one, labels) for one in side] for side in (ours, theirs)]
    assert stats.t_test(*scores).p < 0.05


Y = [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "labels", "message"),
    [
        ("acuracy", [Y], [Y], Y, "Did you mean 'accuracy'"),
        ("accuracy", [], [Y], Y, "both sides.*0 and 1"),
        ("accuracy", [Y], [Y], None, "accuracy needs labels"),
        ("mean", [Y], [Y], Y, "mean takes no labels"),
        ("accuracy", [Y], [Y[:3]], Y, r"same examples.*\(4,\), \(4,\), \(3,\)"),
        ("accuracy", [Y], [Y], Y[:3], r"same examples.*\(3,\), \(4,\), \(4,\)"),
        ("accuracy", [[]], [[]], [], r"at least one.*\(0,\)"),
        ("macro_f1", [[[0, 1], [1]]], [[[0, 1], [1]]], [[0, 1], [1]], "as many for each example"),
        ("accuracy", [["yes"]], [["no"]], ["no"], "needs numbers"),
        ("mcc", [[[0, 1]]], [[[0, 1]]], [[0, 1]], r"1 dimension.*\(1, 2\)"),
        ("entity_f1", [Y], [Y], None, "2 dimension"),
        ("entity_f1", [[[1, 2]]], [[[1, 2]]], None, "3 counts.*2"),
        ("f1", [[0, 1, 2, 0]], [Y], Y, "0 and 1"),
        ("macro_f1", [[[0, 2]]], [[[0, 1]]], [[0, 1]], "0 and 1"),
        ("pearson", [[0.0, float("nan"), 1.0, 2.0]], [Y], Y, "1 predictions or labels are not finite"),
        ("mean", [[float("inf"), 1.0]], [[1.0, 1.0]], None, "1 predictions or labels are not finite"),
    ],
)
def test_predictions_that_cannot_be_resampled(metric: str, ours: Any, theirs: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stats.paired_bootstrap(metric, ours, theirs, labels, resamples=10)


# Many tests, few seeds


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 40])
def test_holm_is_that_of_statsmodels(size: int) -> None:
    values = np.random.default_rng(size).beta(0.3, 1, size=size).round(3)  # many small ones, and ties
    found = stats.holm(values.tolist())
    assert found == pytest.approx(multipletests(values, method="holm")[1], abs=1e-15)
    assert all(type(value) is float for value in found)


def test_holm_by_hand() -> None:
    assert stats.holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert stats.holm([]) == []


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.1])
def test_holm_refuses_what_is_no_p(bad: float) -> None:
    with pytest.raises(DataError, match=f"from 0 to 1; seen: {bad}"):
        stats.holm([0.5, bad])


@pytest.mark.parametrize(
    ("comparisons", "level", "sided", "needed"),
    [
        (1, 0.05, "two", 6),  # 1/32 < 0.05 <= 1/16
        (1, 0.05, "greater", 5),
        (1, 0.05, "observed", 5),
        (10, 0.05, "two", 9),  # 1/256 < 0.005 <= 1/128
        (1, 0.25, "two", 4),  # 1/4 is not below 1/4
        (1, 0.9, "greater", 2),  # never one
    ],
)
def test_seeds_needed(comparisons: int, level: float, sided: Sided, needed: int) -> None:
    assert stats.seeds_needed(comparisons, level, sided) == needed
    assert stats.warning_about(needed, comparisons, level, sided) == ""
    assert str(needed) in stats.warning_about(needed - 1, comparisons, level, sided)


def test_seeds_needed_is_where_all_sign_flips_reach_significance() -> None:
    """Permute: of all sign flips of clearly better scores, none but the whole flip is as far off."""
    for seeds in range(2, 9):
        result = scipy_stats.permutation_test(
            (np.arange(1.0, seeds + 1), np.zeros(seeds)),
            lambda a, b: np.mean(a - b),
            permutation_type="samples",
            n_resamples=np.inf,
        )
        assert (result.pvalue < 0.05) == (seeds >= stats.seeds_needed())


def test_warnings_in_words() -> None:
    assert stats.warning_about(1) == ("With 1 seed no test over seeds is possible; at least 6 are needed for p < 0.05.")
    assert stats.warning_about(4, comparisons=12) == (
        "With 4 seeds, a test that does not take the scores for normally distributed reaches p = 0.125 at best; "
        "p < 0.05 / 12 comparisons needs at least 9 seeds. The t-test's smaller values rest on that assumption."
    )


@pytest.mark.parametrize(("comparisons", "level"), [(0, 0.05), (1, 0.0), (1, 1.0), (1, float("nan"))])
def test_levels_that_mean_nothing(comparisons: int, level: float) -> None:
    with pytest.raises(DataError, match=f"{comparisons} and {level}"):
        stats.seeds_needed(comparisons, level)

"""Metrics against hand-computed values and against predictions made to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from limbeck.errors import DataError
from limbeck.metrics import METRICS


def test_binary_values_by_hand() -> None:
    # tp 2, fp 1, fn 1, tn 1
    predictions, labels = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(3 / 5)
    assert METRICS["f1"](predictions, labels) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert METRICS["mcc"](predictions, labels) == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    # class 0: tp 1, fp 1, fn 1 -> 1/2; class 1: 2/3
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(3 / 5)


def test_f1_is_of_class_one_not_of_class_zero() -> None:
    assert METRICS["f1"]([0, 0, 0, 1], [0, 0, 0, 0]) == 0.0
    assert METRICS["f1"]([1, 1, 1, 0], [1, 1, 1, 1]) == pytest.approx(6 / 7)


def test_multi_label_by_hand() -> None:
    labels = [[1, 0, 1], [0, 1, 0]]
    predictions = [[1, 1, 0], [0, 1, 0]]
    # over all six cells: tp 2, fp 1, fn 1
    assert METRICS["micro_f1"](predictions, labels) == pytest.approx(4 / 6)
    # per label: 1, 2/3, 0
    assert METRICS["macro_f1"](predictions, labels) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert METRICS["accuracy"](predictions, labels) == pytest.approx(1 / 2)


def test_correlations_by_hand() -> None:
    predictions, labels = [1.0, 2.0, 3.0], [1.0, 2.0, 9.0]
    # deviations (-1, 0, 1) and (-3, -2, 5): 8 / sqrt(2 * 38)
    assert METRICS["pearson"](predictions, labels) == pytest.approx(8 / math.sqrt(76))
    assert METRICS["spearman"](predictions, labels) == pytest.approx(1.0)
    assert METRICS["mse"](predictions, labels) == pytest.approx(36 / 3)


def test_spearman_gives_ties_their_mean_rank() -> None:
    # ranks (1.5, 1.5, 3) and (1, 2, 3): deviations (-.5, -.5, 1) and (-1, 0, 1)
    assert METRICS["spearman"]([5, 5, 7], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


@pytest.mark.parametrize("metric", ["mcc", "pearson", "spearman"])
@pytest.mark.parametrize("constant", [0, 1])
def test_all_one_class_scores_zero_without_a_warning(metric: str, constant: int) -> None:
    mixed, same = [0, 1, 1, 0], [constant] * 4
    assert METRICS[metric](same, mixed) == 0.0
    assert METRICS[metric](mixed, same) == 0.0
    assert METRICS[metric](same, same) == 0.0


def test_nearly_constant_predictions_do_not_warn() -> None:
    predictions = 1.0 + np.array([0.0, 1.0, 2.0]) * 1e-16
    assert abs(METRICS["pearson"](predictions, [1.0, 2.0, 3.0])) <= 1.0
    predictions = 1e8 + np.array([0.0, 1.0, 2.0]) * 1e-7
    assert abs(METRICS["pearson"](predictions, [1.0, 2.0, 3.0])) <= 1.0


def test_never_predicted_class_counts_as_zero_without_a_warning() -> None:
    assert METRICS["f1"]([0, 0], [1, 0]) == 0.0
    assert METRICS["f1"]([0, 0], [0, 0]) == 0.0  # undefined: neither predicted nor present
    # class 0: 2/3, class 1: 0, class 2: 0
    assert METRICS["macro_f1"]([0, 0, 0, 0], [0, 0, 1, 2]) == pytest.approx((2 / 3) / 3)


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_and_single(metric: str) -> None:
    assert METRICS[metric]([0, 1, 1], [0, 1, 1]) == pytest.approx(0.0 if metric == "mse" else 1.0)
    assert math.isfinite(METRICS[metric]([1], [1]))


@pytest.mark.parametrize("metric", METRICS)
def test_values_are_python_floats(metric: str) -> None:
    assert type(METRICS[metric](np.array([0, 1, 1]), np.array([0, 1, 0]))) is float


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_to_score(metric: str) -> None:
    with pytest.raises(DataError, match="nothing to score"):
        METRICS[metric]([], [])


def test_diverged_predictions_are_named() -> None:
    with pytest.raises(DataError, match=r"2 of 3 predictions are not finite.*learning_rate"):
        METRICS["pearson"]([1.0, float("nan"), float("inf")], [1.0, 2.0, 3.0])


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        METRICS["accuracy"]([1, 0], [1, 0, 1])

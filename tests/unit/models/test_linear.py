"""Compare linear models on fixed features with scikit-learn's own pipelines."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from limbeck.models.linear import STRENGTHS, fit_linear, fold_numbers, linear_predictions


def drawn(rows=300, width=8, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, width)) * rng.uniform(0.1, 20, width) + rng.uniform(-30, 30, width)
    scores = ((features - features.mean(0)) / features.std(0)) @ rng.normal(size=(width, 4)) + rng.normal(
        size=(rows, 4)
    )
    return features.astype(np.float32), scores


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_are_those_of_a_scaled_logistic_regression(classes):
    features, scores = drawn()
    labels = scores[:, :classes].argmax(-1)
    found = fit_linear(
        features, labels, "classification", num_labels=classes, metric="accuracy", strengths=[0.1], seed=0
    )
    own = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000, tol=1e-8)).fit(features, labels)
    logits = found.logits(features)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    assert np.abs(chances / chances.sum(-1, keepdims=True) - own.predict_proba(features)).max() < 2e-3
    assert (linear_predictions(logits, "classification") == own.predict(features)).mean() > 0.99


def test_labels_alone_are_those_of_one_regression_each():
    features, scores = drawn()
    labels = (scores > 0.5).astype(float)
    labels[:, 3] = 0  # one that never occurs
    found = fit_linear(features, labels, "multi_label", num_labels=4, metric="micro_f1", strengths=[0.3])
    own = make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(C=0.3, max_iter=1000, tol=1e-8)))
    own.fit(features, labels[:, :3])
    chances = 1 / (1 + np.exp(-found.logits(features)))
    assert np.abs(chances[:, :3] - own.predict_proba(features)).max() < 2e-3
    assert chances[:, 3].max() < 0.01


def test_numbers_are_those_of_ridge_regression():
    features, scores = drawn()
    found = fit_linear(features, scores[:, 0], "regression", num_labels=1, metric="pearson", strengths=[0.5])
    own = make_pipeline(StandardScaler(), Ridge(alpha=2.0)).fit(features, scores[:, 0])
    assert found.logits(features)[:, 0] == pytest.approx(own.predict(features), abs=1e-3)


def test_the_score_is_cross_validated_and_chooses_the_strength():
    """Expect the best of all strengths by plain cross-validation, which falls to both sides of it here."""
    features, scores = drawn(120, 60, seed=3)
    labels = scores[:, 0] > 0
    folds = fold_numbers(len(features), None, 0)

    def plain(strength):
        right = 0
        for fold in range(3):
            held = folds == fold
            own = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000, tol=1e-6))
            right += (own.fit(features[~held], labels[~held]).predict(features[held]) == labels[held]).sum()
        return right / len(labels)

    found = fit_linear(features, labels, "classification", num_labels=2, metric="accuracy")
    assert found.score == pytest.approx(plain(found.strength), abs=0.01)
    assert found.score >= max(plain(strength) for strength in (STRENGTHS[0], STRENGTHS[-1]))


def test_rows_of_a_group_are_in_one_fold():
    groups = np.repeat([f"text {i}" for i in range(40)], 5)
    folds = fold_numbers(200, groups, 1)
    assert all(len(set(folds[groups == group])) == 1 for group in set(groups))
    assert set(folds) == {0, 1, 2}


def test_a_class_without_rows_is_never_the_answer_and_features_may_be_constant():
    features, scores = drawn()
    features[:, 2] = 7
    labels = scores[:, :3].argmax(-1)
    labels[labels == 1] = 0
    found = fit_linear(features, labels, "classification", num_labels=5, metric="accuracy", strengths=[0.1])
    answers = linear_predictions(found.logits(features), "classification")
    assert set(answers) <= {0, 2} and np.isfinite(found.weight).all() and np.isfinite(found.bias).all()
    assert (answers == labels).mean() > 0.8
    changed = features.copy()
    changed[:, 2] = 1000  # which nothing could be learned about
    assert found.logits(changed) == pytest.approx(found.logits(features))


@pytest.mark.parametrize("problem", ["classification", "multi_label", "regression"])
def test_one_row_or_equal_labels_give_finite_answers(problem):
    features = np.ones((2, 3), dtype=np.float32)
    labels = {"classification": [1, 1], "multi_label": [[1, 0], [1, 0]], "regression": [0.5, 0.5]}[problem]
    metric = {"classification": "accuracy", "multi_label": "micro_f1", "regression": "mse"}[problem]
    labels_there = 1 if problem == "regression" else 2
    for rows in (1, 2):
        found = fit_linear(features[:rows], labels[:rows], problem, num_labels=labels_there, metric=metric)
        answers = linear_predictions(found.logits(features), problem)
        assert np.isfinite(found.logits(features)).all()
        assert np.array_equal(np.round(answers, 6)[0], labels[0])


@pytest.mark.parametrize("classes", [2, 4])
def test_without_an_intercept_features_are_scaled_only(classes):
    features, scores = drawn()
    labels = scores[:, :classes].argmax(-1)
    how = {"num_labels": classes + 1, "metric": "accuracy", "strengths": [0.1], "intercept": False}
    found = fit_linear(features, labels, "classification", **how)
    own = make_pipeline(
        StandardScaler(with_mean=False), LogisticRegression(C=0.1, max_iter=9000, tol=1e-9, fit_intercept=False)
    ).fit(features, labels)
    logits = found.logits(features)[:, :classes]
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    assert not found.bias.any()
    assert np.abs(chances / chances.sum(-1, keepdims=True) - own.predict_proba(features)).max() < 2e-2
    assert found.logits(features).argmax(-1).max() < classes  # one without rows is no answer


def test_a_metric_may_be_a_function_of_logits_and_the_largest_value_wins():
    features, scores = drawn()
    seen = []

    def smallest(logits, labels):
        seen.append(logits.shape)
        return -float(np.abs(logits).max())

    labels = scores.argmax(-1)
    found = fit_linear(features, labels, "classification", num_labels=4, metric=smallest)
    assert found.strength == STRENGTHS[0] and set(seen) == {(300, 4)}


def test_class_weights_of_labels_count_those_that_are_there():
    features, scores = drawn()
    labels = (scores > 0.5).astype(float)
    weights = (1.0, 4.0, 0.5, 2.0)
    how = {"num_labels": 4, "metric": "micro_f1", "strengths": [0.3], "class_weights": weights}
    found = fit_linear(features, labels, "multi_label", **how)
    for number, weight in enumerate(weights):
        one = LogisticRegression(C=0.3, max_iter=1000, tol=1e-8, class_weight={0: 1, 1: weight})
        own = make_pipeline(StandardScaler(), one).fit(features, labels[:, number])
        chances = 1 / (1 + np.exp(-found.logits(features)[:, number]))
        assert np.abs(chances - own.predict_proba(features)[:, 1]).max() < 2e-3

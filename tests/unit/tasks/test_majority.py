"""What always giving the most frequent answer scores: the least that a model must beat."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset

from limbeck.tasks.task import Task
from limbeck.tasks.tokens import TokenTask


def encoded(**columns):
    return Dataset.from_dict(columns)


def task(problem, names, metrics):
    return Task("mine", problem, ("text",), names, metrics, {})


def test_classes():
    found = task("classification", ("a", "b", "c"), ("accuracy", "macro_f1")).majority(
        encoded(labels=[2, 2, 0, 1, 2]), encoded(labels=[0, 2, 2, 1])
    )
    assert found == {"accuracy": pytest.approx(0.5), "macro_f1": pytest.approx((2 * 0.5 / 1.5) / 3)}


def test_numbers():
    labels = [1.0, 2.0, 6.0]
    found = task("regression", (), ("pearson", "mse")).majority(encoded(labels=[1.0, 5.0]), encoded(labels=labels))
    assert found == {"pearson": 0.0, "mse": pytest.approx(np.mean([(3 - label) ** 2 for label in labels]))}


def test_label_sets():
    train = encoded(labels=[[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    dev = encoded(labels=[[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    found = task("multi_label", ("x", "y"), ("accuracy", "micro_f1")).majority(train, dev)
    assert found == {"accuracy": pytest.approx(0.5), "micro_f1": pytest.approx(2 * 3 / (4 + 4))}


def test_tags():
    tags = TokenTask("mine", "tokens", ("words",), ("O", "B-X"), ("token_accuracy", "entity_f1"), {})
    train = encoded(labels=[[-100, 0, 0, 1, -100], [-100, 0, -100]])
    dev = encoded(tags=[[1, 0], [0, 0]], word=[[-1, 0, 1, -1], [-1, 0, 1, -1]], size=[2, 2])
    assert tags.majority(train, dev) == {"token_accuracy": pytest.approx(0.75), "entity_f1": 0.0}


@pytest.mark.parametrize("problem", ["span", "language_model"])
def test_there_is_no_most_frequent_answer(problem):
    assert task(problem, (), ("f1",)).majority(encoded(labels=[0]), encoded(labels=[0])) == {}

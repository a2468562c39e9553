from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.similarity import nearest_same_class

from . import reference


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31), st.sampled_from(reference.KINDS), st.integers(1, 8), st.integers(1, 6),
    st.integers(1, 4), st.integers(1, 10), st.sampled_from([1e-6, 1.0, 1e6]),
)  # fmt: skip
def test_agrees_with_the_loops(seed, kind, n, d, classes, k, scale):
    student, teacher = (reference.features(seed + i, kind, n, d, scale) for i in range(2))
    labels = np.random.default_rng(seed).integers(0, classes, n)
    indices, valid = nearest_same_class(*map(torch.tensor, (student, teacher, labels)), k)
    assert indices.shape == valid.shape == (n, min(k, n))
    expected = reference.nearest_same_class(student, teacher, labels, k)
    for i in range(n):
        assert valid[i].tolist() == [j < len(expected[i]) for j in range(min(k, n))]
        assert (indices[i][~valid[i]] == i).all()
        # Equal up to the order of teachers that are equally far in float64
        ranks = [reference.squared_distance(*reference.rows_of([student[i], teacher[j]])) for j in indices[i][valid[i]]]
        best = [reference.squared_distance(*reference.rows_of([student[i], teacher[j]])) for j in expected[i]]
        np.testing.assert_allclose(np.array(ranks, float), np.array(best, float), rtol=1e-12)


def test_prefers_the_nearest_of_its_class_and_itself_on_ties():
    teacher = torch.tensor([[0.0], [1.0], [5.0], [1.0]])
    student = torch.tensor([[0.9], [1.0], [5.0], [0.0]])
    indices, valid = nearest_same_class(student, teacher, torch.tensor([0, 0, 1, 0]), 2)
    assert indices.tolist() == [[1, 3], [1, 3], [2, 2], [0, 1]]
    assert valid.tolist() == [[True, True], [True, True], [True, False], [True, True]]


def test_near_duplicates_far_from_the_origin_are_told_apart():
    teacher = torch.full((3, 50), 1000.0)
    teacher[1, 0] += 2e-4
    teacher[2, 0] += 5e-4
    student = teacher[[2, 2, 2]]
    indices, _ = nearest_same_class(student, teacher, torch.zeros(3), 3)
    assert indices[0].tolist() == [2, 1, 0]


def test_half_precision_autocast_and_no_gradient():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    expected = nearest_same_class(x.float(), x.float(), labels, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = nearest_same_class(x, x, labels, 2)
    assert torch.equal(found[0], expected[0])
    assert not found[0].requires_grad
    assert found[0][:, 0].tolist() == list(range(6))


def test_bad_arguments():
    x, labels = torch.zeros(4, 3), torch.zeros(4)
    with pytest.raises(ValueError, match="project the student"):
        nearest_same_class(x, torch.zeros(4, 5), labels, 1)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        nearest_same_class(x, x, torch.zeros(3), 1)
    with pytest.raises(ValueError, match="got 0"):
        nearest_same_class(x, x, labels, 0)

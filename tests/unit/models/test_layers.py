from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limbeck.errors import RecipeError
from limbeck.models.layers import STRATEGIES, layer_map


@pytest.mark.parametrize(
    ("strategy", "teacher_layers"),
    [
        ("uniform", [2, 4, 6, 8, 10, 12]),
        ("top", [7, 8, 9, 10, 11, 12]),
        ("bottom", [1, 2, 3, 4, 5, 6]),
        ("skip", [2, 4, 6, 8, 10]),
    ],
)
def test_six_from_twelve_as_in_the_papers(strategy, teacher_layers):
    assert layer_map(strategy, 6, 12) == list(enumerate(teacher_layers, start=1))


def test_single_pairs():
    assert layer_map("last", 6, 12) == [(6, 12)]
    assert layer_map("middle", 12, 24) == [(6, 12)]
    assert layer_map("middle", 1, 3) == [(1, 1)]


def test_depths_that_do_not_divide():
    assert layer_map("uniform", 4, 6) == [(1, 1), (2, 3), (3, 4), (4, 6)]
    assert layer_map("uniform", 5, 12) == [(1, 2), (2, 4), (3, 7), (4, 9), (5, 12)]


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 24), st.integers(1, 48))
def test_every_map_is_in_range_and_increasing(strategy, student, teacher):
    if student > teacher:
        with pytest.raises(RecipeError, match="deeper"):
            layer_map(strategy, student, teacher)
        return
    pairs = layer_map(strategy, student, teacher)
    assert all(1 <= s <= student and 1 <= t <= teacher for s, t in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))


def test_explicit_pairs():
    assert layer_map([[3, 6], [6, 12], [0, 0]], 12, 24) == [(3, 6), (6, 12), (0, 0)]
    for wrong, message in (
        ([[3, 25]], r"\(3, 25\) is out of range"),
        ([[1, 2, 3]], "student layer, teacher layer"),
        ([], "empty"),
    ):
        with pytest.raises(RecipeError, match=message):
            layer_map(wrong, 12, 24)


def test_unknown_strategy_suggests():
    with pytest.raises(RecipeError, match="Did you mean 'uniform'"):
        layer_map("unifrom", 6, 12)

"""Check how shrink divides its time, from made-up costs."""

from __future__ import annotations

import pytest

from limbeck.shrink.schedule import StepCost, depths_of, epochs_that_fit, fewer_depths, schedule_race
from limbeck.study.halving import race_cost, rung_shares


@pytest.mark.parametrize(
    ("depth", "depths"), [(12, (6, 4, 3, 2, 1)), (24, (12, 8, 6, 4, 2)), (6, (3, 2, 1)), (4, (2, 1)), (2, (1,))]
)
def test_depths_are_shares_of_the_teachers(depth, depths):
    assert depths_of(depth) == depths


def test_fewer_depths_keep_both_ends():
    assert fewer_depths((6, 4, 3, 2, 1)) == (6, 3, 1)
    assert fewer_depths((3, 2, 1)) == (3, 1)
    assert fewer_depths((2, 1)) == (2, 1)
    assert fewer_depths((1,)) == (1,)


@pytest.mark.parametrize(
    ("seconds", "of_one", "epochs"), [(100, 40, 2.5), (1000, 1, 10.0), (10, 1000, 0.01), (90, 270, 0.33), (-5, 1, 0.01)]
)
def test_training_lasts_as_long_as_there_is_time(seconds, of_one, epochs):
    assert epochs_that_fit(seconds, of_one) == epochs


def by_hand(candidates):
    """Count trainings rung by rung: who begins, how far, and that half of them stop."""
    left, before, total = candidates, 0.0, 0.0
    for share in rung_shares(candidates):
        total += left * (share - before)
        before, left = share, (left + 1) // 2
    return total


@pytest.mark.parametrize(("candidates", "cost"), [(1, 1.0), (2, 4 / 3), (4, 2.0), (8, 2.5)])
def test_a_race_costs_less_than_all_of_its_trainings(candidates, cost):
    assert race_cost(candidates) == pytest.approx(cost) == pytest.approx(by_hand(candidates))
    assert rung_shares(candidates)[-1] == 1 and rung_shares(candidates) == sorted(rung_shares(candidates))


COSTS = {depth: StepCost(10.0 * depth, 1.0) for depth in (6, 4, 3, 2, 1)}
# seconds of an epoch of the deepest and sqrt(6 / n) epochs of n layers
ALL, FEW = (sum(10 * depth * (6 / depth) ** 0.5 for depth in depths) for depths in ((6, 4, 3, 2, 1), (6, 3, 1)))


@pytest.mark.parametrize(
    ("seconds", "depths", "candidates"),
    [
        (10_000, 5, 8),
        (3 * 2.5 * ALL + 5 * 15, 5, 8),  # eight of them begin 15 times in four rungs
        (3 * 2.0 * ALL + 5 * 7, 5, 4),
        (3 * 4 / 3 * ALL + 5 * 3, 5, 2),
        (3 * 4 / 3 * FEW + 3 * 3, 3, 2),
        (3 * FEW + 3, 3, 1),
        (50, 3, 1),  # fewer than three epochs, because nothing is left to give up
    ],
)
def test_candidates_and_depths_are_given_up_before_epochs(seconds, depths, candidates):
    found = schedule_race(COSTS, seconds)
    assert (len(found.depths), found.candidates) == (depths, candidates)
    assert found.seconds <= max(seconds, 0) * 1.03
    assert found.epochs[0] >= 3 or (depths, candidates) == (3, 1)
    assert list(found.epochs) == sorted(found.epochs) and len(found.epochs) == depths
    assert {found.depths[0], found.depths[-1]} == {6, 1}


def test_no_time_at_all_is_still_a_race():
    found = schedule_race(COSTS, -100.0)
    assert found.epochs[0] == 0.01 and found.candidates == 1

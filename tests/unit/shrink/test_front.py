"""Check the choice among measured models by plain enumeration."""

from __future__ import annotations

import random

import pytest

from limbeck.shrink.budget import Budget
from limbeck.shrink.front import front, knee, within


def model(name, ms, score):
    return {"name": name, "p50_ms": ms, "chosen_by": score}


def drawn(count, seed):
    generator = random.Random(seed)
    return [model(str(n), generator.uniform(0.5, 50), generator.choice([0.8, 0.85, 0.9, 0.95])) for n in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_the_front_is_what_nothing_beats(seed):
    models = drawn(12, seed)
    beaten = {
        one["name"]
        for one in models
        for other in models
        if (other["p50_ms"], -other["chosen_by"]) != (one["p50_ms"], -one["chosen_by"])
        and other["p50_ms"] <= one["p50_ms"]
        and other["chosen_by"] >= one["chosen_by"]
    }
    assert {one["name"] for one in front(models)} == {one["name"] for one in models} - beaten


def test_the_knee_is_where_time_stops_buying_score():
    models = [
        model("1", 1, 0.80),
        model("2", 2, 0.90),
        model("3", 4, 0.93),
        model("6", 8, 0.935),
        model("12", 16, 0.94),
    ]
    # by hand: (score - 0.80) / 0.14 - log2(ms) / 4 is 0, 0.464, 0.429, 0.214, 0
    assert knee(models)["name"] == "2"
    assert knee(models[:2])["name"] == "2"  # two ends have no knee: the better one
    assert knee([model("slow and bad", 50, 0.1), model("only", 1, 0.9)])["name"] == "only"


def test_what_is_better_within_noise_only_is_not_worth_its_time():
    models = [model("1", 0.25, 0.926), model("3", 0.6, 0.920), model("6", 1.2, 0.928), model("6, float", 8, 0.930)]
    assert [one["name"] for one in front(models)] == ["1", "6", "6, float"]
    assert [one["name"] for one in front(models, 0.011)] == ["1"] and knee(models, 0.011)["name"] == "1"
    assert knee([*models, model("12", 16, 0.95)], 0.011)["name"] == "12"


def test_a_budget_takes_the_best_within_it():
    models = [model("1", 1, 0.80), model("2", 2, 0.90), model("fast twin", 1.5, 0.90), model("6", 8, 0.935)]
    assert within(models, Budget.parse("2ms"), 16.0)["name"] == "fast twin"
    assert within(models, Budget.parse("0.5x"), 16.0)["name"] == "6"
    assert within(models, Budget.parse("0.5ms"), 16.0) is None

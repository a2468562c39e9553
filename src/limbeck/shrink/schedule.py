"""Divide the time: how long the teacher trains, which depths are tried, how many candidates race and how long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from limbeck._internal.progress import muted_messages
from limbeck.recipes.recipe import Recipe
from limbeck.study.halving import race_cost, race_starts
from limbeck.training.assemble import assemble, load_data
from limbeck.training.precision import computing_as

_MOST_EPOCHS = 10.0
_TIMES = 3  # that a step is timed: their median is not moved by one that was disturbed
# A head is fitted to so many rows, which are read at a third of a step's cost; fitting it, scoring it three times and
# saving the student take about as long again, and some seconds.
_FITTED_ROWS, _START_PASSES, _START_SECONDS = 2_000, 1.2, 5.0
_ENOUGH_EPOCHS = 3.0  # of a race's winner: candidates and depths are given up before it has fewer


@dataclass(frozen=True)
class StepCost:
    """Hold what a recipe costs on this machine: seconds for a pass over the data, and seconds to begin."""

    epoch: float
    start: float


@dataclass(frozen=True)
class RaceSchedule:
    """Hold which depths are tried, how many candidates race for each, how long, and what it is expected to take."""

    depths: tuple[int, ...]
    candidates: int
    epochs: tuple[float, ...]  # of each depth's winner
    seconds: float


def depths_of(depth: int) -> tuple[int, ...]:
    """Return the depths that are tried below a teacher of so many layers: a half, a third, a quarter, a sixth, ..."""
    return tuple(sorted({max(1, depth // part) for part in (2, 3, 4, 6, 12)}, reverse=True))


def fewer_depths(depths: Sequence[int]) -> tuple[int, ...]:
    """Leave out every second depth, but neither the deepest nor the shallowest."""
    return tuple(depth for place, depth in enumerate(depths) if place % 2 == 0 or place == len(depths) - 1)


def schedule_race(costs: Mapping[int, StepCost], seconds: float) -> RaceSchedule:
    """Choose the widest race that fits into so many seconds and gives its winners three epochs; at least the narrowest.

    More depths count for more than more candidates: which student is worth having is seen on the front only.
    """
    every, few = tuple(costs), fewer_depths(tuple(costs))
    fields = [(every, 8), (every, 4), (every, 2), (few, 2), (every, 1), (few, 1)]
    chosen = None
    for depths, candidates in fields:
        chosen = _scheduled(costs, depths, candidates, seconds)
        if chosen.epochs[0] >= _ENOUGH_EPOCHS:
            break
    assert chosen is not None
    return chosen


def _scheduled(costs: Mapping[int, StepCost], depths: tuple[int, ...], candidates: int, seconds: float) -> RaceSchedule:
    begin = race_starts(candidates) * sum(costs[depth].start for depth in depths)
    # a shallow student has more to learn and costs less: half of what it saves goes into more epochs
    more = [(costs[depths[0]].epoch / costs[depth].epoch) ** 0.5 for depth in depths]
    whole = race_cost(candidates)
    of_one = whole * sum(costs[depth].epoch * times for depth, times in zip(depths, more, strict=True))
    deepest = epochs_that_fit(seconds - begin, of_one)
    epochs = tuple(min(_MOST_EPOCHS, float(f"{deepest * times:.2g}")) for times in more)
    trained = sum(costs[depth].epoch * own for depth, own in zip(depths, epochs, strict=True))
    return RaceSchedule(depths, candidates, epochs, begin + whole * trained)


def epochs_that_fit(seconds: float, of_one: float) -> float:
    """Return how many passes over the training data fit into so much time: at most 10, parts of one if need be."""
    epochs = min(_MOST_EPOCHS, seconds / of_one)
    return max(0.01, float(f"{epochs:.2g}"))


def measure_cost(recipe: Recipe) -> StepCost:
    """Estimate what a training costs, from a few steps on short, medium and long texts."""
    begin = time.perf_counter()
    with muted_messages():
        parts = assemble(recipe)
        data = load_data(recipe, parts)
    batches = data.batches("train")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    distiller = parts.distiller.to(device).train()
    optimizer = torch.optim.AdamW([weight for weight in distiller.parameters() if weight.requires_grad], lr=0.0)
    middle = len(batches) // 2
    start = time.perf_counter() - begin

    def step(number: int) -> float:
        batch = {name: value.to(device) for name, value in batches[number].items()}
        begin = time.perf_counter()
        with computing_as(recipe, device):
            loss = distiller(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    step(middle)  # warms up
    took = [
        median(step(number) for _ in range(_TIMES)) for number in (len(batches) // 6, middle, len(batches) * 5 // 6)
    ]
    epoch = len(batches) * sum(took) / len(took)
    share = min(1.0, _FITTED_ROWS / len(data.splits["train"]))
    return StepCost(epoch, start + share * (epoch * _START_PASSES + _START_SECONDS))

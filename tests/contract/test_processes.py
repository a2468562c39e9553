"""Check that N processes with B examples give the loss and gradients of one with N x B, for every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.method_cases import PROBLEMS, cases, features, labels_for, objective_for, tensors
from helpers.two_processes import in_processes

from limbeck import Features
from limbeck._internal.processes import mean_over_processes, process_count, rank

PARTS = {"uneven": ((5, 9), (3, 7, 6)), "nothing left": ((5, 9, 4), ()), "three": ((5,), (9, 3), (7, 6, 2, 4))}


@pytest.mark.distributed
@pytest.mark.parametrize(
    "parts",
    [pytest.param(parts, id=name, marks=pytest.mark.slow if len(parts) > 2 else ()) for name, parts in PARTS.items()],
)
def test_value_and_gradients_are_those_of_one_process(parts, tmp_path):
    found = in_processes(distances, tmp_path, parts, count=len(parts))
    assert all(set(process) == set(found[0]) for process in found) and len(found[0]) > 20 * len(PROBLEMS)
    wrong = {name: apart for process in found for name, apart in process.items() if not max(apart.values()) < 1e-6}
    assert wrong == {}


def distances(parts: tuple[tuple[int, ...], ...]) -> dict[str, dict[str, float]]:
    """Return for each method and problem how far this process's part is from that of one process with all samples."""
    tried = [(case, problem) for case in cases() for problem in PROBLEMS]
    tried = [(case, problem) for case, problem in tried if (case.values[0], problem) != ("ics", "language_model")]
    return {f"{case.id} {problem}": _distance(*case.values, problem, parts) for case, problem in tried}


def _distance(name: str, options: dict[str, Any], problem: str, parts: tuple[tuple[int, ...], ...]) -> dict[str, float]:
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    samples = [length for part in parts for length in part]
    before = sum(map(len, parts[: rank()]))
    own, width = slice(before, before + len(parts[rank()])), max(parts[rank()], default=1)

    whole, teacher = (
        features(needs.student, samples, problem, seed=1, grad=True),
        features(needs.teacher, samples, problem, seed=2),
    )
    labels = labels_for(problem, samples)
    values = {term: module(whole, teacher, {"labels": labels}) for term, module in objective.terms.items()}
    objective.total(values).backward()
    trained = [parameter for parameter in objective.parameters() if parameter.grad is not None]
    expected = [parameter.grad.clone() for parameter in trained]
    objective.zero_grad()

    mine = _part(whole, own, width)
    here = objective(mine, _part(teacher, own, width), {"labels": _cut(labels, own, width, max(samples))})
    objective.total(here).backward()
    gradients = mean_over_processes([p.grad if p.grad is not None else torch.zeros_like(p) for p in trained])
    return {
        "value": max(_apart(mean_over_processes([here[term]])[0], values[term]) for term in values),
        "of the terms": max(map(_apart, gradients, expected), default=0.0),
        # the mean over processes is taken of what follows from them
        "of the features": max(
            (
                _apart(_or_zero(ours) / process_count(), _cut(_or_zero(theirs), own, width, max(samples)))
                for ours, theirs in zip(tensors(mine), tensors(whole), strict=True)
            ),
            default=0.0,
        ),
    }


def _part(side: Features, own: slice, width: int) -> Features:
    """Cut out some samples, padded to their own longest."""
    longest = side.mask.shape[1]
    cut = {
        name: _cut(side[name], own, width, longest).detach().requires_grad_(side[name].requires_grad)
        for name in side.names()
    }
    return Features.named(side.mask[own, :width], cut)


def _cut(tensor: torch.Tensor, own: slice, width: int, longest: int) -> torch.Tensor:
    of_tokens = tensor.dim() > 1 and tensor.shape[1] == longest
    return tensor[own, :width] if of_tokens else tensor[own]


def _or_zero(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, relative to large values and absolute of small ones."""
    if not ours.numel():
        return 0.0
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))

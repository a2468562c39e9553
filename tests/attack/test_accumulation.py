"""Gradient accumulation is the large batch: the same examples, loss, terms, gradients and weights in every step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import launched_training as launched
from helpers.method_cases import PROBLEMS, cases, features, labels_for, objective_for, tensors
from helpers.still_runs import StillRuns, largest_difference
from helpers.two_processes import in_processes
from safetensors.torch import load_file
from torch import Tensor

from limbeck import Features
from limbeck.errors import RecipeError
from limbeck.training.assemble import assemble, load_data

PARTS = ((5, 9, 1), (3, 7, 6), (4,))  # the lengths of the examples of a step in three parts, the last one uneven
ONCE = {"batch_size": 10, "epochs": 2}  # 48 examples: the last step of an epoch has 8, in parts 5 and 3
IN_PARTS = {"batch_size": 5, "gradient_accumulation_steps": 2, "epochs": 2}
LEARNING_TEACHERS = ("metadistil", "reptiledistil")


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> StillRuns:
    return StillRuns(tmp_path_factory.mktemp("still"), tokenizer_folder)


def check_run(still: StillRuns, problem: str, method: dict[str, Any], folder: Path, **task: Any) -> None:
    slow = {"learning_rate": 1e-3} if problem == "regression" else {}  # squares grow, and rounding with them
    (weights, log), (in_parts, log_in_parts) = (
        still.weights_and_log(still.recipe(problem, method, train | slow, **task), folder / name)
        for name, train in (("once", ONCE), ("parts", IN_PARTS))
    )
    assert len(log) == len(log_in_parts) >= 10
    for entry, other in zip(log, log_in_parts, strict=True):
        logged = [name for name in entry if name in ("loss", "grad_norm") or name.startswith("term/")]
        assert {name: other[name] for name in logged} == pytest.approx(
            {name: entry[name] for name in logged}, rel=1e-3, abs=1e-4
        )
    assert largest_difference(weights, in_parts) < 2e-5


@pytest.mark.parametrize("problem", ["tokens", "classification"])
def test_a_run_in_parts_is_the_run_of_large_batches(problem, still, tmp_path, quick_collection):
    check_run(still, problem, {"name": "distilbert"}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("name", "options"), [case for case in cases() if case.values[0] not in LEARNING_TEACHERS])
def test_every_run_in_parts_is_the_run_of_large_batches(name, options, problem, still, tmp_path):
    options = options | ({"memory": 4, "passes": 1} if name in ("fsd", "fsd_g") else {})
    try:
        [*parts] = assemble(still.recipe(problem, {"name": name} | options, ONCE)).method.objective
    except RecipeError as error:
        pytest.skip(str(error))
    if any(term.relational for term in parts):
        pytest.skip("relates samples: the run says so")
    check_run(still, problem, {"name": name} | options, tmp_path)


def test_weighted_classes_count_once_in_a_step_of_parts(still, tmp_path):
    check_run(still, "classification", {"name": "ft"}, tmp_path, class_weights={"negative": 0.2, "positive": 3.0})


def test_blocks_are_drawn_once_in_a_step_of_parts(still, tmp_path):
    method = {"name": "theseus", "stage": "replacing", "schedule": "linear", "full_after": 8, "p": 0.3}
    check_run(still, "classification", method, tmp_path)


def test_the_loss_of_a_step_in_parts_is_the_mean_over_its_tokens(still, tmp_path):
    train = {"batch_size": 7, "gradient_accumulation_steps": 7, "max_steps": 1}  # all 48 rows, the last part has 6
    recipe = still.recipe("tokens", {"name": "ft"}, train)
    parts = assemble(recipe)
    rows = load_data(recipe, parts).splits["train"]
    total, tokens = 0.0, 0
    for row in rows:
        with torch.no_grad():
            output = parts.student.eval()(torch.tensor([row["input_ids"]]))
        for scores, label in zip(output.logits[0].double().numpy(), row["labels"], strict=True):
            if label >= 0:
                total += np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label]
                tokens += 1
    lengths = {len(row["input_ids"]) for row in rows}
    assert len(lengths) > 3, "rows of one length would not tell the two means apart"
    _, [log] = still.weights_and_log(recipe, tmp_path / "run")
    assert log["loss"] == pytest.approx(total / tokens, rel=1e-6)
    assert log["term/task"] == pytest.approx(total / tokens, rel=1e-6)


@pytest.mark.slow
@pytest.mark.distributed
def test_parts_in_two_processes_are_the_run_of_large_batches(still, tmp_path):
    """Take steps of 2 processes x 2 parts x 5 examples: the last of an epoch has 8, all of them in the first part."""
    trains = {"once": {"batch_size": 20}, "parts": {"batch_size": 5, "gradient_accumulation_steps": 2}}
    method = {"name": "distilbert"}
    recipes = {name: still.recipe("tokens", method, train | {"epochs": 2}) for name, train in trains.items()}
    weights, _ = still.weights_and_log(recipes["once"], tmp_path / "once")
    in_processes(launched.train, tmp_path, {"parts": recipes["parts"].model_dump(by_alias=True)}, tmp_path)
    assert largest_difference(weights, load_file(tmp_path / "parts" / "student" / "model.safetensors")) < 2e-5


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("name", "options"), [*cases()])
def test_the_mean_of_weighted_parts_is_the_whole(name, options, problem):
    objective = objective_for(name, options, problem)
    needs, lengths = objective.needs(), [length for part in PARTS for length in part]
    whole, teacher, labels = (
        features(needs.student, lengths, problem, seed=1, grad=True),
        features(needs.teacher, lengths, problem, seed=2),
        labels_for(problem, lengths),
    )
    alone = [term for term, module in objective.terms.items() if not module.relational]
    expected = objective(whole, teacher, {"labels": labels})
    sum(objective.weights[term] * expected[term] for term in alone).backward()

    batches, sides, start = [], [], 0
    for part in PARTS:
        own, width = slice(start, start + len(part)), max(part)
        sides.append((cut(whole, own, width), cut(teacher, own, width)))
        batches.append(
            {"labels": cut_rows(labels, own, width, max(lengths)), "attention_mask": whole.mask[own, :width]}
        )
        start += len(part)
    found = dict.fromkeys(alone, 0.0)
    for (student, taught), batch in zip(sides, batches, strict=True):
        shares = objective.shares(objective.counts([batch]), objective.counts(batches), len(PARTS))
        values = objective(student, taught, batch)
        part = {term: shares[term] * values[term] / len(PARTS) for term in alone}
        sum(objective.weights[term] * part[term] for term in alone).backward()
        found = {term: found[term] + part[term].item() for term in alone}
    assert found == pytest.approx({term: expected[term].item() for term in alone}, rel=1e-5, abs=1e-6)
    start = 0
    for (student, _), part in zip(sides, PARTS, strict=True):
        for ours, theirs in zip(tensors(student), tensors(whole), strict=True):
            if ours.grad is not None:
                gradient = cut_rows(theirs.grad, slice(start, start + len(part)), max(part), max(lengths))
                torch.testing.assert_close(ours.grad, gradient, rtol=1e-4, atol=1e-6)
        start += len(part)


def cut(side: Features, own: slice, width: int) -> Features:
    """Cut out some samples, padded to their own longest."""
    rows = {name: cut_rows(side[name], own, width, side.mask.shape[1]) for name in side.names()}
    kept = {name: tensor.detach().requires_grad_(side[name].requires_grad) for name, tensor in rows.items()}
    return Features.named(side.mask[own, :width], kept)


def cut_rows(tensor: Tensor, own: slice, width: int, longest: int) -> Tensor:
    of_tokens = tensor.dim() > 1 and tensor.shape[1] == longest
    return tensor[own, :width] if of_tokens else tensor[own]


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 3), ("mean", 1)])
def test_parts_of_a_sum_are_added_up(reduction, expected):
    """Of three equal parts in which every sample finds the same neighbours, the sum is three times that of a part."""
    objective = objective_for("ics", {"reduction": reduction, "alpha_2": 0.0, "alpha_3": 0.0})
    needs = objective.needs()
    student, teacher = features(needs.student, (5, 3), seed=1), features(needs.teacher, (5, 3), seed=2)
    batch = {"labels": torch.tensor([0, 1]), "attention_mask": student.mask}
    value = objective(student, teacher, batch)["hidden"]
    share = objective.shares(objective.counts([batch]), objective.counts([batch] * 3), 3)["hidden"]
    assert (share * value / 3 * 3).item() == pytest.approx(expected * value.item()) and math.isfinite(value)


@pytest.mark.parametrize(("name", "said"), [("reptiledistil", True), ("metadistil", True), ("kd", False)])
def test_a_run_says_that_its_teacher_learns_in_every_part(name, said, still, tmp_path, caplog):
    caplog.set_level("INFO", "limbeck")
    train = {"batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 1}
    still.weights_and_log(still.recipe("classification", {"name": name}, train), tmp_path / "run")
    assert (f"{name}: the teacher learns in each of the 2 parts of a step" in caplog.text) == said
    assert ("train.batch_size=8 (without gradient_accumulation_steps)" in caplog.text) == said

"""bfloat16 and torch_compile give the right numbers: statistics in float32 under autocast, compiled losses as eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.method_cases import PROBLEMS, cases, features, labels_for, objective_for, tensors
from helpers.still_runs import StillRuns, largest_difference
from safetensors.torch import load_file
from torch import Tensor

from limbeck import Features, Objective, execute
from limbeck.training.assemble import assemble, load_data

LENGTHS = (9, 3, 7, 6, 4, 8, 5, 2)


def rounded(side: Features, dtype: torch.dtype, *, grad: bool = False) -> Features:
    """Return the values that bfloat16 can hold, as tensors of some dtype."""
    kept = {name: side[name].detach().bfloat16().to(dtype).requires_grad_(grad) for name in side.names()}
    return Features.named(side.mask, kept)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("name", "options"), [*cases()])
def test_losses_of_bf16_features_have_the_accuracy_of_float32(name, options, problem, monkeypatch):
    objective = objective_for(name, options, problem)
    needs, labels = objective.needs(), labels_for(problem, LENGTHS)
    given = [features(needs.student, LENGTHS, problem, seed=1), features(needs.teacher, LENGTHS, problem, seed=2)]

    with torch.autocast("cpu", torch.bfloat16):
        student, teacher = rounded(given[0], torch.bfloat16, grad=True), rounded(given[1], torch.bfloat16)
        found = objective(student, teacher, {"labels": labels})
    gradients = gradients_of(found, student, objective)

    objective.double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # the same formulas, all in float64
    exact, exact_teacher = rounded(given[0], torch.float64, grad=True), rounded(given[1], torch.float64)
    expected = objective(exact, exact_teacher, {"labels": labels.double() if labels.is_floating_point() else labels})
    exact_gradients = gradients_of(expected, exact, objective)

    for term, value in found.items():
        assert value.dtype == torch.float32, term
        assert value.item() == pytest.approx(expected[term].item(), rel=2e-5, abs=1e-6), term
        for ours, theirs in zip(gradients[term], exact_gradients[term], strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                bits = torch.finfo(ours.dtype).eps  # a feature of bfloat16 has a gradient of bfloat16
                assert_near(ours, theirs, max(1e-4, 2 * bits))


def gradients_of(terms: dict[str, Tensor], student: Features, objective: Objective) -> dict[str, tuple[Any, ...]]:
    """Return the gradients of each term with respect to features and to what the terms own."""
    leaves = [*tensors(student), *objective.parameters()]
    return {
        name: torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True) for name, value in terms.items()
    }


def assert_near(ours: Any, theirs: Any, share: float) -> None:
    apart = (ours.double() - theirs).nan_to_num().abs().max().item()
    assert apart <= share * theirs.nan_to_num().abs().max().item() + 1e-9


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> StillRuns:
    return StillRuns(tmp_path_factory.mktemp("still"), tokenizer_folder)


def test_a_student_trained_in_bf16_is_scored_in_float32(still, tmp_path):
    recipe = still.recipe(
        "regression", {"name": "kd"}, {"precision": "bfloat16", "max_steps": 3, "eval_strategy": "epoch"}
    )
    run = execute(recipe, tmp_path / "run", show_data=False)
    parts = assemble(recipe)
    student = type(parts.student).from_pretrained(run.student).eval()
    rows = load_data(recipe, parts).splits["validation"]

    def correlation(dtype: torch.dtype) -> float:
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            scores = [student(torch.tensor([row["input_ids"]])).logits.item() for row in rows]
        return float(np.corrcoef(scores, [row["labels"] for row in rows])[0, 1])

    assert abs(correlation(torch.bfloat16) - correlation(torch.float32)) > 1e-5, "the case cannot tell them apart"
    assert run.metrics()["metrics"]["pearson"] == pytest.approx(correlation(torch.float32), abs=1e-6)
    assert all(tensor.dtype == torch.float32 for tensor in load_file(run.student / "model.safetensors").values())


def test_a_cached_teacher_teaches_as_a_live_one_in_bf16(still, tmp_path):
    found = [
        still.weights_and_log(
            still.recipe(
                "classification", {"name": "distilbert"}, {"precision": "bfloat16", "max_steps": 3}, cache=cache
            ),
            tmp_path / name,
        )
        for name, cache in (("live", "off"), ("cached", tmp_path / "cache"))
    ]
    (live, live_log), (cached, cached_log) = found
    assert (tmp_path / "cache").is_dir()
    for ours, theirs in zip(live_log, cached_log, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=2e-2)
    assert largest_difference(live, cached) < 1e-6  # the cache holds what the live teacher answers in bfloat16


METHODS = {"kd": {}, "fsd": {"memory": 4, "passes": 1}, "minilmv2": {}, "fcd": {}}
KEPT = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 5, "max_steps": 2, "batch_size": 12}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dynamo's own
def test_compiled_runs_of_one_process_are_the_plain_ones(still, tmp_path):
    """Let Dynamo trace them, without the minutes that code for a CPU takes; layers are captured as before."""
    for name, options in METHODS.items():
        check_compiled(still, {"name": name} | options, "eager", tmp_path / name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_run_is_the_plain_one(still, tmp_path):
    check_compiled(still, {"name": "kd"}, "inductor", tmp_path)


def check_compiled(still: StillRuns, method: dict[str, Any], backend: str, folder: Path) -> None:
    trains = {"plain": KEPT, "compiled": KEPT | {"torch_compile": True, "torch_compile_backend": backend}}
    (plain, log), (compiled, compiled_log) = (
        still.weights_and_log(still.recipe("classification", method, train), folder / name)
        for name, train in trains.items()
    )
    assert [entry["loss"] for entry in compiled_log] == pytest.approx([entry["loss"] for entry in log], rel=1e-5)
    assert largest_difference(plain, compiled) < 1e-6
    saved = [load_file(folder / name / "checkpoints" / "checkpoint-1" / "model.safetensors") for name in trains]
    assert largest_difference(*saved) < 1e-6  # of the same names: either run can go on from the other's

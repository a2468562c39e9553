"""Test the loss against the labels, with and without class weights, against float64 formulas; and where weights go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_models import tiny_batch, tiny_model
from safetensors.torch import load_file, load_model, save_model

from limbeck import METHODS, Distiller, Features, Method, Pair, TaskLoss
from limbeck.distillation.pair import ModelShape
from limbeck.errors import RecipeError
from limbeck.methods.ft import decided, decisions
from limbeck.problems import IGNORED

LENGTHS, WIDTH, CLASSES = (5, 3, 4, 1), 5, 3
WEIGHTS = (0.25, 3.0, 1.5)
SHAPE = ModelShape("bert", 2, 8, 2)


def loss_of(problem, weights=None, labels=CLASSES):
    return TaskLoss(Pair(SHAPE, None, problem, labels, weights))


def mask():
    return torch.tensor([[place < length for place in range(WIDTH)] for length in LENGTHS])


def logits_for(problem, seed=0):
    rng = np.random.default_rng(seed)
    per_token = {"tokens": CLASSES, "span": 2}.get(problem)
    shape = (len(LENGTHS), WIDTH, per_token) if per_token else (len(LENGTHS), 1 if problem == "regression" else CLASSES)
    return rng.normal(size=shape) * 3


LABELS = {
    "classification": np.array([2, 0, 1, 1]),
    "regression": np.array([0.5, -1.0, 2.0, 7.0]),
    "multi_label": np.array([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]),
    "tokens": np.array(
        [
            [IGNORED, 1, 2, IGNORED, 0],
            [0, IGNORED, 1, IGNORED, IGNORED],
            [IGNORED] * WIDTH,
            [2, IGNORED, IGNORED, IGNORED, IGNORED],
        ]
    ),
    "span": np.array([[1, 4], [0, 0], [2, 3], [0, 0]]),
}


def log_softmax(row):
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def reference(problem, logits, weights):
    """Compute one number by plain loops."""
    labels = LABELS[problem]
    w = np.ones(CLASSES) if weights is None else np.array(weights)
    if problem == "regression":
        return np.mean([(row[0] - y) ** 2 for row, y in zip(logits, labels, strict=True)])
    if problem == "classification":
        return np.mean([-w[y] * log_softmax(row)[y] for row, y in zip(logits, labels, strict=True)])
    if problem == "multi_label":
        cells = []
        for row, flags in zip(logits, labels, strict=True):
            for z, y, weight in zip(row, flags, w, strict=True):
                cells.append(weight * np.log1p(np.exp(-z)) if y else np.log1p(np.exp(z)))
        return np.mean(cells)
    if problem == "tokens":
        places = [(i, j) for i in range(len(LENGTHS)) for j in range(WIDTH) if labels[i, j] != IGNORED]
        return np.mean([-w[labels[place]] * log_softmax(logits[place])[labels[place]] for place in places])
    ends = [
        -log_softmax(logits[i, :length, side])[labels[i, side]] for i, length in enumerate(LENGTHS) for side in (0, 1)
    ]
    return np.mean(ends)


WEIGHTED = [("classification", WEIGHTS), ("multi_label", WEIGHTS), ("tokens", WEIGHTS)]
CASES = [(problem, None) for problem in LABELS] + WEIGHTED


def compute(problem, weights, logits):
    tensor = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    batch = {"labels": torch.from_numpy(LABELS[problem])}
    term = loss_of(problem, weights, 2 if problem == "span" else CLASSES)
    value = term(Features(mask(), tensor), Features(mask()), batch)
    value.backward()
    return value.item(), tensor.grad.numpy()


@pytest.mark.parametrize(("problem", "weights"), CASES)
def test_value_and_gradient(problem, weights):
    logits = logits_for(problem)
    value, gradient = compute(problem, weights, logits)
    assert value == pytest.approx(reference(problem, logits, weights), rel=1e-5)
    expected = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        rise = reference(problem, logits + step, weights) - reference(problem, logits - step, weights)
        expected[place] = rise / 2e-5
    np.testing.assert_allclose(gradient, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("problem", "weights"), [("tokens", None), ("tokens", WEIGHTS), ("span", None)])
def test_what_is_masked_or_ignored_does_not_matter(problem, weights):
    logits = logits_for(problem)
    changed = logits.copy()
    nowhere = LABELS[problem] == IGNORED if problem == "tokens" else ~mask().numpy()
    changed[nowhere] = np.nan
    assert compute(problem, weights, changed)[0] == compute(problem, weights, logits)[0]


@pytest.mark.parametrize("problem", ["classification", "multi_label", "tokens"])
def test_weights_of_one_change_nothing(problem):
    logits = logits_for(problem)
    plain, gradient = compute(problem, None, logits)
    value, weighted = compute(problem, (1.0,) * CLASSES, logits)
    assert value == pytest.approx(plain, rel=1e-6)
    np.testing.assert_allclose(weighted, gradient, atol=1e-7)


def test_weights_are_not_divided_out_again():
    """Check that a batch of one class has the loss of its weight: the weighted mean of torch would cancel it."""
    logits = torch.tensor([[2.0, 0.0, 1.0]] * 4)
    batch = {"labels": torch.zeros(4, dtype=torch.long)}
    plain, weighted = (
        loss_of("classification", weights)(Features(mask(), logits), Features(mask()), batch)
        for weights in (None, (5.0, 1.0, 1.0))
    )
    assert weighted.item() == pytest.approx(5 * plain.item())


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_tokens_without_any_decision_give_zero_and_no_gradient(weights):
    """Check that a batch whose words were all cut off does not end training in nan."""
    logits = torch.randn(2, 3, CLASSES, requires_grad=True)
    everywhere = torch.ones(2, 3, dtype=torch.bool)
    batch = {"labels": torch.full((2, 3), IGNORED)}
    value = loss_of("tokens", weights)(Features(everywhere, logits), Features(everywhere), batch)
    value.backward()
    assert value.item() == 0 and not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_single(dtype):
    logits = torch.tensor(logits_for("classification"), dtype=dtype)
    batch = {"labels": torch.from_numpy(LABELS["classification"])}
    value = loss_of("classification", WEIGHTS)(Features(mask(), logits), Features(mask()), batch)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(reference("classification", logits.double().numpy(), WEIGHTS), rel=1e-5)


def test_decisions_and_their_labels_have_one_row_each():
    for problem, labels in LABELS.items():
        batch = {"labels": torch.from_numpy(labels)}
        rows = decisions(Features(mask(), torch.tensor(logits_for(problem))), batch, problem)
        assert len(rows) == len(decided(batch["labels"], problem))


def test_weights_move_with_the_module_and_are_not_saved():
    term = loss_of("classification", WEIGHTS)
    assert term.weights.dtype == torch.float32 and term.state_dict() == {}
    assert term.to("meta").weights.device.type == "meta"
    assert loss_of("classification").weights is None


# Every method


def distiller_of(name, weights):
    torch.manual_seed(0)
    student, teacher = tiny_model("bert", depth=2), tiny_model("bert", depth=4, seed=1)
    method = Method.of(METHODS[name](Pair.of(student, teacher, "classification", weights)))
    return Distiller.of(method, student, teacher).eval()


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_weights_reach_the_task_term_of_every_method_and_nothing_else(name):
    batch = tiny_batch((7, 4, 5, 6)) | {"labels": torch.tensor([0, 1, 1, 0])}
    outputs = []
    for weights in (None, (1.0, 4.0)):
        distiller = distiller_of(name, weights)
        distiller.objective.prepare(distiller.teacher, [tiny_batch((9, 7) * 60)])
        torch.manual_seed(1)
        outputs.append(distiller(**batch))
    (plain, weighted), logits = (output["terms"] for output in outputs), outputs[0]["logits"]
    assert plain.keys() == weighted.keys()
    for key in plain.keys() - {"task"}:
        assert torch.equal(plain[key], weighted[key]), key
    if "task" in plain:
        rows = torch.nn.functional.cross_entropy(logits.double(), batch["labels"], reduction="none")
        factors = torch.tensor([1.0, 4.0, 4.0, 1.0], dtype=torch.float64)
        assert plain["task"].item() == pytest.approx(rows.mean().item(), rel=1e-5)
        assert weighted["task"].item() == pytest.approx((factors * rows).mean().item(), rel=1e-5)


def test_the_methods_that_learn_from_labels_call_that_term_task():
    """Make sure that the test above cannot pass because a term has another name."""
    with_task = {name for name in METHODS if "task" in distiller_of(name, None).objective.weights}
    assert {"ft", "kd", "cka", "shape", "fsd", "fcd", "ics", "minilmv2", "pkd"} <= with_task
    for name in METHODS.keys() - with_task:
        assert not any(isinstance(term, TaskLoss) for term in distiller_of(name, None).objective)


def test_checkpoints_do_not_hold_the_weights(tmp_path):
    plain, weighted = (distiller_of("kd", weights) for weights in (None, (1.0, 4.0)))
    save_model(weighted, str(tmp_path / "model.safetensors"))
    assert load_file(tmp_path / "model.safetensors").keys() <= plain.state_dict().keys()
    load_model(plain, str(tmp_path / "model.safetensors"))  # and one without weights can read it


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("problem", ["classification", "tokens"])
def test_smoothing_gives_a_share_of_each_label_to_all_classes(problem, weights):
    logits, labels = logits_for(problem), LABELS[problem]
    w = np.ones(CLASSES) if weights is None else np.array(weights)
    total, count = 0.0, 0
    for row, label in zip(logits.reshape(-1, CLASSES), labels.ravel(), strict=True):
        if label != IGNORED:
            target = np.full(CLASSES, 0.2 / CLASSES)
            target[label] += 0.8
            total -= w[label] * (target * log_softmax(row)).sum()
            count += 1
    given = Features(mask(), logits=torch.tensor(logits))
    loss = TaskLoss(Pair(SHAPE, None, problem, CLASSES, weights), smoothing=0.2)
    found = loss(given, given, {"labels": torch.tensor(labels)})
    assert found.item() == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("problem", ["regression", "multi_label", "span"])
def test_smoothing_needs_classes(problem):
    with pytest.raises(RecipeError, match=f"this is a {problem} problem"):
        METHODS["ft"](Pair(SHAPE, None, problem, CLASSES), smoothing=0.1)

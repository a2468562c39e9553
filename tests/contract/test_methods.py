"""What every method must hold to. A new entry of METHODS is tested by this file without a change here."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch
from tiny import ROOT, tiny_batch, tiny_model

from limbeck import METHODS, Distiller, Features, LearningTeacher, LiveTeacher, Method, Pair, Wanted, load_recipe
from limbeck.errors import ModelError
from limbeck.features import LAYERED, POOLED
from limbeck.pair import Shape
from limbeck.pooling import pool
from limbeck.recipe_files import shipped_recipes
from limbeck.schema import options_of
from limbeck.tasks.task import IGNORED

FAMILIES = ("bert", "roberta", "gpt2")
PROBLEMS = {"classification": 3, "regression": 1, "multi_label": 4, "tokens": 5, "span": 2, "language_model": 7}
DECIDES_TOKENS = ("tokens", "span", "language_model")
DEPTH, WIDTH = 4, 16


def cases():
    """Each method, and each stage of those that have stages."""
    for name, method in METHODS.items():
        stage = options_of(method).model_fields.get("stage")
        for choice in get_args(stage.annotation) if stage else [None]:
            yield pytest.param(name, {"stage": choice} if choice else {}, id=f"{name}-{choice}" if choice else name)


every_method = pytest.mark.parametrize("name", METHODS)
every_stage = pytest.mark.parametrize(("name", "options"), list(cases()))
every_problem = pytest.mark.parametrize("problem", PROBLEMS)


def objective_for(name, options, problem="classification"):
    """Student and teacher of one shape, so that the student can equal its teacher; prepared as before training."""
    torch.manual_seed(0)
    shape = Shape("bert", DEPTH, WIDTH, 4)
    pair = Pair(shape, shape, problem, PROBLEMS[problem])
    if name == "ics" and problem == "language_model":
        with pytest.raises(ModelError, match="class of each text"):
            METHODS[name](pair)
        pytest.skip("ics needs classes")
    objective = Method.of(METHODS[name](pair, **options)).objective

    def teacher(batch, wanted):
        return features(wanted, batch["attention_mask"].sum(1).tolist(), seed=9)

    masks = torch.ones(120, 11, dtype=torch.long).tril(5)
    objective.prepare(teacher, [{"attention_mask": masks}])
    return objective


def mask_of(lengths, width=None, left=False):
    width = width or max(lengths)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, slice(width - length, width) if left else slice(0, length)] = True
    return mask


def labels_for(problem, lengths, width=None, left=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    if problem == "span":
        first = mask_of(lengths, width, left).byte().argmax(1)
        ends = torch.stack([torch.randint(0, length, (2,), generator=generator).sort().values for length in lengths])
        return ends + first[:, None]
    if problem in ("tokens", "language_model"):  # every second token is predicted
        labels = torch.full((batch, width or max(lengths)), IGNORED)
        for row, real in zip(labels, mask_of(lengths, width, left), strict=True):
            tokens = torch.randint(0, PROBLEMS[problem], (int(real.sum()),), generator=generator)
            row[real] = torch.where(torch.arange(len(tokens)) % 2 == 1, tokens, IGNORED)
        return labels
    if problem == "classification":
        return torch.randint(0, PROBLEMS[problem], (batch,), generator=generator)
    if problem == "regression":
        return torch.rand(batch, generator=generator) * 5
    return torch.randint(0, 2, (batch, PROBLEMS[problem]), generator=generator).float()


def features(wanted, lengths, problem="classification", *, seed=0, width=None, left=False, grad=False):
    """Features of exactly what is wanted; masked positions hold garbage that nobody may read."""
    mask = mask_of(lengths, width, left)

    def tokens(kind, layer, size=WIDTH):
        generator = torch.Generator().manual_seed(seed * 1000 + kind * 100 + layer)
        tensor = torch.full((*mask.shape, size), float("nan") if layer % 2 else 1e3)
        for row, length in enumerate(lengths):
            tensor[row, mask[row]] = torch.randn(length, size, generator=generator)
        return tensor.requires_grad_(grad)

    generator = torch.Generator().manual_seed(seed)
    if problem in DECIDES_TOKENS:
        logits = tokens(9, 1, PROBLEMS[problem])
    else:
        logits = torch.randn(len(lengths), PROBLEMS[problem], generator=generator).requires_grad_(grad)
    captured = {
        kind: {layer: tokens(number, layer) for layer in wanted.layers(kind)}
        for number, kind in enumerate(("hidden", "queries", "keys", "values"))
    }
    for kind in POOLED:
        pooled = {layer: pool(tokens(0, layer), mask, kind)[0] for layer in wanted.layers(kind)}
        captured[kind] = {layer: rows.detach().requires_grad_(grad) for layer, rows in pooled.items()}
    return Features(mask, logits if wanted.logits else None, **captured)


def tensors(side):
    found = [side.logits] if side.logits is not None else []
    return found + [tensor for kind in LAYERED for tensor in getattr(side, kind).values()]


@every_stage
@every_problem
def test_a_student_that_equals_its_teacher_is_at_the_minimum(name, options, problem):
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    batch = {"labels": labels_for(problem, (5, 3, 4, 5))}
    wanted = needs.student | needs.teacher
    for term in objective:
        if hasattr(term, "student_memory"):  # what the student has learnt belongs to "equal" too
            term.student_memory.data.copy_(term.teacher_memory)
    teacher = features(wanted, (5, 3, 4, 5), problem)
    at_teacher = objective(teacher, teacher, batch)
    for seed in range(1, 4):
        elsewhere = objective(features(wanted, (5, 3, 4, 5), problem, seed=seed), teacher, batch)
        for term in at_teacher.keys() - {"task"}:
            assert at_teacher[term] <= elsewhere[term] + 1e-6, term


@every_stage
@pytest.mark.parametrize("problem", ["classification", *DECIDES_TOKENS])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_extra_padding_changes_neither_value_nor_gradient(name, options, left, problem):
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    lengths = (5, 1, 4)
    results = []
    for width, side in ((5, False), (11, left)):
        batch = {"labels": labels_for(problem, lengths, width, side)}
        student = features(needs.student, lengths, problem, width=width, left=side, grad=True)
        teacher = features(needs.teacher, lengths, problem, seed=1, width=width, left=side)
        loss = objective.total(objective(student, teacher, batch))
        loss.backward()
        gradients = [t.grad[student.mask] if t.dim() == 3 else t.grad for t in tensors(student)]
        results.append((loss, gradients))
        for tensor in tensors(student):
            if tensor.dim() == 3:
                assert (tensor.grad[~student.mask] == 0).all()
    torch.testing.assert_close(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b)


@every_stage
@every_problem
@pytest.mark.parametrize("lengths", [(1,), (4,), (3, 1), (2,) * 8], ids=["one token", "B=1", "partial", "B=8"])
def test_any_batch_gives_a_finite_loss_and_gradient(name, options, problem, lengths):
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    student = features(needs.student, lengths, problem, grad=True)
    teacher = features(needs.teacher, lengths, problem, seed=1)
    loss = objective.total(objective(student, teacher, {"labels": labels_for(problem, lengths)}))
    loss.backward()
    assert loss.isfinite() and loss.dim() == 0
    for tensor in tensors(student):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@every_stage
def test_half_precision_features_give_float32_values(name, options):
    objective = objective_for(name, options)
    needs = objective.needs()

    def half(side):
        layers = {kind: {i: t.bfloat16() for i, t in getattr(side, kind).items()} for kind in LAYERED}
        return Features(side.mask, None if side.logits is None else side.logits.bfloat16(), **layers)

    student, teacher = features(needs.student, (4, 3)), features(needs.teacher, (4, 3), seed=1)
    values = objective(half(student), half(teacher), {"labels": labels_for("classification", (4, 3))})
    assert all(value.dtype == torch.float32 for value in values.values())


@every_stage
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lengths", [(6,), (6, 3, 5, 1, 4, 6, 2, 5)], ids=["B=1", "B=8"])
def test_on_a_real_forward_gradient_reaches_the_student_only(name, options, family, lengths):
    student, teacher = tiny_model(family, depth=2), tiny_model(family, depth=4, seed=1)
    before = {key: value.clone() for key, value in teacher.state_dict().items()}
    distiller = Distiller.of(METHODS[name](Pair.of(student, teacher, "classification"), **options), student, teacher)
    objective = distiller.objective
    objective.prepare(LiveTeacher(teacher), [tiny_batch((6, 5, 4, 3) * 30)])
    if hasattr(distiller.teacher, "examine_on"):
        distiller.teacher.examine_on([tiny_batch(seed=5)])
    torch.manual_seed(1)  # theseus draws a successor
    out = distiller(**tiny_batch(lengths))
    assert out["loss"].isfinite()
    out["loss"].backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    # a loss over samples alone is 0 for one sample
    alone = all(term.relational for term in objective) and len(lengths) == 1
    assert alone or any(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in distiller.parameters())
    if isinstance(distiller.teacher, LearningTeacher):
        assert all(value.isfinite().all() for value in teacher.state_dict().values() if value.is_floating_point())
    else:
        assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())


@every_stage
def test_needs_name_layers_that_exist(name, options):
    needs = objective_for(name, options).needs()
    for wanted in (needs.student, needs.teacher):
        assert isinstance(wanted, Wanted)
        assert all(0 <= layer <= DEPTH for layer in wanted.layers())


@pytest.mark.parametrize("name", [name for name in METHODS if "mask_padding" in options_of(METHODS[name]).model_fields])
def test_a_method_that_counts_padding_says_that_it_needs_the_teachers(name):
    shape = Shape("bert", DEPTH, WIDTH, 4)
    pair = Pair(shape, shape, "classification", 3)
    assert METHODS[name](pair, mask_padding=False).needs().teacher.padding
    assert not METHODS[name](pair).needs().teacher.padding


@every_method
def test_options_are_keyword_only_typed_and_documented(name):
    method = METHODS[name]
    parameters = list(inspect.signature(method).parameters.values())
    assert parameters[0].name == "pair"
    doc = inspect.getdoc(method)
    for parameter in parameters[1:]:
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.annotation is not parameter.empty and parameter.default is not parameter.empty
        assert f"{parameter.name}:" in doc, f"{name}: option {parameter.name} is not documented"


@cache
def methods_of_shipped_recipes():
    return {stage.method.name for recipe in shipped_recipes() for stage in load_recipe(recipe).split()}


@every_method
def test_a_recipe_a_docs_row_and_a_citation_exist(name):
    assert name in methods_of_shipped_recipes()
    assert f"| `{name}` |" in Path(ROOT / "docs" / "methods.md").read_text()
    doc = inspect.getdoc(METHODS[name])
    assert "Citation: " in doc and "Equation: " in doc

"""Check what every method must hold to; a new entry of METHODS is tested without a change here."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.method_cases import (
    DECIDES_TOKENS,
    DEPTH,
    PROBLEMS,
    WIDTH,
    cases,
    features,
    labels_for,
    objective_for,
    tensors,
)
from helpers.tiny import ROOT, tiny_batch, tiny_model

from limbeck import METHODS, Distiller, Features, LearningTeacher, LiveTeacher, Pair, Wanted, load_recipe
from limbeck.distillation.pair import ModelShape
from limbeck.models.features import LAYERED
from limbeck.options import options_of
from limbeck.recipes.files import shipped_recipes

FAMILIES = ("bert", "roberta", "gpt2")
every_method = pytest.mark.parametrize("name", METHODS)
every_stage = pytest.mark.parametrize(("name", "options"), list(cases()))
every_problem = pytest.mark.parametrize("problem", PROBLEMS)


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
    shape = ModelShape("bert", DEPTH, WIDTH, 4)
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

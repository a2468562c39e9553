"""Test losses where the teacher learns too: gradients with respect to its side, and all second derivatives."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

from limbeck import METHODS, Features, Method, Pair, similarity
from limbeck.distillation.pair import ModelShape
from limbeck.models.features import LAYERED, POOLED
from limbeck.models.pooling import pool
from limbeck.options import schema_of
from limbeck.similarity import gradients_to_teacher, teacher_side

ROWS = torch.arange(7) != 2
TOKENS = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def rows(n=7, dx=5, dy=3):
    return randn(n, dx), randn(n, dy, seed=1)


def tokens():
    return randn(3, 4, 5), randn(3, 4, 3, seed=1)


def scores():
    return randn(2, 2, 4, 4), randn(2, 2, 4, 4, seed=1)


def relations(compare, **settings):
    return lambda s, t: compare(s, t, TOKENS, **settings)


def projections(**settings):
    return lambda s, t: similarity.attention_loss(s, s.sin(), t, t.sin(), 1, TOKENS, **settings)


def shape(**settings):
    return lambda x, y: similarity.shape_distance(x, y, **settings)


# These leave it to the caller whether the teacher's side has a gradient: they are symmetric measures.
SYMMETRIC = {
    "cka": (rows(), lambda x, y: similarity.cka(x, y, mask=ROWS)),
    "cka, features": (rows(9, 2, 2), similarity.cka),
    "cka biased": (rows(), lambda x, y: similarity.cka(x, y, mask=ROWS, estimator="biased")),
    "cka rbf": (rows(), lambda x, y: similarity.cka(x, y, kernel="rbf")),
    **{
        f"shape {kind}, beta {beta}, {n} x {dx} and {dy}": (rows(n, dx, dy), shape(kind=kind, beta=beta))
        for kind in ("angular", "euclidean")
        for beta in (1.0, 0.5)
        for n, dx, dy in ((4, 7, 6), (7, 3, 2), (5, 3, 8), (5, 5, 4))
    },
    "shape whitened": (rows(7, 3, 2), shape(beta=0.0)),
    "shape, masked": (rows(), shape(mask=ROWS)),
    "shape, several at once": ((randn(2, 5, 3), randn(5, 8, seed=1)), shape(mask=torch.arange(5) < 4)),
}
LOSSES = {
    "rkd distance": (rows(), similarity.rkd_distance),
    "rkd angle": (rows(), similarity.rkd_angle),
    "rkd angle, steep": ((randn(4, 2, seed=2), randn(4, 2, seed=3)), similarity.rkd_angle),
    "spkd": (rows(), similarity.spkd_distance),
    "cckd": (rows(), similarity.cckd_distance),
    "token relations": (tokens(), relations(similarity.token_relation_loss)),
    "token relations mse": (tokens(), relations(similarity.token_relation_loss, loss="mse", norm="none")),
    "token relations kl": (tokens(), relations(similarity.token_relation_loss, loss="kl", norm="layernorm")),
    "sample relations": (tokens(), relations(similarity.sample_relation_loss)),
    "sample relations softmax": (tokens(), relations(similarity.sample_relation_loss, norm="softmax")),
    "attention kl": (scores(), lambda s, t: similarity.attention_kl(s, t, TOKENS[:2], causal=True)),
    "attention kl of projections": (tokens(), projections(loss="kl", causal=True)),
    "attention mse of projections": (tokens(), projections(loss="mse")),
    "attention mse": (scores(), lambda s, t: similarity.attention_mse(s, t, TOKENS[:2])),
}
ALL = SYMMETRIC | LOSSES


@pytest.mark.parametrize("name", ALL)
def test_both_gradients_and_all_second_derivatives_agree_with_finite_differences(name):
    inputs, loss = ALL[name]
    with gradients_to_teacher():
        assert gradcheck(loss, inputs)
        assert gradgradcheck(loss, inputs)


@pytest.mark.parametrize("name", LOSSES)
def test_outside_the_context_the_teacher_gets_no_gradient(name):
    (student, teacher), loss = LOSSES[name]
    with gradients_to_teacher():
        inside = grad(loss(student, teacher), (student, teacher))
    assert inside[1].any()
    outside = grad(loss(student, teacher), (student, teacher), allow_unused=True)
    assert outside[1] is None
    torch.testing.assert_close(outside[0], inside[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_the_first_gradient_does_not_depend_on_whether_a_second_follows(name):
    (student, teacher), loss = ALL[name]
    plain = grad(loss(student, teacher).sum(), student)[0]
    again = grad(loss(student, teacher).sum(), student, create_graph=True)[0]
    assert again.requires_grad
    torch.testing.assert_close(again, plain, rtol=1e-13, atol=0)


def test_the_context_can_be_nested_and_ends_with_an_error():
    t = randn(2)
    with gradients_to_teacher():
        with gradients_to_teacher():
            assert teacher_side(t) is t
        assert teacher_side(t) is t
    assert not teacher_side(t).requires_grad
    with pytest.raises(ZeroDivisionError), gradients_to_teacher():
        raise ZeroDivisionError
    assert not teacher_side(t).requires_grad


DEGENERATE = {
    "one sample": (randn(1, 5), randn(1, 3, seed=1)),
    "two samples": (randn(2, 5), randn(2, 3, seed=1)),
    "constant student": (torch.ones(6, 5).requires_grad_(), randn(6, 3).detach().float().requires_grad_()),
    "constant teacher": (randn(6, 5).detach().float().requires_grad_(), torch.ones(6, 3).requires_grad_()),
    "duplicates": (randn(3, 5).detach().repeat(2, 1).requires_grad_(), randn(3, 3).detach().repeat(2, 1)),
    "equal sides": (randn(6, 5), randn(6, 5)),
    "hardly different sides": (randn(6, 5), randn(6, 5) + 2e-7 * randn(6, 5, seed=1)),
    "low rank": ((randn(6, 1) @ randn(1, 5)).detach().requires_grad_(), randn(6, 3)),
    "float32, wide": (randn(6, 300).detach().float().requires_grad_(), randn(6, 200).detach().float().requires_grad_()),
}
ROW_LOSSES = {
    "cka": similarity.cka,
    "cka biased": lambda x, y: similarity.cka(x, y, estimator="biased"),
    "shape": shape(),
    "shape beta 0.5": shape(beta=0.5),
    "shape beta 0": shape(beta=0.0),
    "shape euclidean": shape(kind="euclidean"),
    "shape euclidean beta 0.5": shape(kind="euclidean", beta=0.5),
    "rkd distance": similarity.rkd_distance,
    "rkd angle": similarity.rkd_angle,
    "spkd": similarity.spkd_distance,
    "cckd": similarity.cckd_distance,
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", ROW_LOSSES)
def test_second_derivatives_are_finite_for_any_batch(name, case):
    student, teacher = (t.detach().clone().requires_grad_() for t in DEGENERATE[case])
    with gradients_to_teacher():
        (first,) = grad(ROW_LOSSES[name](student, teacher), student, create_graph=True)
    second = grad(first.square().sum(), (student, teacher), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in (first, *second))


@pytest.mark.parametrize("name", ["shape", "shape euclidean", "rkd angle"])
def test_nan_stays_visible(name):
    student, teacher = randn(4, 3), randn(4, 3, seed=1).detach()
    teacher[1, 1] = torch.nan
    value = ROW_LOSSES[name](student, teacher)
    (first,) = grad(value, student, create_graph=True)
    assert value.isnan() and first.isnan().any()


def test_one_side_computed_from_the_other():
    x = randn(5, 4)
    weights = randn(4, 3, seed=1)

    def loss(a):
        return similarity.shape_distance(a, a.tanh() @ weights) + similarity.rkd_angle(a, a.tanh() @ weights)

    with gradients_to_teacher():
        assert gradgradcheck(loss, (x,))


def test_a_gradient_step_of_the_student_carries_a_gradient_to_the_teacher():
    """Check what meta-learning needs against finite differences of the loss after the step."""
    inputs, labels = randn(8, 4).detach(), randn(8, 3, seed=1).detach()
    student, teacher = randn(4, 3, seed=2), randn(4, 5, seed=3)

    def later(weights):
        with gradients_to_teacher():
            x, y = inputs @ student, inputs @ weights
            loss = similarity.shape_distance(x, y) + similarity.rkd_angle(x, y) + similarity.spkd_distance(x, y)
        (step,) = grad(loss, student, create_graph=True)
        return (inputs @ (student - 0.5 * step) - labels).square().mean()

    assert gradcheck(later, (teacher,))


WIDTH, DEPTH = 16, 4
KINDS = ("hidden", "queries", "keys", "values")


def features(wanted, mask, seed):
    """Make random features of what is wanted, all of which need a gradient; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)

    def layer():
        tensor = torch.randn(*mask.shape, WIDTH, generator=generator)
        return torch.where(mask[..., None], tensor, torch.nan).requires_grad_()

    captured = {kind: {i: layer() for i in sorted(wanted.layers(kind))} for kind in KINDS}
    for kind in POOLED:
        pooled = {i: pool(layer(), mask, kind)[0] for i in sorted(wanted.layers(kind))}
        captured[kind] = {i: rows.detach().requires_grad_() for i, rows in pooled.items()}
    logits = torch.randn(len(mask), 3, generator=generator).requires_grad_() if wanted.logits else None
    return Features(mask, logits, **captured)


def tensors(side):
    found = [side.logits] if side.logits is not None else []
    return found + [t for kind in LAYERED for t in getattr(side, kind).values()]


@pytest.mark.parametrize("lengths", [(5, 3, 4, 5, 2, 4), (3,)], ids=["B=6", "B=1"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_reaches_the_teacher_and_can_be_differentiated_again(name, lengths):
    torch.manual_seed(0)
    shape = ModelShape("bert", DEPTH, WIDTH, 4)
    stage = schema_of(METHODS[name]).model_fields.get("stage")
    options = {"stage": get_args(stage.annotation)[0]} if stage else {}
    objective = Method.of(METHODS[name](Pair(shape, shape, "classification", 3), **options)).objective
    needs = objective.needs()
    objective.prepare(
        lambda batch, wanted: features(wanted, batch["attention_mask"].bool(), seed=9),
        [{"attention_mask": torch.ones(120, 11, dtype=torch.long).tril(5)}],
    )
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    student, teacher = features(needs.student, mask, seed=0), features(needs.teacher, mask, seed=1)
    if not tensors(teacher):
        pytest.skip("its loss reads no teacher")
    batch = {"labels": torch.arange(len(lengths)) % 3}
    with gradients_to_teacher():
        loss = objective.total(objective(student, teacher, batch))

    to_teacher = grad(loss, tensors(teacher), retain_graph=True)
    assert all(g.isfinite().all() for g in to_teacher)
    assert all(g.any() for g in to_teacher) or len(lengths) == 1  # a comparison of samples is 0 for one sample

    first = grad(loss, tensors(student), create_graph=True)
    second = grad(sum(g.square().sum() for g in first), tensors(teacher), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in second)
    assert any(g is not None and g.any() for g in second) or len(lengths) == 1

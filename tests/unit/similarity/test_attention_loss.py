"""Test that the loss between projections is that between their scores, and the operations that it rests on."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

from limbeck import similarity
from limbeck.similarity import (
    attention_loss,
    attention_scores,
    gradients_to_teacher,
    masked_difference,
    squared_norm,
    zero_masked,
)

COMPARE = {"mse": similarity.attention_mse, "kl": similarity.attention_kl}
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def projections(garbage=0.0):
    """Make q and k of a student of width 8 and of a teacher of width 12, with garbage in the padding."""
    drawn = [randn(4, 5, width, seed=seed) for seed, width in enumerate((8, 8, 12, 12))]
    return [torch.where(MASK[..., None], x, garbage).requires_grad_() for x in drawn]


def of_scores(inputs, mask, loss, causal):
    s, t = (attention_scores(q, k, 2, mask) for q, k in (inputs[:2], inputs[2:]))
    return COMPARE[loss](s, t, mask, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("loss", COMPARE)
def test_equals_the_loss_of_the_scores(loss, masked, causal):
    inputs, mask = projections(), MASK if masked else None
    with gradients_to_teacher():
        value, expected = (
            attention_loss(*inputs, 2, mask, loss=loss, causal=causal),
            of_scores(inputs, mask, loss, causal),
        )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad(value, inputs), grad(expected, inputs))
    outside = grad(attention_loss(*inputs, 2, mask, loss=loss, causal=causal), inputs, allow_unused=True)
    assert all(g is not None for g in outside[:2]) and outside[2:] == (None, None)


@pytest.mark.parametrize("garbage", [1e3, torch.inf, torch.nan])
@pytest.mark.parametrize("loss", COMPARE)
def test_padding_does_not_leak(loss, garbage):
    results = []
    for inputs in (projections(), projections(garbage)):
        with gradients_to_teacher():
            value = attention_loss(*inputs, 2, MASK, loss=loss)
        gradients = grad(value, inputs)
        assert all(not g[~MASK].any() for g in gradients)
        results.append((value, *gradients))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("loss", COMPARE)
def test_gradients(loss):
    inputs = projections()
    with gradients_to_teacher():
        assert gradcheck(lambda *x: attention_loss(*x, 2, MASK, loss=loss), inputs)
        assert gradgradcheck(lambda *x: attention_loss(*x, 2, MASK, loss=loss), inputs)
    x, y = randn(2, 3, 4).requires_grad_(), randn(2, 3, 4, seed=1)  # relations: one projection twice
    assert gradcheck(lambda a: attention_loss(a, a, y, y, 2, loss=loss), (x,))


@pytest.mark.parametrize("loss", COMPARE)
def test_half_precision_and_autocast(loss):
    inputs = [x.detach().bfloat16().requires_grad_() for x in projections()]
    value = attention_loss(*inputs, 2, MASK, loss=loss)
    assert value.dtype == torch.float32
    assert value.item() == attention_loss(*(x.float() for x in inputs), 2, MASK, loss=loss).item()
    assert grad(value, inputs[0])[0].dtype == torch.bfloat16
    plain = [x.detach().float() for x in projections()]
    with torch.autocast("cpu", torch.bfloat16):
        within = attention_loss(*plain, 2, MASK, loss=loss)
    assert within.item() == attention_loss(*plain, 2, MASK, loss=loss).item()


@pytest.mark.parametrize("loss", COMPARE)
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 1), (0, 3)])
def test_small_batches(loss, shape):
    q, k, *teacher = (randn(*shape, 4, seed=seed).requires_grad_() for seed in range(4))
    value = attention_loss(q, k, *teacher, 2, torch.ones(shape, dtype=torch.bool), loss=loss)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in grad(value, (q, k)))


def test_bad_arguments():
    x = randn(2, 3, 4)
    with pytest.raises(ValueError, match="Unknown loss 'cosine'"):
        attention_loss(x, x, x, x, 2, loss="cosine")
    with pytest.raises(ValueError, match="alike"):
        attention_loss(x, x, x[:, :2], x[:, :2], 2, loss="mse")
    with pytest.raises(ValueError, match="multiple of 3 heads"):
        attention_loss(x, x, x, x, 3, loss="mse")


@pytest.mark.parametrize("dtype", FLOATS)
def test_zero_masked_is_where(dtype):
    x = randn(3, 5, 4).to(dtype)
    x[0, 1], x[1, 2], x[2, 3] = torch.nan, torch.inf, -torch.inf
    for real in (MASK[:3, :, None], randn(3, 5, 4, seed=1) > 0):
        for view in (x, x.transpose(0, 1)):
            mask = real if view is x else real.transpose(0, 1)
            leaf = view.detach().requires_grad_()
            value, expected = zero_masked(leaf, mask), torch.where(mask, view, 0)
            torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
            (gradient,) = grad(value, leaf, torch.full_like(view, torch.nan))
            assert (gradient.isnan() == mask).all() and (gradient[~mask.expand_as(view)] == 0).all()


def test_apart_and_squares_are_what_they_say():
    a, b = randn(3, 5, 4), randn(3, 5, 4, seed=1)
    a[~MASK[:3]], real = torch.nan, MASK[:3, :, None]
    torch.testing.assert_close(masked_difference(a, b, real), torch.where(real, a - b, 0))
    torch.testing.assert_close(squared_norm(b), b.square().sum(-1))
    a, b = (torch.where(real, x, 1).requires_grad_() for x in (a, b))
    assert gradgradcheck(lambda x, y: squared_norm(masked_difference(x, y, real)), (a, b))
    assert gradcheck(lambda x, y: squared_norm(masked_difference(x, y, real)), (a, b))

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from limbeck.similarity import distances, rkd_angle, rkd_distance

from . import reference

LOSSES = (rkd_distance, rkd_angle)
seeds = st.integers(0, 2**31)
kinds = st.sampled_from(reference.KINDS)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seeds, kinds, kinds, st.integers(1, 7), st.integers(1, 8), st.integers(1, 8), scales, scales)
def test_agrees_with_the_loops(seed, kind_x, kind_y, n, dx, dy, sx, sy):
    x, y = reference.features(seed, kind_x, n, dx, sx), reference.features(seed + 1, kind_y, n, dy, sy)
    for ours, loops in ((rkd_distance, reference.rkd_distance), (rkd_angle, reference.rkd_angle)):
        tx, ty = torch.tensor(x).requires_grad_(), torch.tensor(y).requires_grad_()
        value = ours(tx, ty)
        assert value.item() == pytest.approx(loops(x, y), rel=1e-6, abs=1e-9)
        value.backward()
        assert tx.grad.isfinite().all()
        assert ty.grad is None


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n, d", [(2, 3), (5, 2), (7, 12)])
def test_gradcheck(loss, n, d):
    x, y = randn(n, d).requires_grad_(), randn(n, d + 1, seed=1)
    assert gradcheck(lambda a: loss(a, y), (x,))


@pytest.mark.parametrize("chunk", [1, 40, 150, 2**17])
def test_chunks_do_not_change_the_angle_loss(chunk, monkeypatch):
    x, y = randn(7, 5).requires_grad_(), randn(7, 4, seed=1)
    whole = rkd_angle(x, y)
    (expected,) = torch.autograd.grad(whole, x)
    monkeypatch.setattr(distances, "_CHUNK", chunk)
    value = rkd_angle(x, y)
    assert value.item() == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_coincident_points_have_a_finite_gradient(loss):
    x = randn(6, 4, dtype=torch.float32)
    x[3] = x[0]
    x[4] = x[0]
    x.requires_grad_()
    value = loss(x, randn(6, 4, seed=1, dtype=torch.float32))
    (grad,) = torch.autograd.grad(value, x)
    assert grad.isfinite().all()
    assert grad.abs().max() < 10
    near = x.detach().clone()
    near[3] += 1e-6
    near.requires_grad_()
    assert torch.autograd.grad(loss(near, randn(6, 4, seed=1, dtype=torch.float32)), near)[0].abs().max() < 1e6


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_coinciding_batch(loss, n):
    x = torch.full((n, 3), 0.1).requires_grad_()
    value = loss(x, randn(n, 3, dtype=torch.float32))
    assert value.isfinite()
    assert not torch.autograd.grad(value, x)[0].any()
    if loss is rkd_distance or n < 2:
        assert value == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_invariances_and_minimum(loss):
    x, y = randn(9, 6), randn(9, 8, seed=1)
    base = loss(x, y).item()
    q = torch.linalg.qr(randn(6, 6, seed=2)).Q
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    for other in (loss(x @ q, y), loss(x * 1e5, y * 1e-5), loss(x + 40, y - 9), loss(x[order], y[order])):
        assert other.item() == pytest.approx(base, rel=1e-9)
    a = x.float().requires_grad_()
    value = loss(a, (x @ q * 3 + 1).float())
    assert value < 1e-10
    assert torch.autograd.grad(value, a)[0].abs().max() < 1e-5


@pytest.mark.parametrize("loss", LOSSES)
def test_near_duplicates_far_from_the_origin_keep_their_digits(loss):
    x = (randn(6, 5) + 1000).float()
    x[1] = x[0] + 1e-2
    y = randn(6, 5, seed=1).float()
    expected = getattr(reference, loss.__name__)(x.numpy(), y.numpy())
    assert loss(x, y).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_and_autocast(loss):
    x, y = randn(8, 6).bfloat16().requires_grad_(), randn(8, 6, seed=1).bfloat16()
    value = loss(x, y)
    assert value.dtype == torch.float32
    assert value.item() == loss(x.float(), y.float()).item()
    assert torch.autograd.grad(value, x)[0].isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(x.float(), y.float()).item() == value.item()


@pytest.mark.parametrize("loss", LOSSES)
def test_float32_gradient(loss):
    x, y = randn(40, 100).float().requires_grad_(), randn(40, 80, seed=1).float()
    x64 = x.detach().double().requires_grad_()
    g, e = torch.autograd.grad(loss(x, y), x)[0], torch.autograd.grad(loss(x64, y.double()), x64)[0]
    assert (g - e).norm() <= 1e-6 * e.norm()


@pytest.mark.parametrize("loss", LOSSES)
def test_bad_arguments(loss):
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(5, 3\)"):
        loss(randn(4, 3), randn(5, 3))
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        loss(randn(4, 3, 2), randn(4, 3, 2))

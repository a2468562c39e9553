from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from limbeck.similarity import shape_distance

from . import reference

KINDS = ("angular", "euclidean")
BETAS = (1.0, 0.5, 0.0)
seeds = st.integers(0, 2**31)
kinds = st.sampled_from(reference.KINDS)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rotation(d, seed=0):
    return torch.linalg.qr(randn(d, d, seed=seed)).Q


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seeds, kinds, kinds, st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), scales,
    st.sampled_from(KINDS), st.sampled_from(BETAS), st.integers(0, 2),
)  # fmt: skip
@example(0, "gaussian", "gaussian", 2, 1, 1, 1e-6, "euclidean", 0.5, 0)
def test_agrees_with_the_definition(seed, kind_x, kind_y, n, dx, dy, scale, kind, beta, masked):
    x, y = reference.features(seed, kind_x, n, dx, scale), reference.features(seed + 1, kind_y, n, dy, scale)
    mask = np.ones(n, bool)
    mask[np.random.default_rng(seed).permutation(n)[:masked]] = False
    expected, clear = reference.shape_distance(x, y, mask, kind, beta)
    assume(clear)
    tx, tm = torch.tensor(x).requires_grad_(), torch.tensor(mask)
    value = shape_distance(tx, torch.tensor(y), mask=tm, kind=kind, beta=beta)
    # whitened inputs have size 1 - beta whatever theirs was, and the reference subtracts such squares
    size = 1.0 if kind == "angular" else float(np.abs(x).max() + np.abs(y).max()) + (1 - beta)
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-7 * size)  # arccos limits the reference
    (grad,) = torch.autograd.grad(value, tx)
    assert grad.isfinite().all()
    assert not grad[~tm].any()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n, dx, dy", [(5, 9, 3), (9, 4, 4), (6, 20, 30), (30, 5, 4), (8, 9, 9), (7, 3, 40)])
def test_gradcheck(n, dx, dy, kind, beta):
    x, y = randn(n, dx).requires_grad_(), randn(n, dy, seed=1).requires_grad_()
    mask = torch.ones(n, dtype=torch.bool)
    mask[1] = False
    assert gradcheck(lambda a, b: shape_distance(a, b, mask=mask, kind=kind, beta=beta), (x, y))
    assert gradcheck(lambda a: shape_distance(a, y.detach(), kind=kind, beta=beta), (x,))


@pytest.mark.parametrize("n, d", [(32, 200), (100, 60), (64, 80)])
@pytest.mark.parametrize("beta", BETAS)
def test_float32_agrees_with_float64(n, d, beta):
    x, y = randn(n, d, dtype=torch.float32).requires_grad_(), randn(n, d, seed=1, dtype=torch.float32)
    x64 = x.detach().double().requires_grad_()
    # Euclidean: whitened inputs with n <= d all have angle 0
    value, exact = (shape_distance(a, y.to(a.dtype), kind="euclidean", beta=beta) for a in (x, x64))
    assert value.item() == pytest.approx(exact.item(), rel=1e-6, abs=1e-6)
    if exact > 1e-6:
        g, e = torch.autograd.grad(value, x)[0], torch.autograd.grad(exact, x64)[0]
        assert (g - e).norm() <= 1e-5 * e.norm()


def test_small_angles_keep_their_digits():
    x = randn(12, 30)
    x = x - x.mean(0)
    y = x + 1e-6 * randn(12, 30, seed=1)
    q = rotation(30)
    u, _, vt = torch.linalg.svd(x.T @ y)
    turned = x @ u @ vt
    exact = 2 * math.atan2(
        (turned / turned.norm() - (y - y.mean(0)) / (y - y.mean(0)).norm()).norm(),
        (turned / turned.norm() + (y - y.mean(0)) / (y - y.mean(0)).norm()).norm(),
    )
    assert 1e-7 < exact < 1e-5
    assert shape_distance(x, y @ q).item() == pytest.approx(exact, rel=1e-6)
    x32 = randn(12, 30, dtype=torch.float32)
    y32 = x32 + 1e-4 * randn(12, 30, seed=1, dtype=torch.float32)
    assert shape_distance(x32, y32).item() == pytest.approx(shape_distance(x32.double(), y32.double()).item(), rel=1e-6)


@pytest.mark.parametrize("n", [24, 60])
@pytest.mark.parametrize("rank_y", [3, 40])
def test_rank_deficient_gradient_is_the_smallest_subgradient(n, rank_y):
    """Take rank 5 in 40 directions, with rounding noise of float32: without truncation it is many times too large."""
    d, rank = 40, 5
    cx, cy = randn(n, rank) @ randn(rank, d, seed=1), randn(n, rank_y, seed=2) @ randn(rank_y, d, seed=3)
    x, y = cx.float(), cy.float()
    cx, cy = cx - cx.mean(0), cy - cy.mean(0)
    rank = min(rank, rank_y)
    u, s, vt = torch.linalg.svd(cx.T @ cy)
    q = u[:, :rank] @ vt[:rank]
    angle = torch.acos(s[:rank].sum() / (cx.norm() * cy.norm()))
    exact = (torch.cos(angle) * cx / cx.norm() - cy @ q.T / cy.norm()) / torch.sin(angle) / cx.norm()
    exact = exact - exact.mean(0)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(shape_distance(x, y), x)
    assert (grad.double() - exact).norm() <= 1e-4 * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("spectrum", [0.0, 3.0])
@pytest.mark.parametrize("n, d", [(10, 40), (40, 10), (12, 14)])
def test_identical_and_rotated_inputs_have_distance_and_gradient_zero(kind, beta, spectrum, n, d):
    x = (randn(n, d) * torch.arange(1, d + 1) ** -spectrum).float()
    size = 1 if kind == "angular" else max(x.norm().item(), 1)
    # Rounding the rotated copy to float32 moves it by eps; whitening multiplies that by the condition number.
    moved = 1e-6 if beta == 1 else 1e-6 * d**spectrum
    for y, limit in ((x.clone(), 1e-7), ((x.double() @ rotation(d)).float(), moved)):
        a = x.clone().requires_grad_()
        value = shape_distance(a, y, kind=kind, beta=beta)
        assert 0 <= value < limit * size
        (grad,) = torch.autograd.grad(value, a)
        assert grad.isfinite().all()
    assert not torch.autograd.grad(shape_distance(a, x, kind=kind, beta=beta), a)[0].any()


def test_gradient_of_the_angle_stays_bounded_on_the_way_to_the_teacher():
    x = (randn(16, 30) * 0.6 ** torch.arange(30)).float()  # weak directions on both sides
    for step in 10.0 ** -torch.arange(0, 8):
        a = (x + step * randn(16, 30, seed=1).float()).requires_grad_()
        (grad,) = torch.autograd.grad(shape_distance(a, x), a)
        assert grad.norm() * (a - a.mean(0)).norm() < 1.01


@pytest.mark.parametrize(
    "x", [torch.zeros(6, 9), torch.ones(6, 9), torch.full((6, 9), 0.1), torch.randn(1, 9).repeat(6, 1)]
)
@pytest.mark.parametrize("beta", BETAS)
def test_constant_side(x, beta):
    x = x.clone().requires_grad_()
    y = randn(6, 9, dtype=torch.float32)
    value = shape_distance(x, y, beta=beta)
    assert value == 0
    assert not torch.autograd.grad(value, x)[0].any()
    euclidean = shape_distance(x, y, kind="euclidean")
    assert euclidean.item() == pytest.approx((y - y.mean(0)).norm().item(), rel=1e-6)
    assert not torch.autograd.grad(euclidean, x)[0].any()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", KINDS)
def test_few_rows(n, beta, kind):
    x, y = randn(n, 5).requires_grad_(), randn(n, 7, seed=1)
    value = shape_distance(x, y, kind=kind, beta=beta)
    assert value.isfinite()
    assert torch.autograd.grad(value, x)[0].isfinite().all()
    if n < 2:
        assert value == 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seeds, st.integers(2, 30), st.integers(1, 30), st.sampled_from(KINDS), st.sampled_from(BETAS))
def test_invariances(seed, n, d, kind, beta):
    x, y = randn(n, d, seed=seed), randn(n, d, seed=seed + 1)
    base = shape_distance(x, y, kind=kind, beta=beta).item()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2))
    others = [
        shape_distance(x @ rotation(d), y, kind=kind, beta=beta),
        shape_distance(x + 7, y - 30, kind=kind, beta=beta),
        shape_distance(x[order], y[order], kind=kind, beta=beta),
        shape_distance(y, x, kind=kind, beta=beta),
        shape_distance(x, torch.cat([y, torch.zeros(n, 3)], 1), kind=kind, beta=beta),
    ]
    if kind == "angular" and beta in (0.0, 1.0):
        others.append(shape_distance(x * 1e5, y * 1e-5, kind=kind, beta=beta))
    for other in others:
        assert other.item() == pytest.approx(base, rel=1e-7, abs=1e-7)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seeds, st.integers(3, 20), st.integers(1, 30))
def test_whitened_shape_is_invariant_to_invertible_maps(seed, n, d):
    x, y = randn(n, d, seed=seed).float(), randn(n, d + 1, seed=seed + 1).float()
    g = rotation(d) @ torch.diag(torch.logspace(-2, 2, d, dtype=torch.float64)) @ rotation(d, 1)
    base = shape_distance(x, y, beta=0.0).item()
    assert shape_distance((x.double() @ g).float(), y, beta=0.0).item() == pytest.approx(base, abs=2e-3)
    assert shape_distance(x.double() @ g, y.double(), beta=0.0).item() == pytest.approx(base, abs=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds, st.integers(2, 15), st.lists(st.integers(1, 25), min_size=3, max_size=3), st.sampled_from(BETAS))
def test_triangle_inequality(seed, n, widths, beta):
    a, b, c = (randn(n, d, seed=seed + i) for i, d in enumerate(widths))
    ab, bc, ac = (shape_distance(p, q, beta=beta).item() for p, q in ((a, b), (b, c), (a, c)))
    assert ac <= ab + bc + 1e-7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("garbage", [1e3, torch.inf, torch.nan])
@pytest.mark.parametrize("left", [True, False])
def test_padding_does_not_leak(kind, beta, garbage, left):
    x, y = randn(9, 6).requires_grad_(), randn(9, 6, seed=1)
    pad = torch.full((5, 6), garbage, dtype=torch.float64)
    mask = torch.cat([torch.zeros(5), torch.ones(9)] if left else [torch.ones(9), torch.zeros(5)]).bool()

    def padded(t):
        return torch.cat([pad, t] if left else [t, pad])

    full = padded(x.detach()).requires_grad_()
    plain = shape_distance(x, y, kind=kind, beta=beta)
    value = shape_distance(full, padded(y), mask=mask, kind=kind, beta=beta)
    assert value.item() == pytest.approx(plain.item(), rel=1e-7)
    (g,), (expected,) = torch.autograd.grad(value, full), torch.autograd.grad(plain, x)
    torch.testing.assert_close(g[mask], expected, rtol=1e-6, atol=1e-8)
    assert not g[~mask].any()


def test_batches_and_masks_equal_one_by_one():
    x, y = randn(2, 3, 7, 5), randn(2, 3, 7, 20, seed=1)
    mask = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) > 0.2
    mask[0, 0] = False
    x.requires_grad_()
    together = shape_distance(x, y, mask=mask)
    (grad,) = torch.autograd.grad(together.sum(), x)
    assert together.shape == (2, 3)
    assert together[0, 0] == 0
    for i in range(2):
        for j in range(3):
            real = mask[i, j]
            one = x.detach()[i, j][real].requires_grad_()
            alone = shape_distance(one, y[i, j][real])
            assert together[i, j].item() == pytest.approx(alone.item(), rel=1e-8)
            torch.testing.assert_close(grad[i, j][real], torch.autograd.grad(alone, one)[0], rtol=1e-6, atol=1e-9)
    assert shape_distance(x[0, :, None], y[0, None]).shape == (3, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype):
    x, y = randn(10, 40).to(dtype).requires_grad_(), randn(10, 30, seed=1).to(dtype)
    value = shape_distance(x, y)
    assert value.dtype == torch.float32
    assert value.item() == shape_distance(x.float(), y.float()).item()
    assert torch.autograd.grad(value, x)[0].isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert shape_distance(x.float(), y.float()).item() == value.item()


def test_a_diverged_batch_gives_nan_and_does_not_raise():
    x = randn(2, 6, 9)
    x[1, 0, 0] = torch.inf
    x.requires_grad_()
    value = shape_distance(x, randn(2, 6, 9, seed=1))
    assert value[0].isfinite()
    assert value[1].isnan()
    (grad,) = torch.autograd.grad(value.sum(), x)
    assert grad[0].isfinite().all()
    assert grad[1].isnan().any()


def test_bad_arguments():
    x = randn(5, 3)
    with pytest.raises(ValueError, match="Unknown kind 'angle'"):
        shape_distance(x, x, kind="angle")
    with pytest.raises(ValueError, match=r"got 1\.5"):
        shape_distance(x, x, beta=1.5)
    with pytest.raises(ValueError, match="same rows"):
        shape_distance(x, x[:4])

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from limbeck.similarity import MinibatchCKA, cka, cka_with_validity

from . import reference

ESTIMATORS = ("unbiased", "biased")
KERNELS = ("linear", "rbf")
bounded = settings(max_examples=150, deadline=None, derandomize=True)
kinds = st.sampled_from(reference.KINDS)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])
seeds = st.integers(0, 2**31)


def pair(n, dx, dy, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, dx, generator=g, dtype=dtype), torch.randn(n, dy, generator=g, dtype=dtype)


def related(n, d, noise=0.5, dtype=torch.float32, seed=0):
    x, e = pair(n, d, d, dtype, seed)
    return x, x + noise * e


@bounded
@given(
    seeds, kinds, kinds, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), scales, scales,
    st.sampled_from(ESTIMATORS), st.sampled_from(KERNELS), st.integers(0, 2),
)  # fmt: skip
def test_agrees_with_the_loops(seed, kind_x, kind_y, n, dx, dy, sx, sy, estimator, kernel, masked):
    x, y = reference.features(seed, kind_x, n, dx, sx), reference.features(seed + 1, kind_y, n, dy, sy)
    mask = np.ones(n, bool)
    mask[np.random.default_rng(seed).permutation(n)[:masked]] = False
    expected, share = reference.cka(x, y, mask, estimator, kernel)
    assume(share < 1e-15 or share > 1e-11)  # between them it is rounding of the inputs that decides
    tx = torch.tensor(x).requires_grad_()
    value = cka(tx, torch.tensor(y), mask=torch.tensor(mask), estimator=estimator, kernel=kernel)
    assert value.item() == pytest.approx(expected if share > 1e-15 else 0.0, rel=1e-6, abs=2e-7)
    (grad,) = torch.autograd.grad(value, tx)
    assert grad.isfinite().all()
    assert not grad[~torch.tensor(mask)].any()
    if share < 1e-15:
        assert not grad.any()


@pytest.mark.parametrize("n, d", [(500, 600), (2000, 150), (300, 1200)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_float32_path_agrees_with_float64(n, d, estimator, scale):
    x, y = related(n, d)
    x, y = (scale * x).requires_grad_(), scale * y
    x64 = x.detach().double().requires_grad_()
    value, exact = cka(x, y, estimator=estimator), cka(x64, y.double(), estimator=estimator)
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)
    (grad,), (exact_grad,) = torch.autograd.grad(value, x), torch.autograd.grad(exact, x64)
    assert (grad - exact_grad).norm() <= 1e-5 * exact_grad.norm()


def test_float32_batches_agree_with_float64():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 128, 768, generator=g), torch.randn(4, 128, 768, generator=g)
    mask = torch.arange(128) < torch.tensor([128, 90, 40, 4])[:, None]
    for estimator in ESTIMATORS:
        value, exact = (cka(a, a + b, mask=mask, estimator=estimator) for a, b in ((x, y), (x.double(), y.double())))
        torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n, dx, dy", [(6, 3, 9), (9, 2, 3), (5, 8, 8)])
def test_gradcheck(n, dx, dy, estimator, kernel):
    x, y = (t.requires_grad_() for t in pair(n, dx, dy, torch.float64))
    mask = torch.ones(n, dtype=torch.bool)
    mask[2] = False
    assert gradcheck(lambda a, b: cka(a, b, mask=mask, estimator=estimator, kernel=kernel), (x, y))
    assert gradcheck(lambda a, b: cka(a, b, estimator=estimator, kernel=kernel), (x, y))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(ESTIMATORS), st.sampled_from(KERNELS), st.integers(4, 30), st.integers(1, 30))
def test_invariances(seed, estimator, kernel, n, d):
    x, y = related(n, d, dtype=torch.float64, seed=seed)
    base = cka(x, y, estimator=estimator, kernel=kernel)
    assume(math.isfinite(base.item()) and base != 0)
    q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).Q
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2))
    for other in (cka(x @ q, y, estimator=estimator, kernel=kernel),
                  cka(x * 1e4, y * 1e-5, estimator=estimator, kernel=kernel),
                  cka(x + 7, y - 30, estimator=estimator, kernel=kernel),
                  cka(x[order], y[order], estimator=estimator, kernel=kernel),
                  cka(y, x, estimator=estimator, kernel=kernel)):  # fmt: skip
        assert other.item() == pytest.approx(base.item(), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n, d", [(4, 3), (10, 50), (60, 5), (300, 200)])
def test_self_similarity_is_one_and_flat(n, d, estimator, kernel):
    x, _ = pair(n, d, d)
    x.requires_grad_()
    value = cka(x, x.detach().clone(), estimator=estimator, kernel=kernel)
    assert value.item() == pytest.approx(1.0, abs=1e-6)
    assert torch.autograd.grad(value, x)[0].abs().max() < 1e-3


def test_unbiased_is_near_zero_for_independent_data_where_biased_is_near_one():
    x = torch.randn(50, 16, 768, generator=torch.Generator().manual_seed(0))
    y = torch.randn(50, 16, 768, generator=torch.Generator().manual_seed(1))
    assert abs(cka(x, y).mean()) < 0.05
    assert cka(x, y, estimator="biased").mean() > 0.9
    assert (cka(x, y) < 0).any()  # not clamped


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("garbage", [1e3, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("left", [True, False])
def test_padding_does_not_leak(estimator, kernel, garbage, left):
    x, y = related(9, 6)
    x.requires_grad_()
    pad = torch.full((5, 6), garbage)
    mask = torch.cat([torch.zeros(5), torch.ones(9)] if left else [torch.ones(9), torch.zeros(5)]).bool()

    def padded(t):
        return torch.cat([pad, t] if left else [t, pad])

    full = padded(x.detach()).requires_grad_()
    plain, value = (
        cka(x, y, estimator=estimator, kernel=kernel),
        cka(full, padded(y), mask=mask, estimator=estimator, kernel=kernel),
    )
    assert value.item() == pytest.approx(plain.item(), rel=1e-6)
    (g,), (expected,) = torch.autograd.grad(value, full), torch.autograd.grad(plain, x)
    torch.testing.assert_close(g[mask], expected, rtol=1e-5, atol=1e-7)
    assert not g[~mask].any()


def test_batches_and_masks_equal_one_by_one():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 7, 5, generator=g), torch.randn(2, 3, 7, 4, generator=g)
    mask = torch.rand(2, 3, 7, generator=g) > 0.2
    mask[0, 0] = False
    for estimator in ESTIMATORS:
        together = cka(x, y, mask=mask, estimator=estimator)
        assert together.shape == (2, 3)
        assert together[0, 0] == 0
        for i in range(2):
            for j in range(3):
                alone = cka(x[i, j][mask[i, j]], y[i, j][mask[i, j]], estimator=estimator)
                assert together[i, j].item() == pytest.approx(alone.item(), rel=1e-6)
    grid = cka(x[0, :, None], y[0, None])
    assert grid.shape == (3, 3)
    assert grid[1, 2].item() == pytest.approx(cka(x[0, 1], y[0, 2]).item(), rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_upcast(estimator, kernel, dtype):
    x, y = (t.to(dtype) for t in related(20, 12))
    x.requires_grad_()
    value = cka(x, y, estimator=estimator, kernel=kernel)
    assert value.dtype == torch.float32
    assert value.item() == cka(x.float(), y.float(), estimator=estimator, kernel=kernel).item()
    (grad,) = torch.autograd.grad(value, x)
    assert grad.dtype == dtype
    assert grad.isfinite().all()


@pytest.mark.parametrize("n, d", [(20, 12), (300, 1200), (2000, 150)])
def test_autocast_changes_nothing(n, d):
    x, y = related(n, d)
    x.requires_grad_()
    plain = cka(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        cast = cka(x, y)
        (g,) = torch.autograd.grad(cast, x)  # backward inside autocast, as some loops do
    assert cast.dtype == torch.float32
    assert cast.item() == plain.item()
    expected = torch.autograd.grad(plain, x)[0]
    assert (g - expected).norm() <= 2e-2 * expected.norm()


def test_self_hsic_stays_positive_under_a_large_offset():
    for seed in range(50):
        x, y = pair(6, 40, 40, seed=seed)
        value = cka(x + 100, y + 100)
        assert value.isfinite()
        assert abs(value) <= 1 + 1e-6


def test_nan_in_a_real_row_stays_visible():
    x, y = pair(6, 3, 3)
    x[0, 0] = torch.nan
    for kernel in KERNELS:
        for estimator in ESTIMATORS:
            assert cka(x, y, kernel=kernel, estimator=estimator).isnan()


def test_bad_arguments():
    x, y = pair(5, 3, 3)
    with pytest.raises(ValueError, match="Unknown estimator 'unbaised'"):
        cka(x, y, estimator="unbaised")
    with pytest.raises(ValueError, match="Unknown kernel 'poly'"):
        cka(x, y, kernel="poly")
    with pytest.raises(ValueError, match=r"\(5, 3\) and \(4, 3\)"):
        cka(x, y[:4])
    with pytest.raises(ValueError, match=r"mask\.bool\(\)"):
        cka(x, y, mask=torch.ones(5))
    with pytest.raises(ValueError, match="must end in 5"):
        cka(x, y, mask=torch.ones(4, dtype=torch.bool))


def test_minibatch_weights_hsic_terms_by_batch_size():
    sizes, scale = (12, 7, 3, 25), 1e5
    parts = [related(n, 8, seed=n) for n in sizes]
    total = MinibatchCKA()
    for x, y in parts:
        total.update(x * scale, y)
    sums = np.zeros(3)
    for x, y in parts:
        if len(x) < 4:
            continue
        rx, ry = reference.rows_of(x.numpy()), reference.rows_of(y.numpy())
        k, l = reference.kernel_matrix(rx, "linear"), reference.kernel_matrix(ry, "linear")  # noqa: E741
        sums += [float(reference.hsic_unbiased(a, b)) for a, b in ((k, l), (k, k), (l, l))]
    assert total.compute().item() == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]), rel=1e-6)


def test_minibatch_of_one_batch_is_cka_and_padding_does_not_count():
    x, y = related(30, 10)
    mask = torch.arange(30) < 20
    for kernel in KERNELS:
        total = MinibatchCKA(kernel=kernel)
        total.update(x, y, mask=mask)
        assert total.compute().item() == pytest.approx(cka(x[:20], y[:20], kernel=kernel).item(), rel=1e-6)


def test_minibatch_estimates_the_whole_and_maps_layers():
    x, y = related(4000, 20, noise=1.0)
    total, layers = MinibatchCKA(), MinibatchCKA()
    for a, b in zip(x.split(32), y.split(32), strict=True):
        total.update(a, b)
        layers.update(torch.stack([a, b])[:, None], torch.stack([a, b, a + b])[None])
    assert total.compute().item() == pytest.approx(cka(x, y).item(), abs=0.01)
    assert layers.compute().shape == (2, 3)
    assert layers.compute()[0, 1].item() == pytest.approx(total.compute().item(), rel=1e-5)
    with pytest.raises(ValueError, match="seen no batch"):
        MinibatchCKA().compute()


def orthogonal(n, d, dtype=torch.float64):
    """Make centred features of two sides whose columns are orthogonal: biased CKA exists and is 0."""
    columns = torch.linalg.qr(torch.cat([torch.ones(n, 1), pair(n, 2 * d, 1)[0]], 1).double()).Q[:, 1:]
    return columns[:, :d].to(dtype), columns[:, d:].to(dtype)


@pytest.mark.parametrize("n, d", [(12, 3), (12, 5), (200, 2), (200, 90)])
def test_a_cka_of_zero_exists(n, d):
    x, y = orthogonal(n, d)
    value, exists = cka_with_validity(x, y, estimator="biased")
    expected, share = reference.cka(x.numpy(), y.numpy(), np.ones(n, bool), "biased", "linear") if n < 100 else (0, 1)
    assert exists and share > 1e-11
    assert abs(value.item()) < 1e-14 and abs(expected) < 1e-14
    # exactly 0 in integers: every product is exact
    x, y = (torch.tensor(rows, dtype=torch.float64) for rows in ([[1.0], [1], [-1], [-1]], [[1.0], [-1], [1], [-1]]))
    value, exists = cka_with_validity(x, y, estimator="biased")
    assert value == 0 and exists


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_validity_is_false_exactly_where_cka_does_not_exist(estimator, kernel):
    x, y = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0)), pair(6, 3, 5)[1]
    x[1] = 0.3
    needed = 4 if estimator == "unbiased" else 2
    mask = torch.arange(6) < torch.tensor([6, 6, needed, needed - 1])[:, None]
    value, exists = cka_with_validity(x, y, mask=mask, estimator=estimator, kernel=kernel)
    if kernel == "linear" or estimator == "unbiased":  # a kernel of two points is the same for any two
        assert exists.tolist() == [True, False, True, False]
    assert torch.equal(value, cka(x, y, mask=mask, estimator=estimator, kernel=kernel))
    assert not value[~exists].any() and exists.dtype == torch.bool
    assert cka_with_validity(torch.full((6, 3), torch.nan), y, estimator=estimator)[1]

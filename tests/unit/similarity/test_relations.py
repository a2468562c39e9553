from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from limbeck.similarity import (
    pearson,
    pearson_loss,
    relation_kl,
    relation_losses,
    relation_mse,
    sample_relation_loss,
    sample_relations,
    token_relation_loss,
    token_relations,
)

from . import reference

NORMS = ("l2", "layernorm", "softmax", "none")
LOSSES = ("pearson", "mse", "kl")
FUSED = (token_relation_loss, sample_relation_loss)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hidden(seed, kind, batch, length, width, scale):
    return reference.features(seed, kind, batch * length, width, scale).reshape(batch, length, width)


def random_mask(seed, batch, length):
    mask = np.random.default_rng(seed).random((batch, length)) > 0.35
    mask[0] = seed % 3 > 0  # often a sample without any token
    return mask


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(reference.KINDS), st.sampled_from(NORMS), scales)
def test_relations_agree_with_the_loops(seed, kind, norm, scale):
    scale = min(scale, 1.0) if norm == "softmax" else scale  # beyond it the softmax is one-hot
    h, mask = hidden(seed, kind, 3, 4, 5, scale), random_mask(seed, 3, 4)
    token = token_relations(torch.tensor(h), torch.tensor(mask), norm)
    sample = sample_relations(torch.tensor(h), torch.tensor(mask), norm)
    assert token.shape == (3, 4, 4)
    assert sample.shape == (4, 3, 3)
    for i in range(3):
        expected = np.array(reference.relation(h[i], norm), float) * np.outer(mask[i], mask[i])
        np.testing.assert_allclose(token[i], expected, rtol=2e-6, atol=1e-7 * np.abs(expected).max(initial=1e-30))
    for j in range(4):
        expected = np.array(reference.relation(h[:, j], norm), float) * np.outer(mask[:, j], mask[:, j])
        np.testing.assert_allclose(sample[j], expected, rtol=2e-6, atol=1e-7 * np.abs(expected).max(initial=1e-30))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seeds, st.sampled_from(reference.KINDS), st.sampled_from(reference.KINDS), st.sampled_from(NORMS),
    st.sampled_from(LOSSES), st.booleans(), st.integers(1, 4), st.integers(1, 5), scales,
)  # fmt: skip
def test_losses_agree_with_the_loops(seed, kind_s, kind_t, norm, loss, diagonal, batch, length, scale):
    scale = min(scale, 1.0) if norm in ("softmax", "none") and loss != "pearson" else scale  # kl of 1e12 overflows exp
    s = hidden(seed, kind_s, batch, length, 4, scale)
    t = hidden(seed + 1, kind_t, batch, length, 3, scale)
    if "offset" in (kind_s, kind_t):
        assume(norm == "layernorm" or loss == "mse")  # other relations of far-away points are rounding error
    mask = random_mask(seed, batch, length)
    token, sample = reference.relation_losses(s, t, mask, norm, loss, diagonal)
    for ours, expected in ((token_relation_loss, token), (sample_relation_loss, sample)):
        ts, tt = torch.tensor(s).requires_grad_(), torch.tensor(t).requires_grad_()
        value = ours(ts, tt, torch.tensor(mask), norm=norm, loss=loss, include_diagonal=diagonal)
        assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
        value.backward()
        assert ts.grad.isfinite().all()
        assert not ts.grad[~torch.tensor(mask)].any()
        assert tt.grad is None


def test_losses_are_the_comparisons_of_the_relations():
    s, t = randn(4, 6, 5), randn(4, 6, 8, seed=1)
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) > 0.3
    pairs = (mask[:, :, None] & mask[:, None]).flatten(1)
    rs, rt = token_relations(s, mask).flatten(1), token_relations(t, mask).flatten(1)
    for name, expected in (
        ("pearson", 1 - pearson(rs, rt, pairs)),
        ("pearson", pearson_loss(rs, rt, pairs)),
        ("mse", relation_mse(rs, rt, pairs)),
        ("kl", relation_kl(rs, rt, pairs, tau=3.0)),
    ):
        value = token_relation_loss(s, t, mask, loss=name, tau=3.0)
        assert value.item() == pytest.approx(expected.mean().item(), rel=1e-10)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_both_losses_at_once_are_the_two(norm, loss):
    s, t = randn(3, 4, 5).requires_grad_(), randn(3, 4, 6, seed=1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1]]).bool()
    both = relation_losses(s, t, mask, norm=norm, loss=loss, tau=3.0, include_diagonal=False)
    apart = [f(s, t, mask, norm=norm, loss=loss, tau=3.0, include_diagonal=False) for f in FUSED]
    torch.testing.assert_close(torch.stack(both), torch.stack(apart))
    torch.testing.assert_close(torch.autograd.grad(sum(both), s), torch.autograd.grad(sum(apart), s))


def test_levels_are_chosen_and_ordered():
    s, t = randn(3, 4, 5), randn(3, 4, 6, seed=1)
    tokens, samples = relation_losses(s, t, None)
    assert relation_losses(s, t, None, levels=["samples"]) == (samples,)
    assert relation_losses(s, t, None, levels=["samples", "tokens"]) == (samples, tokens)
    with pytest.raises(ValueError, match="Unknown level 'words'"):
        relation_losses(s, t, None, levels=["words"])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("diagonal", [True, False])
def test_gradcheck(norm, loss, diagonal):
    s, t = randn(3, 4, 5).requires_grad_(), randn(3, 4, 6, seed=1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1]]).bool()
    for fused in FUSED:
        assert gradcheck(lambda a, f=fused: f(a, t, mask, norm=norm, loss=loss, include_diagonal=diagonal), (s,))
        assert gradcheck(lambda a, f=fused: f(a, t, None, norm=norm, loss=loss, include_diagonal=diagonal), (s,))
    assert gradcheck(lambda a: token_relations(a, mask, norm), (s,))
    assert gradcheck(lambda a: sample_relations(a, mask, norm), (s,))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(reference.KINDS), st.integers(1, 8), scales, st.integers(0, 3))
def test_pearson_agrees_with_the_loops(seed, kind, m, scale, masked):
    a, b = reference.features(seed, kind, 1, m, scale)[0], reference.features(seed + 1, "gaussian", 1, m)[0]
    mask = np.ones(m, bool)
    mask[:masked] = False
    wide = [[reference.WIDE(v) for v in row[mask]] for row in (a, b)]
    expected = reference.pearson(*wide)
    ta = torch.tensor(a).requires_grad_()
    rho = pearson(ta, torch.tensor(b), torch.tensor(mask))
    assert rho.item() == pytest.approx(0.0 if expected is None else float(expected), rel=1e-6, abs=1e-7)
    assert torch.autograd.grad(rho, ta)[0].isfinite().all()
    loss = pearson_loss(ta, torch.tensor(b), torch.tensor(mask))
    assert loss.item() == pytest.approx(0.0 if expected is None else float(1 - expected), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("compare", [pearson, pearson_loss, relation_mse, relation_kl])
def test_comparisons_ignore_what_is_masked(compare):
    a, b = randn(3, 7).requires_grad_(), randn(3, 7, seed=1)
    mask = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[2] = False
    base = compare(a, b, mask)
    (expected,) = torch.autograd.grad(base.sum(), a)
    assert base[2] == 0
    for garbage in (1e3, torch.inf, torch.nan):
        spoilt = torch.where(mask, a.detach(), garbage).requires_grad_()
        value = compare(spoilt, torch.where(mask, b, garbage), mask)
        assert torch.equal(value, base)
        assert torch.equal(torch.autograd.grad(value.sum(), spoilt)[0], expected)
    assert gradcheck(lambda x: compare(x, b, mask), (a,))
    assert gradcheck(lambda x: compare(x, b), (a,))


def test_pearson_is_invariant_to_positive_affine_maps_and_keeps_small_losses():
    a, b = randn(5, 30), randn(5, 30, seed=1)
    torch.testing.assert_close(pearson(3e4 * a + 2, 1e-5 * b - 7), pearson(a, b))
    torch.testing.assert_close(pearson(-a, b), -pearson(a, b))
    c = a + 1e-4 * b
    exact = 1 - torch.corrcoef(torch.stack([a[0], c[0]]))[0, 1]
    assert pearson_loss(a[:1].float(), c[:1].float()).item() == pytest.approx(exact.item(), rel=2e-3)  # of ~1e-8


def test_constant_relations_do_not_become_noise():
    h = torch.full((2, 40, 33), 0.3).requires_grad_()
    t = randn(2, 40, 33, seed=1, dtype=torch.float32)
    for norm in NORMS:
        for fused in FUSED:
            value = fused(h, t, None, norm=norm)
            assert value == 0
            assert not torch.autograd.grad(value, h)[0].any()
    big = torch.full((8, 128, 256), 0.3).requires_grad_()  # beyond the float64 size
    value = token_relation_loss(big, randn(8, 128, 256, dtype=torch.float32), None)
    assert value == 0
    assert not torch.autograd.grad(value, big)[0].any()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("garbage", [1e3, torch.inf, -torch.inf, torch.nan])
def test_padding_does_not_leak(norm, loss, garbage):
    s, t = randn(3, 5, 4).requires_grad_(), randn(3, 5, 6, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]).bool()

    def padded(x, left):
        rest = torch.full((3, 4, x.shape[-1]), garbage, dtype=x.dtype)
        x = torch.where(mask[..., None], x, garbage)
        return torch.cat([rest, x] if left else [x, rest], 1)

    none = torch.zeros(3, 4, dtype=torch.bool)
    for fused in FUSED:
        base = fused(s, t, mask, norm=norm, loss=loss)
        (expected,) = torch.autograd.grad(base, s)
        for left in (True, False):
            full_mask = torch.cat([none, mask] if left else [mask, none], 1)
            full = padded(s.detach(), left).requires_grad_()
            value = fused(full, padded(t, left), full_mask, norm=norm, loss=loss)
            assert value.item() == pytest.approx(base.item(), rel=1e-10)
            (grad,) = torch.autograd.grad(value, full)
            torch.testing.assert_close(grad[full_mask], expected[mask])
            assert not grad[~full_mask].any()


def test_relations_of_padding_are_zero_and_get_no_gradient():
    h = randn(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    h[~mask] = torch.nan
    h.requires_grad_()
    for norm in NORMS:
        for relations in (token_relations, sample_relations):
            r = relations(h, mask, norm)
            assert r.isfinite().all()
            (grad,) = torch.autograd.grad(r.sum(), h)
            assert grad.isfinite().all()
            assert not grad[~mask].any()


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("loss", LOSSES)
def test_minimum_and_invariances(fused, loss):
    s, t = randn(4, 5, 6), randn(4, 5, 6, seed=1)
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) > 0.2
    a = s.clone().requires_grad_()
    value = fused(a, s, mask, loss=loss)
    assert value.item() == pytest.approx(0, abs=1e-14)
    assert torch.autograd.grad(value, a)[0].abs().max() < 1e-8
    q = torch.linalg.qr(randn(6, 6, seed=2)).Q
    base = fused(s, t, mask, loss=loss).item()
    assert base > 0
    assert fused(s @ q * 1e5, t, mask, loss=loss).item() == pytest.approx(base, rel=1e-9)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(0))
    assert fused(s[order], t[order], mask[order], loss=loss).item() == pytest.approx(base, rel=1e-9)


def test_the_diagonal_dominates_unrelated_features():
    s, t = randn(8, 16, 768), randn(8, 16, 768, seed=1)
    assert token_relation_loss(s, t, None) < 0.05
    assert token_relation_loss(s, t, None, include_diagonal=False) > 0.8


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seeds, st.integers(2, 5), st.integers(2, 12), st.integers(3, 24), st.booleans(), scales)
def test_standardised_relations_make_the_three_losses_one(seed, batch, length, width, diagonal, scale):
    """With LayerNorm, MSE / 2 is (m - 1) / m of 1 - rho, and KL at a high temperature has its gradient (eqs. 11-13)."""
    s = (scale * randn(batch, length, width, seed=seed)).requires_grad_()
    t = randn(batch, length, width + 1, seed=seed + 1)
    for fused, rows in zip(FUSED, (length, batch), strict=True):
        m = rows**2 if diagonal else rows * (rows - 1)
        options = {"norm": "layernorm", "include_diagonal": diagonal}
        plc, mse, kl = (fused(s, t, None, loss=loss, tau=1e5, **options) for loss in LOSSES)
        assert mse.item() / 2 == pytest.approx((m - 1) / m * plc.item(), rel=1e-9, abs=1e-12)
        assert kl.item() == pytest.approx(mse.item() / 2, rel=1e-3, abs=1e-5)
        of_plc, of_mse, of_kl = (
            torch.autograd.grad(value, s, retain_graph=True)[0] * scale for value in (plc, mse, kl)
        )
        torch.testing.assert_close(of_mse / 2, (m - 1) / m * of_plc, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(of_kl, of_mse / 2, rtol=1e-3, atol=1e-4)


def plain_loss(s, t, mask, fused, norm, loss, tau):
    """Compute the loss one relation matrix at a time, in the dtype of the inputs and by autograd alone."""

    def relations(h):
        h = torch.where(mask[..., None], h, 0)
        if norm == "l2":
            h = torch.nn.functional.normalize(h, dim=-1)
        elif norm == "layernorm":
            h = torch.nn.functional.layer_norm(h, h.shape[-1:], eps=0.0)
        elif norm == "softmax":
            h = h.softmax(-1)
        h = torch.where(mask[..., None], h, 0)
        h = h if fused is token_relation_loss else h.transpose(0, 1)
        return h @ h.mT

    values, (a, b) = [], (relations(s), relations(t))
    for i, real in enumerate(mask if fused is token_relation_loss else mask.mT):
        x, y = (r[i][real][:, real].flatten() for r in (a, b))
        if norm == "layernorm" and loss != "pearson":
            x, y = ((v - v.mean()) / v.std() if len(v) > 1 else 0 * v for v in (x, y))
        if loss == "mse":
            value = (x - y).square().mean()
        elif loss == "kl":
            log_s, log_t = (x / tau).log_softmax(0), (y / tau).log_softmax(0)
            value = tau**2 * (log_t.exp() * (log_t - log_s)).sum()
        else:
            x, y = x - x.mean(), y - y.mean()
            value = 1 - (x * y).sum() / (x.norm() * y.norm()) if len(x) > 1 else 0 * x.sum()
        values.append(value if fused is token_relation_loss or real.sum() > 1 else None)
    values = [value for value in values if value is not None]
    return sum(values) / len(values)


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_float32_path_agrees_with_float64(fused, norm, loss):
    s, t = randn(8, 48, 384).float().requires_grad_(), randn(8, 48, 384, seed=1).float()
    mask = torch.arange(48) < torch.tensor([48, 40, 33, 20, 11, 7, 2, 1])[:, None]
    s64 = s.detach().double().requires_grad_()
    tau = 100.0 if norm == "none" else 1.0  # relations of size D saturate the softmax
    value, exact = (fused(a, b, mask, norm=norm, loss=loss, tau=tau) for a, b in ((s, t), (s64, t.double())))
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)
    plain = plain_loss(s, t, mask, fused, norm, loss, tau)
    g, p, e = torch.autograd.grad(value, s)[0], torch.autograd.grad(plain, s)[0], torch.autograd.grad(exact, s64)[0]
    # How much float32 loses in the sums depends on the machine: the plain form, measured here, is the yardstick.
    assert (g - e).norm() <= max(1e-5 * e.norm(), 2 * (p - e).norm())


@pytest.mark.parametrize("fused", FUSED)
def test_half_precision_and_autocast(fused):
    s, t = randn(4, 6, 8).bfloat16().requires_grad_(), randn(4, 6, 8, seed=1).bfloat16()
    value = fused(s, t, None)
    assert value.dtype == torch.float32
    assert value.item() == fused(s.float(), t.float(), None).item()
    assert torch.autograd.grad(value, s)[0].isfinite().all()
    s, t = randn(8, 128, 256).float(), randn(8, 128, 256, seed=1).float()
    plain, relations = fused(s, t, None), token_relations(s, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused(s, t, None).item() == plain.item()
        assert torch.equal(token_relations(s, None), relations)


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (0, 3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_small_batches(fused, shape, loss):
    s = randn(*shape, 4).requires_grad_()
    value = fused(s, randn(*shape, 4, seed=1), torch.ones(shape, dtype=torch.bool), loss=loss)
    assert value.isfinite()
    assert torch.autograd.grad(value, s)[0].isfinite().all()


def test_bad_arguments():
    h = randn(2, 3, 4)
    with pytest.raises(ValueError, match="Unknown norm 'l1'"):
        token_relations(h, None, "l1")
    with pytest.raises(ValueError, match="Unknown loss 'cosine'"):
        token_relation_loss(h, h, None, loss="cosine")
    with pytest.raises(ValueError, match=r"\(B, L, D\)"):
        sample_relations(h[0], None)
    with pytest.raises(ValueError, match="alike"):
        token_relation_loss(h, h[:, :2], None)
    with pytest.raises(ValueError, match="same shape"):
        pearson(h, h[..., :2])
    with pytest.raises(ValueError, match="positive"):
        relation_kl(h, h, tau=0.0)

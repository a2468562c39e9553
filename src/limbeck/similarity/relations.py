"""Compute relations between tokens and between samples, and compare a student's with a teacher's (FCD)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._moments import (
    check_choice,
    check_mask,
    gram,
    outside_autocast,
    result_dtype,
    rounding_threshold,
    teacher_side,
    with_second_derivatives,
    working_dtype,
    zero_masked,
)

NORMS = ("l2", "layernorm", "softmax", "none")
LOSSES = ("pearson", "mse", "kl")
LEVELS = ("tokens", "samples")
_SMALL = 2**17  # elements up to which float64 is free


@outside_autocast
def token_relations(h: Tensor, mask: Tensor | None, norm: str = "l2") -> Tensor:
    """Compute ``R_i = N(h_i) N(h_i)'``: for each sample i how its tokens relate, (B, L, D) -> (B, L, L).

    Args:
        mask: (B, L) bool, True for real tokens; relations of padding are 0.
        norm: of each token vector: ``l2`` (relations are cosines), ``layernorm`` (zero mean, unit variance
            over D, no affine map), ``softmax`` over D, or ``none``. A zero (l2) or constant (layernorm)
            vector becomes 0.
    """
    return _relations(_prepared(h, mask, norm), norm).to(result_dtype(h))


@outside_autocast
def sample_relations(h: Tensor, mask: Tensor | None, norm: str = "l2") -> Tensor:
    """Compute ``R_j = N(h_:j) N(h_:j)'``: for each token position j how samples relate, (B, L, D) -> (L, B, B).

    Arguments as for :func:`token_relations`; a sample without a real token at j has relations 0 there.
    """
    return _relations(_prepared(h, mask, norm).transpose(0, 1), norm).to(result_dtype(h))


@outside_autocast
def pearson(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the correlation of the real part of the last dimension.

    ``rho = <a - mean(a), b - mean(b)> / (|a - mean(a)| |b - mean(b)|)``.
    Flatten relation matrices first: ``pearson(r_s.flatten(1), r_t.flatten(1), pairs.flatten(1))``.
    0 with zero gradient where a side is constant (up to rounding error) or nothing is real.

    Args:
        a, b: (..., m). mask: (..., m) bool, True for entries that count.
    """
    _check_entries(a, b, mask)
    (za, _), (zb, _) = _standardised(a, b, mask)
    return (za * zb).sum(-1).to(result_dtype(a, b))


@outside_autocast
def pearson_loss(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute ``1 - rho(a, b)`` as ``|z_a - z_b|^2 / 2`` of standardised entries: small values keep their digits.

    Arguments as for :func:`pearson`; 0 with zero gradient where rho does not exist.
    """
    _check_entries(a, b, mask)
    return _PearsonLoss.apply(a, b, mask)


@outside_autocast
def relation_mse(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average ``(a - b)^2`` over the real entries of the last dimension; 0 where nothing is real.

    FCD's eq. 13 writes half of this.
    """
    _check_entries(a, b, mask)
    dtype = working_dtype(a, b, small=a.numel() <= _SMALL)
    difference = a.to(dtype) - b.to(dtype)
    if mask is None:
        return difference.square().mean(-1).to(result_dtype(a, b))
    real = mask.expand(difference.shape)
    squares = torch.where(real, difference, 0).square().sum(-1)
    return (squares / real.sum(-1).clamp(min=1)).to(result_dtype(a, b))


@outside_autocast
def relation_kl(a: Tensor, b: Tensor, mask: Tensor | None = None, *, tau: float = 10.0) -> Tensor:
    """Compute ``tau^2 KL(softmax(b / tau) || softmax(a / tau))`` over the real part of the last dimension.

    It is 0 where nothing is real.
    """
    _check_entries(a, b, mask)
    if tau <= 0:
        raise ValueError(f"tau must be positive; got {tau}.")
    dtype = working_dtype(a, b, small=True)  # at high temperature the KL is a small difference of large logarithms
    real = torch.ones_like(a, dtype=torch.bool) if mask is None else mask.expand(a.shape)
    log_s = _masked_log_softmax(a.to(dtype) / tau, real)
    log_t = _masked_log_softmax(b.to(dtype) / tau, real)
    terms = torch.where(real, log_t.exp() * (log_t - log_s), 0)
    return (tau**2 * terms.sum(-1)).to(result_dtype(a, b))


@outside_autocast
def token_relation_loss(
    s: Tensor,
    t: Tensor,
    mask: Tensor | None,
    *,
    norm: str = "l2",
    loss: str = "pearson",
    tau: float = 10.0,
    include_diagonal: bool = True,
) -> Tensor:
    """Average ``loss(R_i(s), R_i(t))`` of the token relations over samples i, each over its real entries (FCD eq. 8).

    Args:
        s, t: (B, L, D_s) and (B, L, D_t), student and teacher. The teacher gets no gradient.
        mask: (B, L) bool, True for real tokens; None when all are.
        norm: as for :func:`token_relations`. With ``layernorm`` the entries of each relation matrix are standardised
            too (FCD eq. 13: mean 0, sum of squares m - 1 over the m entries that count), without which they are as
            large as D: ``mse / 2`` is then (m - 1) / m times ``pearson``, and ``kl`` at a high tau has its gradient.
        loss: ``pearson`` (1 - rho), ``mse`` or ``kl`` (at temperature ``tau``, with the factor tau^2).
        include_diagonal: the relation of a token with itself is 1 under l2 and dominates Pearson: unrelated
            features score 0.98 at L=16. The paper keeps it.

    Returns:
        A scalar. A sample whose comparison does not exist (no token, constant relations) counts as 0 in the mean.
    """
    compare = _Comparison(mask, norm, loss, tau, include_diagonal)
    return compare.tokens(*compare.prepared(s, t))


@outside_autocast
def sample_relation_loss(
    s: Tensor,
    t: Tensor,
    mask: Tensor | None,
    *,
    norm: str = "l2",
    loss: str = "pearson",
    tau: float = 10.0,
    include_diagonal: bool = True,
) -> Tensor:
    """Average ``loss(R_j(s), R_j(t))`` of the sample relations over positions j, each over real tokens (FCD eq. 9).

    The mean is over the positions where at least 2 samples have a real token; 0 if there are none. Arguments
    as for :func:`token_relation_loss`.
    """
    compare = _Comparison(mask, norm, loss, tau, include_diagonal)
    return compare.samples(*compare.prepared(s, t))


@outside_autocast
def relation_losses(
    s: Tensor,
    t: Tensor,
    mask: Tensor | None,
    *,
    norm: str = "l2",
    loss: str = "pearson",
    tau: float = 10.0,
    include_diagonal: bool = True,
    levels: Sequence[str] = LEVELS,
) -> tuple[Tensor, ...]:
    """Compute :func:`token_relation_loss` and :func:`sample_relation_loss` of features that are prepared once.

    Args:
        levels: which of the two, and in which order: ``tokens``, ``samples``.
    """
    for level in levels:
        check_choice("level", level, LEVELS)
    compare = _Comparison(mask, norm, loss, tau, include_diagonal)
    s, t = compare.prepared(s, t)
    return tuple(compare.tokens(s, t) if level == "tokens" else compare.samples(s, t) for level in levels)


class _Comparison:
    def __init__(self, mask: Tensor | None, norm: str, loss: str, tau: float, include_diagonal: bool) -> None:
        check_choice("loss", loss, LOSSES)
        self.mask, self.norm, self.loss, self.tau, self.include_diagonal = mask, norm, loss, tau, include_diagonal

    def prepared(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if s.dim() != 3 or s.shape[:2] != t.shape[:2]:
            raise ValueError(f"Student and teacher must be (B, L, D) alike; got {tuple(s.shape)} and {tuple(t.shape)}.")
        self.dtype = result_dtype(s)
        return _prepared(s, self.mask, self.norm), _prepared(teacher_side(t), self.mask, self.norm)

    def tokens(self, s: Tensor, t: Tensor) -> Tensor:
        compared, _ = self._each(s, t, self.mask)
        return (compared.sum() / max(len(compared), 1)).to(self.dtype)

    def samples(self, s: Tensor, t: Tensor) -> Tensor:
        mask = None if self.mask is None else self.mask.mT
        compared, rows = self._each(s.transpose(0, 1), t.transpose(0, 1), mask)
        counted = rows >= 2
        return (torch.where(counted, compared, 0).sum() / counted.sum().clamp(min=1)).to(self.dtype)

    def _each(self, s: Tensor, t: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss of each relation matrix, and how many real rows it has."""
        real = torch.ones(s.shape[:2], dtype=torch.bool, device=s.device) if mask is None else mask
        entries = real[:, :, None] & real[:, None, :]
        if not self.include_diagonal:
            entries = entries & ~torch.eye(real.shape[1], dtype=torch.bool, device=s.device)
        a, b, entries = _relations(s, self.norm).flatten(1), _relations(t, self.norm).flatten(1), entries.flatten(1)
        if self.loss == "pearson":
            return pearson_loss(a, b, entries), real.sum(1)
        if self.norm == "layernorm":
            (a, _), (b, _) = _standardised(a, b, entries)
            spread = (entries.sum(1, keepdim=True) - 1).clamp(min=0).to(a.dtype).sqrt()
            a, b = a * spread, b * spread
        if self.loss == "kl":
            return relation_kl(a, b, entries, tau=self.tau), real.sum(1)
        return relation_mse(a, b, entries), real.sum(1)


def _prepared(h: Tensor, mask: Tensor | None, norm: str) -> Tensor:
    """Return the vectors whose inner products, up to their lengths, are the relations; 0 for padding."""
    check_choice("norm", norm, NORMS)
    if h.dim() != 3:
        raise ValueError(f"Hidden states must be (B, L, D); got {tuple(h.shape)}.")
    check_mask(mask, h.shape[1])
    h = h.to(working_dtype(h, small=h.numel() <= _SMALL))
    real = None if mask is None else mask[..., None]
    if real is not None:
        h = zero_masked(h, real)
    if norm == "layernorm":
        # Subtracting an element first makes a constant vector exactly 0 instead of normalised rounding noise.
        h = h - h[..., :1].detach()
        h = h - h.mean(-1, keepdim=True)
    elif norm == "softmax":
        h = h.softmax(-1)
        h = h if real is None else zero_masked(h, real)
    return h


def _relations(h: Tensor, norm: str) -> Tensor:
    products = gram(h)
    if norm in ("softmax", "none"):
        return products
    return _cosines(products) * (h.shape[-1] if norm == "layernorm" else 1)


def _cosines(products: Tensor) -> Tensor:
    """Divide by the lengths, which are on the diagonal: a pass over n x n numbers instead of two over n x D."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    empty = squares == 0
    inverse = torch.where(empty, 0, torch.where(empty, 1, squares).rsqrt())
    return products * inverse[..., :, None] * inverse[..., None, :]


def _check_entries(a: Tensor, b: Tensor, mask: Tensor | None) -> None:
    if a.shape != b.shape:
        raise ValueError(f"Student and teacher must have the same shape; got {tuple(a.shape)} and {tuple(b.shape)}.")
    check_mask(mask, a.shape[-1])


class _PearsonLoss(torch.autograd.Function):
    """Compute |z_a - z_b|^2 / 2, with both gradients worked out next to the value.

    Fewer passes over the entries make it 1.3 to 1.4 times as fast as autograd.
    z_a has mean 0 and norm 1, so the gradient with respect to a is ``(rho z_a - z_b)' / |a - mean(a)|``, and with
    ``rho = 1 - loss`` it is 0 where z_a and z_b agree to the last digit.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        (za, scale_a), (zb, scale_b) = _standardised(a, b, mask)
        difference = za - zb
        loss = torch.linalg.vector_norm(difference, dim=-1, keepdim=True).square() / 2
        grad_a = (torch.addcmul(difference, za, -loss) * scale_a).to(a.dtype) if ctx.needs_input_grad[0] else None
        grad_b = (torch.addcmul(difference, zb, loss) * -scale_b).to(b.dtype) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(a, b, mask, grad_a, grad_b)
        return loss[..., 0].to(result_dtype(a, b))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b, mask, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            plain = functools.partial(_plain_pearson_loss, mask=mask)
            return *with_second_derivatives(plain, (a, b), gradients, grads[0]), None
        return *(None if g is None else grads[0][..., None] * g for g in gradients), None


def _plain_pearson_loss(a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the loss in operations that can be differentiated again."""
    (za, _), (zb, _) = _standardised(a, b, mask)
    return ((za - zb).square().sum(-1) / 2).to(result_dtype(a, b))


def _standardised(a: Tensor, b: Tensor, mask: Tensor | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return both with mean 0 and norm 1 over the real entries, and their scales; 0 where either is constant."""
    if a.shape[-1] == 0:
        return (a, a.new_zeros(*a.shape[:-1], 1)), (b, b.new_zeros(*b.shape[:-1], 1))
    dtype = working_dtype(a, b, small=a.numel() <= _SMALL)
    first = None if mask is None else mask.byte().argmax(-1, keepdim=True).expand(*a.shape[:-1], 1)
    (da, power_a, flat_a), (db, power_b, flat_b) = (
        _deviation(x.to(dtype), mask, first, rounding_threshold(x)) for x in (a, b)
    )
    missing = flat_a | flat_b
    scale_a = torch.where(missing, 0, torch.where(missing, 1, power_a).rsqrt())
    scale_b = torch.where(missing, 0, torch.where(missing, 1, power_b).rsqrt())
    return (da * scale_a, scale_a), (db * scale_b, scale_b)


def _deviation(x: Tensor, mask: Tensor | None, first: Tensor | None, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x minus its mean, the sum of squares of that, and whether it is only rounding error of a constant."""
    reference = x.detach()[..., :1] if first is None else x.detach().gather(-1, first)
    x = x - reference  # a large common value costs no digits, a constant becomes exactly 0
    if mask is None:
        count: Tensor | int = x.shape[-1]
        x = x - x.mean(-1, keepdim=True)
    else:
        count = mask.sum(-1, keepdim=True)
        x = torch.where(mask, x, 0)  # faster than zero_masked() where the mask is as large as x
        x = torch.addcmul(x, mask.to(x.dtype), x.sum(-1, keepdim=True) / count.clamp(min=1), value=-1)
    power = (x * x).sum(-1, keepdim=True)
    flat = (power == 0) | (power <= (2 * noise * reference).square() * count)
    return x, power, flat


def _masked_log_softmax(x: Tensor, real: Tensor) -> Tensor:
    # A row without real entries would be all -inf, whose softmax is NaN: there the zeros stay and are dropped
    # later.
    fill = torch.where(real.any(-1, keepdim=True), -torch.inf, 0.0).to(x.dtype)
    shifted = torch.where(real, x, fill).log_softmax(-1)
    return torch.where(real, shifted, 0)

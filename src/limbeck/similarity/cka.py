"""Compute centred kernel alignment between two sets of representations of the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._moments import (
    centre,
    check_choice,
    check_rows,
    count_rows,
    gram,
    outside_autocast,
    result_dtype,
    rounding_threshold,
    working_dtype,
)

ESTIMATORS = ("unbiased", "biased")
KERNELS = ("linear", "rbf")
_FEW_ROWS = 64  # rows or features up to which float64 is affordable, and rounding errors do not average out
_SMALL_INPUT = 2**18  # elements up to which float64 is free


class _Terms(NamedTuple):
    """Hold HSIC(x, y), HSIC(x, x) and HSIC(y, y) up to a factor that is common to the three.

    Self terms that are only rounding error are exactly 0. ``unit_x`` and ``unit_y`` are what the inputs were divided
    by, so that 1e-6 and 1e6 fit float32.
    """

    xy: Tensor
    xx: Tensor
    yy: Tensor
    unit_x: Tensor
    unit_y: Tensor


def cka(
    x: Tensor, y: Tensor, *, mask: Tensor | None = None, estimator: str = "unbiased", kernel: str = "linear"
) -> Tensor:
    """Compute the centred kernel alignment of student ``x`` and teacher ``y``; 1 is the same structure.

    ``CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` with K, L the n x n kernel matrices of x and y.

    - ``biased``: ``HSIC = tr(K C L C) / (n-1)^2``, C the centring matrix (Kornblith et al. 2019, ICML). For
      independent data it tends to 1 when n is small against d.
    - ``unbiased``: ``HSIC = [tr(K~ L~) + 1'K~1 1'L~1 / ((n-1)(n-2)) - 2/(n-2) 1'K~L~1] / (n(n-3))``, K~ and
      L~ with a zero diagonal (Song et al. 2012, JMLR). Needs n >= 4; it can be negative and is not clamped.
    - ``linear``: ``K = x x'``. ``rbf``: ``K_ij = exp(-|x_i - x_j|^2 / (2 m^2))``, m the (lower) median of the
      non-zero distances; the gradient goes through m too.

    Invariant to rotation, isotropic scale and translation of either side. ``1 - cka`` is not a metric,
    ``arccos(cka)`` is.

    Args:
        x, y: (..., n, d1) and (..., n, d2), the same n samples; leading dimensions broadcast.
        mask: (..., n) bool, True for real rows. What masked rows hold changes neither value nor gradient.

    Returns:
        (...), float32 (float64 for float64 inputs); 0 with zero gradient where it does not exist (n too
        small, constant input). `cka_with_validity` tells that 0 from a true one.
    """
    return cka_with_validity(x, y, mask=mask, estimator=estimator, kernel=kernel)[0]


@outside_autocast
def cka_with_validity(
    x: Tensor, y: Tensor, *, mask: Tensor | None = None, estimator: str = "unbiased", kernel: str = "linear"
) -> tuple[Tensor, Tensor]:
    """Compute `cka`, and whether it exists: a bool of the same shape.

    It does not where there are too few rows (2 for ``biased``, 4 for ``unbiased``) or a side is constant. It does
    where an input holds NaN, so that the NaN stays visible.
    """
    terms = _terms(x, y, mask, estimator, kernel)
    value, exists = _ratio(terms.xy, terms.xx, terms.yy)
    return value.to(result_dtype(x, y)), exists


class MinibatchCKA:
    """Add up the unbiased CKA of a data set that is seen in batches, in constant memory (Nguyen et al. 2021, ICLR).

    ``CKA = sum_b w_b HSIC_b(K, L) / sqrt(sum_b w_b HSIC_b(K, K) sum_b w_b HSIC_b(L, L))``, with
    w_b = n_b (n_b - 3) for a batch of n_b real rows, so that a short last batch counts for what it holds.
    Leading dimensions broadcast: layers stacked as (S, 1, n, d) and (1, T, n, d) give an S x T map.

    Examples:
        >>> total = MinibatchCKA()
        >>> for x, y in batches:
        ...     total.update(x, y)
        >>> total.compute()
    """

    def __init__(self, *, kernel: str = "linear") -> None:
        check_choice("kernel", kernel, KERNELS)
        self.kernel = kernel
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor, *, mask: Tensor | None = None) -> None:
        """Add a batch; one with fewer than 4 real rows adds nothing."""
        with torch.autocast(device_type=x.device.type, enabled=False):
            t = _terms(x, y, mask, "unbiased", self.kernel)
        wide = working_dtype(x, y, small=True)
        ux, uy = t.unit_x.to(wide).square(), t.unit_y.to(wide).square()
        batch = (t.xy.to(wide) * ux * uy, t.xx.to(wide) * ux.square(), t.yy.to(wide) * uy.square())
        old = self._sums
        self._sums = batch if old is None else (old[0] + batch[0], old[1] + batch[1], old[2] + batch[2])

    def compute(self) -> Tensor:
        """Return the CKA of everything seen so far."""
        if self._sums is None:
            raise ValueError("MinibatchCKA has seen no batch yet: call update(x, y) before compute().")
        return _ratio(*self._sums)[0].float()


def _ratio(xy: Tensor, xx: Tensor, yy: Tensor) -> tuple[Tensor, Tensor]:
    """Return CKA from its HSIC terms, 0 where it does not exist, and where it does."""
    missing = (xx <= 0) | (yy <= 0)  # written so that NaN in a real row stays visible
    size = torch.where(missing, 1, xx).sqrt() * torch.where(missing, 1, yy).sqrt()
    return torch.where(missing, 0, xy / size), ~missing


def _terms(x: Tensor, y: Tensor, mask: Tensor | None, estimator: str, kernel: str) -> _Terms:
    check_choice("estimator", estimator, ESTIMATORS)
    check_choice("kernel", kernel, KERNELS)
    check_rows(x, y, mask)
    n, dx, dy = x.shape[-2], x.shape[-1], y.shape[-1]
    in_features = kernel == "linear" and dx * dx + dy * dy + dx * dy < n * (dx + dy)
    few = (max(dx, dy) if in_features else n) <= _FEW_ROWS
    dtype = working_dtype(x, y, small=few or max(x.numel(), y.numel()) <= _SMALL_INPUT)
    tolerance = 64 * torch.finfo(dtype).eps if in_features else rounding_threshold(x, y) ** 2

    (x, unit_x), (y, unit_y) = (_unit_scale(centre(side.to(dtype), mask, in_features)) for side in (x, y))
    rows = count_rows(x, mask)
    if in_features:
        compare = _feature_products(x, y, rows, estimator)
    else:
        real = _real_pairs(x, mask)
        off = real & ~torch.eye(n, dtype=torch.bool, device=x.device)
        k, l = _kernel(x, off, kernel), _kernel(y, off, kernel)  # noqa: E741
        if estimator == "unbiased":
            compare = _inner_products(k, l, lambda m: _u_centre(m, off, rows))
        else:
            compare = _inner_products(k, l, lambda m: _double_centre(m, real, rows))
    xy, xx, yy, size_xx, size_yy = compare
    exists = rows > (3 if estimator == "unbiased" else 1)
    xx = torch.where(exists & ~(xx <= tolerance * size_xx.detach()), xx, 0)
    yy = torch.where(exists & ~(yy <= tolerance * size_yy.detach()), yy, 0)
    return _Terms(torch.where(exists, xy, 0), xx, yy, unit_x, unit_y)


def _unit_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the largest magnitude. CKA does not depend on it, so neither does its gradient."""
    if x.numel() == 0:
        return x, x.new_ones(x.shape[:-2])
    plain = x.detach()
    unit = torch.maximum(plain.amax((-2, -1)), -plain.amin((-2, -1)))
    unit = torch.where(unit == 0, 1, unit)
    return x / unit[..., None, None], unit


def _total(x: Tensor) -> Tensor:
    return x.sum((-2, -1))


def _feature_products(x: Tensor, y: Tensor, n: Tensor, estimator: str) -> tuple[Tensor, ...]:
    """Compute the HSIC terms from d x d products instead of n x n: tr(KL) = |X'Y|_F^2.

    With centred rows K1 = 0, so the unbiased sum needs only the diagonals k, l of K and L besides:
    ``|X'Y|_F^2 - n/(n-2) sum k l + sum k sum l / ((n-1)(n-2))``.
    """
    raw = [_total((a.mT @ b).square()) for a, b in ((x, y), (x, x), (y, y))]
    if estimator == "biased":
        return (*raw, raw[1], raw[2])
    k, l = x.square().sum(-1), y.square().sum(-1)  # noqa: E741
    n1, n2 = (n - 1).clamp(min=1), (n - 2).clamp(min=1)
    pairs = ((k, l), (k, k), (l, l))
    both = zip(raw, pairs, strict=True)
    out = [r - n / n2 * (a * b).sum(-1) + a.sum(-1) * b.sum(-1) / (n1 * n2) for r, (a, b) in both]
    return (*out, raw[1], raw[2])


def _inner_products(
    k: Tensor,
    l: Tensor,  # noqa: E741
    centred: Callable[[Tensor], Tensor],
) -> tuple[Tensor, ...]:
    """Compute the HSIC terms as inner products of centred n x n kernels.

    Unlike the textbook sum, this form cannot make HSIC(x, x) negative.
    """
    a, b = centred(k), centred(l)
    return _total(a * b), _total(a * a), _total(b * b), _total(k.square()), _total(l.square())


def _real_pairs(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return (..., n, n): True where both rows are real."""
    if mask is None:
        return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device)
    return mask[..., None] & mask[..., None, :]


def _u_centre(k: Tensor, off: Tensor, n: Tensor) -> Tensor:
    n = n[..., None, None]
    hollow = torch.where(off, k, 0)
    rows = hollow.sum(-1, keepdim=True) / (n - 2).clamp(min=1)
    total = rows.sum(-2, keepdim=True) / (n - 1).clamp(min=1)
    return torch.where(off, hollow - rows - rows.mT + total, 0)


def _double_centre(k: Tensor, real: Tensor, n: Tensor) -> Tensor:
    n = n[..., None, None].clamp(min=1)
    k = torch.where(real, k, 0)
    rows = k.sum(-1, keepdim=True) / n
    return torch.where(real, k - rows - rows.mT + rows.sum(-2, keepdim=True) / n, 0)


def _kernel(x: Tensor, off: Tensor, kernel: str) -> Tensor:
    k = gram(x)
    if kernel == "linear" or k.numel() == 0:
        return k
    norms = k.diagonal(dim1=-2, dim2=-1)
    scale = norms[..., :, None] + norms[..., None, :]
    squared = scale - 2 * k
    distinct = off & ~(squared <= 64 * torch.finfo(k.dtype).eps * scale.detach())
    squared = torch.where(distinct, squared, 0)
    median = torch.where(distinct, squared, torch.nan).flatten(-2).nanmedian(-1).values[..., None, None]
    return torch.exp(-squared / (2 * torch.where(distinct.any((-2, -1), keepdim=True), median, 1)))

"""Measure how far two representations are apart after the best rotation (generalised Procrustes)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ._moments import (
    centre,
    check_choice,
    check_rows,
    gram,
    outside_autocast,
    result_dtype,
    rounding_threshold,
    with_second_derivatives,
    working_dtype,
)

KINDS = ("angular", "euclidean")
_WIDE = 0.65  # below this n/d an n x n eigenproblem is faster than working on the features


@outside_autocast
def shape_distance(
    x: Tensor, y: Tensor, *, mask: Tensor | None = None, kind: str = "angular", beta: float = 1.0
) -> Tensor:
    """Compute the distance of student ``x`` and teacher ``y`` after the best rotation (Williams et al. 2021, NeurIPS).

    With C the centring matrix, ``phi(R) = C R (beta I + (1 - beta) (R'C R)^(-1/2))`` and ``|.|_*`` the nuclear norm:

    - ``angular``: ``arccos(|phi(x)' phi(y)|_* / (|phi(x)| |phi(y)|))``, in [0, pi/2]; a metric.
    - ``euclidean``: ``sqrt(|phi(x)|^2 + |phi(y)|^2 - 2 |phi(x)' phi(y)|_*)``.

    ``beta=1`` only centres: invariant to rotation and translation (and to isotropic scale if angular).
    ``beta=0`` whitens: invariant to every invertible affine map. In between, phi mixes x with its scale-free
    polar factor, so the result depends on the scale of the input: normalise it first.

    Widths may differ: padding the narrower side with zero features would not change the singular values. The
    cost follows the smaller of n and d. Directions that hold only rounding error of the inputs get no
    gradient; neither does a distance that is only rounding error.

    Args:
        x, y: (..., n, d1) and (..., n, d2), the same n samples; leading dimensions broadcast.
        mask: (..., n) bool, True for real rows. What masked rows hold changes neither value nor gradient.

    Returns:
        (...), float32 (float64 for float64 inputs); the angle is 0 with zero gradient where a side is
        constant.
    """
    check_choice("kind", kind, KINDS)
    check_rows(x, y, mask)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be between 0 (whiten) and 1 (centre only); got {beta}.")
    dtype = working_dtype(x, y, small=True)
    tolerance = max(
        rounding_threshold(x, y), 8 * torch.finfo(dtype).eps ** 0.5
    )  # Gram matrices square the rounding error
    cx, cy = centre(x.to(dtype), mask), centre(y.to(dtype), mask)
    if x.shape[-2] == 0:
        return (cx.sum((-2, -1)) + cy.sum((-2, -1))).to(result_dtype(x, y))  # no rows: 0
    lead = torch.broadcast_shapes(cx.shape[:-2], cy.shape[:-2])
    cx, cy = cx.expand(*lead, *cx.shape[-2:]), cy.expand(*lead, *cy.shape[-2:])
    return _Procrustes.apply(cx, cy, kind == "angular", float(beta), tolerance).to(result_dtype(x, y))


class _Factor:
    """Hold one side as phi(X) = A W' with orthonormal columns in W; only A, as narrow as n or d allows, is used."""

    def __init__(self, x: Tensor, finite: Tensor, beta: float, tolerance: float) -> None:
        n, d = x.shape[-2:]
        self.x, self.beta = x, beta
        self.wide = n < _WIDE * d
        self.plain = beta == 1 and not self.wide
        if self.plain:
            self.a = x
            return
        # X = V S W': from the eigenvectors of X X' (V) or of X'X (W), whichever is smaller.
        squares, vectors = torch.linalg.eigh(torch.where(finite, x @ x.mT if self.wide else x.mT @ x, 0))
        s = squares.clamp(min=0).sqrt()
        significant = s > tolerance * s[..., -1:]
        self.s = torch.where(significant, s, 0)
        self.inverse = torch.where(significant, 1 / torch.where(significant, s, 1), 0)
        self.vectors = torch.where(significant[..., None, :], vectors, 0)
        self.v = self.vectors if self.wide else x @ self.vectors * self.inverse[..., None, :]
        self.a = self.v * torch.where(significant, beta * s + (1 - beta), 0)[..., None, :]

    def lift(self, g: Tensor) -> Tensor:
        """Return the gradient with respect to X, given the one with respect to A.

        It lies in the row space of X, because the distance depends on X only through X X'. Through the polar
        factor V W' it is ``V [(H - H') / (s_i + s_j)] + (G - V H) S^-1`` with ``H = V'G``: sums of singular
        values, never differences, so that repeated ones do no harm.
        """
        if self.plain:
            return g
        if self.beta < 1:
            h = self.v.mT @ g
            sums = self.s[..., :, None] + self.s[..., None, :]
            turned = torch.where(sums > 0, (h - h.mT) / torch.where(sums > 0, sums, 1), 0)
            polar = self.v @ turned + (g - self.v @ h) * self.inverse[..., None, :]
            g = self.beta * g + (1 - self.beta) * polar
        if self.wide:
            return (g * self.inverse[..., None, :]) @ self.vectors.mT @ self.x
        return g @ self.vectors.mT


class _Procrustes(torch.autograd.Function):
    """Compute the distance of centred inputs, with both gradients worked out next to the value.

    It is 40 times as fast as autograd through the singular values of the d x d product at 32 x 768. Autograd through
    n x n eigenvectors is as fast there, but gives NaN where singular values repeat, because it divides by their
    differences, and takes a third more time and memory at 32 x 98304 (benchmarks/autograd.py).

    By the envelope theorem the best rotation Q = U V' can be held fixed: d|X'Y|_* = <Y Q', dX> + <X Q, dY>.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, angular: bool, beta: float, tolerance: float) -> Tensor:
        # The decompositions raise on NaN and inf; a diverged batch must give a NaN loss, which gradient scalers skip.
        finite = (_norm(x) + _norm(y)).isfinite()
        fx, fy = _Factor(x, finite, beta, tolerance), _Factor(y, finite, beta, tolerance)
        a, b, size_a, size_b = fx.a, fy.a, _norm(fx.a), _norm(fy.a)
        missing = (size_a == 0) | (size_b == 0)
        if angular:
            size_a, size_b = torch.where(missing, 1, size_a), torch.where(missing, 1, size_b)
            a, b = a / size_a, b / size_b

        u, sigma, vt = torch.linalg.svd(torch.where(finite, a.mT @ b, 0), full_matrices=False)
        # The narrower side is turned into the wider one, so that no part of it is projected away.
        turned, fixed = (a @ u @ vt, b) if a.shape[-1] <= b.shape[-1] else (b @ vt.mT @ u.mT, a)
        distance = _norm(turned - fixed)
        if angular:  # arccos has no digits left for small angles: below 1e-3 in float32, 1e-8 in float64
            distance = 2 * torch.atan2(distance, _norm(turned + fixed))
            distance = torch.where(missing, 0, distance)
        distance = torch.where(finite, distance, torch.nan)

        # Angle t of a = X / |X|: dt/da = (cos(t) a - b Q') / sin(t). Euclidean d: (a - b Q') / d.
        q = (u * _trusted(a @ u, b @ vt.mT, sigma, tolerance)[..., None, :]) @ vt
        flat = distance <= tolerance * (1 if angular else size_a + size_b)
        steep = torch.where(flat, torch.inf, torch.sin(distance) if angular else distance)
        keep = torch.cos(distance) if angular else 1.0
        per_a, per_b = (steep * size_a, steep * size_b) if angular else (steep, steep)
        grad_x = fx.lift((keep * a - b @ q.mT) / per_a) if ctx.needs_input_grad[0] else None
        grad_y = fy.lift((keep * b - a @ q) / per_b) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(x, y, grad_x, grad_y)
        ctx.settings = angular, beta, tolerance
        return distance[..., 0, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Without a gradient (a constant side, no distance) there is nothing to differentiate again, nor with NaN.
            sizes = torch.stack([_norm(g)[..., 0, 0] for g in gradients if g is not None]).sum(0)
            plain = functools.partial(_plain_distances, (sizes > 0) & sizes.isfinite(), *ctx.settings)
            return *with_second_derivatives(plain, (x, y), gradients, grads[0]), None, None, None
        scale = grads[0][..., None, None]
        return *(None if g is None else scale * g for g in gradients), None, None, None


def _plain_distances(exists: Tensor, angular: bool, beta: float, tolerance: float, x: Tensor, y: Tensor) -> Tensor:
    """Compute the distances in operations that can be differentiated again; 0 where they do not exist."""
    rows_x, rows_y = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, *y.shape[-2:])
    values = [
        _plain_distance(a, b, angular, beta, tolerance)
        if ok
        else (a[:0].sum() + b[:0].sum()).square()  # 0, and so are all derivatives
        for a, b, ok in zip(rows_x, rows_y, exists.flatten().tolist(), strict=True)
    ]
    return torch.stack(values).reshape(exists.shape)


def _plain_distance(x: Tensor, y: Tensor, angular: bool, beta: float, tolerance: float) -> Tensor:
    # Rows that are masked are 0 on both sides. Without them, what the Gram matrices below map to 0 stays the same when
    # the features change (it is what centring removes), and their roots are smooth.
    real = x.any(-1) | y.any(-1)
    a, b = _narrow(x[real], beta, tolerance), _narrow(y[real], beta, tolerance)
    product = a.mT @ b if a.shape[-1] <= b.shape[-1] else b.mT @ a
    noise = 8 * torch.finfo(x.dtype).eps ** 0.5  # of a root; directions that both sides lack are far below it
    nuclear = _Root.apply(gram(product), noise).trace()
    squares_a, squares_b = a.square().sum(), b.square().sum()
    # The clamps keep rounding error out of the domain's end, where no derivative is finite.
    if angular:
        return torch.arccos((nuclear / (squares_a * squares_b).sqrt()).clamp(max=1 - tolerance**2 / 4))
    both = squares_a + squares_b
    return torch.maximum(both - 2 * nuclear, tolerance**2 * both.detach()).sqrt()


def _narrow(x: Tensor, beta: float, tolerance: float) -> Tensor:
    """Return phi(x) up to a rotation of the features, no wider than long."""
    wide = x.shape[-2] <= x.shape[-1]
    if not wide and beta == 1:
        return x
    root = _Root.apply(gram(x if wide else x.mT), tolerance)
    x = root if wide else x
    return x if beta == 1 else beta * x + (1 - beta) * x @ torch.linalg.pinv(root, rtol=tolerance, hermitian=True)


class _Root(torch.autograd.Function):
    """Compute the symmetric root R of a positive semidefinite matrix: dK = R dR + dR R.

    It serves second derivatives. Autograd through the eigenvectors is faster, but gives NaN where eigenvalues repeat.
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, tolerance: float) -> Tensor:
        squares, vectors = torch.linalg.eigh(k)
        s = squares.clamp(min=0).sqrt()
        s = torch.where(s > tolerance * s[-1:], s, 0)
        root = vectors * s @ vectors.mT
        ctx.save_for_backward(root, s, vectors)
        return root

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        root, s, vectors = ctx.saved_tensors
        return _Lyapunov.apply(root, grads[0], s, vectors), None


class _Lyapunov(torch.autograd.Function):
    """Find Z with R Z + Z R = C, given the eigenvalues s and eigenvectors of R; 0 between directions that R maps to 0.

    As everywhere in this file, only sums of singular values divide: repeated ones do no harm. This is what makes
    :class:`_Root` differentiable at every order.
    """

    @staticmethod
    def forward(ctx: Any, root: Tensor, c: Tensor, s: Tensor, vectors: Tensor) -> Tensor:
        sums = s[:, None] + s
        inside = vectors.mT @ c @ vectors
        z = vectors @ torch.where(sums > 0, inside / torch.where(sums > 0, sums, 1), 0) @ vectors.mT
        ctx.save_for_backward(root, z, s, vectors)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        root, z, s, vectors = ctx.saved_tensors
        of_c = _Lyapunov.apply(root, grads[0], s, vectors)
        return -(of_c @ z.mT + z.mT @ of_c), of_c, None, None


def _norm(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1), keepdim=True).sqrt()


def _trusted(a: Tensor, b: Tensor, sigma: Tensor, tolerance: float) -> Tensor:
    """Return which pairs of singular vectors are more than rounding error, given A U and B V: sigma_i = <a_i, b_i>.

    A pair is dropped when its direction is rounding error of its own side, or when the two are orthogonal up
    to rounding error; left in, noise would make the gradient of a rank-deficient input many times too large.
    Comparing sigma_i with sigma_1 alone would also drop directions that are weak on both sides but agree,
    which matter as x approaches y.
    """
    size_a, size_b = a.square().sum(-2).sqrt(), b.square().sum(-2).sqrt()
    real_a = size_a > tolerance * size_a.amax(-1, keepdim=True)
    real_b = size_b > tolerance * size_b.amax(-1, keepdim=True)
    return real_a & real_b & (sigma > tolerance * size_a * size_b)

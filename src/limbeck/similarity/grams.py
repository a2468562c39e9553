"""Compare which samples of a batch resemble each other, by Gram matrices of student and teacher (SPKD, CCKD)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._moments import check_rows, gram, outside_autocast, result_dtype, teacher_side


def unit(rows: Tensor) -> Tensor:
    """Scale each vector of the last dimension to length 1; a zero vector stays 0, with zero gradient."""
    squares = rows.square().sum(-1, keepdim=True)
    empty = squares == 0
    return rows * torch.where(empty, 0, torch.where(empty, 1, squares).rsqrt())


@outside_autocast
def spkd_distance(x: Tensor, y: Tensor) -> Tensor:
    """Compute ``|G(x) - G(y)|_F^2 / B^2``, G the inner products of the rows, each row of G scaled to length 1.

    Args:
        x, y: (B, D_s) and (B, D_t), student and teacher. The teacher gets no gradient.
    """
    check_rows(x, y, None)
    g_s, g_t = (unit(gram(rows.to(result_dtype(x, y)))) for rows in (x, teacher_side(y)))
    return (g_s - g_t).square().mean()


@outside_autocast
def cckd_distance(x: Tensor, y: Tensor, *, gamma: float = 0.4, order: int = 2) -> Tensor:
    """Compute ``|C(x) - C(y)|_F^2 / B^2``, C the Gaussian kernel of unit rows as a Taylor series.

    ``C_ij = exp(-2 gamma) sum_p (2 gamma)^p / p! (f_i . f_j)^p`` for p up to ``order`` tends to
    ``exp(-gamma |f_i - f_j|^2)``.

    Args:
        x, y: (B, D_s) and (B, D_t), student and teacher. The teacher gets no gradient.
    """
    check_rows(x, y, None)

    def kernel(rows: Tensor) -> Tensor:
        cosines = gram(unit(rows.to(result_dtype(x, y))))
        series = [(2 * gamma) ** p / math.factorial(p) * cosines**p for p in range(order + 1)]
        return math.exp(-2 * gamma) * torch.stack(series).sum(0)

    return (kernel(x) - kernel(teacher_side(y))).square().mean()

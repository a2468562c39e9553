"""Compare pairwise distances and triplet angles, from Gram matrices (RKD, Park et al. 2019, CVPR)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from ._moments import centre, gram, outside_autocast, result_dtype, teacher_side, with_second_derivatives, working_dtype

_CHUNK = 2**17  # angles worked on at a time: 1 MB of float64, which stays in the cache


@outside_autocast
def rkd_distance(x: Tensor, y: Tensor) -> Tensor:
    """Compute ``1/B^2 sum_ij smooth_l1(d_ij(x) / m(x) - d_ij(y) / m(y))``.

    d is the Euclidean distance and m its mean over all pairs i != j.

    Args:
        x, y: (B, D_s) and (B, D_t), student and teacher. The teacher gets no gradient.

    Returns:
        A scalar; coincident points have a zero gradient. 0 where all points of a side coincide, or B < 2.
    """
    _check_batches(x, y)
    (ds, flat_s), (dt, flat_t) = (_relative_distances(_centred_gram(rows)) for rows in (x, teacher_side(y)))
    loss = smooth_l1_loss(ds, dt, reduction="sum") / max(ds.numel(), 1)
    return torch.where(flat_s | flat_t, 0, loss).to(result_dtype(x))


@outside_autocast
def rkd_angle(x: Tensor, y: Tensor) -> Tensor:
    """Compute ``1/B^3 sum_ijk smooth_l1(cos_ijk(x) - cos_ijk(y))``, cos_ijk at point i between points j and k.

    ``cos_ijk = (K_jk - K_ij - K_ik + K_ii) / (d_ij d_ik)`` with K the Gram matrix, so B^2 numbers are enough; the B^3
    angles are visited in chunks and never stored. An edge of length 0 has cosine 0 and no gradient.

    Args:
        x, y: (B, D_s) and (B, D_t), student and teacher. The teacher gets no gradient.
    """
    _check_batches(x, y)
    return _AngleLoss.apply(_centred_gram(x), _centred_gram(teacher_side(y))).to(result_dtype(x))


def _check_batches(x: Tensor, y: Tensor) -> None:
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y):
        raise ValueError(
            f"Student and teacher must be (B, D) with the same B; got {tuple(x.shape)} and {tuple(y.shape)}."
        )


def _centred_gram(x: Tensor) -> Tensor:
    """Compute the Gram matrix centred and in float64: only differences of its entries count, and may be small."""
    return gram(centre(x.to(working_dtype(x, small=True)), None))


def _squared_distances(k: Tensor) -> tuple[Tensor, Tensor]:
    """Return |x_i - x_j|^2, and where it is more than the rounding error of the Gram matrix."""
    norms = k.diagonal()
    scale = norms[:, None] + norms
    squared = scale - 2 * k
    distinct = ~torch.eye(len(k), dtype=torch.bool, device=k.device)
    return squared, distinct & ~(squared <= 16 * torch.finfo(k.dtype).eps * scale.detach())


def _relative_distances(k: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances over their mean, and whether they are all 0."""
    squared, distinct = _squared_distances(k)
    distances = torch.where(distinct, torch.where(distinct, squared, 1).sqrt(), 0)
    mean = distances.sum() / max(len(k) * (len(k) - 1), 1)
    flat = mean == 0
    return distances / torch.where(flat, 1, mean), flat


class _AngleLoss(torch.autograd.Function):
    """Compute the loss from both Gram matrices, with the gradients worked out next to the value.

    Autograd keeps all B^3 angles: at B=128 it takes 2 to 3 times as long and 3 times the memory.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        value, grad_s = _angle_loss(student, teacher, ctx.needs_input_grad[0])
        # the loss does not change when its sides are exchanged
        grad_t = _angle_loss(teacher, student, True)[1] if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(student, teacher, grad_s, grad_t)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        student, teacher, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return with_second_derivatives(_plain_angle_loss, (student, teacher), gradients, grads[0])
        return tuple(None if g is None else grads[0] * g for g in gradients)


def _angle_loss(student: Tensor, teacher: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor | None]:
    """Return the loss and its gradient with respect to the first Gram matrix, summed up chunk by chunk."""
    n = len(student)
    inverse_s, inverse_t = _inverse_distances(student), _inverse_distances(teacher)
    total = student.new_zeros(())
    grad = torch.zeros_like(student) if needs_grad else None
    step = max(1, _CHUNK // max(n * n, 1))
    for start in range(0, n, step):
        at = slice(start, start + step)
        cos = _cosines(student, inverse_s, at)
        difference = cos - _cosines(teacher, inverse_t, at)
        slope = difference.clamp(-1, 1)
        total += (difference.sub_(slope, alpha=0.5).mul_(slope)).sum()  # smooth L1
        if grad is not None:
            _add_gradient(grad, slope, cos, inverse_s[at], at)
    return total / max(n, 1) ** 3, None if grad is None else grad / max(n, 1) ** 3


def _plain_angle_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the same with all B^3 angles at once, for autograd."""
    cos_s, cos_t = (_cosines(k, _inverse_distances(k), slice(None)) for k in (student, teacher))
    return smooth_l1_loss(cos_s, cos_t, reduction="sum") / max(len(student), 1) ** 3


def _inverse_distances(k: Tensor) -> Tensor:
    squared, distinct = _squared_distances(k)
    return torch.where(distinct, torch.where(distinct, squared, 1).rsqrt(), 0)


def _cosines(k: Tensor, inverse: Tensor, at: slice) -> Tensor:
    """Compute cos_ijk for the points i in the chunk: (chunk, B, B)."""
    rows, own = k[at], k.diagonal()[at]
    half = rows - own[:, None] / 2
    cos = k - half[:, :, None]
    return cos.sub_(half[:, None, :]).mul_(inverse[at][:, :, None]).mul_(inverse[at][:, None, :])


def _add_gradient(grad: Tensor, slope: Tensor, cos: Tensor, inverse: Tensor, at: slice) -> None:
    """Add dL/dK of one chunk, given slope = dL/dcos.

    Through the numerator each angle adds w = slope / (d_ij d_ik) to K_jk and K_ii and takes it from K_ij and K_ik.
    Through the two lengths, cos changes by -cos/2 times the relative change of d_ij^2 = K_ii + K_jj - 2 K_ij, and
    the same for k.
    """
    lengths = torch.linalg.vecdot(slope, cos) * inverse.square()  # slope and cos are symmetric in j and k
    weights = slope.mul_(inverse[:, :, None]).mul_(inverse[:, None, :])
    sums = weights.sum(-1)
    grad += weights.sum(0)
    grad[at] += 2 * (lengths - sums)
    diagonal = grad.diagonal()
    diagonal -= lengths.sum(0)
    diagonal[at] += sums.sum(-1) - lengths.sum(-1)

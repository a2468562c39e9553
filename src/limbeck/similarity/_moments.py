"""Prepare what every statistic here starts from: the precision, the centred rows and their Gram matrix."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class _Teacher(threading.local):
    learns = False


_teacher = _Teacher()  # not a ContextVar, which torch.compile cannot read


@contextmanager
def gradients_to_teacher() -> Iterator[None]:
    """Let losses that are computed in this context have gradients with respect to the teacher's side too.

    This is for methods in which the teacher learns: with ``create_graph=True`` the gradient of a later loss reaches the
    teacher through a gradient step of the student.
    """
    before, _teacher.learns = _teacher.learns, True
    try:
        yield
    finally:
        _teacher.learns = before


def teacher_side(t: Tensor) -> Tensor:
    """Return ``t`` as a loss reads it of the teacher: without gradient unless in :func:`gradients_to_teacher`."""
    return t if _teacher.learns else t.detach()


def outside_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` with autocast off: bf16 products make CKA gradients about 20% wrong."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(a.device.type for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        with torch.autocast(device_type=device, enabled=False):
            return function(*args, **kwargs)

    return wrapped


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where an input is float64, otherwise float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def working_dtype(*tensors: Tensor, small: bool) -> torch.dtype:
    """Return float64 for problems so small that it costs nothing and rounding errors do not average out."""
    if small and tensors[0].device.type != "mps":  # MPS has no float64
        return torch.float64
    return result_dtype(*tensors)


def rounding_threshold(*tensors: Tensor) -> float:
    """Return the relative size below which a quantity derived from these inputs is only their rounding error."""
    return 8 * torch.finfo(result_dtype(*tensors)).eps


def check_choice(option: str, value: str, known: Collection[str]) -> None:
    """Refuse a value of an option that is not one of the known."""
    if value not in known:
        raise ValueError(f"Unknown {option} '{value}'. Choose one of: {', '.join(known)}.")


def check_rows(x: Tensor, y: Tensor, mask: Tensor | None) -> None:
    """Refuse student and teacher rows that do not correspond one to one; widths may differ."""
    if x.dim() < 2 or y.dim() < 2 or x.shape[-2] != y.shape[-2]:
        raise ValueError(
            "Student and teacher need the same rows, as (..., n, d_student) and (..., n, d_teacher); "
            f"got {tuple(x.shape)} and {tuple(y.shape)}."
        )
    check_mask(mask, x.shape[-2])


def check_mask(mask: Tensor | None, n: int) -> None:
    """Refuse a mask that is not boolean or does not end in ``n``."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"The mask must be boolean (True = real); got {mask.dtype}. Use mask.bool().")
    if mask.dim() == 0 or mask.shape[-1] != n:
        raise ValueError(f"The mask must end in {n}, the number of rows; got {tuple(mask.shape)}.")


def count_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """Count the real rows, in the dtype of ``x``."""
    if mask is None:
        return torch.full((), x.shape[-2], dtype=x.dtype, device=x.device)
    return mask.sum(-1).to(x.dtype)


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as a floating-point number


class _ZeroMasked(torch.autograd.Function):
    """Mask the bits of x with ones or zeros.

    ``torch.where`` gives the same, but takes 1.3 to 1.4 times as long on a CPU with a mask that is broadcast
    (benchmarks/autograd.py).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(real)
        bits = _BITS[x.element_size()]
        out = torch.empty(x.shape, dtype=bits, device=x.device)  # in one piece, also where x is not
        return torch.bitwise_and(x.view(bits), -real.to(bits), out=out).view(x.dtype)  # -1 is all ones

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (real,) = ctx.saved_tensors
        return _ZeroMasked.apply(grads[0], real), None


def zero_masked(x: Tensor, real: Tensor) -> Tensor:
    """Return ``x`` where ``real`` (bool, broadcast to ``x``), elsewhere exactly 0 with zero gradient, even for NaN."""
    return _ZeroMasked.apply(x, real)


class _MaskedDifference(torch.autograd.Function):
    """Mask a difference in place: 1.2 to 1.4 times as fast as ``torch.where`` of it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(real)
        difference = a - b
        bits = _BITS[difference.element_size()]
        difference.view(bits).bitwise_and_(-real.to(bits))
        return difference

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (real,) = ctx.saved_tensors
        grad = _ZeroMasked.apply(grads[0], real)
        return grad, -grad if ctx.needs_input_grad[1] else None, None


def masked_difference(a: Tensor, b: Tensor, real: Tensor) -> Tensor:
    """Compute ``zero_masked(a - b, real)`` of two tensors of one shape and dtype, in the memory of one."""
    return _MaskedDifference.apply(a, b, real)


class _SquaredNorm(torch.autograd.Function):
    """Make no tensor of squares: 2.5 to 4 times as fast as ``x.square().sum(-1)``, in two thirds of the memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.linalg.vector_norm(x, dim=-1).square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * grads[0])[..., None]


def squared_norm(x: Tensor) -> Tensor:
    """Compute ``x.square().sum(-1)`` without a tensor of squares, on the way there and back."""
    return _SquaredNorm.apply(x)


def centre(x: Tensor, mask: Tensor | None, through_mean: bool = True) -> Tensor:
    """Subtract the mean of the real rows from (..., n, d); masked rows become 0 whatever they held.

    ``through_mean=False`` leaves the mean out of the gradient: right where all that follows does not depend on it.

    A real row is subtracted first: centring does not notice, a large common offset goes before it can cost
    digits, and a constant becomes exactly 0 instead of rounding noise that a later normalisation would blow
    up.
    """
    if x.shape[-2] == 0:
        return x
    if mask is None:
        shifted = x - x[..., :1, :].detach()
        mean = shifted.mean(-2, keepdim=True) if through_mean else shifted.detach().mean(-2, keepdim=True)
        return shifted.sub_(mean)
    mask = mask.expand(torch.broadcast_shapes(mask.shape, x.shape[:-1]))
    first = mask.byte().argmax(-1)[..., None, None]
    reference = x.detach().expand(*mask.shape, x.shape[-1]).take_along_dim(first, -2)
    real = mask[..., None]
    shifted = zero_masked(x - reference, real)
    total = (shifted if through_mean else shifted.detach()).sum(-2, keepdim=True)
    return zero_masked(shifted - total / real.sum(-2, keepdim=True).clamp(min=1), real)


class _Gram(torch.autograd.Function):
    """Multiply once on the way back, where autograd does for each factor of x x^T.

    With features of many tokens it is 1.4 to 1.8 times as fast, in two thirds of the memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        (grad,) = grads
        with torch.autocast(device_type=x.device.type, enabled=False):
            return (grad + grad.mT) @ x


def gram(x: Tensor) -> Tensor:
    """Compute the inner products of the rows: (..., n, d) -> (..., n, n)."""
    return _Gram.apply(x)


def with_second_derivatives(
    value: Callable[..., Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor | None], scale: Tensor
) -> tuple[Tensor | None, ...]:
    """Return ``scale`` times gradients that were worked out by hand, with derivatives that autograd finds for them.

    Args:
        value: the function that the gradients are of, in operations that autograd can differentiate twice.
        inputs: of ``value``. gradients: one for each input; None where it is not needed.
        scale: the gradient with respect to the value.
    """
    # Copies, because one input may have been computed from the other: each gradient must stop where it starts.
    inputs = [x.view_as(x) for x in inputs]
    wanted = [x for x, g in zip(inputs, gradients, strict=True) if g is not None]
    with torch.autocast(device_type=inputs[0].device.type, enabled=False):
        found = iter(torch.autograd.grad(value(*inputs), wanted, scale.detach(), create_graph=True))

    def of(gradient: Tensor) -> Tensor:
        plain = next(found)
        by_hand = scale.reshape(scale.shape + (1,) * (gradient.dim() - scale.dim())) * gradient
        return by_hand + (plain - plain.detach())

    return tuple(None if g is None else of(g) for g in gradients)

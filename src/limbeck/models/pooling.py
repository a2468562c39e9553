"""Turn token features (B, L, D) into the rows that a similarity compares."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from limbeck import similarity
from limbeck.errors import RecipeError

Pooling = Literal["cls", "last", "mean", "tokens", "flat"]


def pool(hidden: Tensor, mask: Tensor, how: Pooling) -> tuple[Tensor, Tensor | None]:
    """Return rows (n, d), and which of them are real where not all are.

    ``cls``: the first real token, n = B. ``last``: the last real token, which a decoder's classifier reads.
    ``mean``: the mean of the real tokens. ``tokens``: every real token of the batch is a row. ``flat``: the tokens of
    a sample side by side, d = L·D, zeros for padding.
    """
    if how == "tokens":
        return hidden.flatten(0, 1), mask.flatten()
    if how == "flat":
        (aligned,), _ = left_aligned(mask, hidden)
        return aligned.flatten(1), None
    if how == "mean":
        counts = mask.sum(1, keepdim=True).clamp(min=1)
        return without_padding(hidden, mask).float().sum(1) / counts, None
    first = mask.byte().argmax(1)
    index = first if how == "cls" else first + mask.sum(1) - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), index], None


def real_dimensions(rows: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """Return how many numbers of each row (n, d) are not padding, (n,): for ``flat`` its tokens times D, else d.

    A mean over dimensions then does not depend on how far a batch is padded.
    """
    if how != "flat":
        return torch.full((len(rows),), rows.shape[1], device=rows.device)
    return mask.sum(1).clamp(min=1) * (rows.shape[1] // mask.shape[1])


def check_pool(method: str, how: Pooling, *allowed: Pooling) -> None:
    """Raise where ``how`` does not give each sample one row, for methods that compare samples."""
    if how not in allowed:
        raise RecipeError(
            f"{method} compares samples, so pool must give one vector for each: {', '.join(allowed)}; seen: {how}."
        )


def left_aligned(mask: Tensor, *hidden: Tensor) -> tuple[list[Tensor], Tensor]:
    """Move the real tokens to the left, with zeros behind them; return them and the mask that goes with them.

    Position j then means the j-th token of a sample, whichever side the batch was padded on.
    """
    moved, mask = moved_left(mask, *hidden)
    return [without_padding(h, mask) for h in moved], mask


def moved_left(mask: Tensor, *hidden: Tensor) -> tuple[list[Tensor], Tensor]:
    """Move the real tokens to the left as :func:`left_aligned` does, but keep what padding holds behind them.

    Looks at the mask, for which it waits, and mostly finds that every sample starts with a real token already.
    """
    if mask[:, 0].all():
        return list(hidden), mask
    first = mask.byte().argmax(1, keepdim=True)
    source = (first + torch.arange(mask.shape[1], device=mask.device)) % mask.shape[1]
    return [_Moved.apply(h, first) for h in hidden], mask.gather(1, source)


class _Moved(torch.autograd.Function):
    """Move each sample's tokens to the left by a number (B, 1) of places, around the end."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        batch, length = hidden.shape[:2]
        places = (places + torch.arange(length, device=places.device)) % length
        rows = places + length * torch.arange(batch, device=places.device)[:, None]
        # whole rows are copied, and back: a gather would look up every number, and add it up in the backward pass
        return hidden.flatten(0, 1).index_select(0, rows.flatten()).view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _Moved.apply(grads[0], -places), None


def without_padding(hidden: Tensor, mask: Tensor) -> Tensor:
    """Put zeros where there is no real token."""
    return similarity.zero_masked(hidden, mask[..., None])

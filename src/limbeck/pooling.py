"""From token features (B, L, D) to the rows that a similarity compares."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from limbeck.errors import RecipeError

Pool = Literal["cls", "last", "mean", "tokens", "flat"]


def pool(hidden: Tensor, mask: Tensor, how: Pool) -> tuple[Tensor, Tensor | None]:
    """Rows (n, d), and which of them are real where not all are.

    ``cls``: the first real token, n = B. ``last``: the last real token, which a decoder's classifier reads.
    ``mean``: the mean of the real tokens. ``tokens``: every real token of the batch is a row. ``flat``: the tokens of
    a sample side by side, d = L·D, zeros for padding.
    """
    if how == "tokens":
        return hidden.flatten(0, 1), mask.flatten()
    if how == "flat":
        return left_aligned(hidden, mask)[0].flatten(1), None
    if how == "mean":
        counts = mask.sum(1, keepdim=True).clamp(min=1)
        return without_padding(hidden, mask).float().sum(1) / counts, None
    first = mask.byte().argmax(1)
    index = first if how == "cls" else first + mask.sum(1) - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), index], None


def check_pool(method: str, how: Pool, *allowed: Pool) -> None:
    """For methods that compare samples: ``pool`` must give each of them one row."""
    if how not in allowed:
        raise RecipeError(
            f"{method} compares samples, so pool must give one vector for each: {', '.join(allowed)}; seen: {how}."
        )


def left_aligned(hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The real tokens moved to the left, zeros behind them, and the mask that goes with them.

    Position j then means the j-th token of a sample, whichever side the batch was padded on.
    """
    first = mask.byte().argmax(1, keepdim=True)
    source = (first + torch.arange(mask.shape[1], device=mask.device)) % mask.shape[1]
    aligned = mask.gather(1, source)
    return without_padding(hidden.take_along_dim(source[..., None], 1), aligned), aligned


def without_padding(hidden: Tensor, mask: Tensor) -> Tensor:
    """Zeros where there is no real token."""
    # where, not a product: padding may hold inf or NaN
    return torch.where(mask[..., None], hidden, 0)

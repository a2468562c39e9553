"""Split off the training examples that a method holds out for its teacher."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from limbeck.errors import RecipeError
from limbeck.tasks.held_out import choose_rows, contents_of


def hold_out(train: Any, share: float, seed: int, method: str) -> tuple[Any, Any]:
    """Return what is left and a seeded share of the training data, equal ones together."""
    if isinstance(train, IterableDataset):
        raise RecipeError(f"{method} holds out examples, which a stream of text does not allow.")
    held = choose_rows(contents_of(train), share, seed)
    if not 0 < len(held) < len(train):
        raise RecipeError(
            f"{method} would hold out all or none of the {len(train)} training examples, which are too few "
            "or all equal. Give it more data."
        )
    kept = sorted(set(range(len(train))) - set(held))
    return train.select(kept), train.select(held)

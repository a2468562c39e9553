"""Understand ``student.keep``: which of a model's blocks a student is made of, counted from 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from limbeck.errors import RecipeError, shorten
from limbeck.models.layers import layer_map

_LONGEST = 60  # characters of what was seen
BEST = "best"  # no strategy but a measurement, which a training makes before it begins


def _spread(count: int, depth: int) -> list[int]:
    return [source for _, source in layer_map("uniform", count, depth)]


KEEP: dict[str, Callable[[int, int], list[int]]] = {
    # the lowest blocks: first:6 of 12 is 1, ..., 6
    "first": lambda count, depth: list(range(1, count + 1)),
    # the highest ones: last:6 of 12 is 7, ..., 12
    "last": lambda count, depth: list(range(depth - count + 1, depth + 1)),
    # evenly spread and ending in the last block: spread:6 of 12 is 2, 4, ..., 12; the same by the name of layer maps
    "spread": _spread,
    "uniform": _spread,
    # the first ones and the last block: ends:6 of 12 is 1, ..., 5 and 12
    "ends": lambda count, depth: [*range(1, count), depth],
}
_LIST = "or a list of blocks such as [1, 3, 5]"
WITHOUT_BEST = f"{', '.join(f'{name}:N' for name in KEEP)} {_LIST}"
FORMS = f"{', '.join(f'{name}:N' for name in (*KEEP, BEST))} {_LIST}"


def parse_keep(value: Any) -> Any:
    """Return ``first:6`` as it is, and ``4,8,12`` or ``[4, 8, 12]``, also as text, as a list; else raise ValueError."""
    if isinstance(value, str):
        text = value.strip()
        strategy, colon, count = text.partition(":")
        if colon and (strategy in KEEP or strategy == BEST) and re.fullmatch("0{0,4}[1-9][0-9]{0,4}", count):
            return text
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        numbers = [number.strip() for number in inside.removesuffix(",").split(",")]
        # one number alone may mean a block or how many of them
        if (inside is not text or "," in text) and all(re.fullmatch("[0-9]{1,5}", number) for number in numbers):
            value = [int(number) for number in numbers]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{shorten(repr(value), _LONGEST)} is not understood. Write {FORMS}.")
    layers = list(value)
    if not layers or not all(type(layer) is int for layer in layers) or layers != sorted(set(layers)) or layers[0] < 1:
        raise ValueError(f"{shorten(str(layers), _LONGEST)} must be increasing block numbers from 1 on. Write {FORMS}.")
    return layers


def layers_to_keep(keep: str | Sequence[int], depth: int) -> list[int]:
    """List the blocks of ``depth`` that a strategy such as ``first:6``, or a list such as ``[1, 3, 5]``, keeps."""
    try:
        parsed = parse_keep(keep)
    except ValueError as error:
        raise RecipeError(f"student.keep: {error}") from None
    if isinstance(parsed, list):
        if parsed[-1] > depth:
            raise RecipeError(
                f"student.keep: {parsed} must be increasing block numbers from 1 to {depth}, the source's depth."
            )
        return parsed
    strategy, _, number = parsed.partition(":")
    if int(number) > depth:
        raise RecipeError(f"student.keep: '{parsed}' asks for {number} layers, but the source has {depth}.")
    if strategy == BEST:
        raise RecipeError(
            f"student.keep: '{parsed}' is known only after a comparison on training data, which 'limbeck distill' "
            f"makes. Here, write {WITHOUT_BEST}."
        )
    return KEEP[strategy](int(number), depth)


def measured_count(keep: str | Sequence[int] | None) -> int | None:
    """Return N of ``best:N``, and None of anything else."""
    strategy, _, number = keep.partition(":") if isinstance(keep, str) else ("", "", "")
    return int(number) if strategy == BEST else None


def stand_in(keep: str | Sequence[int], depth: int) -> list[int]:
    """List the blocks that are kept, and for ``best:N`` any N: enough for sizes, times and checks, not for training.

    They are the first ones, which can be built of every family.
    """
    count = measured_count(keep)
    return layers_to_keep(keep if count is None or count > depth else f"first:{count}", depth)

"""Choose the rows that are held out by what they say, not by where they are.

Sorting a file, or adding rows to it, must not move a text that was trained on to the side that scores. So each text has
a place in an order of its own, which follows from the text and the seed alone, and equal texts share a side.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HASH_RANGE = 2**64
Group = tuple[int, list[int]]  # the hash of a text, and the rows that have it


def text_key(*texts: str) -> str:
    """Return what equal texts share; they are equal also where only case or white space differs."""
    return "\n".join(" ".join(text.split()).casefold() for text in texts)


def content_hash(key: str, seed: int = 0) -> int:
    """Return a number below ``HASH_RANGE`` that follows from the key and the seed, on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), "big")


def contents_of(encoded: Any) -> list[str]:
    """Return what equal encoded rows share, the windows over one text together: a quiz must not ask what was taught."""
    owners = encoded["example"][:] if "example" in encoded.column_names else range(len(encoded))
    tokens: dict[int, list[str]] = {}
    for owner, ids in zip(owners, encoded["input_ids"][:], strict=True):
        tokens.setdefault(owner, []).append(" ".join(map(str, ids)))
    joined = {owner: "\n".join(parts) for owner, parts in tokens.items()}
    return [joined[owner] for owner in owners]


def choose_rows(keys: Sequence[str], share: float, seed: int, classes: Sequence[int] | None = None) -> list[int]:
    """Return about this share of the rows, in order; rows with equal keys are in it together or not at all.

    With ``classes``, the same share of each; a text that has several counts as the one it has most often. Nothing is
    returned where all rows are equal.
    """
    groups = _groups(keys, seed)
    if len(groups) < 2:
        return []
    by_class = defaultdict(list)
    for group in groups:
        by_class[_class_of(group, classes)].append(group)
    sizes = {name: sum(len(rows) for _, rows in members) for name, members in by_class.items()}
    quotas = _quotas(sizes, max(1, round(share * len(keys))))
    chosen = [row for name, members in by_class.items() for row in _smallest(members, quotas[name])]
    # where every text is there so often that none comes near to the share
    return sorted(chosen or min(groups, key=lambda group: (len(group[1]), group[0]))[1])


def without_whole_classes(chosen: Sequence[int], keys: Sequence[str], classes: Sequence[int]) -> list[int]:
    """Leave out the rows of a class all of whose rows were chosen, and those that share their keys."""
    totals, taken = Counter(classes), Counter(classes[row] for row in chosen)
    back = {keys[row] for row in chosen if taken[classes[row]] == totals[classes[row]]}
    return [row for row in chosen if keys[row] not in back]


def can_stratify(keys: Sequence[str], share: float, classes: Sequence[int]) -> bool:
    """Tell whether each class has two texts at least, and room in both parts."""
    texts = Counter(_class_of(group, classes) for group in _groups(keys, 0))
    held = max(1, round(share * len(keys)))
    return len(texts) == len(set(classes)) and min(texts.values()) > 1 and len(texts) <= min(held, len(keys) - held)


def count_repeated(keys: Iterable[str]) -> int:
    """Count the rows whose text another row has too."""
    return sum(count for count in Counter(keys).values() if count > 1)


def _groups(keys: Sequence[str], seed: int) -> list[Group]:
    """Return the rows of each key, in the order that belongs to the keys."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        rows[key].append(row)
    return [(place, rows[key]) for place, key in sorted((content_hash(key, seed), key) for key in rows)]


def _class_of(group: Group, classes: Sequence[int] | None) -> int:
    counts = Counter(0 if classes is None else classes[row] for row in group[1])
    return min(counts, key=lambda name: (-counts[name], name))


def _quotas(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide ``total`` in proportion to the sizes; what is left goes to the largest remainders."""
    exact = {name: size * total / sum(sizes.values()) for name, size in sizes.items()}
    quotas = {name: int(value) for name, value in exact.items()}
    order = sorted(exact, key=lambda name: (quotas[name] - exact[name], name))
    for name in order[: total - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _smallest(groups: Sequence[Group], target: int) -> list[int]:
    """Take groups in their order while that comes nearer to so many rows."""
    taken: list[int] = []
    for _, rows in groups:
        if len(rows) < 2 * (target - len(taken)):
            taken += rows
    return taken

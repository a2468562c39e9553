"""Mix rows without labels into the training data: in each step a stated share, in an order that the seed decides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from limbeck._internal.files import expand_home
from limbeck._internal.progress import hidden_progress, progress
from limbeck.errors import RecipeError
from limbeck.tasks.batching import token_counts
from limbeck.tasks.encode import counting_cuts
from limbeck.tasks.row_store import RowStore
from limbeck.tasks.task import Encoding, Task, make_split

_BATCHES_IN_A_POOL = 50
_STORED = ("input_ids", "token_type_ids")
_SPLIT = "unlabelled"  # in messages


@dataclass(frozen=True)
class UnlabelledRows:
    """Hold encoded rows without labels; ``label`` stands for each one's, where their tokens have none of their own."""

    store: RowStore
    first_id: int
    label: Any
    left_out: int

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = self.store[row]
        found.setdefault("labels", self.label)
        return found | {"id": self.first_id + row, "attention_mask": [1] * len(found["input_ids"])}


class MixedRows:
    """Join labelled rows, which come first, and rows without labels; found by their place, as an encoded data set."""

    def __init__(self, labelled: Any, unlabelled: UnlabelledRows, share: float) -> None:
        self.labelled, self.unlabelled, self.share = labelled, unlabelled, share

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def __getitem__(self, key: Any) -> Any:
        if key == "id":
            first = self.unlabelled.first_id
            return np.concatenate([self.labelled["id"][:], np.arange(first, first + len(self.unlabelled))])
        known = len(self.labelled)
        return self.labelled[key] if key < known else self.unlabelled[key - known]

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows; those with labels are read in one go."""
        known = len(self.labelled)
        labelled = iter(self.labelled.__getitems__([key for key in keys if key < known]))
        return [next(labelled) if key < known else self.unlabelled[key - known] for key in keys]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Count the tokens of each row."""
        return np.concatenate([token_counts(self.labelled), self.unlabelled.store.lengths]).astype(np.int32)

    def order(self, lengths: np.ndarray, step: int, seed: int) -> MixedOrder:
        """Return the order in which steps of so many rows read these; ``lengths`` are what they are sorted by."""
        return MixedOrder(lengths, len(self.labelled), self.share, step, seed)

    def describe(self, step: int) -> str:
        """Say in a sentence what a step and an epoch hold."""
        order = self.order(np.empty(len(self)), step, 0)
        labelled, unlabelled = order.sizes
        said = f"{len(self.unlabelled):,} rows without a label: {unlabelled} of the {step} rows of each step"
        if self.unlabelled.left_out:
            said += f" ({self.unlabelled.left_out:,} more are left out, whose texts are those of labelled rows)"
        passes = order.steps * labelled / len(self.labelled)
        return f"{said}. An epoch has {order.steps:,} steps, in which each labelled row comes {passes:.3g} times."

    def to_dict(self) -> dict[str, Any]:
        """Return what results say about the rows without labels."""
        return {"rows": len(self.unlabelled), "left_out": self.unlabelled.left_out, "share": self.share}


class MixedOrder(Sampler[int]):
    """Draw rows of both kinds at random, so that each consecutive ``step`` of them has the stated share without labels.

    An epoch ends when every row has come once; the kind that is used up earlier comes again, in another order. As in
    ``LengthGroupedOrder``, rows of similar lengths share a step, and the order depends on the seed and the epoch alone.
    Inside a step, both kinds are spread evenly, so that parts of it have both.
    """

    def __init__(self, lengths: np.ndarray, labelled: int, share: float, step: int, seed: int) -> None:
        if step < 2:
            raise RecipeError(
                "A step of one row cannot mix rows with and without a label: raise train.batch_size, or set "
                "train.gradient_accumulation_steps."
            )
        of_unlabelled = min(max(round(share * step), 1), step - 1)
        self.sizes = (step - of_unlabelled, of_unlabelled)
        self.counts = (labelled, len(lengths) - labelled)
        self.steps = max(math.ceil(count / size) for count, size in zip(self.counts, self.sizes, strict=True))
        self.lengths, self.step, self.seed, self.epoch = lengths, step, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps * self.step

    def __iter__(self) -> Iterator[int]:
        firsts = (0, self.counts[0])
        kinds = [
            _Rows(first, count, np.random.default_rng([self.seed, self.epoch, kind]))
            for kind, (first, count) in enumerate(zip(firsts, self.counts, strict=True))
        ]
        shuffle = np.random.default_rng([self.seed, self.epoch, len(kinds)])
        # the places of both kinds in a step: (i + 1/2) / size each, in order
        places = np.concatenate([(np.arange(size) + 0.5) / size for size in self.sizes]).argsort(kind="stable")
        for start in range(0, self.steps, _BATCHES_IN_A_POOL):
            steps = min(_BATCHES_IN_A_POOL, self.steps - start)
            drawn = [kind.take(steps * size) for kind, size in zip(kinds, self.sizes, strict=True)]
            by_length = [rows[np.argsort(-self.lengths[rows], kind="stable")].reshape(steps, -1) for rows in drawn]
            batches = np.concatenate(by_length, axis=1)[:, places]
            yield from batches[shuffle.permutation(steps)].ravel().tolist()


class _Rows:
    """Draw rows at random, all of them before any comes again."""

    def __init__(self, first: int, count: int, generator: np.random.Generator) -> None:
        self._first, self._count, self._generator = first, count, generator
        self._left = np.empty(0, dtype=np.int64)

    def take(self, size: int) -> np.ndarray:
        while len(self._left) < size:
            again = self._first + self._generator.permutation(self._count)
            self._left = np.concatenate([self._left, again])
        taken, self._left = self._left[:size], self._left[size:]
        return taken


def encode_unlabelled(task: Task, how: Encoding, first_id: int) -> UnlabelledRows:
    """Encode the rows without labels of a task, part by part; their ids go on from ``first_id``."""
    assert task.unlabelled is not None
    store, left_out, done = RowStore(), 0, 0
    size = sum(expand_home(path).stat().st_size for path in task.unlabelled.paths)
    with progress("read unlabelled rows (bytes)", size) as steps, counting_cuts() as cuts:
        for rows, left in task.unlabelled.parts():
            left_out += left
            count = len(rows[task.text_columns[0]])
            if not count:
                continue
            split = make_split(_SPLIT, rows | {"id": list(range(done, done + count))})
            with hidden_progress():
                encoded = dataclasses.replace(task, splits={_SPLIT: split}).encode(
                    _SPLIT, how.tokenizer, how.max_length, how.too_long
                )
            columns = {name: encoded[name][:] for name in _STORED if name in encoded.column_names}
            if (labels := task.unknown_labels(encoded)) is not None:
                columns["labels"] = labels
            store.append(columns)
            done += count
            steps.advance(sum(len(str(cell)) for name in task.text_columns for cell in rows[name]))
    cuts.warn(f"{task.name} {_SPLIT}", done, how.max_length, "task.max_length")
    store.close_writing()
    return UnlabelledRows(store, first_id, task.unknown_label(), left_out)

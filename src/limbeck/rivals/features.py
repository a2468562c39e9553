"""Compute what a frozen encoder makes of the rows of a task, for linear models to be fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck._internal.progress import muted_messages, progress
from limbeck.errors import ModelError
from limbeck.models.capture import Capture
from limbeck.models.families import family_of
from limbeck.models.features import Features, Wanted
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import Task

_BATCH = 32
_WORDS = "words"  # the first token of each word, where words are tagged


@dataclass(frozen=True)
class SeenRows:
    """Hold the features of a split, by layer and by what stands for a text; of tagged words, one row for each word."""

    encoded: Any
    found: Mapping[tuple[int, str], np.ndarray]
    places: list[np.ndarray] | None  # of tagged words: at which tokens of each example they start

    def features(self, layer: int, pooling: str) -> np.ndarray:
        """Return (N, D)."""
        return self.found[layer, pooling]

    def labels(self, task: Task) -> tuple[np.ndarray, np.ndarray]:
        """Return the label of each row of features, and the number of the example that it belongs to."""
        if self.places is None:
            kind = np.int64 if task.problem == "classification" else np.float64
            return np.asarray(self.encoded["labels"][:], dtype=kind), np.arange(len(self.encoded))
        cells = zip(self.encoded["labels"][:], self.places, strict=True)
        tags = [np.asarray(row, dtype=np.int64)[place] for row, place in cells]
        return np.concatenate(tags), np.repeat(np.arange(len(tags)), [len(row) for row in tags])

    def as_rows(self, logits: np.ndarray) -> Any:
        """Give logits the shape of a model's: (N, labels), or for each example (tokens, labels)."""
        if self.places is None:
            return logits
        rows, first = [], 0
        for ids, place in zip(self.encoded["input_ids"], self.places, strict=True):
            row = np.zeros((len(ids), logits.shape[1]))
            row[place] = logits[first : first + len(place)]
            rows.append(row)
            first += len(place)
        return rows


@dataclass(frozen=True)
class FrozenFeatures:
    """Run an encoder over texts and keep its hidden states after some layers."""

    model: Any
    tokenizer: Any
    max_length: int
    layers: tuple[int, ...]

    def poolings(self, task: Task) -> tuple[str, ...]:
        """List what may stand for a text; the first token of a decoder has seen nothing of it."""
        if task.problem == "tokens":
            return (_WORDS,)
        return ("last", "mean") if family_of(self.model).causal else ("cls", "mean")

    def of(self, task: Task, split: str) -> SeenRows:
        """Compute the features of a split."""
        with muted_messages():  # the runs say what is cut
            encoded = task.encode(split, self.tokenizer, self.max_length)
        poolings = self.poolings(task)
        per_word = poolings == (_WORDS,)
        places = [np.flatnonzero(np.asarray(word) >= 0) for word in encoded["word"]] if per_word else None
        wanted = Wanted.named(f"{'hidden' if per_word else how}.{at}" for how in poolings for at in self.layers)
        batches = Batches(encoded, Collator(self.tokenizer, problem=task.problem), _BATCH)
        parts: dict[tuple[int, str], list[np.ndarray]] = {(at, how): [] for at in self.layers for how in poolings}
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), progress(f"frozen features of {split}", len(encoded)) as steps:
                for numbers, batch in zip(batches.indices, batches, strict=True):
                    seen = self._captured(batch, wanted)
                    for (at, how), rows in parts.items():
                        if places is None:
                            rows += list(seen[f"{how}.{at}"].float().cpu().numpy())
                        else:
                            rows += _at_words(seen, at, [places[number] for number in numbers.tolist()])
                    steps.advance(len(numbers))
        finally:
            self.model.train(training)
        order = torch.cat(batches.indices).argsort().tolist()
        join = np.concatenate if per_word else np.stack
        found = {key: join([rows[number] for number in order]) for key, rows in parts.items()}
        if not all(np.isfinite(values).all() for values in found.values()):
            raise ModelError("The encoder's features are nan or inf: its weights are damaged or too large.")
        return SeenRows(encoded, found, places)

    def _captured(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        return Capture(self.model)({name: value.to(self.model.device) for name, value in batch.items()}, wanted)[1]


def _at_words(seen: Features, layer: int, places: list[np.ndarray]) -> list[np.ndarray]:
    """Pick the features of each example's words among its real tokens, whichever side was padded."""
    hidden, mask = seen.hidden[layer].float().cpu().numpy(), seen.mask.cpu().numpy()
    return [row[real][place] for row, real, place in zip(hidden, mask, places, strict=True)]

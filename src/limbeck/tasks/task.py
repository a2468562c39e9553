"""Task: what a data set asks for, its splits, and how its answers are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck.errors import DataError
from limbeck.metrics import METRICS

if TYPE_CHECKING:
    from datasets import Dataset

# language_model: predict tokens; labels are (B, L) with IGNORED where nothing is predicted
Problem = Literal["classification", "regression", "multi_label", "language_model"]
IGNORED = -100


@dataclass(frozen=True)
class Task:
    """A loaded data set with everything needed to train on it and to score it.

    Every split has the columns ``id`` (the row's position in its file), the text columns, and ``label``:
    a class index, a number, or a list of 0.0/1.0 for multi-label. Unlabelled test splits have no ``label``.
    """

    name: str
    problem: Problem
    text_columns: tuple[str, ...]
    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: Mapping[str, Any]  # a Dataset each, or a stream of texts

    @property
    def num_labels(self) -> int:
        """Width of the model's output: 1 for regression."""
        return len(self.label_names) or 1

    def split(self, name: str) -> Any:
        """One split; an unknown name is an error that lists what exists."""
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise DataError(f"The task '{self.name}' has no split '{name}'. It has: {known}.")
        return self.splits[name]

    def predictions(self, logits: Any) -> np.ndarray:
        """Class indices (B,), numbers (B,), or a 0/1 matrix (B, labels)."""
        logits = np.asarray(logits)
        if self.problem == "regression":
            return _flat(logits)
        if self.problem == "multi_label":
            return (logits > 0).astype(np.int64)
        return logits.argmax(axis=-1)

    def probabilities(self, logits: Any) -> np.ndarray:
        """Softmax over classes, sigmoid per label, or the predicted number itself."""
        from scipy.special import expit, softmax

        logits = np.asarray(logits)
        if self.problem == "regression":
            return _flat(logits)
        return expit(logits) if self.problem == "multi_label" else softmax(logits, axis=-1)

    def score(self, logits: Any, labels: Any) -> dict[str, float]:
        """Every official metric by its plain name; the first one is the main one."""
        predictions, labels = self.predictions(logits), np.asarray(labels)
        if self.problem == "multi_label":
            labels = labels.astype(np.int64)
        return {name: METRICS[name](predictions, labels) for name in self.metrics}


def make_split(name: str, columns: Mapping[str, Sequence[Any]]) -> Dataset:
    """An in-memory split that remembers its name, so that later messages can say which one they mean."""
    # datasets takes a second to import, and listing tasks does not need it.
    from datasets import Dataset, NamedSplit

    return Dataset.from_dict(dict(columns), split=NamedSplit(name))


def _flat(logits: np.ndarray) -> np.ndarray:
    return logits[:, 0] if logits.ndim == 2 else logits

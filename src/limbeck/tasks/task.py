"""Describe what a data set asks for, hold its splits, and score answers to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck.errors import DataError, RecipeError
from limbeck.metrics import METRICS
from limbeck.problems import IGNORED, Problem
from limbeck.protocols import EncodedData, Tokenizer
from limbeck.tasks.encode import TRAINING_COLUMNS, encode
from limbeck.tasks.unlabelled import Unlabelled

if TYPE_CHECKING:
    from datasets import Dataset

Logits = np.ndarray | list[np.ndarray]  # (N, labels), or for each of N examples (tokens, labels)

# Who decides how labels are numbered: the task, the names in the training file, or the user (task.labels).
LabelOrder = Literal["fixed", "learned", "stated"]

_SAMPLE = 10_000  # how many texts are measured to know their lengths, or read at a time
_KEPT_WHOLE = 99  # percent of the training texts that the chosen length does not cut


@dataclass(frozen=True)
class Encoding:
    """Say how the texts of a task become what a model trains on."""

    tokenizer: Tokenizer
    max_length: int
    too_long: Literal["cut", "refuse"] = "cut"
    causal: bool = False  # whether the model predicts the next token; plain text is masked for the others
    seed: int = 0  # of what is drawn anew in each epoch
    count: bool = True  # whether the length of a stream must be known, which training by epochs needs


@dataclass(frozen=True)
class Task:
    """Hold a loaded data set with everything needed to train on it and to score it.

    Every split has the columns ``id`` (the row's position in its file), the text columns, and ``label``:
    a class index, a number, or a list of 0.0/1.0 for multi-label. Unlabelled test splits have no ``label``.
    """

    name: str
    problem: Problem
    text_columns: tuple[str, ...]
    label_names: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: Mapping[str, Any]  # a Dataset each, or a stream of texts
    dev_splits: tuple[str, ...] = field(default=("validation",), kw_only=True)  # scored after training
    class_weights: tuple[float, ...] | None = field(default=None, kw_only=True)  # of the task loss, by class
    label_order: LabelOrder = field(default="fixed", kw_only=True)
    unlabelled: Unlabelled | None = field(default=None, kw_only=True)  # rows beside the splits, to learn from too
    id_column: str | None = field(default=None, kw_only=True)  # of the files, by which other files name their rows

    @property
    def num_labels(self) -> int:
        """Return the width of the model's output: 1 for regression."""
        return len(self.label_names) or 1

    def split(self, name: str) -> Any:
        """Return one split; an unknown name is an error that lists what exists."""
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise DataError(f"The task '{self.name}' has no split '{name}'. It has: {known}.")
        return self.splits[name]

    def encode(
        self, split: str, tokenizer: Tokenizer, max_length: int, too_long: Literal["cut", "refuse"] = "cut"
    ) -> Dataset:
        """Return a split as rows of token ids: ``id``, ``input_ids``, ``attention_mask`` and, if any, ``labels``."""
        return encode(self.text_columns, self.split(split), tokenizer, max_length, too_long, self.name)

    def encode_all(self, names: Sequence[str], how: Encoding) -> dict[str, EncodedData]:
        """Return splits as models train on them; the training data keep only the columns that training reads."""
        splits = {name: self.encode(name, how.tokenizer, how.max_length, how.too_long) for name in names}
        if "train" in splits:
            train = splits["train"]
            splits["train"] = train.select_columns([name for name in train.column_names if name in TRAINING_COLUMNS])
        return splits

    def unknown_label(self) -> Any:
        """Return what stands for the label of an example that has none."""
        if self.problem in ("regression", "multi_label"):
            return math.nan if self.problem == "regression" else [math.nan] * self.num_labels
        return IGNORED

    def unknown_labels(self, encoded: Dataset) -> list[list[int]] | None:
        """Return what stands for the labels of these rows' tokens, where tokens have them."""
        return None

    @property
    def scored_by_loss(self) -> bool:
        """Tell whether a model is scored by its loss, because no example has an answer of its own."""
        return False

    def why_not_cached(self) -> str:
        """Say why what a teacher computes for these data cannot be kept; empty where it can."""
        return ""

    def count_examples(self, split: str, encoded: EncodedData) -> int:
        """Count what a score is over: the examples, and not the windows over their texts in ``encoded``."""
        return len(self.split(split))

    def sample(self, sizes: Mapping[str, int]) -> Task:
        """Return the task with up to so many random rows of these splits, the same ones every time."""
        splits = {name: _random_rows(self.split(name), count) for name, count in sizes.items()}
        return dataclasses.replace(self, splits=splits, dev_splits=("validation",), unlabelled=None)

    def inputs(self, rows: Mapping[str, Any]) -> list[list[str]]:
        """Return what a model reads of these rows: a column of texts, or two."""
        return [list(rows[name]) for name in self.text_columns]

    def all_texts(self, split: str) -> Iterator[str]:
        """Yield all texts of a split, those of a pair one after the other."""
        data = self.split(split)
        for start in range(0, len(data), _SAMPLE):
            for column in self.inputs(data[start : start + _SAMPLE]):
                yield from column

    def token_ids(self, rows: Mapping[str, Any], tokenizer: Tokenizer) -> list[list[int]]:
        """Return the token ids of these rows, uncut."""
        encoded = tokenizer(*self.inputs(rows), padding=False, truncation=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def measured(self, split: str) -> range:
        """Choose the rows whose texts are measured: all, or evenly spaced ones of a large split."""
        size = len(self.split(split))
        return range(0, size, max(1, -(-size // _SAMPLE)))

    def lengths(self, split: str, tokenizer: Tokenizer) -> np.ndarray:
        """Count the tokens of the measured texts of a split."""
        rows = self.split(split).select(self.measured(split))[:]
        return np.array([len(ids) for ids in self.token_ids(rows, tokenizer)])

    def suggest_length(self, tokenizer: Tokenizer, limit: int) -> tuple[int, str]:
        """Suggest a ``max_length`` up to ``limit``, and say why: a multiple of 8 that cuts 1% of the texts at most."""
        lengths = self.lengths("train", tokenizer)
        most = int(np.percentile(lengths, _KEPT_WHOLE, method="higher"))
        chosen = min(-(-most // 8) * 8, limit)
        reason = f"{_KEPT_WHOLE}% of the training texts have at most {most:,} tokens, the longest {lengths.max():,}; "
        if most > limit:
            reason += "the model reads no more; "
        return chosen, f"{reason}{100 * (lengths > chosen).mean():.1f}% are cut"

    def predictions(self, logits: Any) -> np.ndarray:
        """Return class indices (B,), numbers (B,), or a 0/1 matrix (B, labels)."""
        logits = np.asarray(logits)
        if self.problem == "regression":
            return _flat(logits)
        if self.problem == "multi_label":
            return (logits > 0).astype(np.int64)
        return logits.argmax(axis=-1)

    def probabilities(self, logits: Any) -> np.ndarray:
        """Return the softmax over classes, the sigmoid of each label, or the predicted number itself."""
        from scipy.special import expit, softmax

        logits = np.asarray(logits)
        if self.problem == "regression":
            return _flat(logits)
        return expit(logits) if self.problem == "multi_label" else softmax(logits, axis=-1)

    def score(self, logits: Any, encoded: EncodedData) -> dict[str, float]:
        """Score logits for the rows of ``encoded`` by every official metric; the first is the main one."""
        predictions, labels = self.predictions(logits), np.asarray(encoded["labels"][:])
        if self.problem == "multi_label":
            labels = labels.astype(np.int64)
        return {name: METRICS[name](predictions, labels) for name in self.metrics}

    def majority(self, train: Any, encoded: Any) -> dict[str, float]:
        """Score the answer that the training data hold most (or on average), given to every row of ``encoded``.

        Empty where there is no such answer.
        """
        if self.problem in ("span", "language_model"):
            return {}
        labels = np.asarray(train["labels"][:])
        if self.problem == "regression":
            answer = np.full(1, labels.mean())
        elif self.problem == "multi_label":
            answer = labels.mean(axis=0) - 0.5
        else:
            answer = np.bincount(labels.astype(np.int64), minlength=self.num_labels).astype(float)
        return self.score(np.tile(answer, (len(encoded), 1)), encoded)

    def answers(self, logits: Any, encoded: EncodedData) -> dict[str, Any]:
        """Return what was predicted for each example, as columns: enough to compare two models example by example."""
        labels, predictions = np.asarray(encoded["labels"][:]), self.predictions(logits)
        return {"id": encoded["id"][:], "label": labels, "prediction": predictions, "logits": logits}

    def readable(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return predictions for people, as columns: names instead of numbers, and how probable each label is."""
        predicted = self.predictions(logits)
        if self.problem == "regression":
            return {"prediction": predicted}
        if self.problem == "multi_label":
            chosen = [[name for name, on in zip(self.label_names, row, strict=True) if on] for row in predicted]
            columns: dict[str, Any] = {"prediction": [",".join(names) for names in chosen]}
        else:
            columns = {"prediction": [self.label_names[index] for index in predicted]}
        probabilities = self.probabilities(logits)
        return columns | {f"p({name})": probabilities[:, i] for i, name in enumerate(self.label_names)}

    def submission_splits(self, split: str) -> tuple[str, ...]:
        """Name the splits whose predictions are submitted with those for this one; an error where none can be."""
        raise self._not_submitted()

    def submission(self, split: str, logits: Any, encoded: Any) -> dict[str, str]:
        """Return files, by name, in the form that the task's official evaluation takes."""
        raise self._not_submitted()

    def _not_submitted(self) -> RecipeError:
        return RecipeError(f"{self.name} has no official evaluation to submit to: use 'limbeck predict'.")

    def agreement(self, logits: Any, others: Any, encoded: Any, others_encoded: Any = None) -> float:
        """Measure how often two models predict the same (regression: how their predictions correlate).

        ``others_encoded`` are the examples as the other model reads them, where it splits texts otherwise.
        """
        ours, theirs = self.predictions(logits), self.predictions(others)
        return METRICS["pearson"](ours, theirs) if self.problem == "regression" else float((ours == theirs).mean())


def make_split(name: str, columns: Mapping[str, Sequence[Any]]) -> Dataset:
    """Make an in-memory split that remembers its name, so that later messages can say which one they mean."""
    # datasets takes a second to import, and listing tasks does not need it.
    from datasets import Dataset, NamedSplit

    return Dataset.from_dict(dict(columns), split=NamedSplit(name))


def named_after_split(split: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Name scores after their split: ``accuracy_mismatched`` of ``validation_mismatched``."""
    suffix = split.removeprefix("validation_").removeprefix("test_")
    return {f"{name}_{suffix}": value for name, value in scores.items()}


def _flat(logits: np.ndarray) -> np.ndarray:
    return logits[:, 0] if logits.ndim == 2 else logits


def _random_rows(split: Any, count: int) -> Any:
    return split.select(np.random.default_rng(0).permutation(len(split))[:count])

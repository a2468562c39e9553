"""Look at a data set before a model is trained on it: rows, lengths, what is cut, labels, what to look into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limbeck.metrics import entities
from limbeck.problems import Problem
from limbeck.tasks.task import Task

_NAMED = 5  # labels that a line of text names
_FEW = 5  # rows of a class that can hardly be learned
_DOMINANT = 0.9  # share of one class that makes accuracy say little


@dataclass(frozen=True)
class SplitProfile:
    """Describe one split in numbers. Lengths are of at most 10,000 evenly spaced rows, all else is of all rows."""

    rows: int
    lengths: Mapping[str, int]  # median, 95% and longest, in tokens; none of an empty split
    too_long: float  # share of rows longer than max_length: cut, or read in several windows
    counts: Mapping[str, int]  # how often each label occurs, the most frequent first; none without labels or classes
    numbers: Mapping[str, float]  # of labels that are numbers; of multi-label problems, labels per row

    def most_frequent(self, limit: int = 10) -> tuple[dict[str, int], int]:
        """Return the labels worth showing with their counts, and how many more there are."""
        return dict(list(self.counts.items())[:limit]), max(0, len(self.counts) - limit)


@dataclass(frozen=True)
class Profile:
    """Describe a task's data by split. A stream of plain text has no splits: nothing of it is counted."""

    task: str
    problem: Problem
    max_length: int
    splits: Mapping[str, SplitProfile]
    counted: str  # what the counts count
    class_weights: Mapping[str, float]  # by label; none where all count the same
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Sum the profile up in three to five lines, for a log; lengths and labels are those of the training rows."""
        if not self.splits:
            return [f"{self.task}: plain text, read as a stream in blocks of {self.max_length:,} tokens."]
        train = self.splits["train"]
        rows = ", ".join(f"{split.rows:,} {name}" for name, split in self.splits.items())
        found = [f"{self.task}: {rows} {'questions' if self.problem == 'span' else 'rows'}."]
        if train.lengths:
            lengths = ", ".join(f"{name} {value:,}" for name, value in train.lengths.items())
            share = f"{_percent(train.too_long)} are" if train.too_long else "none is"
            fate = "read in several windows of" if self.problem == "span" else "cut at"
            found.append(f"Tokens: {lengths}; {share} {fate} task.max_length={self.max_length}.")
        balance = self._balance(train)
        if balance:
            found.append(balance)
        if self.class_weights:
            ordered = sorted(self.class_weights.items(), key=lambda item: -item[1])
            found.append(f"Class weights: {_some([f'{name} {weight:.3g}' for name, weight in ordered])}.")
        if self.warnings:
            found.append(f"Worth knowing: {'; '.join(self.warnings)}.")
        return found

    def _balance(self, split: SplitProfile) -> str:
        counts, more = split.most_frequent(_NAMED)
        total = split.rows if self.problem == "multi_label" else sum(split.counts.values())
        shares = [f"{name} {count:,} ({_percent(count / max(total, 1))})" for name, count in counts.items()]
        shares += [f"and {more:,} more"] if more else []
        numbers = [f"{name} {value:.4g}" for name, value in split.numbers.items()]
        if not shares and not numbers:
            return ""
        return f"{self.counted.capitalize()}: {', '.join(shares + numbers)}."


def profile(
    task: Task, tokenizer: Any, max_length: int | None = None, encoded: Mapping[str, Any] | None = None
) -> Profile:
    """Look at every split of a task; without ``max_length`` as long as its texts suggest.

    ``encoded`` are splits that have been encoded with that length: then only they are looked at, and few texts are
    tokenized again.
    """
    if max_length is None:
        max_length = task.suggest_length(tokenizer, tokenizer.model_max_length)[0]
    weights = dict(zip(task.label_names, task.class_weights, strict=True)) if task.class_weights else {}
    if task.scored_by_loss:
        return Profile(task.name, task.problem, max_length, {}, "", weights, ())
    names = [name for name in task.splits if encoded is None or name in encoded]
    column, counted, count = _counting(task)
    splits = {}
    for name in names:
        data = task.split(name)
        lengths = _lengths(task, name, tokenizer, max_length, encoded[name] if encoded else None)
        labels = data[column][:] if column in data.column_names else []
        counts, numbers = count(task, labels) if labels else ({}, {})
        ranked = dict(sorted(counts.items(), key=lambda item: -item[1]))
        splits[name] = SplitProfile(len(data), _summary(lengths), _share(lengths > max_length), ranked, numbers)
    warnings = (*_text_warnings(task, names), *_label_warnings(task, splits))
    return Profile(task.name, task.problem, max_length, splits, counted, weights, warnings)


def _lengths(task: Task, split: str, tokenizer: Any, max_length: int, encoded: Any | None) -> np.ndarray:
    data = task.split(split)
    if len(data) == 0:
        return np.zeros(0, dtype=int)
    if encoded is None:
        return task.lengths(split, tokenizer)
    windows = "example" in encoded.column_names  # then a row may have several, one after the other
    owners = np.array(encoded["example"][:] if windows else range(len(encoded)))
    if len(np.unique(owners)) < len(data):  # some are held out
        return task.lengths(split, tokenizer)
    rows = task.measured(split)
    found = np.array([len(ids) for ids in encoded.select(np.searchsorted(owners, rows))["input_ids"]])
    full = np.flatnonzero(found >= max_length)  # these alone may have been longer
    if len(full):
        again = data.select([rows[place] for place in full])[:]
        found[full] = [len(ids) for ids in task.token_ids(again, tokenizer)]
    return found


def _summary(lengths: np.ndarray) -> dict[str, int]:
    if not len(lengths):
        return {}
    values = np.percentile(lengths, [50, 95, 100], method="higher")
    return dict(zip(("median", "95%", "longest"), map(int, values), strict=True))


def _share(rows: np.ndarray) -> float:
    return float(rows.mean()) if len(rows) else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


Found = tuple[dict[str, int], dict[str, float]]


def _counting(task: Task) -> tuple[str, str, Callable[[Task, list[Any]], Found]]:
    """Return the column with what is to be predicted, what is counted in it, and how."""
    if task.problem == "span":
        return "answers", "questions", _questions
    if task.problem == "tokens":
        return ("label", "entities", _entities) if task.metrics[:1] == ("entity_f1",) else ("label", "tags", _tags)
    how = {"classification": _classes, "multi_label": _flags, "regression": _numbers}
    return "label", "labels", how[task.problem]


def _classes(task: Task, labels: list[Any]) -> Found:
    counts = Counter(labels)
    return {name: counts[index] for index, name in enumerate(task.label_names)}, {}


def _flags(task: Task, labels: list[Any]) -> Found:
    rows = np.array(labels, dtype=int)
    counts = dict(zip(task.label_names, rows.sum(axis=0).tolist(), strict=True))
    return counts, {
        "labels per row": float(rows.sum(axis=1).mean()),
        "rows without any": int((~rows.any(axis=1)).sum()),
    }


def _numbers(task: Task, labels: list[Any]) -> Found:
    values = np.array(labels)
    found = {"minimum": values.min(), "mean": values.mean(), "maximum": values.max(), "deviation": values.std()}
    return {}, {name: float(value) for name, value in found.items()}


def _tags(task: Task, labels: list[Any]) -> Found:
    return _classes(task, [tag for tags in labels for tag in tags])


def _entities(task: Task, labels: list[Any]) -> Found:
    names = task.label_names
    counts = Counter(kind for tags in labels for kind, _, _ in entities([names[tag] for tag in tags]))
    kinds = sorted({name.partition("-")[2] for name in names} - {""})
    return {kind: counts[kind] for kind in kinds}, {}


def _questions(task: Task, labels: list[Any]) -> Found:
    answered = sum(bool(answers) for answers in labels)
    return {"with an answer": answered, "without an answer": len(labels) - answered}, {}


def _text_warnings(task: Task, splits: Sequence[str]) -> list[str]:
    """Find texts that occur twice, or in training and in a split that is to show what was learned."""
    found = []
    data = task.split("train")
    texts = _texts(task, data)
    known = set(texts)
    if repeated := len(texts) - len(known):
        other = 0
        if "label" in data.column_names:
            other = len({(text, str(label)) for text, label in zip(texts, data["label"][:], strict=True)}) - len(known)
        found.append(
            f"{repeated:,} of {len(texts):,} training rows repeat the text of another"
            + (f", {other:,} of them with another label" if other else "")
        )
    for name in splits:
        rows = _texts(task, task.split(name)) if name != "train" else []
        if leaked := sum(text in known for text in rows):
            found.append(f"{leaked:,} of {len(rows):,} {name} rows have a text that is also in training")
    return found


def _texts(task: Task, data: Any) -> list[int]:
    """Hash each row's text or texts: equal for equal ones, and smaller than they are."""
    columns = [data[name][:] for name in task.text_columns]
    return [
        hash(tuple(cell if isinstance(cell, str) else tuple(cell) for cell in row))
        for row in zip(*columns, strict=True)
    ]


def _label_warnings(task: Task, splits: Mapping[str, SplitProfile]) -> list[str]:
    """Find classes that can hardly be learned or scored, and one that hides the others."""
    counts = splits["train"].counts
    if task.problem == "span" or not counts:
        return []
    found = []
    if few := [f"{name} ({count})" for name, count in counts.items() if count < _FEW]:
        found.append(f"fewer than {_FEW} training examples of {_some(few)}")
    for split in task.dev_splits:
        there = splits[split].counts if split in splits else {}
        if missing := [name for name in counts if there and not there[name]]:
            found.append(f"no {split} examples of {_some(missing)}")
    name, count = next(iter(counts.items()))
    share = count / max(sum(counts.values()), 1)
    if task.problem == "classification" and share > _DOMINANT:
        found.append(f"{_percent(share)} of the training rows are '{name}': compare scores with always guessing it")
    return found


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")

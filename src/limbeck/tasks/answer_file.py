"""Read what somebody else answers for texts: a table with a probability, or a logit, of each label for each row."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from limbeck._internal.files import expand_home
from limbeck.errors import DataError, ModelError, unknown
from limbeck.tasks.checked_texts import checked_ids, checked_texts
from limbeck.tasks.chunks import column_names, read_chunks
from limbeck.tasks.files import Columns
from limbeck.tasks.held_out import content_hash
from limbeck.tasks.labels import order_option
from limbeck.tasks.task import Task
from limbeck.tasks.unlabelled import KEY

Kind = Literal["probabilities", "logits"]

_ROWS = 2_000  # read at a time
_BLOCK = 1 << 20  # bytes
_SUM = 0.01  # by which the probabilities of a row may miss 1: written with few digits, many small ones do
_SAME = 1e-4  # by which two answers to one text may differ
_NEVER = 1e30  # the logit of probability 1, and minus that of 0: differences of such logits are still numbers
_NUMBER = np.dtype(np.float32)
_PROBLEMS = ("classification", "multi_label", "regression")


@dataclass(frozen=True)
class _Layout:
    """Say in which columns of a file its answers are: one for each label, or a single one with lists."""

    columns: tuple[str, ...]
    lists: bool


class AnswerFile:
    """Hold the answers of a file as logits, on disk; they are found by the rows' texts, or by their ids.

    A probability p becomes log p (of several labels log p - log(1 - p)), so that a softmax (sigmoid) gives it back; 0
    stays 0 at every temperature.
    """

    def __init__(self, path: str, kind: Kind, task: Task) -> None:
        self.path, self.kind, self.task = path, kind, task
        if task.problem not in _PROBLEMS:
            raise ModelError(
                f"teacher.{kind}: {path} answers for whole texts, and {task.name} decides single tokens. Name a model "
                "as the teacher (teacher.model)."
            )
        if task.problem == "regression" and kind == "probabilities":
            raise DataError(
                f"teacher.probabilities: the labels of {task.name} are numbers, which have no probabilities. "
                f"Write teacher.logits={path}, with a column 'prediction'."
            )
        self.key_columns = (task.id_column,) if task.id_column else task.text_columns
        self.layout = self._find_layout(column_names(path))
        self._file = tempfile.TemporaryFile(prefix="limbeck-answers-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)  # open as long as this
        self._read()

    @cached_property
    def digest(self) -> str:
        """Return a short text that differs where the file does."""
        digest = hashlib.sha256(self.kind.encode())
        with expand_home(self.path).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    @property
    def width(self) -> int:
        """Count the numbers of an answer."""
        return self.task.num_labels

    @property
    def says_order(self) -> bool:
        """Tell whether the file or the task says which number is of which label."""
        return not self.layout.lists or self.width == 1 or self.task.label_order != "learned"

    def how_to_state(self) -> str:
        """Say what to write where nobody says it."""
        return (
            f"{self.path} has its {self.kind} in lists, so that nothing tells which is of which label. They are taken "
            f"for {', '.join(self.task.label_names[:8])}, in this order. Where that is right, say so: "
            f"{order_option(self.task.label_names)}. Where it is not, name them in the file's order, or give each "
            "label a column of its name."
        )

    def find(self, keys: Iterable[int]) -> np.ndarray:
        """Return the number of the answer to each row, by what :func:`keys_of` returned; -1 where there is none."""
        wanted = np.fromiter(keys, dtype=np.uint64)
        place = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[place] == wanted, self._order[place], -1)

    def logits(self, numbers: np.ndarray) -> np.ndarray:
        """Return these answers (n, labels)."""
        size = self.width * _NUMBER.itemsize
        parts = [os.pread(self._file.fileno(), size, number * size) for number in numbers.tolist()]
        return np.frombuffer(b"".join(parts), dtype=_NUMBER).reshape(len(parts), self.width).copy()

    def _find_layout(self, there: Sequence[str]) -> _Layout:
        names = self.task.label_names
        if self.task.problem == "regression":
            return _Layout(("prediction",) if "prediction" in there else (self.kind,), "prediction" not in there)
        if self.kind in there:
            return _Layout((self.kind,), True)
        styles = [tuple(f"p({name})" for name in names)] * (self.kind == "probabilities") + [names]
        columns = max(styles, key=lambda style: sum(name in there for name in style))
        if not any(name in there for name in columns):
            raise DataError(
                f"{self.path} has no {self.kind}: neither a column '{self.kind}' with lists nor columns of the labels' "
                f"names ({_some(names)}). Its columns are {_some(there)}."
            )
        if missing := [name for name in columns if name not in there]:
            raise DataError(
                f"{self.path} has no column for {_some(missing)}: every label of {self.task.name} needs one. "
                f"Its columns are {_some(there)}."
            )
        if strange := [name for name in there if name.startswith("p(") and name.endswith(")") and name not in columns]:
            raise DataError(
                f"{self.path}: {unknown('label', strange[0][2:-1], names, f'The labels are {_some(names)}.')}"
            )
        return _Layout(columns, False)

    def _read(self) -> None:
        keys, lines = [], []
        for chunk in read_chunks(self.path, [*self.key_columns, *self.layout.columns], _ROWS):
            answers = self._as_logits(chunk, self._numbers(chunk))
            self._file.write(answers.astype(_NUMBER).tobytes())
            keys.append(np.fromiter(self._keys_in(chunk), dtype=np.uint64))
            lines.append(np.asarray(chunk.numbers, dtype=np.int64))
            unit = chunk.unit
        self._file.flush()
        every = np.concatenate(keys)
        self._order = np.argsort(every, kind="stable")
        self._keys = every[self._order]
        self._check_repeated(unit, np.concatenate(lines))

    def _keys_in(self, chunk: Columns) -> Iterator[int]:
        if self.task.id_column:
            return keys_of(self.task, {KEY: checked_ids(chunk, self.task.id_column)})
        return keys_of(self.task, checked_texts(chunk, self.key_columns))

    def _check_repeated(self, unit: str, lines: np.ndarray) -> None:
        """Raise where a text, or an id, has two different answers; equal ones are one."""
        for place in np.flatnonzero(self._keys[1:] == self._keys[:-1]).tolist():
            pair = self._order[[place, place + 1]]
            first, second = self._comparable(self.logits(pair))
            if np.abs(first - second).max() > _SAME:
                what = f"the same '{self.task.id_column}'" if self.task.id_column else "the same text"
                remedy = "" if self.task.id_column else ", or name a column that tells the rows apart (task.id)"
                raise DataError(
                    f"{self.path}, {unit}s {lines[pair[0]]} and {lines[pair[1]]}: {what} has two different answers. "
                    f"Remove one{remedy}."
                )

    def _comparable(self, logits: np.ndarray) -> np.ndarray:
        return self.task.probabilities(logits) if self.kind == "probabilities" else logits

    def _numbers(self, chunk: Columns) -> np.ndarray:
        """Return the cells of some rows as numbers, (n, labels)."""
        if self.layout.lists:
            cells = chunk.values[self.layout.columns[0]]
            for row, cell in enumerate(cells):
                if not isinstance(cell, (list, tuple)) or len(cell) != self.width:
                    seen = f"a list of {len(cell)}" if isinstance(cell, (list, tuple)) else f"{cell!r:.40}"
                    raise DataError(
                        f"{chunk.where(row)}: '{self.layout.columns[0]}' must hold a list of {self.width} numbers, one "
                        f"for each label; seen: {seen}. A CSV file has no lists: give each label a column."
                    )
            columns = list(zip(*cells, strict=True))
        else:
            columns = [tuple(chunk.values[name]) for name in self.layout.columns]
        return np.stack([self._column(chunk, place, cells) for place, cells in enumerate(columns)], axis=1)

    def _column(self, chunk: Columns, place: int, cells: Sequence[Any]) -> np.ndarray:
        try:
            numbers = np.array(cells, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.array([_number(cell) for cell in cells])
        wrong = ~np.isfinite(numbers)
        if self.kind == "probabilities":
            wrong |= (numbers < 0) | (numbers > 1 + _SUM)
        if wrong.any():
            row = int(wrong.argmax())
            label = f" of '{self.task.label_names[place]}'" if self.task.label_names else ""
            what = "a probability, from 0 to 1" if self.kind == "probabilities" else "a finite number"
            raise DataError(f"{chunk.where(row)}: the answer{label} is {cells[row]!r}, which is not {what}.")
        return numbers

    def _as_logits(self, chunk: Columns, numbers: np.ndarray) -> np.ndarray:
        if self.kind == "logits":
            return numbers
        if self.task.problem == "classification":
            sums = numbers.sum(1)
            wrong = np.abs(sums - 1) > _SUM
            if wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"{chunk.where(row)}: the probabilities of the {self.width} labels add up to {sums[row]:.4g} and "
                    "not to 1. Give those of all labels; write scores that are no probabilities as teacher.logits."
                )
        numbers = np.minimum(numbers, 1.0)
        with np.errstate(divide="ignore"):
            logits = np.log(numbers)
            if self.task.problem == "multi_label":
                logits -= np.log1p(-numbers)
        return np.clip(logits, -_NEVER, _NEVER)


def keys_of(task: Task, rows: Mapping[str, Sequence[Any]]) -> Iterator[int]:
    """Yield a number for each of some rows that equal rows share: of its id where the task has ids, or of its texts.

    Texts are equal where only white space differs.
    """
    names = (KEY,) if task.id_column else task.text_columns
    for cells in zip(*(rows[name] for name in names), strict=True):
        yield content_hash("\n".join(" ".join(str(cell).split()) for cell in cells))


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")


def _some(names: Iterable[str]) -> str:
    listed = [f"'{name}'" for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8:,} more" if len(listed) > 8 else "")

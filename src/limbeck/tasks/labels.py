"""Learn which kind of problem the labels of a table pose, and turn their cells into numbers to train on."""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck.errors import DataError, RecipeError, unknown
from limbeck.problems import Problem
from limbeck.tasks.files import Columns


@dataclass(frozen=True)
class Labels:
    """Hold the labels of a task, learned from its training file and applied to every file."""

    columns: tuple[str, ...]
    problem: Problem
    names: tuple[str, ...]  # () for regression
    separator: str

    def numbers(self, file: Columns) -> list[Any]:
        """Return a file's labels as class indices, numbers, or rows of 0.0/1.0."""
        if len(self.columns) > 1:
            columns = [_convert(file, name, _flag, "Use 0 or 1.") for name in self.columns]
            return [list(row) for row in zip(*columns, strict=True)]
        if self.problem == "regression":
            return _convert(file, self.columns[0], _number, "Use a number, or set problem: classification.")
        index = {name: position for position, name in enumerate(self.names)}
        if self.problem == "classification":
            return [name_index(file, row, name, index) for row, name in enumerate(_names(file, self.columns[0]))]
        rows = []
        for row, names in enumerate(_name_lists(file, self.columns[0], self.separator)):
            flags = [0.0] * len(self.names)
            for name in names:
                flags[name_index(file, row, name, index)] = 1.0
            rows.append(flags)
        return rows


def name_index(file: Columns, row: int, name: str, index: Mapping[str, int]) -> int:
    """Return the index of a label's name; one that the training file does not have is an error."""
    if name not in index:
        close = difflib.get_close_matches(name, index, n=1, cutoff=0.6)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        some = ", ".join(f"'{known}'" for known in list(index)[:8]) + (", ..." if len(index) > 8 else "")
        raise DataError(
            f"{file.where(row)}: the label '{name}' never occurs in the training file, whose "
            f"{len(index)} labels are {some}.{hint} Correct it, or add training rows that have it."
        )
    return index[name]


def learn_labels(
    file: Columns,
    columns: tuple[str, ...],
    problem: Problem | None,
    separator: str,
    stated: Sequence[Any] | None = None,
    known: tuple[str, ...] | None = None,
) -> Labels:
    """Decide the problem (unless given) and the label names from the training file; ``stated`` is their order.

    ``known`` are all names, in order, where the data say them themselves.
    """
    if len(columns) > 1:
        columns = in_order(columns, stated, file)
        return Labels(columns, "multi_label", columns, separator)
    problem = problem or _guess(file, columns[0], known is not None)
    if problem == "regression":
        if stated is not None:
            raise RecipeError(
                f"task.labels is {list(stated)}, but the labels of {file.path} are numbers (regression), which have no "
                "names. Leave it out, or set task.problem=classification."
            )
        return Labels(columns, problem, (), separator)
    if problem == "classification":
        names = set(_names(file, columns[0]))
    else:
        names = {name for row in _name_lists(file, columns[0], separator) for name in row}
    if problem == "classification" and len(names) == 1:
        raise DataError(
            f"{file.path}: every row has the label '{next(iter(names))}' in column '{columns[0]}', so there "
            "is nothing to learn. Check the column, or add rows of another class."
        )
    if not names:
        raise DataError(f"{file.path}: no row has any label in column '{columns[0]}'. Check the column.")
    return Labels(columns, problem, in_order(known or _sorted(names), stated, file), separator)


def in_order(names: tuple[str, ...], stated: Sequence[Any] | None, file: Columns) -> tuple[str, ...]:
    """Return the names of a file's labels as ``task.labels`` orders them; it must have each of them once."""
    if stated is None:
        return names
    try:
        order = tuple(checked_labels(stated))
    except ValueError as error:
        raise RecipeError(f"task.labels: {error}") from None
    missing, extra = _quoted(set(names) - set(order)), _quoted(set(order) - set(names))
    if missing or extra:
        seen = [f"it lacks {missing}"] * bool(missing) + [f"{file.path} has no {extra}"] * bool(extra)
        raise RecipeError(
            f"task.labels must name every label of {file.path}, in the order in which the model numbers them: "
            f"{', and '.join(seen)}. Write {order_option(names)} in the order that you mean."
        )
    return order


def checked_labels(value: Any) -> list[str]:
    """Check a list of labels' names, numbers as tables name them; a ValueError says what is wrong."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"write a list of names such as [negative, positive]; seen: {value!r}.")
    names = []
    for item in value:
        name = None if isinstance(item, bool) or item is None else _name(item)
        if not name:
            raise ValueError(
                f"{item!r} is not a label's name; put names that YAML reads otherwise (yes, no) in quotes."
            )
        if name in names:
            raise ValueError(f"'{name}' is named twice.")
        names.append(name)
    return names


def order_option(names: Sequence[str]) -> str:
    """Write the option that states this order of labels, as it can be typed: ``'task.labels=[no_answer, answer]'``."""
    return shlex.quote(f"task.labels=[{', '.join(map(_yaml_word, names))}]")


def _yaml_word(name: str) -> str:
    """Write a name so that YAML reads it as itself in a list."""
    try:
        read = plain_yaml.load(f"[{name}]")
        plain = checked_labels(read) == [name]
    except (yaml.YAMLError, ValueError):
        plain = False
    return name if plain else json.dumps(name, ensure_ascii=False)


def _quoted(names: set[str]) -> str:
    some = sorted(names)
    return ", ".join(f"'{name}'" for name in some[:8]) + (", ..." if len(some) > 8 else "")


def _guess(file: Columns, column: str, named: bool = False) -> Problem:
    """Take numbers of which some have a fraction as regression, lists as multi-label, all else as classes.

    Where most cells are such numbers, the others (a stray word, nan, inf) are a mistake, and not more classes.
    """
    cells = file.values[column]
    if any(isinstance(cell, (list, tuple)) for cell in cells):
        return "multi_label"
    if named:
        return "classification"
    there = {row: _number(cell) for row, cell in enumerate(cells) if not is_missing(cell)}
    numbers = [number for number in there.values() if number is not None]
    if not any(number % 1 for number in numbers):
        return "classification"
    stray = [row for row, number in there.items() if number is None]
    if len(stray) >= len(numbers):
        return "classification"
    if stray:
        seen = ", ".join(repr(cells[row]) for row in stray[:5])
        raise DataError(
            f"{file.where(*stray[:5])}: {len(stray):,} of {len(cells):,} rows have no finite number in column "
            f"'{column}' ({seen}), the others have numbers with fractions. To learn numbers, correct or remove those "
            "rows (and set task.problem=regression); to take every value as a class, set task.problem=classification."
        )
    return "regression"


def _sorted(names: set[str]) -> tuple[str, ...]:
    """Sort by the alphabet, or by number where all names are integers, so that 10 follows 9."""
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def _names(file: Columns, column: str) -> list[str]:
    return _convert(file, column, _name, "Use one word or number per row, or set problem: multi_label.")


def _name_lists(file: Columns, column: str, separator: str) -> list[list[str]]:
    def split(cell: Any) -> list[str] | None:
        if isinstance(cell, (list, tuple)):
            names = [_name(item) for item in cell]
            return None if None in names else [name for name in names if name]
        name = _name(cell)
        return None if name is None else [part.strip() for part in name.split(separator) if part.strip()]

    # An empty cell is a row without labels here, which is a legitimate answer.
    remedy = f"Use a list, or names with '{separator}' between them."
    return _convert(file, column, split, remedy, empty_is_missing=False)


def _convert(
    file: Columns, column: str, convert: Callable[[Any], Any], remedy: str, *, empty_is_missing: bool = True
) -> list[Any]:
    cells = file.values[column]
    missing = [row for row, cell in enumerate(cells) if is_missing(cell) and (empty_is_missing or cell != "")]
    if missing:
        raise DataError(
            f"{file.where(*missing[:5])}: {len(missing):,} of {len(cells):,} rows have no label in column "
            f"'{column}'. Fill in the labels or remove those rows."
        )
    converted = []
    for row, cell in enumerate(cells):
        value = convert(cell)
        if value is None:
            raise DataError(f"{file.where(row)}: {cell!r} in column '{column}' is not a usable label. {remedy}")
        converted.append(value)
    return converted


def is_missing(cell: Any) -> bool:
    """Tell whether a cell holds nothing: no text, or what tables with gaps hold instead of a number."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _name(cell: Any) -> str | None:
    if isinstance(cell, (list, tuple, dict)):
        return None
    # A table that once had gaps stores whole numbers as 1.0.
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):  # the last: a whole number of hundreds of digits
        return None
    return value if math.isfinite(value) else None


def _flag(cell: Any) -> float | None:
    if isinstance(cell, str):
        cell = {"true": 1, "false": 0}.get(cell.strip().lower(), cell)
    value = _number(cell)
    return value if value in (0.0, 1.0) else None


def checked_weights(value: Any) -> str | dict[str, float]:
    """Check class weights: ``none``, ``balanced``, or weights by label; a ValueError says what is wrong."""
    if isinstance(value, str) and value in ("none", "balanced"):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"write none, balanced, or weights by label such as {{spam: 5}}; seen: {value!r}.")
    weights = {}
    for key, weight in value.items():
        name = None if isinstance(key, bool) or is_missing(key) else _name(key)
        if not name:
            raise ValueError(f"{key!r} is not a label's name; put names that YAML reads otherwise (yes, no) in quotes.")
        number = None if isinstance(weight, bool) else _number(weight)
        if number is None or number <= 0:
            raise ValueError(f"the weight of '{name}' must be a finite number above 0; seen: {weight!r}.")
        weights[name] = number
    return weights


def weigh(weights: str | Mapping[str, float], labels: Labels, rows: Sequence[Any]) -> tuple[float, ...] | None:
    """Return a weight for each label, in their order; ``rows`` are the labels that are trained on, as numbers."""
    try:
        weights = checked_weights(weights)
    except ValueError as error:
        raise RecipeError(f"task.class_weights: {error}") from None
    if weights == "none":
        return None
    if labels.problem == "regression":
        raise RecipeError(
            f"task.class_weights is {weights!r}, but the labels are numbers (regression), which have no classes. "
            "Leave it out, or set task.problem=classification."
        )
    if isinstance(weights, str):
        return _balanced(labels, rows)
    for name in weights:
        if name not in labels.names:
            some = ", ".join(labels.names[:8]) + (", ..." if len(labels.names) > 8 else "")
            raise RecipeError(unknown("label in task.class_weights:", name, labels.names, f"The labels are {some}."))
    return tuple(weights.get(name, 1.0) for name in labels.names)


def _balanced(labels: Labels, rows: Sequence[Any]) -> tuple[float, ...]:
    """Let every class, and both answers of each label, count the same; what never occurs has weight 1."""
    if labels.problem == "multi_label":
        there = [int(sum(column)) for column in zip(*rows, strict=True)]
        return tuple((len(rows) - count) / count if 0 < count < len(rows) else 1.0 for count in there)
    counts = Counter(rows)
    return tuple(
        len(rows) / (len(counts) * counts[index]) if counts[index] else 1.0 for index in range(len(labels.names))
    )

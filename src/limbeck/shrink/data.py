"""Divide the data once: rows that train, rows that choose, and rows that tell what the choice is worth.

The parts are tables of their own in the output folder, so that every run reads the same and nothing that chose is
reported: a score that chose is flattered by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck._internal.files import make_folder
from limbeck.errors import DataError
from limbeck.shrink.plan import Request
from limbeck.tasks import load_task
from limbeck.tasks.held_out import content_hash, text_key
from limbeck.tasks.table import read_texts
from limbeck.tasks.task import Task
from limbeck.tasks.writing import write_table

CHOOSING, REPORTED = "validation", "test"  # the splits of the divided task
LABEL = "label"


class Halves(NamedTuple):
    """Hold the positions of the rows that choose, and of those that are reported."""

    choosing: np.ndarray
    reported: np.ndarray


def halves(labels: Any, texts: Sequence[str]) -> Halves:
    """Deal texts sorted by label out in turns, so that both halves have the same share of each class.

    Which text is in which half follows from the texts, not from their order, and equal ones are in the same.
    """
    labels = np.asarray(labels)
    columns = labels.T[::-1] if labels.ndim > 1 else (labels,)  # lexsort goes by its last key first
    order = np.lexsort([np.array([content_hash(text) for text in texts], dtype=np.uint64), *columns])
    sides: dict[str, int] = {}
    for row in order:
        sides.setdefault(texts[row], len(sides) % 2)
    side = np.array([sides[text] for text in texts])
    return Halves(np.flatnonzero(side == 0), np.flatnonzero(side == 1))


def divide(request: Request, task: Task, folder: Path) -> dict[str, Any]:
    """Write the three parts of the data to ``folder``, and return the recipe's block for them."""
    make_folder(folder)
    dev = task.split("validation")
    parts = halves(dev["label"][:], [text_key(*row) for row in zip(*task.inputs(dev[:]), strict=True)])
    if not len(parts.reported):
        raise DataError("All validation rows have one text, so that none is left to report. Give others with --dev.")
    rows = {
        "train": task.split("train"),
        "choosing": dev.select(parts.choosing),
        "reported": dev.select(parts.reported),
    }
    files = {name: folder / f"{name}.parquet" for name in rows}
    for name, part in rows.items():
        if not files[name].is_file():
            columns: dict[str, Any] = {column: part[column][:] for column in task.text_columns}
            write_table(files[name], columns | {LABEL: readable_labels(task, part["label"][:])})
    block = {
        "name": "table",
        "train": str(files["train"]),
        CHOOSING: str(files["choosing"]),
        REPORTED: str(files["reported"]),
        "text": list(task.text_columns),
        "label": LABEL,
        "problem": task.problem,
        "seed": request.seed,
    }
    return block | ({"labels": list(task.label_names)} if task.label_names else {})


def readable_labels(task: Task, labels: Iterable[Any]) -> list[Any]:
    """Return labels as a table has them: names, lists of names, or numbers."""
    if task.problem == "regression":
        return [float(label) for label in labels]
    if task.problem == "multi_label":
        return [[name for name, on in zip(task.label_names, row, strict=True) if on] for row in labels]
    return [task.label_names[int(label)] for label in labels]


def unlabelled_texts(request: Request, task: Task) -> dict[str, list[str]]:
    """Read the text columns of the rows without labels; those of the labelled rows are left out."""
    if request.unlabelled is None:
        return {name: [] for name in task.text_columns}
    found = read_texts(request.unlabelled, task.text_columns)
    known = {
        text_key(*row)
        for split in ("train", "validation")
        for row in zip(*task.inputs(task.split(split)[:]), strict=True)
    }
    kept: dict[str, tuple[str, ...]] = {}
    for row in zip(*(found[name][:] for name in task.text_columns), strict=True):
        key = text_key(*row)
        if key not in known:
            kept.setdefault(key, row)
    return {name: [row[number] for row in kept.values()] for number, name in enumerate(task.text_columns)}


def with_teachers_labels(
    block: Mapping[str, Any], texts: Mapping[str, list[str]], labels: Sequence[Any], file: Path
) -> dict[str, Any]:
    """Write the training rows followed by rows that the teacher labelled, and return the block that trains on both."""
    task = load_task("table", **{key: value for key, value in block.items() if key != "name"})
    train = task.split("train")
    columns: dict[str, Any] = {name: [*train[name][:], *texts[name]] for name in task.text_columns}
    write_table(file, columns | {LABEL: [*readable_labels(task, train["label"][:]), *labels]})
    return {**block, "train": str(file)}

"""Load your own data: any CSV, TSV, JSONL or Parquet file with named text and label columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from limbeck.errors import DataError, RecipeError
from limbeck.options import Share
from limbeck.problems import Problem
from limbeck.tasks.checked_texts import checked_ids, checked_texts
from limbeck.tasks.chunks import read_chunks
from limbeck.tasks.files import Columns, read_columns
from limbeck.tasks.held_out import can_stratify, choose_rows, count_repeated, text_key, without_whole_classes
from limbeck.tasks.hub_table import read_dataset
from limbeck.tasks.labels import Labels, checked_labels, checked_weights, learn_labels, weigh
from limbeck.tasks.task import Task, make_split
from limbeck.tasks.unlabelled import KEY, Unlabelled, text_rows

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("limbeck")

# checked as a whole, so that a mistake has one message and not one for each form
ClassWeights = Annotated[Literal["none", "balanced"] | dict[str, float], pydantic.BeforeValidator(checked_weights)]
LabelList = Annotated[list[str], pydantic.BeforeValidator(checked_labels)]

_HOLD_OUT = 0.1
_ORDER = ("train", "validation", "test")
_METRICS: dict[Problem, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman", "mse"),
    "multi_label": ("micro_f1", "macro_f1"),
}


def table(
    *,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: str | list[str],
    label: str | list[str],
    dataset: str | None = None,
    config: str | None = None,
    split: str | dict[str, str] | None = None,
    problem: Literal["auto", "classification", "regression", "multi_label"] = "auto",
    separator: str = ",",
    labels: LabelList | None = None,
    class_weights: ClassWeights = "none",
    unlabelled: str | list[str] | None = None,
    unlabelled_share: Share | None = None,
    id: str | None = None,
    seed: int = 0,
) -> Task:
    """Load your own CSV, TSV, JSONL or Parquet files with named text and label columns.

    Args:
        train: the training file; its extension says its format.
        validation: the validation file; None holds out a tenth of the training file, by its texts: seeded, stratified.
        test: the test file, with or without labels.
        text: the text column, or two of them for pairs.
        label: the label column; several 0/1 columns make a multi-label task.
        dataset: instead of files, a data set of the hub (org/name), or a folder with Parquet, CSV or JSONL files or
            what save_to_disk wrote. Labels have the names and the order that it gives them (ClassLabel).
        config: of the data set, where it has several.
        split: of the data set, what trains, or {train: ..., validation: ..., test: ...}; None takes those of that name.
        problem: auto takes lists and several columns as multi_label, numbers with fractions as regression; where most
            labels are such numbers, one that is none is an error.
        separator: what separates the names in a multi-label cell that is a string.
        labels: all labels, in the order in which a model without names for them numbers them;
            None takes the alphabet's (of whole numbers, theirs).
        class_weights: of the loss: none, balanced (rare classes count as much as frequent ones), or weights by label
            such as {spam: 5}, the others 1. Multi-label: of a label that is there.
        unlabelled: a file of texts without labels, or several: tables with the same text columns, or plain text with
            one text a line (.txt). Distillation learns from them too; they are read in parts, whatever their size.
        unlabelled_share: of the rows of each step, those without a label (None: 0.5).
        id: the column that names the rows of all files, by which a file that teaches (teacher.probabilities) answers
            them; None: it answers texts.
        seed: of the held-out tenth.
    """
    texts = _names("text", text, at_most=2)
    label_columns = _names("label", label)
    if taken := sorted({"id", "label", *label_columns, *([KEY, id] if id else [])} & set(texts)):
        raise RecipeError(
            f"task.text cannot be '{taken[0]}': 'id', 'label' and the label columns have a use of their own. "
            "Rename the text column in the file."
        )
    if len(label_columns) > 1 and problem not in ("auto", "multi_label"):
        raise RecipeError(f"Several label columns make a multi-label task, but task.problem is '{problem}'.")
    if not separator:
        raise RecipeError("task.separator is empty. Give the character between the names of a multi-label cell.")
    ids = [] if id is None else [id]
    if dataset is not None:
        if given := [name for name, value in (("train", train), ("validation", validation), ("test", test)) if value]:
            raise RecipeError(
                f"task.dataset is {dataset}, and task.{given[0]} a file: give one of both. task.split says which split "
                "of the data set is which."
            )
        files, names = read_dataset(dataset, config, split, texts, label_columns, ids)
        train = str(files["train"].path)
    elif train is None:
        raise RecipeError("Give the training data: task.train=FILE, or task.dataset=NAME for a data set of the hub.")
    elif config is not None or split is not None:
        raise RecipeError("task.config and task.split belong to task.dataset. Leave them out, or name a data set.")
    else:
        files, names = _read_files(train, validation, test, [*texts, *ids], label_columns), None
    learned = learn_labels(
        files["train"], label_columns, None if problem == "auto" else problem, separator, labels, names
    )
    columns = {name: _columns(file, texts, learned, id) for name, file in files.items()}
    if id is not None:
        _check_ids(id, files)
    if "validation" not in files:
        classes = columns["train"]["label"] if learned.problem == "classification" else None
        keys = [text_key(*row) for row in zip(*(columns["train"][name] for name in texts), strict=True)]
        columns["train"], columns["validation"] = hold_out(columns["train"], keys, classes, train, seed)
    reader = partial(text_rows, columns=texts, id_column=id)
    more = Unlabelled.of(unlabelled, unlabelled_share, reader, texts, columns)
    return Task(
        name="table",
        problem=learned.problem,
        text_columns=texts,
        label_names=learned.names,
        metrics=_METRICS[learned.problem],
        splits={name: make_split(name, columns[name]) for name in sorted(columns, key=_ORDER.index)},
        class_weights=weigh(class_weights, learned, columns["train"]["label"]),
        unlabelled=more,
        id_column=id,
        label_order="stated" if labels is not None else "fixed" if names else "learned",
    )


def _read_files(
    train: str, validation: str | None, test: str | None, columns: Sequence[str], labels: Sequence[str]
) -> dict[str, Columns]:
    """Read the columns of each file that is named; labels of test rows need not be there."""
    files = {"train": read_columns(train, [*columns, *labels])}
    if validation is not None:
        files["validation"] = read_columns(validation, [*columns, *labels])
    if test is not None:
        files["test"] = read_columns(test, columns, optional=labels)
    return files


def read_texts(path: str | Path, text_columns: Sequence[str]) -> Dataset:
    """Read the text columns of a file, in order, with ``id``; for prediction."""
    file = read_columns(path, text_columns)
    return _for_prediction(file, text_columns)


def text_chunks(
    path: str | Path, text_columns: Sequence[str], rows: int, id_column: str | None = None
) -> Iterator[Dataset]:
    """Read the same, at most ``rows`` rows at a time: the file need not fit into memory.

    With ``id_column``, each row has what names it there as ``key`` too.
    """
    for file in read_chunks(path, [*text_columns, *([id_column] if id_column else [])], rows):
        yield _for_prediction(file, text_columns, id_column)


def _for_prediction(file: Columns, text_columns: Sequence[str], id_column: str | None = None) -> Dataset:
    named = {KEY: checked_ids(file, id_column)} if id_column else {}
    return make_split("predict", {"id": list(range(len(file.numbers))), **checked_texts(file, text_columns), **named})


def _names(option: str, value: str | list[str], at_most: int | None = None) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(names):
        raise RecipeError(f"task.{option} names no column. Give the name of a column of the file.")
    if len(set(names)) < len(names):
        raise RecipeError(f"task.{option} names a column twice: {', '.join(names)}.")
    if at_most and len(names) > at_most:
        raise RecipeError(f"task.{option} names {len(names)} columns, but a model reads one text or a pair.")
    return names


def _columns(file: Columns, texts: Sequence[str], learned: Labels, id_column: str | None) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"id": list(range(len(file.numbers))), **checked_texts(file, texts)}
    if id_column is not None:
        columns[KEY] = checked_ids(file, id_column)
    present = [name for name in learned.columns if name in file.values]
    if present and len(present) < len(learned.columns):
        missing = ", ".join(f"'{name}'" for name in learned.columns if name not in present)
        raise DataError(f"{file.path} lacks the label columns {missing}. Add them, or leave out all of them.")
    if present:
        columns["label"] = learned.numbers(file)
    return columns


def _check_ids(column: str, files: Mapping[str, Columns]) -> None:
    """Raise where two rows of the labelled files have one id: they would be answered alike."""
    seen: dict[str, str] = {}
    for file in files.values():
        for row, name in enumerate(checked_ids(file, column)):
            if name in seen:
                raise DataError(
                    f"{file.where(row)}: '{column}' is {name}, as in {seen[name]}. Give every row of all files an id "
                    "of its own, or leave task.id out, so that rows are found by their texts."
                )
            seen[name] = file.where(row)


def hold_out(
    columns: dict[str, list[Any]], texts: Sequence[str], labels: list[int] | None, path: str, seed: int
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Split the training rows by their texts, in the same shares of each class if ``labels`` are given.

    ``texts`` are what equal rows share. Both parts keep the file's order and its rows' ids.
    """
    rows = len(texts)
    if rows < 2:
        raise DataError(f"{path} has {rows} row, too few to hold out some for validation. Give task.validation.")
    stratified = bool(labels) and can_stratify(texts, _HOLD_OUT, labels or [])
    out = choose_rows(texts, _HOLD_OUT, seed, labels if stratified else None)
    if labels and not stratified:  # what is trained must know every class
        out = without_whole_classes(out, texts, labels) or out
    if not out:
        raise DataError(f"{path}: all {rows:,} rows have the same text, so none can be held out. Give task.validation.")
    repeated = count_repeated(texts)
    logger.info(
        "%s: no validation file was given, so %s of %s rows are held out for validation (seed %d, %s; "
        "chosen by their texts, whatever their order%s).",
        path,
        f"{len(out):,}",
        f"{rows:,}",
        seed,
        "stratified by class" if stratified else "not stratified",
        f"; {repeated:,} rows that share a text with others were kept together with them" if repeated else "",
    )
    kept = sorted(set(range(rows)) - set(out))
    pick = [{name: [column[row] for row in part] for name, column in columns.items()} for part in (kept, out)]
    return pick[0], pick[1]

"""Load the nine GLUE tasks, from GLUE's own TSV folders or from the hub, with their official metrics.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding" (2019).
Label indices are the hub's, so that a model fine-tuned on one source can be scored on the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck._internal import hub
from limbeck._internal.files import expand_home
from limbeck.errors import DataError, RecipeError, unknown
from limbeck.metrics import METRICS
from limbeck.tasks.files import check_exists, cut_off, tsv_rows, unquoted, width_error
from limbeck.tasks.submission import HEADER
from limbeck.tasks.task import Task, make_split

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("limbeck")

_HUB = "nyu-mll/glue"
_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
_MISMATCHED = "validation_mismatched"
_MNLI_FILES = {
    "train": "train.tsv",
    "validation": "dev_matched.tsv",
    _MISMATCHED: "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_REQUIRED = ("train", "validation")
# AX, which models of MNLI are tried on. GLUE's download has a folder for it beside MNLI's.
_DIAGNOSTIC = "diagnostic"
_DIAGNOSTIC_FILES = ("diagnostic/diagnostic.tsv", "AX/diagnostic.tsv", "AX/AX.tsv", "AX/test.tsv")

_ONE = {"sentence": "sentence"}
_PAIR = {"sentence1": "sentence1", "sentence2": "sentence2"}
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class _Glue:
    """Describe how one task is laid out. ``texts`` maps column names (the hub's) to the headers of the files."""

    folder: str
    about: str
    texts: Mapping[str, str]
    label_names: tuple[str, ...]  # () for STS-B's score
    label: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    written: tuple[str, ...] = ("0", "1")  # the labels as the files spell them, in index order
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)
    no_header: tuple[str, ...] = ()  # the columns of files that come without a header
    loose: bool = False  # rows may be damaged and cells quoted


# GLUE reports accuracy and F1 for MRPC and QQP. Accuracy is the main one here because, unlike F1, it does not
# depend on which class is called positive.
GLUE: dict[str, _Glue] = {
    "cola": _Glue(
        "CoLA",
        "is a sentence grammatical? (MCC)",
        texts=_ONE,
        label_names=("unacceptable", "acceptable"),
        metrics=("mcc",),
        no_header=("source", "label", "mark", "sentence"),
    ),
    "sst2": _Glue(
        "SST-2",
        "sentiment of a film review's sentence (accuracy)",
        texts=_ONE,
        label_names=("negative", "positive"),
    ),
    "mrpc": _Glue(
        "MRPC",
        "do two news sentences mean the same? (accuracy, F1)",
        texts={"sentence1": "#1 String", "sentence2": "#2 String"},
        label="Quality",
        label_names=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
    ),
    "stsb": _Glue(
        "STS-B",
        "how similar are two sentences, from 0 to 5? (Pearson, Spearman)",
        texts=_PAIR,
        label="score",
        label_names=(),
        metrics=("pearson", "spearman"),
    ),
    "qqp": _Glue(
        "QQP",
        "do two questions ask the same? (accuracy, F1)",
        texts={"question1": "question1", "question2": "question2"},
        label="is_duplicate",
        label_names=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        loose=True,
    ),
    "mnli": _Glue(
        "MNLI",
        "does a premise entail a hypothesis? three classes, many genres (accuracy)",
        texts={"premise": "sentence1", "hypothesis": "sentence2"},
        label="gold_label",
        label_names=_NLI,
        written=_NLI,
        files=_MNLI_FILES,
    ),
    "qnli": _Glue(
        "QNLI",
        "does a sentence answer a question? (accuracy)",
        texts={"question": "question", "sentence": "sentence"},
        label_names=_ENTAILMENT,
        written=_ENTAILMENT,
    ),
    "rte": _Glue(
        "RTE",
        "does a text entail a sentence? small (accuracy)",
        texts=_PAIR,
        label_names=_ENTAILMENT,
        written=_ENTAILMENT,
    ),
    "wnli": _Glue(
        "WNLI",
        "what does a pronoun refer to? tiny, its dev set is adversarial (accuracy)",
        texts=_PAIR,
        label_names=("not_entailment", "entailment"),
    ),
}


@dataclass(frozen=True)
class GlueTask(Task):
    """Hold a task whose test data GLUE's server alone can score."""

    incomplete: frozenset[str] = field(default=frozenset(), kw_only=True)  # splits that lack rows of their files

    def score(self, logits: Any, encoded: Any) -> dict[str, float]:
        """Score as any task, and the diagnostic set by MCC alone."""
        if str(getattr(encoded, "split", "")) == _DIAGNOSTIC:  # its classes are not balanced
            return {"mcc": METRICS["mcc"](self.predictions(logits), encoded["labels"][:])}
        return super().score(logits, encoded)

    def submission_splits(self, split: str) -> tuple[str, ...]:
        """Add to MNLI's test data the mismatched ones and the diagnostic set, where they are there."""
        names = [split]
        if split == "test" and (tests := [name for name in self.splits if name.startswith("test")]):
            names = tests + [name for name in self.splits if name == _DIAGNOSTIC]
        for name in names:
            self.split(name)
            if name in self.incomplete:
                raise DataError(
                    f"Rows of {self.name} {name} are damaged (see the warning above), but each needs a prediction. "
                    "Download the file again."
                )
        if not split.startswith("test") and split != _DIAGNOSTIC:
            logger.warning("GLUE's server takes predictions for test data, not for '%s': add --split test.", split)
        return tuple(names)

    def submission(self, split: str, logits: Any, encoded: Any) -> dict[str, str]:
        """Write the predictions as GLUE's server takes them; the index is the row's position in the test file."""
        spec = GLUE[self.name.removeprefix("glue/")]
        bad = int(np.count_nonzero(~np.isfinite(np.asarray(logits)).all(axis=-1)))
        if bad:
            raise DataError(f"{bad:,} predictions for {self.name} {split} are not finite numbers: the model diverged.")
        predictions = self.predictions(logits)
        if spec.label_names:
            cells = [spec.written[index] for index in predictions]
        else:
            cells = [f"{value:.3f}" for value in np.clip(predictions, 0.0, 5.0) + 0.0]  # no "-0.000"
        name = spec.folder
        if split == _DIAGNOSTIC:
            name = "AX"
        elif spec.folder == "MNLI":
            name = "MNLI-mm" if split.endswith("_mismatched") else "MNLI-m"
        rows = [f"{row}\t{cell}\n" for row, cell in zip(encoded["id"], cells, strict=True)]
        return {f"{name}.tsv": "".join([f"{HEADER}\n", *rows])}


def glue(name: str, *, data_dir: str | None = None) -> Task:
    """Load one GLUE task.

    Args:
        name: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.
        data_dir: the GLUE folder (with CoLA/, SST-2/, ... inside) or the task's own folder; None: the hub.
    """
    if name not in GLUE:
        raise RecipeError(unknown("GLUE task", name, GLUE, f"GLUE has {', '.join(GLUE)}."))
    spec = GLUE[name]
    incomplete: set[str] = set()
    if data_dir is None:
        splits = _from_hub(name, spec)
    else:
        splits, incomplete = _from_folder(name, spec, expand_home(data_dir))
    return GlueTask(
        name=f"glue/{name}",
        problem="classification" if spec.label_names else "regression",
        text_columns=tuple(spec.texts),
        label_names=spec.label_names,
        metrics=spec.metrics,
        splits=splits,
        dev_splits=("validation", _MISMATCHED) if _MISMATCHED in splits else ("validation",),
        incomplete=frozenset(incomplete),
    )


def _from_folder(name: str, spec: _Glue, data_dir: Path) -> tuple[dict[str, Dataset], set[str]]:
    """Read the splits of a folder, and name those that lack damaged rows."""
    folder = data_dir / spec.folder
    if not folder.is_dir():
        folder = data_dir
        # CoLA and SST-2 share their columns: only the folder's name tells them apart.
        others = {other.folder for other in GLUE.values()} - {spec.folder}
        if data_dir.resolve().name in others or not (data_dir / _FILES["train"]).is_file():
            raise DataError(
                f"No files of glue/{name} were found: there is neither a folder {data_dir / spec.folder} nor "
                f"{spec.folder}'s train.tsv in {data_dir}. Set task.data_dir to the GLUE folder that "
                f"contains {spec.folder}/, or to {spec.folder}/ itself."
            )
    splits: dict[str, Dataset] = {}
    incomplete = set()

    def add(split: str, path: Path, spec: _Glue) -> None:
        columns, damaged = _read(path, spec, unlabelled=split.startswith("test") or split == _DIAGNOSTIC)
        splits[split] = make_split(split, columns)
        if damaged:
            incomplete.add(split)

    for split, file in spec.files.items():
        if split in _REQUIRED:
            check_exists(folder / file)
        elif not (folder / file).is_file():
            continue
        add(split, folder / file, spec)
    if name == "mnli" and (path := _diagnostic_file(folder)):
        add(_DIAGNOSTIC, path, _diagnostic_spec(path, spec))
    return splits, incomplete


def _diagnostic_file(folder: Path) -> Path | None:
    beside = Path(os.path.abspath(folder)).parent  # of a link to a folder, beside the link
    places = [*(beside / file for file in _DIAGNOSTIC_FILES), folder / "diagnostic.tsv"]
    return next((place for place in places if place.is_file()), None)


def _diagnostic_spec(path: Path, spec: _Glue) -> _Glue:
    """Choose the headers: GLUE's download of the diagnostic set has MNLI's, the file with labels its own."""
    if "Premise" not in _header(path, spec)[1]:
        return spec
    return replace(spec, texts={"premise": "Premise", "hypothesis": "Hypothesis"}, label="Label")


def _read(path: Path, spec: _Glue, *, unlabelled: bool) -> tuple[dict[str, list[Any]], int]:
    """Read the columns of one split, without ``label`` where it may be missing, and count the rows that are lost."""
    rows, header = _header(path, spec)
    texts = [_column(path, header, name, needed=True) for name in spec.texts.values()]
    label = _column(path, header, spec.label, needed=not unlabelled)
    picked = [position for position in (*texts, label) if position is not None]
    columns: list[list[Any]] = [[] for _ in picked]
    targets = [(column.append, position) for column, position in zip(columns, picked, strict=True)]
    ids: list[int] = []
    numbers: list[int] = []
    damaged: list[int] = []
    width, complete = len(header), True
    for row, (number, cells, complete) in enumerate(rows):
        if len(cells) != width:
            if spec.loose and complete:
                damaged.append(number)
                continue
            remedy = "Remove the extra or add the missing tab, or download the file again."
            raise width_error(path, number, len(cells), width, complete, remedy)
        ids.append(row)
        numbers.append(number)
        for append, position in targets:
            append(cells[position])
    if not ids:
        raise DataError(f"{path} has no rows. Copy or download it again.")
    if damaged:
        logger.warning(
            "%s: %s damaged rows with the wrong number of columns were skipped, the first in line %d.",
            path,
            f"{len(damaged):,}",
            damaged[0],
        )
    if spec.loose:
        columns[: len(texts)] = unquoted(columns[: len(texts)])
    result: dict[str, list[Any]] = {"id": ids, **dict(zip(spec.texts, columns, strict=False))}
    if label is not None:
        result["label"] = _labels(path, spec, columns[-1], numbers, complete)
    return result, len(damaged)


def _header(path: Path, spec: _Glue) -> tuple[Iterator[tuple[int, list[str], bool]], list[str]]:
    rows = tsv_rows(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty. Copy or download it again.")
    header = [name.strip() for name in first[1]]
    if spec.no_header and "sentence" not in header:
        return chain([first], rows), list(spec.no_header)
    return rows, header


def _column(path: Path, header: list[str], name: str, *, needed: bool) -> int | None:
    if name in header:
        return header.index(name)
    if not needed:
        return None
    seen = ", ".join(f"'{name}'" for name in header)
    raise DataError(
        f"{path}, line 1: there is no column '{name}'. Its columns are {seen}. "
        "Check that this file belongs to the task and that its header was not lost."
    )


def _labels(path: Path, spec: _Glue, cells: list[str], numbers: list[int], complete: bool) -> list[Any]:
    index = {written: position for position, written in enumerate(spec.written)}
    labels: list[Any] = []
    for row, cell in enumerate(cells):
        value = index.get(cell) if spec.label_names else _similarity(cell)
        if value is None:
            if not complete and row == len(cells) - 1:
                raise cut_off(path, numbers[row], f"its label is {cell!r}")
            known = " or ".join(repr(w) for w in spec.written) if spec.label_names else "a number from 0 to 5"
            raise DataError(
                f"{path}, line {numbers[row]}: the label is {cell!r}, but must be {known}. "
                "Correct that line, or check that this file belongs to the task."
            )
        labels.append(value)
    return labels


def _similarity(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0.0 <= value <= 5.0 else None


def _from_hub(name: str, spec: _Glue) -> dict[str, Dataset]:
    files = ", ".join(f"{spec.folder}/{file}" for split, file in spec.files.items() if split in _REQUIRED)
    loaded = hub.load_hub_data(f"glue/{name}", f"{files} (GLUE's own download)", _HUB, name)
    renamed = {"validation_matched": "validation", "test_matched": "test"}
    splits = {renamed.get(split, split): loaded[split] for split in loaded}
    if name == "mnli":
        try:
            splits[_DIAGNOSTIC] = hub.load_hub_data(
                "The diagnostic set", _DIAGNOSTIC_FILES[0], _HUB, "ax", split="test"
            )
        except DataError as error:  # nothing but its own scores needs it
            logger.debug("%s", error)
    return {split: _hub_split(split, data, spec) for split, data in splits.items()}


def _hub_split(split: str, data: Dataset, spec: _Glue) -> Dataset:
    columns = {"id": list(range(len(data))), **{text: data[text][:] for text in spec.texts}}
    names = getattr(data.features["label"], "names", ())
    if tuple(names or ()) != spec.label_names:
        raise DataError(f"The hub's {_HUB} has the labels {names}, but {spec.label_names} were expected.")
    labels = data["label"][:]
    if any(label != -1 for label in labels):  # the hub marks unlabelled test rows with -1
        columns["label"] = labels
    return make_split(split, columns)

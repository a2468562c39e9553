"""Read what runs predicted, example by example, from the predictions that each keeps."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from limbeck.errors import DataError
from limbeck.metrics import METRICS, entities, normalized_answer
from limbeck.runs.data import data_differences, read_data
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import Run, label_names

_WORD_SCORES = ("entity_f1", "entity_precision", "entity_recall", "token_accuracy")
Kind = Literal["classes", "labels", "numbers", "tags", "questions"]


class Sample(NamedTuple):
    """Hold what the paired bootstrap takes for one run."""

    metric: str
    predictions: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class Answers:
    """Hold one file of predictions, in the order of the validation data."""

    file: Path
    kind: Kind
    ids: list[Any]
    labels: list[Any]
    predictions: list[Any]
    ratings: dict[str, list[float]]  # of questions: exact_match and f1
    names: tuple[str, ...] = ()  # of the tags, by number; without any, the run beside the file tells them

    def right(self) -> np.ndarray:
        """Tell which examples are right as a whole: all labels of a row, all tags of a sentence, the exact answer."""
        if self.kind == "numbers":
            raise DataError(
                f"{self.file}: predicted numbers are not right or wrong, which is what McNemar's test is about. "
                "Use the bootstrap: --test bootstrap."
            )
        if self.kind == "questions":
            return np.array(self.ratings["exact_match"]) == 1
        return np.array([ours == theirs for ours, theirs in zip(self.predictions, self.labels, strict=True)])

    def sample(self, metric: str) -> Sample | None:
        """Prepare the bootstrap of a metric; None where it is no function of sums over examples."""
        if self.kind == "questions":
            return Sample("mean", np.array(self.ratings[metric]), None) if metric in self.ratings else None
        if self.kind == "tags":
            counts = self._word_counts(metric) if metric in _WORD_SCORES else None
            return None if counts is None else Sample("entity_f1", counts, None)
        labels = np.array(self.labels, dtype=np.int64 if self.kind == "labels" else None)
        return Sample(metric, np.array(self.predictions), labels) if metric in METRICS else None

    def _word_counts(self, metric: str) -> np.ndarray | None:
        """Count (N, 3) numbers r, a, b of each sentence, so that the metric is 2r / (a + b) of their sums."""
        pairs = list(zip(self.predictions, self.labels, strict=True))
        if metric == "token_accuracy":
            return np.array([(sum(map(operator.eq, *pair)), len(pair[1]), len(pair[1])) for pair in pairs])
        names = self.names or label_names(RunDirectory(self.file.parent))
        if not names:
            return None
        found = [[entities([names[tag] for tag in tags]) for tags in pair] for pair in pairs]
        sizes = [(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in found]
        columns = {"entity_f1": (0, 1, 2), "entity_precision": (0, 1, 1), "entity_recall": (0, 2, 2)}[metric]
        return np.array(sizes)[:, columns]


def answers_of(run: Run, metric: str | None = None) -> tuple[Answers, str]:
    """Read the predictions that a metric scores, and its name there: MNLI's mismatched data have their own file."""
    for split, file in run.directory.other_predictions().items():
        suffix = "_" + split.removeprefix("validation_")
        if metric and metric.endswith(suffix):
            return read_answers(file), metric.removesuffix(suffix)
    return read_answers(run.directory.predictions()), metric or ""


def has_answers(run: Run) -> bool:
    """Tell whether a run keeps predictions."""
    return run.directory.predictions().is_file()


def read_answers(file: Path) -> Answers:
    """Read a file of predictions."""
    import pyarrow as pa

    if not file.is_file():
        raise DataError(
            f"{file} is not there: runs on plain text keep no predictions. Compare scores over seeds: --test welch."
        )
    try:
        table = _read(file, ("id", "label", "prediction", "exact_match", "f1"))
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        labels, predictions = table.schema.field("label").type, table.schema.field("prediction").type
        kind: Kind = "classes"
        if "exact_match" in columns:
            kind = "questions"
        elif pa.types.is_list(labels):
            kind = "labels" if pa.types.is_floating(labels.value_type) else "tags"
        elif pa.types.is_floating(predictions):
            kind = "numbers"
        ratings = {name: columns[name] for name in ("exact_match", "f1") if kind == "questions"}
        return Answers(file, kind, columns["id"], columns["label"], columns["prediction"], ratings)
    except KeyError as error:
        raise _no_predictions(file, error) from error


def prediction_columns(file: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read those of the columns that the file has."""
    table = _read(file, names)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _read(file: Path, names: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            there = set(parquet.schema_arrow.names)
            return parquet.read(columns=[name for name in names if name in there])
    except (pa.ArrowException, OSError) as error:
        raise _no_predictions(file, error) from error


def _no_predictions(file: Path, error: Exception) -> DataError:
    seen = " ".join(str(error).split())
    return DataError(f"{file} does not hold predictions: {seen}. Copy it again or repeat the run.")


def check_same_data(runs: Sequence[Run]) -> None:
    """Raise an error where runs were scored on different examples, which no test can compare."""
    if not runs:
        return
    first = runs[0]
    reference = read_answers(first.directory.predictions()) if has_answers(first) else None
    for run in runs[1:]:
        seen = _difference(first, reference, run)
        if seen:
            raise DataError(
                f"{first.path} and {run.path} were scored on different validation data ({seen}), "
                "so they cannot be compared. Score both on the same data."
            )


def _difference(first: Run, reference: Answers | None, run: Run) -> str:
    known = [read_data(one.directory) for one in (first, run)]
    if known[0] is not None and known[1] is not None:
        different = data_differences(*(_validation(data) for data in known if data is not None))
        if different:
            return "; ".join(different)
    if first.examples is not None and run.examples is not None and first.examples != run.examples:
        return f"{first.examples:,} and {run.examples:,} examples"
    if reference is None or not has_answers(run):
        return ""
    answers = read_answers(run.directory.predictions())
    if answers.ids != reference.ids:
        return "other examples, or in another order"
    return "" if answers.labels == reference.labels else "the same examples with other labels"


def _validation(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out what runs that are compared may have of their own: their training data and their teachers."""
    splits = {name: split for name, split in data["splits"].items() if name != "train"}
    return {"labels": data["labels"], "splits": splits}


def agreement(ours: Answers, theirs: Answers) -> float:
    """Compute how often two runs predict the same, by words for tags; for numbers, how the predictions correlate."""
    a, b = ours.predictions, theirs.predictions
    if ours.kind == "numbers":
        return METRICS["pearson"](a, b)
    if ours.kind == "questions":
        a, b = ([normalized_answer(text) for text in texts] for texts in (a, b))
    if ours.kind == "tags":
        a, b = ([tag for tags in rows for tag in tags] for rows in (a, b))
    if ours.kind == "labels":  # label by label, as the agreement with a teacher is counted
        return float((np.array(a) == np.array(b)).mean())
    return float(np.mean([x == y for x, y in zip(a, b, strict=True)]))

"""Predict for a file of texts, whatever its size: some rows at a time, in its order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from limbeck._internal.progress import hidden_progress, progress
from limbeck.errors import DataError, ModelError, RecipeError, RunError
from limbeck.inference.logits import example_number, logits_in_order
from limbeck.inference.served import load_served
from limbeck.models.heads import names_of_labels, problem_of
from limbeck.models.loading import checked_length, longest_input
from limbeck.recipes.recipe import TaskBlock, load_task_block
from limbeck.runs.files import MALFORMED, read_mapping
from limbeck.runs.outputs import check_not_read
from limbeck.runs.reader import own_task
from limbeck.runtime.folder import LONGEST, PARITY_FILE
from limbeck.runtime.model import CHUNK_TEXTS
from limbeck.tasks.encode import Collator
from limbeck.tasks.files import file_format
from limbeck.tasks.glue import GLUE
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.table import text_chunks
from limbeck.tasks.task import Task
from limbeck.tasks.tokens import TokenTask
from limbeck.tasks.writing import table_writer

logger = logging.getLogger("limbeck")

_MOST_TEXTS = 2  # a tokenizer takes a third for something else


@dataclass(frozen=True)
class InputSpec:
    """Say how a model reads files, as far as its own task tells."""

    columns: tuple[str, ...] = ()  # where the user names no others
    max_length: int = LONGEST
    decoding: Mapping[str, Any] = field(default_factory=dict)  # options of SQuAD's tasks
    texts: int = 0  # of each row; 0: not known

    @classmethod
    def of(cls, block: TaskBlock) -> InputSpec:
        """Take from a recipe's task block what prediction needs."""
        length = LONGEST if block.max_length == "auto" else block.max_length
        if block.name.startswith("squad/"):
            decoding = {name: value for name, value in block.options.items() if name != "data_dir"}
            return cls(("question", "context"), length, decoding, 2)
        columns = _task_columns(block)
        return cls(columns, length, texts=1 if block.name == "tokens" else len(columns))

    def check(self, model: str | Path, columns: Sequence[str]) -> None:
        """Raise where a file's columns are not as many as the texts that the model was trained to read."""
        if len(columns) != self.texts if self.texts else len(columns) > _MOST_TEXTS:
            trained = {0: "one text or a pair", 1: "one text"}.get(self.texts, "a pair of texts")
            names = f" ({', '.join(self.columns)})" if self.columns else ""
            seen = " ".join(f"--text {name}" for name in columns)
            raise RecipeError(
                f"{model} reads {trained}{names} in each row, but {len(columns)} "
                f"column{'s were' if len(columns) > 1 else ' was'} named: {seen}. "
                f"Name {'one column' if self.texts == 1 else 'two columns'} of the file, as in training."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def predict_file(
    model: str | Path,
    file: str | Path,
    output: str | Path,
    *,
    text: Sequence[str] = (),
    max_length: int | None = None,
    batch_size: int = 32,
    overwrite: bool = True,
    raw_csv: bool = False,
) -> int:
    """Write a prediction and the probability of every label for each row of ``file``, in its order.

    The file is read twice, some rows at a time: first to find what is wrong with it, and only then to predict. Without
    ``overwrite``, an ``output`` that is there, or appears meanwhile, stays as it is. Labels in a CSV file that a
    spreadsheet would take for formulas get an apostrophe before them, unless ``raw_csv``.
    """
    file_format(output, writing=True)
    check_not_read(output, [file, model])
    if not overwrite and os.path.lexists(output):
        raise DataError(f"{output} exists. Choose another --output, or add --force to replace it.")
    spec = input_spec(model)
    columns = tuple(text) or spec.columns
    if not columns:
        raise RecipeError(
            "Name the text columns of the file: --text sentence, or --text question --text answer for pairs."
        )
    spec.check(model, columns)
    served = load_served(model)
    length = checked_length(max_length, served) if max_length else min(spec.max_length, longest_input(served))
    rows = sum(len(texts) for texts in text_chunks(file, columns, CHUNK_TEXTS))
    collate = Collator(served.tokenizer, problem=problem_of(served.config))
    with (
        table_writer(output, overwrite=overwrite, raw_csv=raw_csv) as append,
        progress("predict", rows) as steps,
        _one_warning_about_cuts(rows, length),
    ):
        done = 0
        for texts in text_chunks(file, columns, CHUNK_TEXTS):
            with hidden_progress():
                task = _task(model, served.config, texts, columns, spec)
                encoded = task.encode("predict", served.tokenizer, length)
                place = partial(_row_name, file, done, encoded)
                logits = logits_in_order(served.logits, encoded, collate, batch_size, who=str(model), place=place)
            append(task.readable(logits, encoded))
            steps.advance(len(texts))
            done += len(texts)
    return rows


def _row_name(file: str | Path, before: int, encoded: Any, row: int) -> str:
    """Name a row of the file in an error; ``before`` is how many rows came before those of ``encoded``."""
    return f"row {before + example_number(encoded, row) + 1:,} of {file}"


def input_spec(model: str | Path) -> InputSpec:
    """Return how a run or an exported folder reads texts; of others nothing is known."""
    own = own_task(model)
    if own is not None:
        return InputSpec.of(load_task_block(own))
    exported = Path(model) / PARITY_FILE
    if not exported.is_file():
        return InputSpec()
    try:
        values = read_mapping(exported)["reads"]
        columns = tuple(values["columns"])
        # what was exported by an earlier version does not tell how many texts it reads, unless it names their columns
        return InputSpec(columns, values["max_length"], values["decoding"], values.get("texts", len(columns)))
    except (RunError, *MALFORMED) as error:
        raise ModelError(
            f"{exported} does not say how the model reads texts ({error}). Copy it again, or export the model again "
            "with --force."
        ) from error


def _task_columns(block: TaskBlock) -> tuple[str, ...]:
    """Return the text columns of a task whose files have names for them."""
    if block.name.startswith("glue/"):
        return tuple(GLUE[block.name.removeprefix("glue/")].texts)
    if block.name == "table":
        names = block.options["text"]
        return (names,) if isinstance(names, str) else tuple(names)
    return ("review",) if block.name == "reviews" else ()


def _task(model: str | Path, config: Any, texts: Any, columns: Sequence[str], spec: InputSpec) -> Task:
    """Make the task from the model's own config: prediction needs no data set."""
    problem = problem_of(config)
    names = names_of_labels(model, config)
    if len(set(names)) != len(names):
        raise ModelError(f"The model's config gives two labels the same name: {', '.join(names)}. Rename one.")
    if problem == "tokens":
        return TokenTask.of_texts(texts, columns, names)
    if problem == "span":
        return SpanTask.of_texts(texts, columns, unanswerable="threshold" in spec.decoding, **spec.decoding)
    return Task("predict", problem, tuple(columns), () if problem == "regression" else names, (), {"predict": texts})


@contextmanager
def _one_warning_about_cuts(rows: int, max_length: int) -> Iterator[None]:
    """Give one warning about texts that were cut, not one for every few rows."""
    counted = _CutCounter()
    logger.addFilter(counted)
    try:
        yield
    finally:
        logger.removeFilter(counted)
    if counted.cut:
        logger.warning(
            "%s of %s texts (%.1f%%) are longer than %d tokens and were cut; raise --max-length to keep them.",
            f"{counted.cut:,}",
            f"{rows:,}",
            100 * counted.cut / rows,
            max_length,
        )


class _CutCounter(logging.Filter):
    """Take out the warnings that say how many texts were cut, and count these."""

    cut = 0

    def filter(self, record: logging.LogRecord) -> bool:
        found: int | None = getattr(record, "cut", None)
        self.cut += found or 0
        return found is None

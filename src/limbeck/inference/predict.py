"""Predict for a file of texts, whatever its size: some rows at a time, in its order."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from limbeck._internal.progress import hidden_progress, progress
from limbeck.errors import ModelError, RecipeError
from limbeck.inference.logits import logits_in_order
from limbeck.inference.served import PARITY_FILE, load_served
from limbeck.models.heads import problem_of
from limbeck.models.loading import checked_length, longest_input
from limbeck.recipes.recipe import TaskBlock, load_task_block
from limbeck.runs.reader import own_task
from limbeck.tasks.encode import Collator
from limbeck.tasks.files import file_format
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.table import text_chunks
from limbeck.tasks.task import Task
from limbeck.tasks.tokens import TokenTask
from limbeck.tasks.writing import table_writer

logger = logging.getLogger("limbeck")

CHUNK_ROWS = 1_000  # in memory at once: enough to find texts of equal length among them
_LONGEST = 512  # tokens that are read where nothing else is known


@dataclass(frozen=True)
class InputSpec:
    """Say how a model reads files, as far as its own task tells."""

    columns: tuple[str, ...] = ()
    max_length: int = _LONGEST
    decoding: Mapping[str, Any] = field(default_factory=dict)  # options of SQuAD's tasks

    @classmethod
    def of(cls, block: TaskBlock) -> InputSpec:
        """Take from a recipe's task block what prediction needs."""
        length = _LONGEST if block.max_length == "auto" else block.max_length
        if block.name.startswith("squad/"):
            decoding = {name: value for name, value in block.options.items() if name != "data_dir"}
            return cls(("question", "context"), length, decoding)
        columns = block.options["text"] if block.name == "table" else ()
        return cls((columns,) if isinstance(columns, str) else tuple(columns), length)

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
) -> int:
    """Write a prediction and the probability of every label for each row of ``file``, in its order.

    The file is read twice, some rows at a time: first to find what is wrong with it, and only then to predict.
    """
    file_format(output, writing=True)
    spec = _input_spec(model)
    columns = tuple(text) or spec.columns
    if not columns:
        raise RecipeError(
            "Name the text columns of the file: --text sentence, or --text question --text answer for pairs."
        )
    served = load_served(model)
    length = checked_length(max_length, served) if max_length else min(spec.max_length, longest_input(served))
    rows = sum(len(texts) for texts in text_chunks(file, columns, CHUNK_ROWS))
    collate = Collator(served.tokenizer, problem=problem_of(served.config))
    with table_writer(output) as append, progress("predict", rows) as steps, _one_warning_about_cuts(rows, length):
        for texts in text_chunks(file, columns, CHUNK_ROWS):
            with hidden_progress():
                task = _task(served.config, texts, columns, spec)
                encoded = task.encode("predict", served.tokenizer, length)
                logits = logits_in_order(served.logits, encoded, collate, batch_size)
            append(task.readable(logits, encoded))
            steps.advance(len(texts))
    return rows


def _input_spec(model: str | Path) -> InputSpec:
    own = own_task(model)
    if own is not None:
        return InputSpec.of(load_task_block(own))
    exported = Path(model) / PARITY_FILE
    if not exported.is_file():
        return InputSpec()
    values = json.loads(exported.read_text(encoding="utf-8"))["reads"]
    return InputSpec(tuple(values["columns"]), values["max_length"], values["decoding"])


def _task(config: Any, texts: Any, columns: Sequence[str], spec: InputSpec) -> Task:
    """Make the task from the model's own config: prediction needs no data set."""
    problem = problem_of(config)
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
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

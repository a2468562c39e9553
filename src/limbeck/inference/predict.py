"""Predict for a file of texts, whatever its size: some rows at a time, in its order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from limbeck.tasks.encode import Collator, counting_cuts
from limbeck.tasks.files import file_format
from limbeck.tasks.glue import GLUE
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.table import text_chunks
from limbeck.tasks.task import Task
from limbeck.tasks.tokens import TokenTask
from limbeck.tasks.unlabelled import KEY
from limbeck.tasks.writing import table_writer

_TEACHABLE = ("classification", "multi_label", "regression")  # whose answers are of whole texts
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
    probabilities: bool = False,
    id_column: str | None = None,
) -> int:
    """Write a prediction and the probability of every label for each row of ``file``, in its order.

    The file is read twice, some rows at a time: first to find what is wrong with it, and only then to predict. Without
    ``overwrite``, an ``output`` that is there, or appears meanwhile, stays as it is. Labels in a CSV file that a
    spreadsheet would take for formulas get an apostrophe before them, unless ``raw_csv``.

    With ``probabilities``, each row has its texts (and what names it in ``id_column``) beside the probability of every
    label, or the predicted number: the form in which a file can teach.
    """
    if id_column is not None and not probabilities:
        raise RecipeError(
            "--id belongs to --probabilities, which writes what finds a row again. Add it, or leave --id out."
        )
    if file_format(output, writing=True) == "csv" and probabilities and not raw_csv:
        raise RecipeError(
            "--probabilities writes texts, by which rows are found again, and CSV puts an apostrophe before some: "
            "write .parquet or .jsonl, or add --raw-csv."
        )
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
    if probabilities and problem_of(served.config) not in _TEACHABLE:
        raise RecipeError(f"--probabilities: {model} decides single tokens, and a file teaches about whole texts.")
    length = checked_length(max_length, served) if max_length else min(spec.max_length, longest_input(served))
    read = partial(text_chunks, file, columns, CHUNK_TEXTS, id_column)
    rows = sum(len(texts) for texts in read())
    collate = Collator(served.tokenizer, problem=problem_of(served.config))
    with (
        table_writer(output, overwrite=overwrite, raw_csv=raw_csv) as append,
        progress("predict", rows) as steps,
        counting_cuts() as cuts,
    ):
        done = 0
        for texts in read():
            with hidden_progress():
                task = _task(model, served.config, texts, columns, spec)
                encoded = task.encode("predict", served.tokenizer, length)
                place = partial(_row_name, file, done, encoded)
                logits = logits_in_order(served.logits, encoded, collate, batch_size, who=str(model), place=place)
            answers = task.readable(logits, encoded)
            append(_to_teach(answers, texts, columns, id_column) if probabilities else answers)
            steps.advance(len(texts))
            done += len(texts)
    cuts.warn("", rows, length, "--max-length")
    return rows


def _to_teach(answers: dict[str, Any], texts: Any, columns: Sequence[str], id_column: str | None) -> dict[str, Any]:
    """Return what a file needs to teach: what finds a row again, and the numbers of its answer."""
    found = {} if id_column is None else {id_column: texts[KEY][:]}
    found |= {name: texts[name][:] for name in columns}
    numbers = {name: values for name, values in answers.items() if name.startswith("p(")}
    return found | (numbers or {"prediction": answers["prediction"]})


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

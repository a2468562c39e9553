"""Plain text for task-agnostic distillation, read as a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from limbeck.errors import DataError
from limbeck.options import Share
from limbeck.tasks.stream import Texts
from limbeck.tasks.task import Task

_HELD_OUT = 100  # without a validation file, every 100th text is kept for it, starting with the first
_BLOCK = 128  # tokens, unless task.max_length says otherwise


def text(*, train: str, validation: str | None = None, text: str | None = None, mask: Share = 0.15) -> Task:
    """Plain text without labels, for task-agnostic distillation: masked or causal language modelling.

    Args:
        train: a file with one text a line, or a CSV, TSV, JSONL or Parquet file with a text column.
        validation: a file of the same kind; None keeps every 100th text of the training file for it.
        text: the name of the text column; None for plain text.
        mask: the share of tokens that an encoder must predict; decoders predict each next token.
    """
    if validation is not None:
        splits = {"train": Texts(train, text), "validation": Texts(validation, text)}
    else:
        splits = {
            "train": Texts(train, text, every=_HELD_OUT, held_out=False),
            "validation": Texts(train, text, every=_HELD_OUT, held_out=True),
        }
    for name, texts in splits.items():
        if next(iter(texts), None) is None:
            hint = " Give task.validation, or add texts." if validation is None else ""
            raise DataError(f"{texts.path} has no text for the split '{name}'.{hint}")
    return TextTask("text", "language_model", ("text",), (), ("loss",), splits, mask)


@dataclass(frozen=True)
class TextTask(Task):
    """A Task of streams: its splits are read again and again, and never held."""

    mask: float

    def suggest_length(self, tokenizer: Any, limit: int) -> tuple[int, str]:
        return min(_BLOCK, limit), "texts are packed into blocks of this length"

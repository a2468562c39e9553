"""Read requests and write answers in the form of text-embeddings-inference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..answers import Answer
from ..errors import InputError
from ..folder import About
from ..reading import Text

_EXPECTED = (
    '"inputs" must be a text, a pair of texts ["first", "second"], or a batch of texts and pairs '
    '[["a text"], ["first", "second"], ...]'
)


class TooLarge(InputError):
    """Report a request with more texts than are taken at once."""


@dataclass(frozen=True)
class Question:
    """Hold what a request asks."""

    texts: list[Text]
    batch: bool  # whether the answer is a list of answers
    truncate: bool
    raw_scores: bool


def read_question(body: bytes, about: About, max_texts: int) -> Question:
    """Read the body of a request; raise where it is none, and say what was expected."""
    values = read_object(body)
    if "inputs" not in values:
        names = ", ".join(f'"{str(name)[:40]}"' for name in list(values)[:5]) or "nothing"
        raise InputError(f'The request has no "inputs", but {names}. {_EXPECTED}.')
    inputs = values["inputs"]
    batch = isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], list)
    if batch and len(inputs) > max_texts:
        raise TooLarge(
            f"The request has {len(inputs):,} texts, more than {max_texts:,}. Send them in several requests."
        )
    texts = [_text(one, about, in_batch=True) for one in inputs] if batch else [_text(inputs, about, in_batch=False)]
    flags = {name: values.get(name, default) for name, default in (("truncate", True), ("raw_scores", False))}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f'"{name}" must be true or false.')
    return Question(texts, batch, **flags)


def read_object(body: bytes) -> dict[str, Any]:
    """Read names and values from JSON."""
    try:
        values = json.loads(body)
    except RecursionError:
        raise InputError("The request's JSON is nested too deep.") from None
    except ValueError as error:  # also of bytes that are no UTF-8; neither message holds the text
        where = f" at character {error.pos:,}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f'The request is no JSON{where}. Send {{"inputs": "a text"}}.') from None
    if not isinstance(values, dict):
        raise InputError(f'The request is a {_kind(values)}, and no object. Send {{"inputs": "a text"}}.')
    return values


def _text(value: Any, about: About, in_batch: bool) -> Text:
    if isinstance(value, str) and not in_batch:
        return value
    if not isinstance(value, list):
        raise InputError(f"{_EXPECTED}; seen: a {_kind(value)}{' in the batch' if in_batch else ''}.")
    if not 1 <= len(value) <= 2 or not all(isinstance(part, str) for part in value):
        kinds = ", ".join(_kind(part) for part in value[:3])
        raise InputError(f"{_EXPECTED}; seen: a list of {len(value)} ({kinds or 'nothing'}).")
    if len(value) == 2 and about.texts == 1:
        raise InputError(
            'This model reads one text, and ["first", "second"] is a pair. Write a batch as [["first"], ["second"]].'
        )
    return value[0] if len(value) == 1 else (value[0], value[1])


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")


class Writer:
    """Write answers of one model as JSON, labels with the highest score first."""

    def __init__(self, about: About) -> None:
        self._labels = [f',"label":{json.dumps(name)}}}' for name in about.labels]
        others = {"tokens": _tags, "span": _part, "regression": _number}
        self._one: Callable[[Text, Answer], str] = others.get(about.problem, self._scores)

    def write(self, texts: Sequence[Text], answers: Sequence[Answer]) -> list[str]:
        """Return the answer to each text as a JSON list of labels with scores."""
        return [self._one(text, answer) for text, answer in zip(texts, answers, strict=True)]

    def _scores(self, text: Text, answer: Answer) -> str:
        scores = answer.scores.tolist()
        order = np.argsort(-answer.scores, kind="stable").tolist()
        return "[" + ",".join([f'{{"score":{scores[place]:.9g}{self._labels[place]}' for place in order]) + "]"


def _number(text: Text, answer: Answer) -> str:
    return f'[{{"score":{answer.label:.9g},"label":"score"}}]'


def _tags(text: Text, answer: Answer) -> str:
    tags = [
        {"score": None if math.isnan(score) else float(f"{score:.9g}"), "label": tag, "word": word}
        for word, tag, score in zip(str(text).split(), answer.label, answer.scores.tolist(), strict=True)
    ]
    return json.dumps(tags, ensure_ascii=False)


def _part(text: Text, answer: Answer) -> str:
    score = answer.scores if math.isfinite(answer.scores) else None  # a text without any token has no answer
    return json.dumps([{"score": score, "label": answer.label}], ensure_ascii=False)

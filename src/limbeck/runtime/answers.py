"""Turn a model's logits into answers: labels with probabilities, numbers, tags, or parts of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .folder import About
from .reading import OUTSIDE, Row, Text

NO_TAG = "O"  # of words outside of any entity
MAX_ANSWER, N_BEST = 30, 20  # tokens of an answer; starts and ends that are tried together


class Answer(NamedTuple):
    """Hold the answer to one text.

    ``label`` is a label's name, a number, the names of all labels that hold, a tag for each word, or a part of the
    text. ``scores`` are the probabilities of all labels, None of a number, the probability of each word's tag (nan of
    words that were cut off), or an answer's score.
    """

    label: Any
    scores: Any


class Span(NamedTuple):
    """Hold the best answer to a question; the scores are sums of a start's and an end's logit."""

    text: str
    score: float
    null_score: float  # of no answer, in the window where it is least likely


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities of labels of which one holds."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return probabilities of labels each of which may hold."""
    small = np.exp(-np.abs(logits))
    shares: np.ndarray = np.where(logits >= 0, 1, small) / (1 + small)
    return shares


def answers_of(about: About, texts: Sequence[Text], rows: Sequence[Row], logits: Sequence[np.ndarray]) -> list[Answer]:
    """Return the answer to each text; ``logits`` are those of its rows."""
    if about.problem == "span":
        return _spans(about, texts, rows, logits)
    one = {"regression": _number, "multi_label": _several, "tokens": _tags}.get(about.problem, _label)
    return [one(about, text, row, values) for text, row, values in zip(texts, rows, logits, strict=True)]


def _label(about: About, text: Text, row: Row, logits: np.ndarray) -> Answer:
    return Answer(about.labels[int(logits.argmax())], softmax(logits))


def _number(about: About, text: Text, row: Row, logits: np.ndarray) -> Answer:
    return Answer(float(logits.ravel()[0]), None)


def _several(about: About, text: Text, row: Row, logits: np.ndarray) -> Answer:
    held = tuple(name for name, logit in zip(about.labels, logits, strict=True) if logit > 0)
    return Answer(held, sigmoid(logits))


def _tags(about: About, text: Text, row: Row, logits: np.ndarray) -> Answer:
    size = len(str(text).split())
    outside = about.labels.index(NO_TAG) if NO_TAG in about.labels else 0
    tags, sure = np.full(size, outside), np.full(size, np.nan, dtype=np.float32)
    seen = row.words != OUTSIDE
    tags[row.words[seen]] = logits.argmax(-1)[seen]
    sure[row.words[seen]] = softmax(logits).max(-1)[seen]
    return Answer([about.labels[tag] for tag in tags], sure)


def _spans(about: About, texts: Sequence[Text], rows: Sequence[Row], logits: Sequence[np.ndarray]) -> list[Answer]:
    contexts = [text[1] for text in texts]
    windows = [(row.text, row.begins, row.ends) for row in rows]
    found = best_spans(
        contexts,
        windows,
        logits,
        about.decoding.get("max_answer", MAX_ANSWER),
        about.decoding.get("n_best", N_BEST),
    )
    kept = answered(found, about.decoding)
    return [Answer(text, span.score) for text, span in zip(kept, found, strict=True)]


def answered(spans: Sequence[Span], decoding: Mapping[str, Any]) -> list[str]:
    """Return the answers as text: empty where "no answer" beats the best one by more than the threshold, if any."""
    threshold = decoding.get("threshold")
    return ["" if threshold is not None and span.null_score - span.score > threshold else span.text for span in spans]


def best_spans(
    contexts: Sequence[str],
    windows: Sequence[tuple[int, Any, Any]],
    logits: Sequence[np.ndarray],
    max_answer: int,
    n_best: int,
) -> list[Span]:
    """Find the best answer in each text, over all of its windows: a text's number, its tokens' begins and ends."""
    found = [Span("", -np.inf, np.inf)] * len(contexts)
    for (number, begins, ends), row in zip(windows, logits, strict=True):
        before, scores = found[number], np.asarray(row, dtype=np.float64)
        null_score = min(float(scores[0].sum()), before.null_score)
        score, begin, end = _best_span(scores, np.asarray(begins), np.asarray(ends), max_answer, n_best)
        if score > before.score:
            # the blank before a word belongs to it in some tokenizers
            found[number] = Span(contexts[number][begin:end].strip(), score, null_score)
        else:
            found[number] = before._replace(null_score=null_score)
    return found


def _best_span(
    scores: np.ndarray, begins: np.ndarray, ends: np.ndarray, max_answer: int, n_best: int
) -> tuple[float, int, int]:
    """Find the best answer in one window: (score, first character, character after the last)."""
    context = np.flatnonzero(ends > begins)  # outside of the context both are -1; some tokens have no characters
    first, last = (context[np.argsort(-scores[context, side], kind="stable")[:n_best]] for side in (0, 1))
    length = last - first[:, None] + 1
    possible = (length >= 1) & (length <= max_answer)
    total = np.where(possible, scores[first, 0][:, None] + scores[last, 1], -np.inf)
    if not possible.any():
        return -np.inf, 0, 0
    start, end = np.unravel_index(total.argmax(), total.shape)
    return float(total[start, end]), int(begins[first[start]]), int(ends[last[end]])

"""Fit a linear model to words and their neighbours: the trivial rival of models that tag words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from limbeck.rivals.rival import Rival, count_rows, row_groups, score_rival, tuning_metric, with_fewer_rows
from limbeck.rivals.sparse_linear import fit_sparse
from limbeck.tasks.task import Task

NAME = "linear on words and neighbours"
_SENTENCES = 10_000  # at most


def word_rival(task: Task) -> Rival:
    """Fit a linear model that tags each word by itself, its beginning, end and shape, and the words beside it."""
    from sklearn.feature_extraction.text import CountVectorizer

    began = time.perf_counter()
    given, task = task, with_fewer_rows(task, _SENTENCES)
    train = task.split("train")[:]
    counted = CountVectorizer(analyzer=list, binary=True, dtype=np.float64)
    features = counted.fit_transform(_described(train["words"]))
    labels = np.concatenate([np.asarray(tags, dtype=np.int64) for tags in train["label"]])
    groups = np.repeat(row_groups(task, train), [len(words) for words in train["words"]])
    model = fit_sparse(features, labels, "classification", task.num_labels, tuning_metric(task), groups)

    def logits_of(sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        flat = model.logits(counted.transform(_described(sentences)))
        return np.split(flat, np.cumsum([len(words) for words in sentences])[:-1])

    def logits_for(split: str) -> tuple[Any, Any]:
        rows = task.split(split)[:]
        sizes = [len(words) for words in rows["words"]]
        encoded = {"id": rows["id"], "tags": rows["label"], "size": sizes, "word": [range(size) for size in sizes]}
        return logits_of(rows["words"]), encoded

    def predict(sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [logits.argmax(-1) for logits in logits_of(sentences)]

    metrics, answers = score_rival(task, logits_for)
    return Rival(
        name=NAME,
        about=f"linear support vectors on each word, its form and its neighbours, fitted to {count_rows(task, given)}",
        metrics=metrics,
        answers=answers,
        seconds=time.perf_counter() - began,
        parameters=model.weight.size + model.bias.size,
        details={"strength": model.strength, "features": model.weight.shape[1], "rows": len(train["words"])},
        predict=predict,
    )


def _described(sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield for each word of each sentence what can be seen of it."""
    for words in sentences:
        lower = ["", *(word.lower() for word in words), ""]
        for place, word in enumerate(words):
            before, here, after = lower[place : place + 3]
            shape = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word)
            yield [
                f"word={here}",
                f"shape={shape[:10]}",
                f"starts={here[:3]}",
                f"ends={here[-3:]}",
                f"before={before}",
                f"after={after}",
                f"before={before} word={here}",
                f"word={here} after={after}",
            ]

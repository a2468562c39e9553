"""Fit a linear model to TF-IDF of words and of characters: what can be had in seconds without any language model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from limbeck.errors import DataError
from limbeck.rivals.rival import (
    Rival,
    count_rows,
    linear_problem,
    row_groups,
    score_rival,
    tuning_metric,
    with_fewer_rows,
)
from limbeck.rivals.sparse_linear import fit_sparse
from limbeck.rivals.words import word_rival
from limbeck.tasks.task import Task

NAME = "linear on TF-IDF"
_ROWS = 50_000  # at most: more cost memory and minutes
_MOST_FEATURES = 200_000  # of words, and of characters: the most frequent ones


def tfidf_rival(task: Task) -> Rival:
    """Fit a linear model to TF-IDF of the training texts, and score it on the validation data.

    Words (1 and 2 in a row) and characters (2 to 5 in a row, inside words) stand side by side; of a pair of texts,
    those of each and of what both share. Tags have the word and its neighbours instead.
    """
    if task.problem == "tokens":
        return word_rival(task)
    began = time.perf_counter()
    problem, given = linear_problem(task), task
    task = with_fewer_rows(task, _ROWS)
    train = task.split("train")[:]
    texts = task.inputs(train)
    space = TextFeatures(texts)
    labels = np.asarray(train["label"], dtype=np.int64 if problem == "classification" else np.float64)
    groups = row_groups(task, train)
    model = fit_sparse(space.of(texts), labels, problem, task.num_labels, tuning_metric(task), groups)

    def logits_for(split: str) -> tuple[np.ndarray, Any]:
        rows = task.split(split)[:]
        return model.logits(space.of(task.inputs(rows))), {"id": rows["id"], "labels": rows["label"]}

    def predict(*columns: Sequence[str]) -> np.ndarray:
        return task.predictions(model.logits(space.of(columns)))

    metrics, answers = score_rival(task, logits_for)
    what = "ridge regression" if problem == "regression" else "linear support vectors"
    return Rival(
        name=NAME,
        about=f"{what} on TF-IDF of words and characters, fitted to {count_rows(task, given)}",
        metrics=metrics,
        answers=answers,
        seconds=time.perf_counter() - began,
        parameters=model.weight.size + model.bias.size,
        details={"strength": model.strength, "features": model.weight.shape[1], "rows": len(labels)},
        predict=predict,
    )


class TextFeatures:
    """Turn texts, or pairs of them, into rows of TF-IDF, with the words and characters of given ones."""

    def __init__(self, columns: Sequence[Sequence[str]]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        how = {"sublinear_tf": True, "max_features": _MOST_FEATURES}
        kinds = [
            TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **how),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **how),
        ]
        known = [text for column in columns for text in column]
        self._kinds = [kind for kind in kinds if _fits(kind, known)]
        if not self._kinds:
            raise DataError("The training texts hold no words or characters to tell them apart by: they are empty.")

    def of(self, columns: Sequence[Sequence[str]]) -> Any:
        """Return a sparse matrix (N, D) in which each text, and what a pair shares, has its features."""
        from scipy import sparse

        parts = []
        for kind in self._kinds:
            sides = [kind.transform(list(column)) for column in columns]
            parts += sides
            if len(sides) == 2:
                shared = sides[0].multiply(sides[1])
                parts += [shared, sparse.csr_matrix(shared.sum(axis=1))]  # the last: how similar the two are
        return sparse.hstack(parts, format="csr")


def _fits(kind: Any, texts: Sequence[str]) -> bool:
    """Learn the vocabulary of these texts, and tell whether there is any."""
    try:
        kind.fit(texts)
    except ValueError:  # scikit-learn's word for an empty vocabulary
        return False
    return True

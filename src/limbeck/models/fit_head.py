"""Fit the head of a transformers model to texts and labels, as a call of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from limbeck.errors import DataError
from limbeck.models import fitted_heads
from limbeck.models.families import family_of
from limbeck.models.fitted_heads import ROWS, FittedHead
from limbeck.models.heads import problem_of_model
from limbeck.models.loading import longest_input
from limbeck.problems import Problem
from limbeck.tasks.encode import Collator

_METRICS: dict[Problem, str] = {"regression": "mse", "multi_label": "micro_f1"}
_NEEDS_ENCODED: tuple[Problem, ...] = ("tokens", "span")


def fit_head(
    model: Any,
    tokenizer: Any,
    texts: Any,
    labels: Sequence[Any] | None = None,
    *,
    metric: str | None = None,
    max_length: int | None = None,
    rows: int = ROWS,
    batch_size: int = 32,
    seed: int = 0,
    class_weights: Sequence[float] | None = None,
) -> FittedHead:
    """Fit the last linear layer of a model's head to texts and labels, in place, before any training.

    ``texts`` are strings or pairs of them, with ``labels``: names in the model's config or class numbers; rows of 0 and
    1 (several labels at once); or numbers, where the model has one output. Or ``texts`` is a data set of token ids with
    a column ``labels``: of tags one label for each token (-100: none), of answers their first and last token.

    At most ``rows`` rows are read, chosen by their tokens and ``seed``. The strength of the regularisation is chosen by
    cross-validation; ``score`` of what is returned is the cross-validated ``metric`` (accuracy; micro F1 where there
    are several labels; squared error of numbers; answers: the share of starts and ends found).

    Example:

        model = AutoModelForSequenceClassification.from_pretrained("thenlper/gte-small", num_labels=77)
        tokenizer = AutoTokenizer.from_pretrained("thenlper/gte-small")
        print(limbeck.fit_head(model, tokenizer, texts, labels).score)
    """
    problem = problem_of_model(model, labels[0] if labels is not None and len(labels) else None)
    _check_padding(model, tokenizer)
    encoded = _encoded(model, tokenizer, texts, labels, problem, max_length)
    return fitted_heads.fit_head(
        model,
        encoded,
        Collator(tokenizer, problem=problem),
        problem,
        metric=metric or _METRICS.get(problem, "accuracy"),
        rows=rows,
        batch_size=batch_size,
        seed=seed,
        class_weights=class_weights,
    )


def _check_padding(model: Any, tokenizer: Any) -> None:
    """Raise where a decoder does not know the padding, which decides what token it reads last."""
    if family_of(model).causal and tokenizer.pad_token_id not in (None, model.config.pad_token_id):
        raise DataError(
            f"The tokenizer pads with the id {tokenizer.pad_token_id}, but pad_token_id in the model's config is "
            f"{model.config.pad_token_id}, so that it would take padding for text. "
            "Set model.config.pad_token_id = tokenizer.pad_token_id."
        )


def _encoded(
    model: Any, tokenizer: Any, texts: Any, labels: Sequence[Any] | None, problem: Problem, max_length: int | None
) -> Any:
    from datasets import Dataset

    if labels is None:
        columns = getattr(texts, "column_names", None)
        if not isinstance(columns, list) or not {"input_ids", "attention_mask", "labels"} <= set(columns):
            raise DataError(
                "Without labels, texts must be a datasets.Dataset with the columns input_ids, attention_mask and "
                f"labels; seen: {columns or type(texts).__name__}."
            )
        return texts
    if problem in _NEEDS_ENCODED:
        raise DataError(
            f"{type(model).__name__} decides single tokens: give a datasets.Dataset of token ids with a label for each "
            "as texts, and no labels."
        )
    if len(texts) != len(labels):
        raise DataError(f"There are {len(texts):,} texts and {len(labels):,} labels. Give a label for each text.")
    single = all(isinstance(text, str) for text in texts)
    columns = [list(texts)] if single else [list(part) for part in zip(*texts, strict=True)]
    length = min(max_length or longest_input(model), longest_input(model), tokenizer.model_max_length)
    ids = dict(tokenizer(*columns, padding=False, truncation=True, max_length=length))
    return Dataset.from_dict(ids | {"labels": _numbered(model, labels, problem)})


def _numbered(model: Any, labels: Sequence[Any], problem: Problem) -> list[Any]:
    """Return labels as numbers; raise where the model has no output for one."""
    if problem != "classification":
        wrong = [row for row in labels if problem == "multi_label" and len(row) != model.config.num_labels]
        if wrong:
            raise DataError(f"A row has {len(wrong[0])} labels, but the model has {model.config.num_labels} outputs.")
        return np.asarray(labels, dtype=np.float64).tolist()
    known: dict[Any, int] = dict(model.config.label2id)
    numbers = [known.get(label, label) if isinstance(label, str) else label for label in labels]
    for number in numbers:
        if isinstance(number, str) or int(number) != number or not 0 <= number < model.config.num_labels:
            raise DataError(
                f"The label {number!r} is none of the model's: {', '.join(map(str, known))}. Load it with the labels "
                "of the data: from_pretrained(..., num_labels=, id2label=, label2id=)."
            )
    return [int(number) for number in numbers]

"""Find out whether a model can teach a task as it is."""

from __future__ import annotations

import logging
from typing import Any

from limbeck.errors import ModelError
from limbeck.inference.doubts import unnamed_labels
from limbeck.inference.logits import predict_logits
from limbeck.metrics import readable_score
from limbeck.models.loading import load_config, load_fine_tuned, load_tokenizer, longest_input
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

_ROWS = 512  # validation rows that show whether a model knows its task


def reason_to_fine_tune(model: str, task: Task) -> str:
    """Say why a model must be fine-tuned before it can teach; empty if it knows the task.

    It does if it predicts the task's labels, and better than by always giving the most frequent one.
    """
    load_config(model)  # one that is not there is an error of its own
    try:
        network = load_fine_tuned(model, task)
    except ModelError as error:
        logger.info("%s", error)
        return "which has no trained head for these labels"
    score, majority = _scores(network, load_tokenizer(model), task)
    if score <= majority:
        return "whose head does not know these labels"
    if seen := unnamed_labels(model, network.config, task):
        found, frequent = (readable_score(task.metrics[0], value) for value in (score, majority))
        logger.warning(
            "%s Its %s, %s where the most frequent answer has %s, says that they are.",
            *(seen, task.metrics[0], found, frequent),
        )
    return ""


def _scores(network: Any, tokenizer: Any, task: Task) -> tuple[float, float]:
    """Return the model's main score on some of the validation rows, and that of the most frequent answer."""
    rows = task.split("validation")
    some = rows.select(range(0, len(rows), -(-len(rows) // _ROWS)))
    length, _ = task.suggest_length(tokenizer, longest_input(network))
    encoded = encode(task.text_columns, some, tokenizer, length)
    logits = predict_logits(network, encoded, Collator(tokenizer, problem=task.problem), job="try the model")
    majority = task.majority({"labels": task.split("train")["label"]}, encoded)
    return task.score(logits, encoded)[task.metrics[0]], majority[task.metrics[0]]

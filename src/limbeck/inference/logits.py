"""Compute logits and losses: the loops behind evaluation, prediction and the scores during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from limbeck._internal.progress import progress
from limbeck.distillation.distiller import Distiller
from limbeck.errors import ModelError
from limbeck.models.capture import logits_of, model_inputs
from limbeck.problems import IGNORED
from limbeck.tasks.batching import Batches
from limbeck.tasks.task import Logits

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

LogitsFunction = Callable[[Mapping[str, Tensor]], np.ndarray]  # from a padded batch to its logits
Collate = Callable[[list[Any]], dict[str, Tensor]]  # from encoded examples to a padded batch


def predict_logits(
    model: PreTrainedModel,
    encoded: Dataset,
    collate: Collate,
    batch_size: int = 32,
    job: str = "predict",
    who: str = "The model",
) -> Logits:
    """Return a model's logits in the order of ``encoded``; ``who`` is its name in errors."""
    training = model.training
    model.eval()
    try:
        return logits_in_order(lambda batch: model_logits(model, batch), encoded, collate, batch_size, job, who)
    finally:
        model.train(training)


def model_logits(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> np.ndarray:
    """Return a model's logits for a padded batch."""
    batch = {name: value.to(model.device) for name, value in batch.items()}
    with torch.inference_mode():
        logits: np.ndarray = logits_of(model(**model_inputs(model, batch))).float().cpu().numpy()
    return logits


def logits_in_order(
    answer: LogitsFunction,
    encoded: Dataset,
    collate: Collate,
    batch_size: int,
    job: str = "predict",
    who: str = "The model",
    place: Callable[[int], str] | None = None,
) -> Logits:
    """Return what ``answer`` gives for padded batches, in the order of ``encoded``; raise where it is no number.

    Inside, examples are sorted by length, so that little is padded. An error names the answering model by ``who`` and
    the example by ``place``, which is given its row; without, by its ``id``.
    """
    name_row = place or (lambda row: example_name(encoded, row))
    batches = Batches(encoded, collate, batch_size)
    rows: list[np.ndarray] = []  # of each example (labels,) or (tokens, labels)
    with progress(job, len(encoded)) as steps:
        for numbers, batch in zip(batches.indices, batches, strict=True):
            logits = answer(batch)
            if logits.ndim == 3:
                real = batch["attention_mask"].bool().cpu().numpy()
                found = [row[kept] for row, kept in zip(logits, real, strict=True)]
            else:
                found = list(logits)
            check_finite_logits(found, who, name_row, numbers.tolist())
            rows += found
            steps.advance(len(logits))
    order = torch.cat(batches.indices).argsort().tolist()
    restored = [rows[number] for number in order]
    return restored if restored[0].ndim == 2 else np.stack(restored)


def check_finite_logits(
    logits: Logits, who: str, place: Callable[[int], str], rows: Sequence[int] | None = None
) -> None:
    """Raise where a model, named ``who``, answers with nan or inf; ``place`` names the example of a row.

    ``rows`` are the rows that the logits are of, where they are not all in order.
    """
    for number, values in enumerate(logits):
        finite = np.isfinite(values)
        if not finite.all():
            where = place(number if rows is None else rows[number])
            raise ModelError(
                f"{who} answers {where} with {values[~finite][0]}, which is no score of anything: its weights are "
                "damaged or too large. Train it again with a lower train.learning_rate, or export it again."
            )


def example_name(encoded: Dataset, row: int) -> str:
    """Name an example in an error, by its position in its file."""
    return f"the example with id {example_number(encoded, row)}"


def example_number(encoded: Dataset, row: int) -> int:
    """Return the number of the example that a row is of: some rows are one of several windows over a text."""
    found = encoded[row]
    return int(found["example"] if "example" in found else found["id"])


def dev_loss(distiller: Distiller, batches: Batches, job: str = "evaluate on validation") -> dict[str, float]:
    """Score a language model: the objective as ``loss``, and its predictions where it makes any.

    ``perplexity`` and ``token_accuracy`` are over the tokens to predict. A loss that is no number is an error.
    """
    training = distiller.training
    distiller.eval()
    device = distiller.student.device
    rows, loss, tokens, nats, right = 0, 0.0, 0, 0.0, 0
    try:
        with torch.no_grad(), progress(job, len(batches)) as steps:
            for batch in batches:
                output = distiller(**{name: value.to(device) for name, value in batch.items()})
                size = len(batch["input_ids"])
                loss, rows = loss + size * output["loss"].item(), rows + size
                if output["logits"] is not None:
                    labels = batch["labels"].to(device)
                    logits, labels = output["logits"][labels != IGNORED].float(), labels[labels != IGNORED]
                    nats += cross_entropy(logits, labels, reduction="sum").item()
                    right += int((logits.argmax(-1) == labels).sum())
                    tokens += len(labels)
                    if not logits.isfinite().all():
                        nats = math.nan
                if not math.isfinite(loss + nats):
                    raise ModelError(
                        f"The model's predictions for blocks {rows - size + 1:,} to {rows:,} of the texts, or their "
                        "loss, are nan or inf, so it cannot be scored: its weights are damaged or too large. Train it "
                        "again with a lower train.learning_rate."
                    )
                steps.advance()
    finally:
        distiller.train(training)
    scores = {"loss": loss / rows}
    if tokens:
        scores |= {"perplexity": math.exp(min(nats / tokens, 700)), "token_accuracy": right / tokens}
    return scores

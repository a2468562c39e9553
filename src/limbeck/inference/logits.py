"""Compute logits and losses: the loops behind evaluation, prediction and the scores during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from limbeck._internal.progress import progress
from limbeck.distillation.distiller import Distiller
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
    model: PreTrainedModel, encoded: Dataset, collate: Collate, batch_size: int = 32, job: str = "predict"
) -> Logits:
    """Return a model's logits in the order of ``encoded``."""
    training = model.training
    model.eval()
    try:
        return logits_in_order(lambda batch: model_logits(model, batch), encoded, collate, batch_size, job)
    finally:
        model.train(training)


def model_logits(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> np.ndarray:
    """Return a model's logits for a padded batch."""
    batch = {name: value.to(model.device) for name, value in batch.items()}
    with torch.inference_mode():
        logits: np.ndarray = logits_of(model(**model_inputs(model, batch))).float().cpu().numpy()
    return logits


def logits_in_order(
    answer: LogitsFunction, encoded: Dataset, collate: Collate, batch_size: int, job: str = "predict"
) -> Logits:
    """Return what ``answer`` gives for padded batches, in the order of ``encoded``.

    Inside, examples are sorted by length, so that little is padded.
    """
    batches = Batches(encoded, collate, batch_size)
    rows: list[np.ndarray] = []  # of each example (labels,) or (tokens, labels)
    with progress(job, len(encoded)) as steps:
        for batch in batches:
            logits = answer(batch)
            if logits.ndim == 3:
                real = batch["attention_mask"].bool().cpu().numpy()
                rows += [row[kept] for row, kept in zip(logits, real, strict=True)]
            else:
                rows += list(logits)
            steps.advance(len(logits))
    order = torch.cat(batches.indices).argsort().tolist()
    restored = [rows[place] for place in order]
    return restored if restored[0].ndim == 2 else np.stack(restored)


def dev_loss(distiller: Distiller, batches: Batches, job: str = "evaluate on validation") -> dict[str, float]:
    """Score a language model: the objective as ``loss``, and its predictions where it makes any.

    ``perplexity`` and ``token_accuracy`` are over the tokens to predict.
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
                steps.advance()
    finally:
        distiller.train(training)
    scores = {"loss": loss / rows}
    if tokens:
        scores |= {"perplexity": math.exp(min(nats / tokens, 700)), "token_accuracy": right / tokens}
    return scores

"""Predict and score: the loops behind evaluation, prediction and the scores during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from limbeck.batches import Batches
from limbeck.capture import logits_of, model_inputs
from limbeck.families import decides_tokens
from limbeck.progress import progress
from limbeck.tasks.task import IGNORED, Logits


def predict_logits(
    model: Any, encoded: Any, collate: Callable[[list[Any]], Any], batch_size: int = 32, job: str = "predict"
) -> Logits:
    """Logits in the order of ``encoded``; sorted by length inside, so that little is padded."""
    batches = Batches(encoded, collate, batch_size)
    training = model.training
    model.eval()
    rows: list[np.ndarray] = []  # of each example (labels,) or (tokens, labels)
    try:
        with torch.inference_mode(), progress(job, len(encoded)) as steps:
            for batch in batches:
                batch = {name: value.to(model.device) for name, value in batch.items()}
                logits = logits_of(model(**model_inputs(model, batch))).float()
                if logits.dim() == 3:
                    real = batch["attention_mask"].bool()
                    rows += [row[kept].cpu().numpy() for row, kept in zip(logits, real, strict=True)]
                else:
                    rows += list(logits.cpu().numpy())
                steps.advance(len(logits))
    finally:
        model.train(training)
    order = torch.cat(batches.indices).argsort().tolist()
    restored = [rows[place] for place in order]
    return restored if decides_tokens(model) else np.stack(restored)


def dev_loss(distiller: Any, batches: Batches, job: str = "evaluate on validation") -> dict[str, float]:
    """A language model's scores: the objective as ``loss``, and what its predictions are worth where it makes any.

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

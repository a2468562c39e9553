"""Predict with a classifier: the one loop behind evaluation, prediction and the scores during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from limbeck.capture import model_inputs
from limbeck.progress import progress


def predict_logits(
    model: Any, encoded: Any, collate: Callable[[list[Any]], Any], batch_size: int = 32, job: str = "predict"
) -> np.ndarray:
    """Logits (N, labels) in the order of ``encoded``; sorted by length inside, so that little is padded."""
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = np.argsort(lengths, kind="stable")[::-1]
    training = model.training
    model.eval()
    rows: list[np.ndarray] = []
    try:
        with torch.inference_mode(), progress(job, len(order)) as steps:
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = collate([encoded[int(i)] for i in chosen])
                inputs = {name: value.to(model.device) for name, value in model_inputs(model, batch).items()}
                rows.append(model(**inputs).logits.float().cpu().numpy())
                steps.advance(len(chosen))
    finally:
        model.train(training)
    logits = np.concatenate(rows)
    restored = np.empty_like(logits)
    restored[order] = logits
    return restored

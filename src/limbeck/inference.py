"""Predict with a classifier: the one loop behind evaluation, prediction and the scores during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from limbeck.batches import Batches
from limbeck.capture import model_inputs
from limbeck.progress import progress


def predict_logits(
    model: Any, encoded: Any, collate: Callable[[list[Any]], Any], batch_size: int = 32, job: str = "predict"
) -> np.ndarray:
    """Logits (N, labels) in the order of ``encoded``; sorted by length inside, so that little is padded."""
    batches = Batches(encoded, collate, batch_size)
    training = model.training
    model.eval()
    rows: list[np.ndarray] = []
    try:
        with torch.inference_mode(), progress(job, len(encoded)) as steps:
            for batch in batches:
                inputs = {name: value.to(model.device) for name, value in model_inputs(model, batch).items()}
                rows.append(model(**inputs).logits.float().cpu().numpy())
                steps.advance(len(rows[-1]))
    finally:
        model.train(training)
    logits = np.concatenate(rows)
    restored = np.empty_like(logits)
    restored[torch.cat(batches.indices).numpy()] = logits
    return restored

"""The teacher as a distiller calls it: ``teacher(batch, wanted) -> Features``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from limbeck.capture import Capture
from limbeck.features import Features, Wanted


class LiveTeacher:
    """Runs the frozen teacher on each batch. Not a module: no optimiser, checkpoint or wrapper may see its weights."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.capture = Capture(model)

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        device = batch["input_ids"].device
        if self.model.device != device:
            self.model.to(device)
        # no_grad, not inference_mode: losses save the teacher's tensors for the student's backward pass
        with torch.no_grad():
            return self.capture(batch, wanted)[1]

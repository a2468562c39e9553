"""Find weights that are not finite numbers: a model that has some answers with nothing that means anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ModelError


def find_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Name the first tensor that holds nan or inf, with how many of its numbers are; empty where all are finite."""
    for name, tensor in tensors:
        part: Any = tensor
        own = part.to_local() if hasattr(part, "to_local") else part  # of weights that FSDP divides, this process's
        if not own.is_floating_point() or own.numel() == 0:
            continue
        # the ends alone, because a mask of all numbers would take as much memory as the weights; nan is at both ends
        if not torch.isfinite(torch.stack(torch.aminmax(own.detach()))).all():
            bad = own.numel() - int(torch.isfinite(own).sum())
            return f"'{name}' ({bad:,} of its {own.numel():,} numbers)"
    return ""


def check_finite_weights(source: str | Path, model: Any) -> None:
    """Raise where a loaded model has weights that are not finite numbers."""
    if where := find_non_finite(model.state_dict().items()):
        raise ModelError(
            f"{source} has weights that are nan or inf: {where}. The training that made it diverged, or its file is "
            "damaged. Train it again with a lower train.learning_rate, or copy it again."
        )

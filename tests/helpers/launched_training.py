"""Train recipes one after the other in a launched process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck import execute, load_recipe


def train(recipes: dict[str, dict[str, Any]], home: Path, resume: bool = False) -> None:
    for name, values in recipes.items():
        execute(load_recipe(values=values), home / name, resume=resume, show_data=False)


def train_sharded(recipes: dict[str, dict[str, Any]], home: Path, resume: bool = False) -> None:
    """Do the same with FSDP, which accelerate leaves out on a CPU: here it takes the CPU for another device."""
    import accelerate.state
    import torch
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import FSDPModule

    from limbeck.training.trainer import RunTrainer

    def pretend(*_: Any, **__: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.MULTI_XPU

    accelerate.state.PartialState._prepare_backend = pretend
    torch.accelerator.is_available = lambda: True
    divided = []
    whole_weights = RunTrainer.whole_weights

    def noted(trainer: Any) -> Any:
        divided.append(isinstance(trainer.model, FSDPModule))
        return whole_weights(trainer)

    RunTrainer.whole_weights = noted
    train(recipes, home, resume)
    assert divided and all(divided), "nothing was divided"

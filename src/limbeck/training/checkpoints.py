"""Checkpoints without pickle, which notice damage: the newest whole one is found, and never a wrong one loaded."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from limbeck._internal.processes import process_count, rank
from limbeck._internal.tensors import load_state, load_tensors, save_state, save_tensors
from limbeck.errors import RunError

logger = logging.getLogger("limbeck")

_MODEL, _TRAINING = "model.safetensors", "training.safetensors"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class SafeCheckpoints(transformers.Trainer):
    """A Trainer whose checkpoints are safetensors and JSON, whole also where FSDP divides the weights."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Student and objective in one file, tied weights once, and no pickled arguments beside it."""
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / _MODEL, _once(state_dict or self.model.state_dict()))

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        if resume_from_checkpoint is not None and self.is_fsdp_enabled:  # before it divides what has now its shape
            self._load_weights(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, **options)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.is_fsdp_enabled:
            self._load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint is not None:
            self._load_weights(self.state.best_model_checkpoint)

    def _load_weights(self, checkpoint: str) -> None:
        weights, _ = load_tensors(Path(checkpoint) / _MODEL)
        divided = isinstance(self.model, FSDPModule | FullyShardedDataParallel)
        if divided:
            set_model_state_dict(self.model, dict(weights), options=_WHOLE)
        else:
            _load(self.model, weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_fsdp_enabled:
            optimizer = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=_WHOLE)
        else:
            optimizer = self.optimizer.state_dict()
        if self.args.should_save:
            state = {"step": self.state.global_step, "optimizer": optimizer}
            save_state(Path(output_dir) / _TRAINING, state | {"scheduler": self.lr_scheduler.state_dict()})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = load_state(Path(checkpoint) / _TRAINING)
        if self.is_fsdp_enabled:
            set_optimizer_state_dict(self.model, self.optimizer.optimizer, state["optimizer"], options=_WHOLE)
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["scheduler"])

    def _save_scaler(self, output_dir: str) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            save_state(Path(output_dir) / "scaler.safetensors", scaler.state_dict())

    def _load_scaler(self, checkpoint: str | None) -> None:
        file = Path(checkpoint or "") / "scaler.safetensors"
        if checkpoint is not None and file.is_file():
            self.accelerator.scaler.load_state_dict(load_state(file))

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        save_state(_random(output_dir), state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _random(checkpoint).is_file():  # of other processes than trained before
            return
        state = load_state(_random(checkpoint))
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["cpu"])
        if torch.cuda.is_available() and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])


def _random(folder: str) -> Path:
    return Path(folder) / (f"random-{rank()}.safetensors" if process_count() > 1 else "random.safetensors")


def _once(state: dict[str, Any]) -> dict[str, Any]:
    """Without names of weights that stand under another name already."""
    kept: dict[tuple[int, Any, Any], str] = {}
    for name, tensor in state.items():
        kept.setdefault((tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()), name)
    return {name: state[name] for name in kept.values()}


def _load(model: Any, weights: dict[str, Any]) -> None:
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(model.state_dict()) - set(_once(model.state_dict()))
    if unexpected or set(missing) - tied:
        raise RunError(f"A checkpoint is of another model: {', '.join([*unexpected, *missing][:3])}.")


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; incomplete ones, left by a killed process, and damaged ones are removed.

    Trainer writes ``trainer_state.json`` after everything else and deletes older checkpoints only then.
    """
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    while checkpoints:
        newest = checkpoints.pop()
        seen = _wrong_with(newest)
        if not seen:
            return newest
        logger.warning("%s is left out: %s", newest, seen)
        shutil.rmtree(newest, ignore_errors=True)
    return None


def _wrong_with(checkpoint: Path) -> str:
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        for name in {_MODEL} | {file.name for file in checkpoint.glob("*.safetensors")} - {_TRAINING}:
            load_tensors(checkpoint / name)
        if load_state(checkpoint / _TRAINING)["step"] != state["global_step"]:
            return "its files are of different steps."
    except OSError:
        return "it is incomplete."
    except (ValueError, KeyError, RunError) as error:
        return str(error)
    return ""

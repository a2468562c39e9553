"""Save and restore trainings without pickle."""

from __future__ import annotations

import random
import shutil
import tempfile
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
from transformers.trainer_callback import TrainerCallback

from limbeck._internal.files import make_folder
from limbeck._internal.machine import disk_full
from limbeck._internal.processes import process_count, rank
from limbeck._internal.tensors import load_state, load_tensors, save_state, save_tensors
from limbeck.errors import RunError
from limbeck.training.checkpoint_folders import MODEL, STATE, TRAINING, RotateCheckpoints

_SCALER = "scaler.safetensors"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class SafeCheckpoints(transformers.Trainer):
    """Train with checkpoints of safetensors and JSON, whole also where FSDP divides the weights.

    Everything that a checkpoint holds is written in ``save_model``, which Trainer calls first when it saves one; what
    it would pickle beside it is switched off by ``save_only_model``. ``train`` and a callback restore it; Trainer is
    shown a folder with its own state alone, so that it finds no pickle that somebody put into a checkpoint. Another
    callback removes older checkpoints, because Trainer does not wait until the newer one is on the disk.

    Private methods of Trainer that are overridden here, because no public hook stands for them:

    - ``_load_from_checkpoint``: ``train`` has loaded the weights, and Trainer's own would miss its file.
    - ``_load_best_model``: Trainer's own knows no weights that are tied across a distiller, and warns about them; under
      FSDP it looks for files of its own.

    Beside them ``RunTrainer`` overrides ``_run_epoch``, for a training that is resumed after its last step, and
    sets ``args._n_gpu``, for which there is no public setting.
    """

    weights_file = MODEL  # in a checkpoint

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.args.save_only_model = True
        self.add_callback(RotateCheckpoints(Path(self.args.output_dir), self.args.save_total_limit))
        self.args.save_total_limit = None

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train, from a checkpoint where one is given."""
        if resume_from_checkpoint is None:
            return super().train(**options)
        checkpoint = Path(resume_from_checkpoint)
        self._load_weights(checkpoint)  # before FSDP divides what has now its shape
        self.add_callback(_Restore(self, checkpoint))
        with tempfile.TemporaryDirectory() as state_alone:
            shutil.copy(checkpoint / STATE, state_alone)
            return super().train(state_alone, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save a checkpoint: student and objective in one file, optimiser, schedule and random numbers in others."""
        folder = Path(output_dir or self.args.output_dir or ".")
        make_folder(folder)
        if self.is_fsdp_enabled:  # every process takes part
            weights = self.accelerator.get_state_dict(self.model)
            optimizer = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=_WHOLE)
        else:
            weights, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        try:
            if self.args.should_save:
                self._save_training(folder, weights, optimizer)
            save_random_state(folder)
        except Exception as error:
            if disk_full(error):  # half a checkpoint is worth nothing, and the room may be needed
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _save_training(self, folder: Path, weights: dict[str, Any], optimizer: Any) -> None:
        save_tensors(folder / self.weights_file, _without_tied(weights))
        state = {"step": self.state.global_step, "optimizer": optimizer}
        save_state(folder / TRAINING, state | {"scheduler": self.lr_scheduler.state_dict()})
        if (scaler := getattr(self.accelerator, "scaler", None)) is not None:
            save_state(folder / _SCALER, scaler.state_dict())

    def restore(self, checkpoint: Path) -> None:
        """Load optimiser, schedule and scaler of a checkpoint."""
        state = load_state(checkpoint / TRAINING)
        if self.is_fsdp_enabled:
            set_optimizer_state_dict(self.model, self.optimizer.optimizer, state["optimizer"], options=_WHOLE)
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["scheduler"])
        if (checkpoint / _SCALER).is_file():
            self.accelerator.scaler.load_state_dict(load_state(checkpoint / _SCALER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing: :meth:`train` has."""

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint is not None:
            # by its name: the run may have been moved since
            self._load_weights(Path(self.args.output_dir or ".") / Path(self.state.best_model_checkpoint).name)

    def _load_weights(self, checkpoint: Path) -> None:
        weights, _ = load_tensors(checkpoint / self.weights_file)
        divided = isinstance(self.model, FSDPModule | FullyShardedDataParallel)
        if divided:
            set_model_state_dict(self.model, dict(weights), options=_WHOLE)
        else:
            _load_into(self.model, weights)


class _Restore(TrainerCallback):
    """Restore what a training had beside its weights, at the moments at which a training without a break had it."""

    def __init__(self, trainer: SafeCheckpoints, checkpoint: Path) -> None:
        self._trainer, self._checkpoint = trainer, checkpoint
        self._begins, self._within_epoch = True, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.restore(self._checkpoint)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._begins:
            load_random_state(self._checkpoint)
            self._within_epoch = not float(state.epoch).is_integer() and not args.ignore_data_skip
            self._begins = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._within_epoch:  # skipping the batches that were trained on has drawn numbers
            load_random_state(self._checkpoint)
            self._within_epoch = False


def save_random_state(folder: Path) -> None:
    """Save the state of every generator of random numbers that a training draws from."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    save_state(_random_file(folder), state)


def load_random_state(checkpoint: Path) -> None:
    """Set the generators as they were when a checkpoint was saved, where it was by as many processes."""
    if not _random_file(checkpoint).is_file():  # other processes trained before
        return
    state = load_state(_random_file(checkpoint))
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _random_file(folder: Path) -> Path:
    return folder / (f"random-{rank()}.safetensors" if process_count() > 1 else "random.safetensors")


def _without_tied(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out names of weights that stand under another name already."""
    kept: dict[tuple[int, Any, Any], str] = {}
    for name, tensor in state.items():
        kept.setdefault((tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()), name)
    return {name: state[name] for name in kept.values()}


def _load_into(model: Any, weights: dict[str, Any]) -> None:
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(model.state_dict()) - set(_without_tied(model.state_dict()))
    if unexpected or set(missing) - tied:
        raise RunError(f"A checkpoint is of another model: {', '.join([*unexpected, *missing][:3])}.")

"""Train a distiller with transformers.Trainer: a mean per loss term in the log, and nothing that is no number saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from limbeck._internal.processes import mean_over_processes
from limbeck.distillation.distiller import Distiller
from limbeck.training.checkpoints import SafeCheckpoints
from limbeck.training.fault_handling import NonFiniteLossGuard, check_trained_weights


class DistillerTrainer(SafeCheckpoints):
    """Train a Distiller; all else is Trainer's. A batch whose loss is no number is kept in ``bad_batch``."""

    def __init__(
        self, distiller: Distiller, args: transformers.TrainingArguments, bad_batch: Path, **options: Any
    ) -> None:
        # Several visible GPUs without a launcher would mean DataParallel, which copies the module at every step and
        # loses the teacher. One process is one device; more devices are started with accelerate or torchrun.
        if args.n_gpu > 1:
            args._n_gpu = 1
        if args.torch_compile:
            # what was compiled for an earlier run of this process does not notice that other layers are captured now
            torch.compiler.reset()
        self._guard = NonFiniteLossGuard(bad_batch)
        self._distiller = distiller
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        # the guard after what asks for checkpoints, and before what ends the training
        callbacks = [*(options.pop("callbacks", None) or []), self._guard]
        super().__init__(model=distiller, args=args, callbacks=callbacks, **options)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """Take the parts of a step, and count what the terms average over in all of them."""
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._distiller.begin_step(len(parts))
        self._steps += bool(parts)
        return parts, self._distiller.counts(parts) if len(parts) > 1 else None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the distiller's loss, of which Trainer takes the mean over the parts of a step.

        ``num_items_in_batch`` is what :meth:`get_batch_samples` counted: the mean over a step's tokens is not that of
        its parts' means. The values of the terms are added up for the log.
        """
        output = model(**inputs)
        loss, terms, parts = output["loss"], output["terms"], self.current_gradient_accumulation_steps
        if num_items_in_batch is not None:
            objective = self._distiller.objective
            shares = objective.shares(self._distiller.counts([inputs]), num_items_in_batch, parts)
            terms = {name: shares[name] * value for name, value in terms.items()}
            loss = objective.total(terms)
        # Summed on the device and read at the next log only: reading a value waits for the device.
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=value.device)) + value.detach() / parts
        self._guard.watch(self.state.global_step, loss, terms, inputs)
        return (loss, output) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each term over the steps since the last log, over all processes."""
        if "loss" in logs and self._sums:
            totals = mean_over_processes(list(self._sums.values()))
            logs |= {
                f"term/{name}": (total / self._steps).item() for name, total in zip(self._sums, totals, strict=True)
            }
            self._sums, self._steps = {}, 0
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save a checkpoint, unless its loss or weights are no numbers, whoever asked for it: the last one stays."""
        self._guard.check()
        check_trained_weights(self.model, self.state.global_step)
        super().save_model(output_dir, _internal_call)

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Gather the distiller's weights for the first process where FSDP has divided them; otherwise None."""
        return self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None

"""Handle what may go wrong while a run trains: a signal, a loss that is no number, too little memory or disk."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_callback import TrainerCallback

from limbeck._internal.files import write_text
from limbeck._internal.machine import out_of_memory
from limbeck._internal.processes import process_count, sum_over_processes
from limbeck._internal.signals import Noted, noting
from limbeck._internal.tensors import save_tensors
from limbeck.errors import Fault, Terminated
from limbeck.models.finite import find_non_finite


class StopOnSigterm(TrainerCallback):
    """Save a checkpoint and stop when SIGTERM comes, as schedulers send it before they take a machine away."""

    def __init__(self) -> None:
        self._noted = Noted()
        self._agreed = self._saved = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the signal inside the block, in which a training is; however that ends, the signal is not forgotten."""
        with noting(signal.SIGTERM) as self._noted:
            yield

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a checkpoint and for the end after the step in which the signal came."""
        if process_count() == 1 or state.global_step % max(1, int(args.logging_steps)) == 0:
            self._stop_if_asked(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Do the same after an evaluation, which may take longer than many steps."""
        self._stop_if_asked(control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take note of a checkpoint."""
        self._saved = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raise if the signal came, in the last step too: what is left to do takes time that there is not."""
        if self._all_agree():
            saved = "; a checkpoint is kept" if self._saved else ""
            raise Terminated(f"Told to stop (SIGTERM) after step {state.global_step} of {state.max_steps}{saved}.")

    def _stop_if_asked(self, control: Any) -> None:
        if self._all_agree():
            control.should_save = control.should_training_stop = True

    def _all_agree(self) -> bool:
        """Tell whether one of the processes that train together was asked to stop: all must stop after the same step.

        They ask each other, so all of them must come here.
        """
        asked = self._agreed or self._noted.number is not None
        if process_count() > 1:
            asked = bool(sum_over_processes(torch.tensor(float(asked))) > 0)
        self._agreed = asked
        return asked


class NonFiniteLossGuard(TrainerCallback):
    """Raise on a loss that is not a number before anything is saved that follows from it.

    The value of one step is looked at in the next, when the device has long computed it; before a checkpoint, an
    evaluation and the end it is looked at once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # for the batch that caused it
        self._last: tuple[int, Tensor, Mapping[str, Tensor], Mapping[str, Tensor]] | None = None

    def watch(self, step: int, loss: Tensor, terms: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
        """Remember the values of a step, and check those of the one before."""
        self.check()
        self._last = step, loss.detach(), {name: value.detach() for name, value in terms.items()}, batch

    def check(self) -> None:
        """Raise a Fault if the last loss is not a number; the batch is kept beside the run."""
        last, self._last = self._last, None
        if last is None or bool(torch.isfinite(last[1])):
            return
        step, loss, terms, batch = last
        self._folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self._folder / "batch.safetensors", batch)
        values = {name: float(value) for name, value in terms.items()}
        about = {
            "step": step + 1,
            "loss": str(float(loss)),
            "terms": {name: str(value) for name, value in values.items()},
        }
        write_text(self._folder / "about.json", json.dumps(about, indent=2) + "\n")
        wrong = [name for name, value in values.items() if not torch.isfinite(torch.tensor(value))]
        raise Fault(
            f"The loss of step {step + 1} is {float(loss)} ({', '.join(wrong) or 'the sum'}). "
            f"The batch is in {self._folder}, and the last checkpoint before it is kept. "
            "Lower train.learning_rate, or look at what the batch holds."
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check before what is about to be saved or evaluated."""
        if control.should_save or control.should_evaluate:
            self.check()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check the last step."""
        self.check()


def check_trained_weights(model: Any, step: int) -> None:
    """Raise a Fault where the weights after a step are nan or inf: the update after a finite loss may spoil them."""
    # not the state: to gather it where FSDP divides the weights would take all processes
    if where := find_non_finite(chain(model.named_parameters(), model.named_buffers())):
        raise Fault(
            f"After step {step} the weights in {where} are nan or inf. They are not saved, and the last checkpoint "
            "before them is kept. Train again into another --output with a lower train.learning_rate."
        )


@contextmanager
def memory_errors_explained() -> Iterator[None]:
    """Turn an error that means too little memory into a message that says what to change of a training."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise Fault(
            "Out of memory. Set train.batch_size lower (train.relation_batch keeps the examples of a step as many as "
            "they were), or task.max_length. Finished checkpoints are kept: --resume goes on from the last."
        ) from error

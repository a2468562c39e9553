"""Handle what may go wrong while a run trains: a signal, a loss that is no number, too little memory or disk."""

from __future__ import annotations

import errno
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor
from transformers.trainer_callback import TrainerCallback

from limbeck._internal.files import write_text
from limbeck._internal.processes import process_count, sum_over_processes
from limbeck._internal.tensors import save_tensors
from limbeck.errors import Fault, Terminated


class StopOnSigterm(TrainerCallback):
    """Save a checkpoint and stop when SIGTERM comes, as schedulers send it before they take a machine away."""

    def __init__(self) -> None:
        self.stop_requested = False
        self._previous_handler: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen for the signal, where a thread may."""
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._request_stop)

    def _request_stop(self, *_: Any) -> None:
        self.stop_requested = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a checkpoint and for the end after the step in which the signal came."""
        if self._all_agree(state.global_step, args.logging_steps):
            control.should_save = control.should_training_stop = True

    def _all_agree(self, step: int, every: float) -> bool:
        """Stop all processes that train together after the same step: they ask each other now and then."""
        if process_count() == 1:
            return self.stop_requested
        if step % max(1, int(every)):
            return False
        self.stop_requested = bool(sum_over_processes(torch.tensor(float(self.stop_requested))) > 0)
        return self.stop_requested

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop listening; raise where the training was cut short."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
        if self.stop_requested and state.global_step < state.max_steps:
            raise Terminated(
                f"Told to stop (SIGTERM) after step {state.global_step} of {state.max_steps}; a checkpoint is kept. "
                "The same command with --resume goes on from it."
            )


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


@contextmanager
def machine_errors_explained() -> Iterator[None]:
    """Turn errors of the machine into messages that say what to change."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory() from error
    except RuntimeError as error:
        if "allocate memory" in str(error):
            raise _out_of_memory() from error
        raise
    except safetensors.SafetensorError as error:
        if "No space left" in str(error) or "code: 28" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device") from error
        raise


def _out_of_memory() -> Fault:
    return Fault(
        "Out of memory. Set train.batch_size lower (train.relation_batch keeps the examples of a step as many as they "
        "were), or task.max_length. Finished checkpoints are kept: --resume goes on from the last."
    )

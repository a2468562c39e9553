"""What may go wrong while a run trains, and what is kept then: a signal, a loss that is no number, memory, disk."""

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

BAD_BATCH = "bad-batch"


class StopOnSigterm(TrainerCallback):
    """SIGTERM, as schedulers send it before they take a machine away: a checkpoint, and out."""

    def __init__(self) -> None:
        self.told = False
        self._before: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: Any) -> None:
        self.told = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._agreed(state.global_step, args.logging_steps):
            control.should_save = control.should_training_stop = True

    def _agreed(self, step: int, every: float) -> bool:
        """Processes that train together must stop after the same step, so they ask each other now and then."""
        if process_count() == 1:
            return self.told
        if step % max(1, int(every)):
            return False
        self.told = bool(sum_over_processes(torch.tensor(float(self.told))) > 0)
        return self.told

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if self.told and state.global_step < state.max_steps:
            raise Terminated(
                f"Told to stop (SIGTERM) after step {state.global_step} of {state.max_steps}; a checkpoint is kept. "
                "The same command with --resume goes on from it."
            )


class NonFiniteLossGuard:
    """Notices a loss that is not a number before anything is saved that follows from it.

    The value of one step is looked at in the next, when the device has long computed it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[int, Tensor, Mapping[str, Tensor], Mapping[str, Tensor]] | None = None

    def see(self, step: int, loss: Tensor, terms: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
        self.check()
        self._last = step, loss.detach(), {name: value.detach() for name, value in terms.items()}, batch

    def check(self) -> None:
        last, self._last = self._last, None
        if last is None or bool(torch.isfinite(last[1])):
            return
        step, loss, terms, batch = last
        folder = self._folder / BAD_BATCH
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / "batch.safetensors", batch)
        values = {name: float(value) for name, value in terms.items()}
        about = {
            "step": step + 1,
            "loss": str(float(loss)),
            "terms": {name: str(value) for name, value in values.items()},
        }
        write_text(folder / "about.json", json.dumps(about, indent=2) + "\n")
        wrong = [name for name, value in values.items() if not torch.isfinite(torch.tensor(value))]
        raise Fault(
            f"The loss of step {step + 1} is {float(loss)} ({', '.join(wrong) or 'the sum'}). "
            f"The batch is in {folder}, and the last checkpoint before it is kept. "
            "Lower train.learning_rate, or look at what the batch holds."
        )


@contextmanager
def machine_errors_explained() -> Iterator[None]:
    """Errors of the machine as messages that say what to change."""
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

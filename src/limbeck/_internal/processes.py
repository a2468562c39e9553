"""Several processes as one: what relates samples sees those of all processes, and means are over all of them.

With N processes of B examples each, every loss and every gradient is that of one process with N x B. It rests on
gradients being averaged over processes afterwards, as DDP and FSDP do: what every process computes alike then counts
once, and rows that were gathered get back the sum of what all processes found for them.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from limbeck.errors import LimbeckError, RunError

T = TypeVar("T")
_PATIENCE = timedelta(days=7)  # for what the first process does alone; a launcher ends the others if one dies
_alone = False


def join_processes() -> None:
    """Meet the processes that a launcher (torchrun, accelerate) started beside this one, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and process_count() == 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def exit_launched(status: int = 0) -> None:
    """End a process that has met others, at once, after what was registered for its end.

    A thread of gloo lets go of the last tensors that it sent when it likes. If Python is ending by then, it is killed
    while it waits for the interpreter, and takes the process with it ("terminate called without an active exception").
    """
    if launched_processes() > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def launched_processes() -> int:
    """How many processes a launcher started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_count() -> int:
    """How many share the work that is done now."""
    return 1 if _alone else launched_processes()


def rank() -> int:
    """Which of them this is; the first one, 0, writes the files."""
    return dist.get_rank() if process_count() > 1 else 0


@contextmanager
def single_process() -> Iterator[None]:
    """What this process does now, the others do not do with it."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def on_rank_zero(job: Callable[[], T]) -> T:
    """Done by the first process alone; the others wait and get its result, or fail as it did."""
    if process_count() == 1:
        return job()
    said: list[Any] = [None, None]
    if rank() == 0:
        try:
            with single_process():
                said[0] = job()
        except Exception as error:
            said[1] = error if isinstance(error, LimbeckError) else RunError(f"The first process failed: {error}")
            dist.broadcast_object_list(said, src=0)
            raise
    dist.broadcast_object_list(said, src=0)
    if said[1] is not None:
        raise said[1]
    result: T = said[0]
    return result


def rank_zero_first(job: Callable[[], None]) -> None:
    """Done by every process, by the first one before all others, which find what it has written."""
    on_rank_zero(job)
    if rank() > 0:
        with single_process():
            job()


def wait_for_all() -> None:
    """Go on when all processes have come here."""
    if process_count() > 1:
        dist.barrier()


class _Sum(torch.autograd.Function):
    """The sum over processes. So is the gradient's, at every order of differentiation."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_processes(grads[0])


def sum_over_processes(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)
    return total


def mean_over_processes(values: Sequence[Tensor]) -> list[Tensor]:
    """Each as its mean over processes; so are the gradients. They travel as one."""
    if process_count() == 1 or not values:
        return list(values)
    mean = sum_over_processes(torch.cat([value.flatten() for value in values])) / process_count()
    parts = mean.split([value.numel() for value in values])
    return [part.view_as(value) for part, value in zip(parts, values, strict=True)]


def mean_gradients(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients as DDP would leave them; None where there is none, which is so in every process."""
    means = iter(mean_over_processes([gradient for gradient in gradients if gradient is not None]))
    return [None if gradient is None else next(means) for gradient in gradients]

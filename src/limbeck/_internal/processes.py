"""Make several processes work as one: join them, run a job on one of them, sum and average over all.

With N processes of B examples each, every loss and every gradient is that of one process with N x B. This rests on
gradients being averaged over processes afterwards, as DDP and FSDP do. What every process computes alike then counts
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
_TIMEOUT = timedelta(days=7)  # for what rank 0 does alone; a launcher ends the others if one dies
_alone = False


def join_processes() -> None:
    """Connect this process to the others that a launcher (torchrun, accelerate) started; do nothing without one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and process_count() == 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available(), timeout=_TIMEOUT)


def exit_launched(status: int = 0) -> None:
    """Exit at once, after the registered exit functions, if a launcher started several processes.

    A thread of gloo releases the last tensors that it sent at a time of its own. If Python is ending by then, the
    thread is killed while it waits for the interpreter, and takes the process with it ("terminate called without an
    active exception").
    """
    if launched_processes() > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def launched_processes() -> int:
    """Count the processes that a launcher started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_count() -> int:
    """Count the processes that share the current work; 1 inside ``single_process``."""
    return 1 if _alone else launched_processes()


def rank() -> int:
    """Return this process's number among those that share the work; rank 0 writes the files."""
    return dist.get_rank() if process_count() > 1 else 0


@contextmanager
def single_process() -> Iterator[None]:
    """Let this process work alone inside the block: nothing in it waits for the others or averages over them."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def on_rank_zero(job: Callable[[], T]) -> T:
    """Run ``job`` on rank 0 alone; the other processes wait and get its result, or fail as it did."""
    if process_count() == 1:
        return job()
    outcome: list[Any] = [None, None]  # result, error
    if rank() == 0:
        try:
            with single_process():
                outcome[0] = job()
        except Exception as error:
            outcome[1] = error if isinstance(error, LimbeckError) else RunError(f"The first process failed: {error}")
            dist.broadcast_object_list(outcome, src=0)
            raise
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def rank_zero_first(job: Callable[[], None]) -> None:
    """Run ``job`` on every process, on rank 0 before the others, so that they find what it has written."""
    on_rank_zero(job)
    if rank() > 0:
        with single_process():
            job()


def wait_for_all() -> None:
    """Wait until all processes have come here."""
    if process_count() > 1:
        dist.barrier()


class _Sum(torch.autograd.Function):
    """Sum a tensor over processes, and its gradient as well, at every order of differentiation."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_processes(grads[0])


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum a tensor over processes; gradients flow back to all of them."""
    total: Tensor = _Sum.apply(value)
    return total


def mean_over_processes(values: Sequence[Tensor]) -> list[Tensor]:
    """Average each tensor over processes, and its gradient as well. All of them are sent as one message."""
    if process_count() == 1 or not values:
        return list(values)
    mean = sum_over_processes(torch.cat([value.flatten() for value in values])) / process_count()
    parts = mean.split([value.numel() for value in values])
    return [part.view_as(value) for part, value in zip(parts, values, strict=True)]


def mean_gradients(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Average gradients over processes, as DDP does; one that is None must be None in every process."""
    means = iter(mean_over_processes([gradient for gradient in gradients if gradient is not None]))
    return [None if gradient is None else next(means) for gradient in gradients]

"""Several processes as one: what relates samples sees those of all processes, and means are over all of them.

With N processes of B examples each, every loss and every gradient is that of one process with N x B. It rests on
gradients being averaged over processes afterwards, as DDP and FSDP do: what every process computes alike then counts
once, and rows that were gathered get back the sum of what all processes found for them.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from limbeck.errors import LimbeckError, RunError
from limbeck.features import Features, Needs, Wanted

T = TypeVar("T")
_NO_LABEL = -100  # of a token
_PATIENCE = timedelta(days=7)  # for what the first process does alone; a launcher ends the others if one dies
_alone = False


def join() -> None:
    """Meet the processes that a launcher (torchrun, accelerate) started beside this one, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and processes() == 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def leave(status: int = 0) -> None:
    """End a process that has met others, at once, after what was registered for its end.

    A thread of gloo lets go of the last tensors that it sent when it likes. If Python is ending by then, it is killed
    while it waits for the interpreter, and takes the process with it ("terminate called without an active exception").
    """
    if launched() > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def launched() -> int:
    """How many processes a launcher started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def processes() -> int:
    """How many share the work that is done now."""
    return 1 if _alone else launched()


def rank() -> int:
    """Which of them this is; the first one, 0, writes the files."""
    return dist.get_rank() if processes() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """What this process does now, the others do not do with it."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def first_does(job: Callable[[], T]) -> T:
    """Done by the first process alone; the others wait and get its result, or fail as it did."""
    if processes() == 1:
        return job()
    said: list[Any] = [None, None]
    if rank() == 0:
        try:
            with alone():
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


def first_before_others(job: Callable[[], None]) -> None:
    """Done by every process, by the first one before all others, which find what it has written."""
    first_does(job)
    if rank() > 0:
        with alone():
            job()


def meet() -> None:
    """Go on when all processes have come here."""
    if processes() > 1:
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
        return summed(grads[0])


def summed(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)
    return total


def averaged(values: Sequence[Tensor]) -> list[Tensor]:
    """Each as its mean over processes; so are the gradients. They travel as one."""
    if processes() == 1 or not values:
        return list(values)
    mean = summed(torch.cat([value.flatten() for value in values])) / processes()
    parts = mean.split([value.numel() for value in values])
    return [part.view_as(value) for part, value in zip(parts, values, strict=True)]


def mean_gradients(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients as DDP would leave them; None where there is none, which is so in every process."""
    means = iter(averaged([gradient for gradient in gradients if gradient is not None]))
    return [None if gradient is None else next(means) for gradient in gradients]


@dataclass(frozen=True)
class Everyone:
    """Brings the rows of all processes together, padded to one length, in the order of the processes."""

    counts: list[int]  # rows of each process
    length: int  # tokens of the longest

    @classmethod
    def of(cls, mask: Tensor) -> Everyone:
        """``mask`` (B, L) is this process's."""
        sizes = torch.zeros(processes(), 2, dtype=torch.long, device=mask.device)
        sizes[rank()] = torch.tensor(mask.shape)
        dist.all_reduce(sizes)
        return cls(sizes[:, 0].tolist(), int(sizes[:, 1].max()))

    def rows(self, rows: Tensor) -> Tensor:
        """(n, ...) of each become (sum of n, ...), with gradients that find their way back.

        A sum of what each process puts into its own places.
        """
        before, after = sum(self.counts[: rank()]), sum(self.counts[rank() + 1 :])
        return summed(F.pad(rows, (0, 0) * (rows.dim() - 1) + (before, after)))

    def tokens(self, rows: Tensor, fill: float = 0) -> Tensor:
        """The same of (n, L, ...), whose L differs between processes."""
        return self.rows(F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, self.length - rows.shape[1]), value=fill))

    def features(self, features: Features, wanted: Wanted) -> Features:
        found = {name: features[name] for name in wanted.names()}
        mask = self.tokens(features.mask.to(torch.uint8)).bool()
        gather = {name: self.tokens if value.dim() == 3 else self.rows for name, value in found.items()}
        return Features.named(mask, {name: gather[name](value) for name, value in found.items()})

    def batch(self, batch: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
        """What losses read of a batch."""
        if "labels" not in batch:
            return {}
        labels = batch["labels"]
        of_tokens = labels.shape == mask.shape and not labels.is_floating_point()
        return {"labels": self.tokens(labels, _NO_LABEL) if of_tokens else self.rows(labels)}


def together(
    student: Features, teacher: Features, batch: Mapping[str, Tensor], needs: Needs
) -> tuple[Features, Features, dict[str, Tensor]]:
    """What terms that relate samples see: the features and labels of all processes."""
    everyone = Everyone.of(student.mask)
    return (
        everyone.features(student, needs.student),
        everyone.features(teacher, needs.teacher),
        everyone.batch(batch, student.mask),
    )


def shares(counts: Tensor) -> Tensor:
    """What each of this process's means counts for, so that the mean over processes is the mean over all.

    ``counts`` (n,) is how many things each of n means is over.
    """
    return processes() * counts / summed(counts).clamp(min=1)

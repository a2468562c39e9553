"""Run the same function in two processes on this machine, as a launcher would start them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from limbeck._internal.processes import exit_launched, join_processes


def in_processes(job: Callable[..., Any], folder: Path, *given: Any, count: int = 2) -> list[Any]:
    """Return what each of them returned; ``job`` is a function of a module, so that they can import it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_start, (job, folder, port, count, given), nprocs=count)
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(count)]


def _start(rank: int, job: Callable[..., Any], folder: Path, port: int, count: int, given: tuple[Any, ...]) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    os.environ |= {name: str(value) for name, value in where.items()}
    torch.set_num_threads(1)
    join_processes()
    torch.save(job(*given), folder / f"result-{rank}.pt")
    exit_launched()

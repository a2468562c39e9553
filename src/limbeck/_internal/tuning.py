"""Set a process up to compute fast: memory that it keeps, threads that do not spin for long, one for each free core.

All of it must happen before torch is loaded, or as soon as a process begins.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import sys
from pathlib import Path

logger = logging.getLogger("limbeck")

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # as glibc's malloc.h numbers them
# Turns that a waiting thread spins before it sleeps. Without a bound it takes the core from whoever would let it go on.
_SPINS = "20000"
SPIN_VARIABLE, THREADS_VARIABLE = "GOMP_SPINCOUNT", "OMP_NUM_THREADS"
_LOOK_SECONDS = 0.2  # twenty of the ticks in which Linux counts
_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))


def keep_freed_memory() -> bool:
    """Let freed memory stay in this process, to be used again without page faults; tell whether that is possible.

    Training frees and takes the same large blocks at every step. Only glibc can be told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; no such call on Windows
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def bound_spinning() -> None:
    """Let threads that wait for others sleep after a while, unless the user has said how long they spin."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, _SPINS)


def use_threads(asked: int | None) -> None:
    """Compute with ``asked`` threads, or as many as cores are free now; what the environment says comes between."""
    usable = usable_cores()
    if asked is not None:
        if asked > usable:
            logger.warning("--threads %d: this process may use %d cores, and as many threads compute.", asked, usable)
        set_threads(asked)
    elif THREADS_VARIABLE not in os.environ and usable > 1:
        free = free_cores()
        if free < usable:
            logger.info("%d of %d cores are free, and used. --threads N sets how many are.", free, usable)
        set_threads(free)


def set_threads(count: int) -> None:
    """Compute with so many threads, in this process and those it starts; with no more than there are cores."""
    count = min(count, usable_cores())
    os.environ[THREADS_VARIABLE] = str(count)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)


def usable_cores() -> int:
    """Count the cores that this process may use: by its affinity, and by the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, math.floor(cpu_quota() or allowed)))


def cpu_quota() -> float | None:
    """Return how many cores the container may use at a time; None where nothing limits it."""
    version_2, version_1 = _QUOTAS
    try:
        if version_2.is_file():
            limit, period = version_2.read_text().split()
        else:
            limit, period = version_1.read_text(), version_1.with_name("cpu.cfs_period_us").read_text()
        return None if limit == "max" or int(limit) < 0 else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def free_cores() -> int:
    """Count the usable cores that nobody else uses just now, at least one."""
    import psutil

    idle = sum(1 - used / 100 for used in psutil.cpu_percent(_LOOK_SECONDS, percpu=True))
    return max(1, min(usable_cores(), round(idle)))

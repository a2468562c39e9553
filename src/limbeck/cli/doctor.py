"""Find out what this installation is and what it can reach."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata

import torch

from limbeck import __version__
from limbeck._internal import hub
from limbeck._internal.tuning import (
    SPIN_VARIABLE,
    THREADS_VARIABLE,
    cpu_quota,
    free_cores,
    keep_freed_memory,
    usable_cores,
)
from limbeck.training.environment import VERSIONS_OF
from limbeck.training.precision import PRECISION_VARIABLE, automatic_precision, bfloat16_speed, has_bfloat16_units


def diagnose() -> list[tuple[str, str]]:
    """Return versions, devices, free disk and whether the hub is reachable, each with its name."""
    rows = [("limbeck", __version__), ("python", platform.python_version())]
    rows += [(name, _version(name)) for name in VERSIONS_OF]
    rows.append(("platform", f"{platform.system()} {platform.release()} {platform.machine()}"))
    free = free_cores()
    rows.append(("cores", _cores(free)))
    rows.append(("threads", _threads(free)))
    rows.append(("freed memory", "stays in the process" if keep_freed_memory() else "goes back (this is no glibc)"))
    rows.append(("devices", _devices()))
    rows.append(("train.precision: auto", _precision()))
    rows.append(("free disk here", f"{shutil.disk_usage('.').free / 1e9:,.1f} GB"))
    rows.append(("hub", _hub()))
    return rows


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cores(free: int) -> str:
    words = f"{os.cpu_count()}, of which {usable_cores()} may be used and {free} are free now"
    quota = cpu_quota()
    if quota is not None and quota < 1:
        words += f"; a quota allows {quota:g} of one, so everything takes {1 / quota:.1f} times as long"
    return words


def _threads(free: int) -> str:
    asked = os.environ.get(THREADS_VARIABLE)
    count = f"{asked} ({THREADS_VARIABLE})" if asked else f"{free} (one for each free core)"
    waits = next(f"{name}={os.environ[name]}" for name in ("OMP_WAIT_POLICY", SPIN_VARIABLE) if name in os.environ)
    return f"{count}; how those that wait do so: {waits}"


def _precision() -> str:
    found = automatic_precision()
    if PRECISION_VARIABLE in os.environ:
        return f"{found} ({PRECISION_VARIABLE} says so)"
    if torch.cuda.is_available() or not has_bfloat16_units():
        return f"{found} ({'units' if has_bfloat16_units() else 'no units'} for bfloat16)"
    return f"{found} (a layer computes {bfloat16_speed():.1f} times as fast in bfloat16)"


def _devices() -> str:
    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return "mps" if torch.backends.mps.is_available() else "cpu only"


def _hub() -> str:
    problem = hub.connection_problem()
    return f"{problem}; use local folders for models and data" if problem else f"reachable ({hub.host()})"

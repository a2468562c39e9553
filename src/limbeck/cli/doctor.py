"""Find out what this installation is and what it can reach."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata

import torch

from limbeck import __version__
from limbeck._internal import hub
from limbeck.training.environment import VERSIONS_OF


def diagnose() -> list[tuple[str, str]]:
    """Return versions, devices, free disk and whether the hub is reachable, each with its name."""
    rows = [("limbeck", __version__), ("python", platform.python_version())]
    rows += [(name, _version(name)) for name in VERSIONS_OF]
    rows.append(("platform", f"{platform.system()} {platform.release()} {platform.machine()}"))
    rows.append(("cores, torch threads", f"{os.cpu_count()}, {torch.get_num_threads()}"))
    rows.append(("devices", _devices()))
    rows.append(("free disk here", f"{shutil.disk_usage('.').free / 1e9:,.1f} GB"))
    rows.append(("hub", _hub()))
    return rows


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return "mps" if torch.backends.mps.is_available() else "cpu only"


def _hub() -> str:
    problem = hub.connection_problem()
    return f"{problem}; use local folders for models and data" if problem else f"reachable ({hub.host()})"

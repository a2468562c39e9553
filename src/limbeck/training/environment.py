"""Record what a result may depend on: versions, device, threads, commit."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import limbeck
from limbeck._internal.processes import launched_processes

_SOURCE = Path(limbeck.__file__)
VERSIONS_OF = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "numpy",
    "scikit-learn",
    "scipy",
)


def environment() -> dict[str, Any]:
    """Return what a result may depend on; nothing about the user, the host or its variables."""
    commit = _commit()
    return {
        "limbeck": limbeck.__version__,
        **({"commit": commit} if commit else {}),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: metadata.version(name) for name in VERSIONS_OF},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "processes": launched_processes(),
    }


@functools.cache
def _commit() -> str:
    """Return that of limbeck's own source, with ``+`` where its files were changed since; empty outside a checkout."""
    try:
        _git("ls-files", "--error-unmatch", str(_SOURCE))  # an installed limbeck may lie in somebody else's repository
        return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(_SOURCE.parent), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

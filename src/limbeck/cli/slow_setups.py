"""Find what makes limbeck slower on this machine than it could be, and say what to do about it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import torch

from limbeck._internal.files import readable_size
from limbeck._internal.tuning import THREADS_VARIABLE, free_cores, usable_cores
from limbeck.training.precision import PRECISION_VARIABLE, has_bfloat16_units

_LITTLE_MEMORY = 2e9  # bytes: a small teacher, its student and their optimiser
_MUCH_SWAP = 0.1  # of the memory
_DEVICES = Path("/dev")  # where Linux shows the GPUs that a process or container may use
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def find_slow_setups() -> list[str]:
    """Return a sentence about each slow set-up, with what to do; nothing where all is well."""
    found = (_threads(), _precision(), _memory(), _swap(), _unused_gpu())
    return [warning for warning in found if warning]


def _threads() -> str:
    usable, asked = usable_cores(), os.environ.get(THREADS_VARIABLE, "")
    if not asked.isdecimal():
        free = free_cores()
        others = f"{usable - free} of the {usable} cores that may be used are busy with other programs"
        return f"{others}. Wait until those are done, or stop them." if free < usable else ""
    if int(asked) < usable:
        return f"{THREADS_VARIABLE}={asked}, and {usable} cores may be used. Unset it, or add --threads {usable}."
    if int(asked) > usable:
        return f"{THREADS_VARIABLE}={asked}: more threads than the {usable} cores wait for each other. Unset it."
    return ""


def _precision() -> str:
    if has_bfloat16_units():
        asked = os.environ.get(PRECISION_VARIABLE)
        idle = f"{PRECISION_VARIABLE}={asked}, and this machine has units for bfloat16. Unset it."
        return idle if asked == "float32" else ""
    if torch.cuda.is_available():
        return "The GPU has no units for bfloat16, so steps compute in float32. Set train.precision=float16."
    return (
        "The processor has no units for bfloat16 (avx512_bf16, amx_bf16), so steps compute in float32. Train large "
        "models where there are such units, or on a GPU; small ones do not need them."
    )


def _memory() -> str:
    memory = psutil.virtual_memory()
    if memory.available >= _LITTLE_MEMORY:
        return ""
    free = f"{readable_size(memory.available)} of {readable_size(memory.total)} of memory are free"
    return f"{free}. Close other programs, or set a smaller train.batch_size, and fewer --workers."


def _swap() -> str:
    used = psutil.swap_memory().used
    if used <= _MUCH_SWAP * psutil.virtual_memory().total:
        return ""
    return f"{readable_size(used)} of memory lie on the disk (swap), which is slow. Close programs that need much."


def _unused_gpu() -> str:
    if torch.cuda.is_available() or not _has_nvidia_gpu():
        return ""
    if torch.version.cuda is None:
        return (
            "There is a GPU, and this PyTorch was built without CUDA. Install one with it: "
            "pip install --force-reinstall torch"
        )
    if os.environ.get(_VISIBLE) in ("", "-1"):
        return f"There is a GPU, and {_VISIBLE}={os.environ[_VISIBLE]} hides it. Unset it."
    return (
        f"There is a GPU that PyTorch cannot use, built for CUDA {torch.version.cuda}. 'nvidia-smi' shows which CUDA "
        "the driver knows: update the driver, or install a PyTorch for that CUDA."
    )


def _has_nvidia_gpu() -> bool:
    return any(_DEVICES.glob("nvidia[0-9]*")) or (os.name == "nt" and shutil.which("nvidia-smi") is not None)

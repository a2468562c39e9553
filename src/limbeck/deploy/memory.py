"""Measure the memory of a model in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import torch

from limbeck._internal.own_code import import_typed, trusted
from limbeck.errors import ModelError
from limbeck.inference.latency import random_batch
from limbeck.inference.served import TorchServed, load_served
from limbeck.models.heads import model_class, problem_of
from limbeck.models.loading import load_config

_STATUS = Path("/proc/self/status")
# not -m, which would let modules in the folder where the command runs stand before the installed ones
_PROGRAM = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from limbeck.deploy.memory import main; main(sys.argv[1:])"
)


def measure_memory(model: str, batch_size: int, length: int, threads: int) -> int | None:
    """Measure by how many bytes a model raises the resident memory of a fresh process, at its highest.

    The model is loaded and answers one batch. None where the system does not tell (it is Linux that does).
    """
    if not _STATUS.is_file():
        return None
    words = (sys.executable, "-c", _PROGRAM, model, str(batch_size), str(length), str(threads), *trusted().modules)
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ModelError(f"The memory of {model} could not be measured: {last}. Leave it out with --no-memory.")
    return int(done.stdout.split()[-1])


def _peak_of_this_process(model: str, batch_size: int, length: int, threads: int) -> int:
    _import_libraries(model)
    before = _resident("VmRSS")
    served = load_served(model, threads=threads)
    if isinstance(served, TorchServed):
        for weight in served.model.parameters():
            weight.sum()  # weights come from the disk when they are first read, and rare words may not be for long
    served.logits(random_batch(served, batch_size, length))
    return _resident("VmHWM") - before


def _import_libraries(model: str) -> None:
    """Import what a model needs before its memory is measured, since the size of libraries is not the model's."""
    if util.find_spec("onnxruntime"):
        import onnxruntime  # noqa: F401
    config = load_config(model)
    with torch.device("meta"):  # without weights
        model_class(problem_of(config), config).from_config(config)


def _resident(field: str) -> int:
    """Read a field in bytes: VmRSS is what is resident now, VmHWM the most that ever was."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def main(words: list[str]) -> None:
    """Print the bytes that a model takes.

    The words are its path, the batch size, the length, the threads, and modules of the user's own to import.
    """
    import_typed(words[4:])
    print(_peak_of_this_process(words[0], *map(int, words[1:4])))

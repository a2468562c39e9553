"""The memory that a model takes, measured in a process of its own: python -m limbeck.deploy.memory MODEL 32 128 2"""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

from limbeck.errors import ModelError

_STATUS = Path("/proc/self/status")


def measure_memory(model: str, batch_size: int, length: int, threads: int) -> int | None:
    """By how many bytes opening a model and asking it raise the resident memory of a fresh process, at its highest.

    None where the system does not tell (it is Linux that does).
    """
    if not _STATUS.is_file():
        return None
    words = (sys.executable, "-m", "limbeck.deploy.memory", model, str(batch_size), str(length), str(threads))
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ModelError(f"The memory of {model} could not be measured: {last}. Leave it out with --no-memory.")
    return int(done.stdout.split()[-1])


def _measure(model: str, batch_size: int, length: int, threads: int) -> int:
    from limbeck.deploy.latency import random_batch
    from limbeck.inference.served import TorchServed, load_served

    _import_libraries(model)
    before = _resident("VmRSS")
    served = load_served(model, threads=threads)
    if isinstance(served, TorchServed):
        for weight in served.model.parameters():
            weight.sum()  # weights come from the disk when they are first read, and rare words may not be for long
    served.logits(random_batch(served, batch_size, length))
    return _resident("VmHWM") - before


def _import_libraries(model: str) -> None:
    """Their size is not the model's: a small model would seem hardly smaller than a large one."""
    import torch

    from limbeck.models.loading import load_config, model_class, problem_of

    if util.find_spec("onnxruntime"):
        import onnxruntime  # noqa: F401
    config = load_config(model)
    with torch.device("meta"):  # without weights
        model_class(problem_of(config), config).from_config(config)


def _resident(field: str) -> int:
    """Bytes: VmRSS is what is resident now, VmHWM the most that ever was."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    print(_measure(sys.argv[1], *map(int, sys.argv[2:])))

"""Measure models side by side: latency, throughput, parameters, disk and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from limbeck._internal.progress import progress
from limbeck.deploy.memory import measure_memory
from limbeck.errors import RecipeError
from limbeck.inference.latency import Timing, processor_name, random_batch, time_in_turns, torch_threads
from limbeck.inference.logits import check_finite_logits
from limbeck.inference.served import Served, TorchServed, load_served
from limbeck.models.loading import longest_input

BATCH_SIZES = (1, 8, 32)
LENGTHS = (32, 128)
SECONDS = 40.0


@dataclass(frozen=True)
class TimedCell:
    """Hold one model's times at one batch size and length; ``speedup`` is the first model's median over this one's."""

    batch_size: int
    length: int
    timing: Timing
    speedup: float


@dataclass(frozen=True)
class MeasuredModel:
    """Hold what was measured of one model."""

    name: str
    path: str
    form: str  # "torch", "onnx" or "onnx-int8"
    parameters: int
    disk_bytes: int
    memory_bytes: int | None  # None where it was not measured
    smaller: float  # the first model's parameters over this one's
    cells: tuple[TimedCell, ...]

    def cell(self, batch_size: int, length: int) -> TimedCell:
        """Return the times at this batch size and length."""
        return next(cell for cell in self.cells if (cell.batch_size, cell.length) == (batch_size, length))


@dataclass(frozen=True)
class BenchResult:
    """Hold what was measured of all models, and where."""

    processor: str
    threads: int
    versions: dict[str, str]
    models: tuple[MeasuredModel, ...]  # the first is what the others are compared with

    def values(self) -> dict[str, Any]:
        """Return everything as plain data, with every timing's numbers in its cell."""
        values = asdict(self)
        for model in values["models"]:
            model["cells"] = [cell | cell.pop("timing") for cell in model["cells"]]
        return values


def bench(
    models: Sequence[str | Path],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] = LENGTHS,
    seconds: float = SECONDS,
    threads: int | None = None,
    memory: bool = True,
    device: str = "auto",
) -> BenchResult:
    """Time run directories, model folders and exported models in turns, for about ``seconds`` in all.

    The texts are random tokens of each model's vocabulary, as many in each text as ``lengths`` says. Each measurement
    of memory takes some seconds more, in a process of its own, on the processor. ``device`` is where PyTorch computes:
    ``auto`` is a GPU where there is one, unless an ONNX model, which has the processor, is among the models.
    """
    paths = [str(path) for path in models]
    names = _names(paths)
    sizes = sorted({(batch_size, length) for batch_size in batch_sizes for length in lengths}, key=_token_count)
    with torch_threads(threads):
        loaded = [load_served(path, threads=torch.get_num_threads()) for path in paths]
        place = choose_device(device, [served.form for served in loaded])
        for served in loaded:
            if isinstance(served, TorchServed):
                served.model.to(place)
        _check_lengths(names, loaded, max(lengths))
        _check_answers(names, loaded, sizes[0])
        timings = _time(loaded, sizes, seconds)
        used = torch.get_num_threads()
    cells = [_cells(sizes, own, timings[0]) for own in timings]
    peaks: list[int | None] = [None] * len(paths)
    if memory:
        with progress("measure memory", len(paths)) as steps:
            for number, path in enumerate(paths):
                peaks[number] = measure_memory(path, *sizes[-1], used)
                steps.advance()
    measured = [
        MeasuredModel(
            name, path, own.form, own.parameters, own.disk_bytes, peak, loaded[0].parameters / own.parameters, found
        )
        for name, path, own, peak, found in zip(names, paths, loaded, peaks, cells, strict=True)
    ]
    return BenchResult(_device_name(place), used, _versions(), tuple(measured))


def choose_device(asked: str, forms: Sequence[str]) -> torch.device:
    """Return where models of these forms are measured; all of them on one device, so that they can be compared."""
    if asked == "auto":
        accelerated = torch.accelerator.is_available() and set(forms) == {TorchServed.form}
        return torch.accelerator.current_accelerator() or torch.device("cpu") if accelerated else torch.device("cpu")
    try:
        place = torch.device(asked)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RecipeError(
            f"There is no device '{asked}' here: {str(error).splitlines()[0]} Choose auto or cpu."
        ) from error
    if place.type != "cpu" and (others := sorted(set(forms) - {TorchServed.form})):
        raise RecipeError(
            f"{' and '.join(others)} models run on the processor alone. Choose --device cpu for all models."
        )
    return place


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return processor_name()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _names(paths: Sequence[str]) -> list[str]:
    """Name each model by the last part of its path, or by all of it where two would be named alike."""
    if not paths:
        raise RecipeError("Which models? Name at least one; the first is what the others are compared with.")
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise RecipeError(f"{twice[0]} is named twice. Name each model once.")
    short = [Path(path).name for path in paths]
    return [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]


def _token_count(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * size[1], size[0]


def _check_lengths(names: Sequence[str], loaded: Sequence[Served], longest: int) -> None:
    for name, served in zip(names, loaded, strict=True):
        if longest > (limit := longest_input(served)):
            raise RecipeError(f"{name} reads at most {limit} tokens; seen: --length {longest}. Choose shorter lengths.")


def _check_answers(names: Sequence[str], loaded: Sequence[Served], size: tuple[int, int]) -> None:
    """Raise where a model answers with nan or inf, because nobody needs to know how fast."""
    for name, served in zip(names, loaded, strict=True):
        answers = served.logits(random_batch(served, *size))
        check_finite_logits(list(answers), name, lambda row: f"random text {row + 1}")


def _time(loaded: Sequence[Served], sizes: Sequence[tuple[int, int]], seconds: float) -> list[list[Timing]]:
    """Time each model at these sizes, small ones first: what they leave of the time goes to larger ones."""
    timings: list[list[Timing]] = [[] for _ in loaded]
    left = seconds
    with progress("measure latency", len(sizes)) as steps:
        for number, (batch_size, length) in enumerate(sizes):
            calls = [partial(served.logits, random_batch(served, batch_size, length)) for served in loaded]
            begin = time.perf_counter()
            found = time_in_turns(calls, left / (len(sizes) - number))
            left = max(0.0, left - (time.perf_counter() - begin))
            for own, times in zip(timings, found, strict=True):
                own.append(Timing.of(times, batch_size))
            steps.advance()
    return timings


def _cells(sizes: Sequence[tuple[int, int]], own: Sequence[Timing], first: Sequence[Timing]) -> tuple[TimedCell, ...]:
    rows = zip(sizes, own, first, strict=True)
    return tuple(TimedCell(*size, timing, reference.p50_ms / timing.p50_ms) for size, timing, reference in rows)


def _versions() -> dict[str, str]:
    there = [name for name in ("torch", "transformers", "onnxruntime") if util.find_spec(name)]
    return {name: metadata.version(name) for name in there}

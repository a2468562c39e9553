"""Time models side by side: they take turns, so that a busy moment hits all of them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from limbeck.inference.served import Served
from limbeck.tasks.encode import Collator

_WARM_UP, _MEASURED = 0.1, 0.1  # seconds that the two parts of a model's turn take at least
_FEWEST, _MOST = 3, 60  # turns of each model


@dataclass(frozen=True)
class Timing:
    """Hold one model's latency in milliseconds, and its examples per second over all of the measured time."""

    calls: int
    p50_ms: float
    p95_ms: float
    examples_per_second: float

    @classmethod
    def of(cls, seconds: Sequence[float], batch_size: int) -> Timing:
        """Compute percentiles and throughput from the seconds that each call took."""
        p50, p95 = (float(value) for value in np.percentile(seconds, [50, 95]))
        return cls(len(seconds), 1000 * p50, 1000 * p95, batch_size * len(seconds) / sum(seconds))


def time_in_turns(
    calls: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Make the calls in turns for about so long in all, and return the seconds that each took.

    A turn begins with calls that do not count: the caches are still another model's, and its threads, which
    onnxruntime and OpenMP keep awake for a while to wait for more work, take the processor from this one.
    """
    found: list[list[float]] = [[] for _ in calls]
    begin, turn = clock(), 0
    while turn < _FEWEST or (turn < _MOST and clock() - begin < seconds):
        for call, times in zip(calls, found, strict=True):
            _call_for(_WARM_UP, call, clock)
            times += _call_for(_MEASURED, call, clock)
        turn += 1
    return found


def _call_for(seconds: float, call: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Call again and again for at least so long, and return how long each call took."""
    times: list[float] = []
    begin = last = clock()
    while last - begin < seconds:
        call()
        now = clock()
        times.append(now - last)
        last = now
    return times


def random_batch(served: Served, batch_size: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Draw texts of this many tokens from the model's own vocabulary, without special tokens or padding."""
    tokenizer = served.tokenizer
    known = np.arange(min(len(tokenizer), served.config.vocab_size))
    words = np.setdiff1d(known, tokenizer.all_special_ids)
    drawn = np.random.default_rng(seed).choice(words, (batch_size, length))
    fixed = {"attention_mask": 1, "token_type_ids": 0}
    fills = {name: [value] * length for name, value in fixed.items() if name in tokenizer.model_input_names}
    return Collator(tokenizer)([{"input_ids": ids, **fills} for ids in drawn])


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processor_name() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()

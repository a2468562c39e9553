"""Time training steps with today's defaults against those without them: precision, kept memory, bounded spinning.

    python benchmarks/defaults.py            # CoLA and RTE, about 8 minutes on 2 quiet cores
    python benchmarks/defaults.py --quick    # few steps
    python benchmarks/defaults.py --check    # exit with status 1 if a target is missed

Each side is a process of its own, because memory and spinning are settled when one begins. The processes take turns of
some steps on the same length-grouped batches; a side's time is the sum of the fastest turn over each group of batches.
The student is the first 6 layers of --model, taught by kd from a cache. "beside a busy process" is measured while one
other process computes without a pause. "compiled" is ``train.torch_compile``, whose first steps are told apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _table import Row, finish, parser, seconds

SHARED = Path(__file__).parents[2] / "shared"
COST = 0.02  # at most, of bounded spinning on a quiet machine
FASTER = 1.6  # than the defaults before: float32, memory given back, unbounded spinning
TURNS, STEPS, PASSES = 6, 4, 3  # groups of batches, steps of each, how often each is timed


@dataclass(frozen=True)
class Side:
    """Say how one process computes."""

    precision: str
    kept: bool = True
    spins: str = "20000"  # empty: as libgomp does by itself
    threads: int = 2
    compiled: bool = False

    @property
    def name(self) -> str:
        memory, spins = "kept" if self.kept else "given back", f"{self.spins} spins" if self.spins else "any spins"
        words = f"{self.precision}, memory {memory}, {spins}, {self.threads} thread{'s' * (self.threads > 1)}"
        return words + ", compiled" * self.compiled


BEFORE, NOW = Side("float32", kept=False, spins=""), Side("bfloat16")
QUIET = [BEFORE, Side("float32", kept=False), Side("float32"), Side("bfloat16", kept=False), NOW]
UNBOUNDED = Side("bfloat16", spins="")
QUIET += [UNBOUNDED, Side("bfloat16", compiled=True)]
BUSY = [UNBOUNDED, NOW, Side("bfloat16", threads=1)]


class Worker:
    """Talk to the process of a side."""

    def __init__(self, side: Side, task: str, folder: Path, options: argparse.Namespace) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS=str(side.threads), LIMBECK_PRECISION=side.precision)
        environment |= {"GOMP_SPINCOUNT": side.spins} if side.spins else {}
        words = [sys.executable, __file__, "--worker", json.dumps([task, dataclasses.asdict(side), str(folder)])]
        words += ["--data", str(options.data), "--model", options.model] + ["--quick"] * options.quick
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )
        self.first_steps: float = json.loads(self._answer())  # seconds

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def take_turn(self, group: int) -> dict[str, float]:
        """Let it make the steps of a group, and return what they took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{group}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._answer())
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def work(task: str, side: Side, folder: str, options: argparse.Namespace) -> None:
    """Be a worker: make the steps of the groups that standard input names."""
    from limbeck._internal.tuning import keep_freed_memory

    if side.kept:
        keep_freed_memory()
    import torch
    from transformers import set_seed

    from limbeck import load_recipe
    from limbeck.training.assemble import assemble, load_data
    from limbeck.training.precision import computing_as

    set_seed(0)
    values = {
        "task": {"name": f"glue/{task}", "data_dir": str(options.data)},
        "teacher": {"model": str(Path(folder) / "teacher"), "cache": "off", "confirmed": True},
        "student": {"from": "teacher", "keep": "first:6", "head": "kept"},
        "method": {"name": "ft"},
        "train": {"precision": side.precision},
    }
    recipe = load_recipe(values=values)
    parts = assemble(recipe)
    batches = load_data(recipe, parts).batches("train")
    every = max(1, len(batches) // (TURNS * STEPS))
    chosen = [batches[number] for number in range(0, every * TURNS * STEPS, every)]
    distiller, device = parts.distiller.train(), torch.device("cpu")
    called = torch.compile(distiller) if side.compiled else distiller
    optimizer = torch.optim.AdamW(parts.student.parameters(), lr=1e-5)

    def step(batch: dict[str, torch.Tensor]) -> None:
        with computing_as(recipe, device):
            loss = called(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    # of the first, the last and a middle length, after which nothing is compiled any more
    print(seconds(lambda: [step(chosen[number]) for number in (0, -1, len(chosen) // 2)]), flush=True)
    for line in sys.stdin:
        group = int(line)
        mine = chosen[group * STEPS : (group + 1) * STEPS]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        took = seconds(lambda mine=mine: [step(batch) for batch in mine])
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {"seconds": took, "faults": usage.ru_minflt - faults, "peak_mb": usage.ru_maxrss / 1024}
        print(json.dumps(found), flush=True)


@contextmanager
def busy_process() -> Iterator[None]:
    """Let another process compute without a pause."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(sides: list[Side], task: str, folder: Path, options: argparse.Namespace) -> dict[Side, dict[str, float]]:
    """Let the sides take turns over all groups of batches, several times; sum the fastest turns."""
    workers = {side: Worker(side, task, folder, options) for side in sides}
    turns, passes = (1, 1) if options.quick else (TURNS, PASSES)
    best: dict[Side, list[float]] = {side: [float("inf")] * turns for side in sides}
    faults, peaks = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0)
    try:
        for _ in range(passes):
            for group in range(turns):
                for side, worker in workers.items():
                    found = worker.take_turn(group)
                    best[side][group] = min(best[side][group], found["seconds"])
                    faults[side] += found["faults"]
                    peaks[side] = found["peak_mb"]
    finally:
        for worker in workers.values():
            worker.stop()
    return {
        side: {"ms": 1e3 * sum(best[side]), "faults": faults[side], "mb": peaks[side], "first": worker.first_steps}
        for side, worker in workers.items()
    }


def rows(options: argparse.Namespace) -> Iterator[Row]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2).save_pretrained(
            folder / "teacher"
        )
        AutoTokenizer.from_pretrained(options.model).save_pretrained(folder / "teacher")
        for task in ("cola", "rte"):
            found = measure(QUIET, task, folder, options)
            first = found[BEFORE]
            for side, own in found.items():
                last = side == NOW
                yield Row(
                    f"{task}: {side.name}", "the defaults before", own["ms"], first["ms"], own["mb"], first["mb"],
                    target=f">= {FASTER}x" if last else "",
                    met=first["ms"] / own["ms"] >= FASTER if last else None,
                    note=f"{own['faults'] / first['faults']:.2f} of the page faults"
                    + f"; {own['first']:.0f} s for the first steps" * side.compiled,
                )  # fmt: skip
            now, unbounded = found[NOW], found[UNBOUNDED]
            yield Row(
                f"{task}: bounded spinning", "unbounded", now["ms"], unbounded["ms"], target=f">= {1 - COST}x",
                met=unbounded["ms"] / now["ms"] >= 1 - COST, note=f"{unbounded['ms'] / now['ms']:.3f}x",
            )  # fmt: skip
            with busy_process():
                found = measure(BUSY, task, folder, options)
            one = found[BUSY[-1]]
            for side, own in found.items():
                promised = side == NOW
                yield Row(
                    f"{task}, beside a busy process: {side.name}", "one thread there", own["ms"], one["ms"],
                    target=">= 1x" if promised else "", met=own["ms"] <= one["ms"] if promised else None,
                )  # fmt: skip


def main() -> None:
    reader = parser(__doc__.splitlines()[0])
    reader.add_argument("--data", type=Path, default=SHARED / "data" / "glue", help="the GLUE folder")
    reader.add_argument("--model", default=str(SHARED / "models" / "gte-small"), help="a 12-layer encoder")
    reader.add_argument("--worker", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.worker:
        task, side, folder = json.loads(options.worker)
        work(task, Side(**side), folder, options)
    else:
        finish("Training steps by default", list(rows(options)), options)


if __name__ == "__main__":
    main()

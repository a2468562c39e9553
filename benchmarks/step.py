"""Compare a step of each method with its floor: teacher forward, student forward and backward on the task loss.

    python benchmarks/step.py            # both sizes: about 25 minutes on 2 cores
    python benchmarks/step.py --quick    # the small size, no memory
    python benchmarks/step.py --check    # exit with status 1 if a target is missed

A method adds a few hundredths to its floor, which is less than the noise of whole steps. So what it adds is measured
apart: the objective, forward and backward, on features that were captured before; the fastest of many counts, over the
fastest floor. Whole steps of the most expensive methods, in turns with the floor, are printed to compare. Memory is the
peak of models and one step in a process of its own. Cached rows compare a step, optimiser included, that reads the
teacher's features from disk with one that runs the teacher; no cache can make it cheaper than a student without any
teacher, whose step is timed in turns with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from _job import Job, static_methods
from _table import Row, begin, fastest, finish, peak_mb, peak_mb_here, seconds

from limbeck import Distiller, Features

MEMORY_LIMIT = 1.10
# It compares 19 tensors of the teacher (embeddings, six hidden states, queries and keys of six blocks). At 12x768 these
# alone are 0.095 of the floor's memory while the student runs, before a gradient with respect to as many is kept.
MEMORY_LIMIT_OF = {"tinybert intermediate": 1.30}
CACHED_LIMIT = 0.65
COPY_LIMIT = 1.05  # ... or so much of a step whose teacher is a plain copy from memory, which no cache can beat
CACHED = ("kd", "pkd", "fcd")  # logits; one vector per sample of five layers; all tokens of six layers


@dataclass(frozen=True)
class Size:
    job: Job
    limit: float  # of a step's time over the floor


SIZES = {"base": Size(Job(width=768, length=128), 1.03), "small": Size(Job(width=384, length=64), 1.06)}
METHODS = {title: (name, options) for title, name, options in static_methods()}
REPEATS = 12
WHOLE = 3  # methods whose whole steps are timed, too


def objective_alone(job: Job, distiller: Distiller) -> Callable[[], None]:
    """Return a call that runs the objective, forward and backward, on the features of a batch."""
    batch = job.batches[0]
    with torch.no_grad():
        teacher = distiller.teacher(batch, distiller.needs.teacher)  # type: ignore[misc]
        student = distiller.run_student(batch, distiller.needs.student)[1]
    names = distiller.needs.student.names()

    def run() -> None:
        leaves = {name: student[name].detach().requires_grad_() for name in names}
        terms = distiller.objective(Features.named(student.mask, leaves), teacher, batch)
        distiller.objective.total(terms).backward()

    return run


def over_the_floor(key: str) -> list[Row]:
    job, limit = SIZES[key].job, SIZES[key].limit
    added: dict[str, float] = {}
    floor = min(seconds(job.floor) for _ in range(3))
    for title, (name, options) in METHODS.items():
        run = objective_alone(job, job.distiller(name, **options))
        run()
        added[title] = min(seconds(run) for _ in range(REPEATS))
        floor = min(floor, seconds(job.floor))
    rows = []
    for title, more in added.items():
        row = Row(f"{title}, {job}", "floor", 1e3 * (floor + more), 1e3 * floor)
        row.target, row.met = f"{limit:.2f} of its time", floor + more <= limit * floor
        row.note = f"{1 + more / floor:.3f} of its time"
        rows.append(row)
    return rows


def whole_steps(key: str, rows: list[Row]) -> list[Row]:
    job = SIZES[key].job
    dearest = sorted(zip(METHODS, rows, strict=True), key=lambda pair: -(pair[1].ours_ms or 0))[:WHOLE]
    found = []
    for title, _ in dearest:
        name, options = METHODS[title]
        ours, floor = fastest(partial(job.step, job.distiller(name, **options)), job.floor, 3)
        note = f"{ours / (floor or 1):.3f} of its time"
        found.append(Row(f"{title}, {job}, whole steps", "floor", ours, floor, note=note))
    return found


def add_memory(key: str, rows: list[Row]) -> None:
    floor_mb = peak_mb(key, "floor")
    for title, row in zip(METHODS, rows, strict=True):
        row.ours_mb, row.theirs_mb = peak_mb(key, title), floor_mb
        if row.ours_mb and floor_mb:  # only Linux tells
            limit = MEMORY_LIMIT_OF.get(title, MEMORY_LIMIT)
            row.target += f", {limit:.2f} of its memory"
            row.met = row.met and row.ours_mb <= limit * floor_mb
            row.note += f", {row.ours_mb / floor_mb:.3f} of its memory"


def cached_over_live(key: str, title: str, turns: int) -> Row:
    job = SIZES[key].job
    live = job.distiller(title)
    optimiser = torch.optim.AdamW(live.parameters(), lr=1e-5, fused=True)

    def step(distiller: Distiller) -> None:
        job.step(distiller)
        optimiser.step()

    best = [float("inf")] * 3
    with tempfile.TemporaryDirectory() as folder:
        sides = live, job.cached(live, Path(folder) / "cache"), job.in_memory(live)
        for turn in range(turns + 1):
            for side, distiller in enumerate(sides):
                took = seconds(partial(step, distiller))
                best[side] = min(best[side], took) if turn else best[side]  # the first one warms up
    row = Row(f"{title} cached, {job}", "live teacher", 1e3 * best[1], 1e3 * best[0])
    row.target = f"{CACHED_LIMIT} of its time, or {COPY_LIMIT} of a copy from memory"
    row.met = best[1] <= CACHED_LIMIT * best[0] or best[1] <= COPY_LIMIT * best[2]
    row.note = f"{best[1] / best[0]:.3f} of its time, {best[1] / best[2]:.3f} of a copy from memory"
    return row


def memory(key: str, title: str) -> float:
    job = SIZES[key].job

    def run() -> None:
        if title == "floor":
            step = job.floor
        else:
            name, options = METHODS[title]
            step = partial(job.step, job.distiller(name, **options))
        step()

    return peak_mb_here(run)


def main() -> None:
    options = begin(__doc__.splitlines()[0], memory)
    keys = ("small",) if options.quick else tuple(SIZES)
    floors = {key: over_the_floor(key) for key in keys}
    others = [row for key in keys for row in whole_steps(key, floors[key])]
    others += [cached_over_live(key, title, 3) for key in keys for title in CACHED]
    if not options.quick:  # last, because it needs no quiet machine
        for key, rows in floors.items():
            add_memory(key, rows)
    rows = [row for found in floors.values() for row in found] + others
    finish("A training step: forward and backward", rows, options)


if __name__ == "__main__":
    main()

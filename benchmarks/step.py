"""One training step of each method over its floor: teacher forward, student forward and backward on the task loss.

    python benchmarks/step.py            # both sizes: about 40 minutes on 2 cores
    python benchmarks/step.py --quick    # the small size, few turns, no memory
    python benchmarks/step.py --check    # exit with status 1 if a target is missed

All methods and the floor take turns, and the fastest turn of each counts; those that seem to miss their target get more
turns, as does the floor. Memory is the peak of models and one step in a process of its own. Cached rows compare a
step, optimiser included, that reads the teacher's features from disk with one that runs the teacher.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from _job import Job, static_methods
from _table import Row, arguments, finish, peak_mb, peak_mb_here, seconds

from limbeck import Distiller

MEMORY_LIMIT = 1.10
CACHED_LIMIT = 0.65
CACHED = ("kd", "pkd", "fcd")  # logits; one vector per sample of five layers; all tokens of six layers


@dataclass(frozen=True)
class Size:
    job: Job
    limit: float  # of a step's time over the floor
    turns: int
    more_turns: int


SIZES = {
    "base": Size(Job(width=768, length=128), 1.03, turns=2, more_turns=6),
    "small": Size(Job(width=384, length=64), 1.06, turns=6, more_turns=16),
}
METHODS = {title: (name, options) for title, name, options in static_methods()}


def over_the_floor(key: str, quick: bool) -> list[Row]:
    size, best = SIZES[key], {"floor": float("inf")}
    job = size.job
    calls: dict[str, Callable[[], None]] = {"floor": job.floor}
    for title, (name, options) in METHODS.items():
        calls[title], best[title] = partial(job.step, job.distiller(name, **options)), float("inf")

    def take_turns(titles: list[str], turns: int) -> None:
        for turn in range(turns):
            for place, title in enumerate(titles if turn % 2 == 0 else reversed(titles)):
                for who in ("floor", title) if place % 3 == 0 else (title,):
                    best[who] = min(best[who], seconds(calls[who]))

    def late() -> list[str]:
        return [title for title in METHODS if best[title] > size.limit * best["floor"]]

    job.floor()
    take_turns(list(METHODS), 2 if quick else size.turns)
    for _ in range(0 if quick else size.more_turns):
        take_turns(late(), 1)
    rows = []
    for title in METHODS:
        row = Row(f"{title}, {job}", "floor", 1e3 * best[title], 1e3 * best["floor"])
        row.target, row.met = f"{size.limit:.2f} of its time", title not in late()
        row.note = f"{best[title] / best['floor']:.3f} of its time"
        rows.append(row)
    return rows


def add_memory(key: str, rows: list[Row]) -> None:
    floor_mb = peak_mb(key, "floor")
    for title, row in zip(METHODS, rows, strict=True):
        row.ours_mb, row.theirs_mb = peak_mb(key, title), floor_mb
        if row.ours_mb and floor_mb:  # only Linux tells
            row.target += f", {MEMORY_LIMIT:.2f} of its memory"
            row.met = row.met and row.ours_mb <= MEMORY_LIMIT * floor_mb
            row.note += f", {row.ours_mb / floor_mb:.3f} of its memory"


def cached_over_live(key: str, title: str, turns: int) -> Row:
    job = SIZES[key].job
    live = job.distiller(title)
    optimiser = torch.optim.AdamW(live.parameters(), lr=1e-5, fused=True)

    def step(distiller: Distiller) -> None:
        job.step(distiller)
        optimiser.step()

    best = [float("inf")] * 2
    with tempfile.TemporaryDirectory() as folder:
        sides = live, job.cached(live, Path(folder) / "cache")
        for turn in range(turns + 1):
            for side, distiller in enumerate(sides):
                took = seconds(partial(step, distiller))
                best[side] = min(best[side], took) if turn else best[side]  # the first one warms up
    ratio = best[1] / best[0]
    target = f"{CACHED_LIMIT} of its time"
    note = f"{ratio:.3f} of its time"
    return Row(
        f"{title} cached, {job}",
        "live teacher",
        1e3 * best[1],
        1e3 * best[0],
        None,
        None,
        target,
        ratio <= CACHED_LIMIT,
        note,
    )


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
    options = arguments(__doc__.splitlines()[0])
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory:
        print(memory(*options.memory))
        return
    keys = ("small",) if options.quick else tuple(SIZES)
    floors = {key: over_the_floor(key, options.quick) for key in keys}
    cached = [cached_over_live(key, title, 3) for key in keys for title in CACHED]
    if not options.quick:  # last, because it needs no quiet machine
        for key, rows in floors.items():
            add_memory(key, rows)
    rows = [row for found in floors.values() for row in found] + cached
    finish("A training step: forward and backward", rows, options)


if __name__ == "__main__":
    main()

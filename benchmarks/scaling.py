"""Show how the cost of a step grows with the batch, the length, the width and the number of layer pairs.

    python benchmarks/scaling.py            # a few minutes on 2 cores
    python benchmarks/scaling.py --quick    # two points of each axis

Each line is a step over its floor of the same size (teacher forward, student forward and backward on the task loss);
the two take turns, and the fastest of each counts. Nothing is promised here: step.py has the targets.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from _job import Job
from _table import Row, arguments, fastest, finish

START = {"width": 256, "length": 64, "batch_size": 32, "layers": 6}
AXES: dict[str, list[int]] = {
    "batch_size": [8, 32, 128],
    "length": [16, 64, 256],
    "width": [128, 256, 768],
    "pairs": [1, 2, 3],
}
METHODS = ("cka", "shape", "fsd", "fcd", "ics", "minilmv2")
WITH_PAIRS = ("cka", "shape", "fcd", "minilmv2")  # the others have one layer by definition


def measure(axis: str, value: int, method: str, repeats: int) -> Row:
    options: dict[str, Any] = {}
    if axis == "pairs":
        job = Job(**START)
        options["layers"] = [[layer, 2 * layer] for layer in range(1, value + 1)]
    else:
        job = Job(**START | {axis: value})
    ours, floor = fastest(partial(job.step, job.distiller(method, **options)), job.floor, repeats)
    return Row(
        f"{method}, {axis.replace('_', ' ')} {value}",
        "floor",
        ours,
        floor,
        note=f"{ours / (floor or 1):.3f} of its time",
    )


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = [
        measure(axis, value, method, 2 if options.quick else 5)
        for axis, values in AXES.items()
        for method in (WITH_PAIRS if axis == "pairs" else METHODS)
        for value in (values[:2] if options.quick else values)
    ]
    finish(f"A step over its floor, from {Job(**START)}", rows, options)


if __name__ == "__main__":
    main()

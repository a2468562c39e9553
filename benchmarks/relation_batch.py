"""Measure ``train.relation_batch``: a step in parts should need no more memory to relate more samples.

    python benchmarks/relation_batch.py            # about 8 minutes on 2 cores
    python benchmarks/relation_batch.py --quick    # one method
    python benchmarks/relation_batch.py --check    # exit with status 1 if a target is missed

Steps of 32 and of 128 samples are run 16 at a time; the peak of the second over that of the first tells whether memory
is flat. Gradients and time are compared with 128 samples at once. What must grow with the samples is what is related:
the features that a method asks for. Activations, which are far more, do not. Over a plain step of 16 samples there is
one more copy of the gradients, which are summed over the parts. Each part is run forward twice, so a step takes longer
than at once: 4/3 where the student is all there is, less beside a teacher, which is run once.
"""

from __future__ import annotations

from functools import partial

import torch
from _job import Job
from _table import Row, begin, fastest, finish, peak_mb, peak_mb_here

from limbeck import Distiller

PART, FEW, MANY = 16, 32, 128
MEMORY_LIMIT = 1.15  # of a step of few samples; the features of four times as many are more, too
METHODS = ("cka", "fsd_il", "ics")
SIZE = {"width": 384, "length": 64}
SIDES = {"one part": (PART, None), "few": (FEW, PART), "many": (MANY, PART), "at once": (MANY, None)}  # samples, part


def made(method: str, side: str) -> tuple[Job, Distiller]:
    samples, micro_batch_size = SIDES[side]
    job = Job(**SIZE, batch_size=samples)
    distiller = job.distiller(method).eval()  # without dropout, which draws by the batch
    distiller.micro_batch_size = micro_batch_size
    return job, distiller


def gradients(method: str, side: str) -> torch.Tensor:
    job, distiller = made(method, side)
    job.step(distiller)
    return torch.cat([p.grad.flatten() for p in distiller.parameters() if p.grad is not None])


def compared(method: str) -> Row:
    row = Row(f"{method}, {MANY} samples, {PART} at a time", f"{FEW} samples, {PART} at a time")
    apart = (gradients(method, "many") - gradients(method, "at once")).abs().max()
    (job, parts), (_, at_once) = made(method, "many"), made(method, "at once")
    ours, whole = fastest(partial(job.step, parts), partial(job.step, at_once), 2)
    row.note = f"gradients {apart:.0e} apart from {MANY} at once; {ours / (whole or 1):.2f} of its time"
    row.ours_mb, row.theirs_mb = peak_mb(method, "many"), peak_mb(method, "few")
    if row.ours_mb and row.theirs_mb:  # only Linux tells
        row.target, row.met = f"{MEMORY_LIMIT:.2f} of its memory", row.ours_mb <= MEMORY_LIMIT * row.theirs_mb
        others = ", ".join(f"{side} {peak_mb(method, side):.0f} MB" for side in ("one part", "at once"))
        row.note = f"{row.ours_mb / row.theirs_mb:.2f} of its memory; {others}; {row.note}"
    return row


def memory(method: str, side: str) -> float:
    job, distiller = made(method, side)
    return peak_mb_here(lambda: job.step(distiller))


def main() -> None:
    options = begin(__doc__.splitlines()[0], memory)
    rows = [compared(method) for method in METHODS[: 1 if options.quick else None]]
    finish("A step that relates many samples", rows, options)


if __name__ == "__main__":
    main()

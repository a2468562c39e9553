"""``train.relation_batch``: the memory of a step that relates many samples, run in parts, over that of one part.

    python benchmarks/relation_batch.py            # about 10 minutes on 2 cores
    python benchmarks/relation_batch.py --quick    # one method
    python benchmarks/relation_batch.py --check    # exit with status 1 if a target is missed

A step of 128 samples is run 16 at a time, and compared with a plain step of 16 (memory) and of 128 (time, memory and
gradients). What must grow with the samples is what is related: the features that a method asks for. Activations, which
are far more, do not. Each part is run forward twice, so a step takes longer than at once: 4/3 where the student is all
there is, less beside a teacher, which is run once.
"""

from __future__ import annotations

from functools import partial

import torch
from _job import Job
from _table import Row, arguments, fastest, finish, peak_mb, peak_mb_here

from limbeck import Distiller

PART, WHOLE = 16, 128
MEMORY_LIMIT = 1.30  # of a plain step of one part
METHODS = ("cka", "fsd_il", "ics", "rkd")
SIZE = {"width": 384, "length": 64}
SIDES = {"part": (PART, None), "at once": (WHOLE, None), "in parts": (WHOLE, PART)}  # samples, at a time


def made(method: str, side: str) -> tuple[Job, Distiller]:
    samples, at_a_time = SIDES[side]
    job = Job(**SIZE, batch_size=samples)
    distiller = job.distiller(method).eval()  # without dropout, which draws by the batch
    distiller.at_a_time = at_a_time
    return job, distiller


def gradients(method: str, side: str) -> torch.Tensor:
    job, distiller = made(method, side)
    job.step(distiller)
    return torch.cat([p.grad.flatten() for p in distiller.parameters() if p.grad is not None])


def compared(method: str) -> Row:
    row = Row(f"{method}, {WHOLE} samples, {PART} at a time", f"{PART} samples")
    row.ours_mb, row.theirs_mb = peak_mb(method, "in parts"), peak_mb(method, "part")
    apart = (gradients(method, "in parts") - gradients(method, "at once")).abs().max()
    ours, whole = fastest(
        *(partial(job.step, of) for job, of in (made(method, "in parts"), made(method, "at once"))), 3
    )
    row.note = f"gradients {apart:.0e} apart from {WHOLE} at once; {ours / (whole or 1):.2f} of its time"
    if row.ours_mb and row.theirs_mb:  # only Linux tells
        row.target, row.met = f"{MEMORY_LIMIT:.2f} of its memory", row.ours_mb <= MEMORY_LIMIT * row.theirs_mb
        at_once = peak_mb(method, "at once") or 0
        row.note = (
            f"{row.ours_mb / row.theirs_mb:.2f} of its memory (at once {at_once / row.theirs_mb:.2f}); {row.note}"
        )
    return row


def memory(method: str, side: str) -> float:
    job, distiller = made(method, side)
    return peak_mb_here(lambda: job.step(distiller))


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory:
        print(memory(*options.memory))
        return
    rows = [compared(method) for method in METHODS[: 1 if options.quick else None]]
    finish("A step that relates many samples", rows, options)


if __name__ == "__main__":
    main()

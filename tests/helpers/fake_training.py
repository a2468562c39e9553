"""Stand in for the trainings of a study: in milliseconds, with scores that follow from the recipe alone."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

from limbeck._internal.files import write_text
from limbeck.study.jobs import CacheJob, Job, TrainJob
from limbeck.study.rivals_job import RivalsJob


def quick(job: Job) -> None:
    """Write what a finished job leaves behind, and a line in the study's ``work.txt``: who did what when."""
    if job.finished():
        return
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if isinstance(job, RivalsJob):
        make_fake_rivals(job)
    elif isinstance(job, CacheJob):
        job.decide([])
    else:
        assert isinstance(job, TrainJob)
        folder = Path(job.folder)
        (folder / "student").mkdir(parents=True, exist_ok=True)
        score = score_of(job)
        write_text(folder / "history.jsonl", json.dumps({"eval_accuracy": score}) + "\n")
        metrics = {"metric": "accuracy", "score": score, "seed": job.values["seed"], "train_seconds": 1.0}
        # one writer in one call: either the line is there and then the result, or neither is believed
        with (Path(job.study) / "work.txt").open("a") as file:
            file.write(f"{job.key}\n")
        write_text(folder / "metrics.json", json.dumps(metrics | {"metrics": {"accuracy": score}}))


def make_fake_rivals(job: RivalsJob) -> None:
    """Write what is kept of rivals, for a task that has none."""
    record = {"asked": job._asked().as_values(), "model": "", "rivals": [], "left_out": {}}
    write_text(job.folder.record, json.dumps(record | {"data": {"labels": [], "splits": {}}}))


def score_of(job: TrainJob) -> float:
    """Return a score between 0 and 1, the same for the same key."""
    return int(hashlib.sha256(job.key.encode()).hexdigest()[:8], 16) / 16**8


def breaks_on_kd(job: Job) -> None:
    """Fail in every run of the method kd, as a mistake in a recipe would."""
    from limbeck.errors import RecipeError

    if isinstance(job, TrainJob) and job.values["method"]["name"] == "kd":
        raise RecipeError("kd cannot be done here.")
    quick(job)


def dies_once(job: Job) -> None:
    """Kill the process in the middle of each job, the first time."""
    mark = Path(job.study) / f"died-{job.key}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    quick(job)


def always_crashes(job: Job) -> None:
    with (Path(job.study) / "tries.txt").open("a") as file:
        file.write(f"{job.key}\n")
    raise RuntimeError("out of luck")


def has_a_child(job: Job) -> None:
    """Start a child, as a training with ``dataloader_num_workers`` does."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    child.start()
    child.join()
    quick(job)


def main() -> None:
    """Do a study of quick runs, to be killed: ``python -m helpers.fake_training STUDY FOLDER WORKERS``."""
    import sys

    from limbeck.study.engines import InProcess, Workers
    from limbeck.study.loading import load_study
    from limbeck.study.runner import run_study

    source, folder, workers = sys.argv[1:]
    engine = Workers(int(workers), 1, quick) if int(workers) > 1 else InProcess(work=quick)
    run_study(load_study(source), Path(folder), engine)


if __name__ == "__main__":
    main()

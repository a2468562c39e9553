"""Run the jobs of a study in this process or in local worker processes; ``ray_engine.py`` has those on a cluster.

An engine takes jobs with ``submit`` and gives back, one at a time, how they ended. What a job does is the same
everywhere; so is its result, where it has the same number of threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from limbeck._internal import own_code
from limbeck._internal.tuning import THREADS_VARIABLE, keep_freed_memory, set_threads, usable_cores
from limbeck.errors import Terminated
from limbeck.study.jobs import Job, JobOutcome, attempt, execute_job

Work = Callable[[Job], None]
_POLL_SECONDS = 0.2


class Engine(Protocol):
    """Run submitted jobs, at once or one after the other."""

    on_start: Callable[[Job], None]  # called when a job begins

    def submit(self, job: Job) -> None:
        """Take a job, to be run as soon as there is room for it."""
        ...

    def next_outcome(self) -> JobOutcome:
        """Wait until one of the submitted jobs has ended, and return how."""
        ...

    def close(self) -> None:
        """Stop what still runs; it can be continued later."""
        ...


class InProcess:
    """Run one job after the other in this process."""

    def __init__(self, threads: int | None = None, work: Work = execute_job) -> None:
        self._jobs: deque[Job] = deque()
        self._work = work
        self.on_start: Callable[[Job], None] = lambda job: None
        if threads is not None:
            set_threads(threads)

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def next_outcome(self) -> JobOutcome:
        job = self._jobs.popleft()
        self.on_start(job)
        return attempt(self._work, job)

    def close(self) -> None:
        self._jobs.clear()


class Workers:
    """Run jobs in local processes, each with its share of the threads and of the GPUs. One that dies is replaced."""

    def __init__(self, count: int, threads: int | None = None, work: Work = execute_job) -> None:
        self._threads = threads or max(1, usable_cores() // count)
        self._jobs: deque[Job] = deque()
        self._work = work
        self._workers = [_Worker(number, self._threads, work) for number in range(count)]
        self.on_start: Callable[[Job], None] = lambda job: None

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def next_outcome(self) -> JobOutcome:
        self._assign_jobs()
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        worker = busy[wait(list(busy))[0]]  # type: ignore[index]
        outcome = worker.outcome()
        self._assign_jobs()
        return outcome

    def close(self) -> None:
        self._jobs.clear()
        for worker in self._workers:
            worker.stop()

    def _assign_jobs(self) -> None:
        for worker in self._workers:
            if worker.job is None and self._jobs:
                self.on_start(self._jobs[0])
                worker.start(self._jobs.popleft())


class _Worker:
    """Hold one process that waits for jobs; it is started when the first one comes."""

    def __init__(self, number: int, threads: int, work: Work) -> None:
        self._number, self._threads, self._work = number, threads, work
        self._process: Any = None
        self.connection: Connection
        self.job: Job | None = None

    def start(self, job: Job) -> None:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            # no daemon, because those may not have the processes that load data
            self.connection, child_end = context.Pipe()
            given = self._work, os.getpid(), own_code.trusted()
            self._process = context.Process(target=_work_until_closed, args=(child_end, *given))
            with _environment(_worker_environment(self._number, self._threads)), _ctrl_c_blocked():
                self._process.start()
            child_end.close()  # else its death would not close the pipe
        self.job = job
        with suppress(OSError):  # it died while it waited: its outcome will say so
            self.connection.send(job)

    def outcome(self) -> JobOutcome:
        assert self.job is not None
        job, self.job = self.job, None
        try:
            outcome: JobOutcome = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            status, self._process = self._process.exitcode, None
            cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            hint = " The machine may be out of memory: use fewer workers." if status == -signal.SIGKILL else ""
            return JobOutcome(job.key, f"Its process ended with {cause}.{hint}")
        return outcome

    def stop(self) -> None:
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._process = None


def _work_until_closed(jobs: Connection, work: Work, parent: int, trusted: own_code.Trusted) -> None:
    """Run the jobs that come until the parent closes its end, or is gone; the user's own code is known as there."""
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and stops its workers
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    own_code.trust(trusted)
    while True:
        try:
            job = jobs.recv()
        except EOFError:
            return
        try:
            jobs.send(attempt(work, job))
        except Terminated:  # this process alone: the job goes on in another
            os._exit(128 + signal.SIGTERM)


def _exit_with_parent(parent: int) -> None:
    """End this process when its parent has gone: a killed parent cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C for the processes that are started inside: the parent hears it too, and stops its workers.

    From their first moment on, or one that is loading its modules would show where it was.
    """
    resource_tracker.ensure_running()  # which would be started inside, and unblocks it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_environment(number: int, threads: int) -> dict[str, str]:
    limits = {THREADS_VARIABLE: str(threads)}
    import torch

    if devices := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")
        limits["CUDA_VISIBLE_DEVICES"] = visible[number % devices]
    return limits


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

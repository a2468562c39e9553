"""Run the jobs of a study on a Ray cluster."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from limbeck._internal import own_code
from limbeck._internal.signals import noting
from limbeck._internal.tuning import THREADS_VARIABLE
from limbeck.errors import LimbeckError, MissingExtra, RunError, Terminated
from limbeck.study.engines import Work
from limbeck.study.jobs import Job, JobOutcome, attempt, execute_job
from limbeck.training.precision import PRECISION_VARIABLE, automatic_precision

_POLL_SECONDS = 0.5
# A head may be away for a moment; Ray itself waits for a minute, and then ends the process that waits.
_PATIENCE_SECONDS = 10.0


class Ray:
    """Run jobs on a Ray cluster, or on a Ray started here. All nodes must see the study's folder at the same path.

    One node or worker that is lost costs a job an attempt. Where the head is lost, or the node that this process is on,
    nothing can be run any more: that is one RunError, and the study can be continued.
    """

    def __init__(self, address: str = "local", threads: int = 1, work: Work = execute_job) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("This engine needs Ray: pip install 'limbeck[ray]'.") from error
        self._ray, self._address = ray, address
        # what cannot be worked with any more; a worker's death is not among them, and is looked at for each job
        self._lost = (ray.exceptions.LocalRayletDiedError, ray.exceptions.RaySystemError, ray.exceptions.RpcError)
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            options["include_dashboard"] = False
        ray._private.worker._worker_logs_enabled = False  # twenty lines of a node's state when it dies
        try:
            with _own_sigterm_handler():
                ray.init(**options)
            resources = ray.cluster_resources()
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise LimbeckError(f"Ray cannot be reached at {address}: {error}") from error
        cpus = resources.get("CPU", 0)
        if threads > cpus:
            ray.shutdown()
            raise LimbeckError(f"--threads is {threads}, but Ray at {address} has {cpus:g} CPUs in all.")
        gpus = 1 if resources.get("GPU") else 0
        # limbeck itself decides what is tried again
        self._remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_attempt_on_ray)
        self._threads, self._work = threads, work
        self._running: dict[Any, Job] = {}
        self._head = _Head(ray.get_runtime_context().gcs_address)
        self._restore_stderr = _keep_stderr_for_python()
        self.on_start: Callable[[Job], None] = lambda job: None

    def submit(self, job: Job) -> None:
        environment = {"env_vars": {THREADS_VARIABLE: str(self._threads), PRECISION_VARIABLE: automatic_precision()}}
        remote = self._remote.options(runtime_env=environment)
        with self._loss_explained():
            reference = remote.remote(self._work, job, os.getcwd(), self._threads, own_code.trusted())
        self._running[reference] = job
        self.on_start(job)

    def next_outcome(self) -> JobOutcome:
        with self._loss_explained():
            reference = self._next_ready()
            job = self._running.pop(reference)
            try:
                outcome: JobOutcome = self._ray.get(reference)
            except self._lost:
                raise
            except self._ray.exceptions.RayError as error:
                return JobOutcome(job.key, f"Its worker was lost: {_first_sentence(error)}.")
        return outcome

    def close(self) -> None:
        for reference in self._running:
            with suppress(Exception):  # of a cluster that is gone
                self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()
        self._restore_stderr()

    def _next_ready(self) -> Any:
        """Wait until one of the jobs has ended; Ray would swallow what a signal raises, so signals are only noted."""
        with noting(signal.SIGTERM, signal.SIGINT) as noted:
            while True:
                ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_POLL_SECONDS)
                noted.raise_if_any()
                if ready:
                    return ready[0]
                if self._head.is_lost():
                    raise ConnectionError("its head does not answer any more")

    @contextmanager
    def _loss_explained(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, *self._lost) as error:
            raise RunError(
                f"The Ray cluster at {self._address} was lost: {_first_sentence(error)}. Finished runs are kept, and "
                "unfinished ones have their checkpoints. The same command continues the study when Ray runs again; so "
                "does one without --ray."
            ) from error


class _Head:
    """Watch whether a cluster's head answers, where it can be reached directly at all."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._watched = self._answers()
        self._seen = time.monotonic()

    def is_lost(self) -> bool:
        """Tell whether it has not answered for a while."""
        if not self._watched or self._answers():
            self._seen = time.monotonic()
        return time.monotonic() - self._seen > _PATIENCE_SECONDS

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=2).close()
        except OSError:
            return False
        return True


def _first_sentence(error: Exception) -> str:
    """Return what Ray says first; a page about nodes and logs may follow."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


def _attempt_on_ray(work: Work, job: Job, folder: str, threads: int, trusted: own_code.Trusted) -> JobOutcome:
    import torch

    os.chdir(folder)  # where the study was started: its paths may be relative
    own_code.trust(trusted)
    torch.set_num_threads(threads)
    try:
        return attempt(work, job)
    except Terminated as stop:  # this worker alone, as its node is drained: the job goes on in another
        return JobOutcome(job.key, str(stop))


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _keep_stderr_for_python() -> Callable[[], None]:
    """Hide what the threads of Ray write to the terminal, past Python; return what undoes it."""
    before: Any = sys.stderr
    if before is not sys.__stderr__ or before is None or before.fileno() != 2:
        return lambda: None  # Python's own messages go elsewhere already
    kept = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)
    sys.stderr = kept

    def restore() -> None:
        os.dup2(kept.fileno(), 2)
        sys.stderr = before

    return restore

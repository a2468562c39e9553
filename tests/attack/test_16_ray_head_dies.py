"""Kill the head of a Ray cluster in the middle of a study: one message, and the study goes on, without Ray too."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from helpers.fake_training import quick
from helpers.saved_runs import read_json

from limbeck.errors import RunError, Terminated
from limbeck.study import ray_engine
from limbeck.study.engines import InProcess
from limbeck.study.jobs import TrainJob
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study

pytestmark = pytest.mark.chaos
STUDY = {
    "tasks": ["glue/rte"],
    "teacher": {"fine_tuned": "big", "cache": "off"},
    "student": {"from": "teacher", "keep": "first:3"},
    "methods": {"ft": {}, "kd": {}},
    "rivals": False,
    "seeds": [1, 2, 3],
}


class Lost(Exception):
    """Stand for an error of Ray's."""


class FakeRay:
    """Stand for Ray: ``wait`` gives what is ready, or raises."""

    class exceptions:
        RayError = Lost

    def __init__(self, ready, value):
        self.ready, self.value = ready, value

    def wait(self, references, num_returns, timeout):
        return (references[:1], []) if self.ready else ([], references)

    def get(self, reference):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Fatal(Lost):
    """Stand for an error that means that the cluster is gone."""


@pytest.fixture()
def engine(tmp_path):
    """Make an engine with a job, on a Ray that is made up."""

    def engine(ready, value=None, head="127.0.0.1:1"):
        made = object.__new__(ray_engine.Ray)
        made._ray, made._address, made._lost = FakeRay(ready, value), "somewhere", (Fatal,)
        made._running = {"reference": TrainJob("key", "title", str(tmp_path), {}, str(tmp_path))}
        made._head = ray_engine._Head(head)
        return made

    return engine


def test_a_lost_worker_costs_a_job_an_attempt(engine):
    outcome = engine(True, Lost("The worker died. See a page\nof logs.")).next_outcome()
    assert outcome.error == "Its worker was lost: The worker died." and not outcome.final


@pytest.mark.parametrize("error", [Fatal("The raylet died. And more."), ConnectionError("gone")])
def test_a_lost_cluster_stops_the_study(error, engine):
    with pytest.raises(RunError, match=r"cluster at somewhere was lost: .*\. Finished runs.*same command continues"):
        engine(True, error).next_outcome()


def test_a_head_that_answers_no_more_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(ray_engine, "_POLL_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = engine(False, head=f"127.0.0.1:{server.getsockname()[1]}")
        assert not made._head.is_lost()
    with pytest.raises(RunError, match="head does not answer any more"):
        made.next_outcome()


def test_a_head_that_was_never_in_reach_is_not_missed(monkeypatch):
    """Go on where only Ray's own way leads to it, as through a client's port."""
    monkeypatch.setattr(ray_engine, "_PATIENCE_SECONDS", 0.5)
    head = ray_engine._Head("127.0.0.1:1")
    head._seen -= 60
    assert not head.is_lost()


def test_sigterm_is_heard_while_ray_works(engine, monkeypatch):
    made = engine(False)
    monkeypatch.setattr(made._ray, "wait", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM) or ([], []))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated):
        made.next_outcome()
    assert signal.getsignal(signal.SIGTERM) is before


COMMAND = """
import sys
import limbeck.study.ray_engine as engine
from helpers.fake_training import quick
from limbeck.cli.main import main
begin = engine.Ray.__init__
engine.Ray.__init__ = lambda self, address, threads: begin(self, address, threads, quick)
sys.argv[0] = "limbeck"
main()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def processes_of(folder):
    """List the processes of a Ray that was started with this folder, by their number and name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if folder.encode() in (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


@pytest.fixture()
def head():
    """Start a head on the loopback address, with files of its own; its sockets need a short path."""
    pytest.importorskip("ray")
    ray = Path(sys.executable).with_name("ray")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        port = free_port()
        words = ["start", "--head", "--port", port, "--node-ip-address", "127.0.0.1", "--temp-dir", folder]
        words += ["--include-dashboard=false", "--num-cpus", 2, "--disable-usage-stats"]
        subprocess.run(
            [ray, *map(str, words)], check=True, capture_output=True, timeout=120, env=os.environ | ENVIRONMENT
        )
        try:
            yield f"127.0.0.1:{port}", folder
        finally:
            for process in processes_of(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "FAKE_SECONDS": "10"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("killed", [{"gcs_server", "raylet"}, {"gcs_server"}, {"raylet"}], ids=sorted)
def test_the_head_dies_in_the_middle_of_a_study(killed, head, tmp_path):
    address, folder = head
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(STUDY))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "study", "my.yaml", "-o", "out", "--ray", address],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | ENVIRONMENT,
    )
    deadline = time.monotonic() + 240
    while process.poll() is None and not (tmp_path / "out" / "work.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for number, name in processes_of(folder).items():
        if name in killed:
            os.kill(number, signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert f"Error: The Ray cluster at {address} was lost" in said and "same command continues" in said
    assert len(said.splitlines()) <= 12 and "state-dump" not in said and "Traceback" not in said, said
    assert not (tmp_path / "out" / "results.json").exists()
    done = (tmp_path / "out" / "work.txt").read_text().splitlines()
    results = run_study(load_study(tmp_path / "my.yaml"), tmp_path / "out", InProcess(work=quick))
    assert [entry["missing"] for entry in results["entries"]] == [0, 0]
    assert read_json(tmp_path / "out" / "results.json") == results
    # what was finished was not done again, whatever was running then
    again = (tmp_path / "out" / "work.txt").read_text().splitlines()
    assert again[: len(done)] == done and len(set(again)) == 6

"""Threads follow the cores that are free and allowed; freed memory stays; what the user says comes first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from limbeck._internal import tuning

MEMORY = """
import ctypes, resource, sys
from limbeck._internal.tuning import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps freed memory when told to")
def test_freed_memory_is_used_again_without_page_faults():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", MEMORY, how], check=True, capture_output=True, text=True).stdout)
        for how in ("given-back", "kept")
    }
    assert faults["kept"] < faults["given-back"] / 5


def test_another_c_library_is_no_error(monkeypatch):
    monkeypatch.setattr(tuning.ctypes, "CDLL", lambda name: object())
    assert not tuning.keep_freed_memory()


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(tuning, "cpu_quota", lambda: None)
    monkeypatch.delenv(tuning.THREADS_VARIABLE, raising=False)
    monkeypatch.setattr(tuning, "sys", SimpleNamespace(modules={}))  # torch is not loaded yet


def busy(monkeypatch, *percents: float) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: list(percents))


@pytest.mark.parametrize(
    ("percents", "threads"), [((0, 2, 1, 0), 4), ((100, 0, 0, 3), 3), ((100, 100, 100, 97), 1), ((60, 60, 60, 60), 2)]
)
def test_threads_are_as_many_as_cores_are_free(four_cores, monkeypatch, percents, threads):
    busy(monkeypatch, *percents)
    tuning.use_threads(None)
    assert os.environ[tuning.THREADS_VARIABLE] == str(threads)


def test_what_the_user_says_comes_first(four_cores, monkeypatch, caplog):
    busy(monkeypatch, 100, 100, 100, 100)
    monkeypatch.setenv(tuning.THREADS_VARIABLE, "3")
    tuning.use_threads(None)
    assert os.environ[tuning.THREADS_VARIABLE] == "3"
    tuning.use_threads(2)
    assert os.environ[tuning.THREADS_VARIABLE] == "2" and not caplog.messages
    tuning.use_threads(9)
    assert os.environ[tuning.THREADS_VARIABLE] == "4" and "may use 4" in caplog.messages[0]


@pytest.mark.parametrize(
    ("written", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("nonsense", 4)]
)
def test_a_containers_quota_bounds_the_threads(four_cores, monkeypatch, tmp_path, written, cores):
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(written)
    monkeypatch.setattr(tuning, "_QUOTAS", (file, Path("missing")))
    assert tuning.usable_cores() == cores


@pytest.mark.parametrize(("limit", "quota"), [("-1", None), ("150000", 1.5)])
def test_the_older_files_of_a_quota_are_read_too(monkeypatch, tmp_path, limit, quota):
    file = tmp_path / "cpu.cfs_quota_us"
    file.write_text(f"{limit}\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    monkeypatch.setattr(tuning, "_QUOTAS", (tmp_path / "missing", file))
    assert tuning.cpu_quota() == quota


def test_spinning_is_bounded_unless_the_user_says_how(monkeypatch):
    for name in (tuning.SPIN_VARIABLE, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    tuning.bound_spinning()
    assert tuning.SPIN_VARIABLE not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv(tuning.SPIN_VARIABLE, "7")
    tuning.bound_spinning()
    assert os.environ[tuning.SPIN_VARIABLE] == "7"
    monkeypatch.delenv(tuning.SPIN_VARIABLE)
    tuning.bound_spinning()
    assert int(os.environ[tuning.SPIN_VARIABLE]) > 0

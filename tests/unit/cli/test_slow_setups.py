"""Warn of slow set-ups: each one alone is named with what to do, and a good machine is warned of nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from limbeck.cli import slow_setups
from limbeck.cli.slow_setups import find_slow_setups

GIB = 2**30


@pytest.fixture()
def machine(monkeypatch, tmp_path):
    """Make a machine of eight free cores, units for bfloat16, 16 GiB and no GPU; what it has can be changed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LIMBECK_PRECISION", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(slow_setups, "_DEVICES", tmp_path)

    def change(usable=8, free=8, units=True, available=12 * GIB, swap=0, cuda=False):
        monkeypatch.setattr(slow_setups, "usable_cores", lambda: usable)
        monkeypatch.setattr(slow_setups, "free_cores", lambda: free)
        monkeypatch.setattr(slow_setups, "has_bfloat16_units", lambda: units)
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=available))
        monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(used=swap))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)

    change()
    return change


def the_warning():
    (warning,) = find_slow_setups()
    return warning


def test_a_good_machine_is_warned_of_nothing(machine):
    assert find_slow_setups() == []


def test_fewer_threads_than_cores(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert the_warning() == "OMP_NUM_THREADS=2, and 8 cores may be used. Unset it, or add --threads 8."
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert find_slow_setups() == []


def test_more_threads_than_cores(machine, monkeypatch):
    machine(usable=2, free=2)  # as in a container with a quota
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert the_warning() == "OMP_NUM_THREADS=64: more threads than the 2 cores wait for each other. Unset it."


def test_cores_that_others_use(machine):
    machine(free=3)
    assert the_warning().startswith("5 of the 8 cores that may be used are busy with other programs. Wait")


def test_no_units_for_bfloat16(machine, monkeypatch):
    machine(units=False)
    assert "no units for bfloat16 (avx512_bf16, amx_bf16)" in the_warning() and "on a GPU" in the_warning()
    machine(units=False, cuda=True)
    assert "The GPU has no units" in the_warning() and "train.precision=float16" in the_warning()


def test_units_that_a_variable_keeps_idle(machine, monkeypatch):
    monkeypatch.setenv("LIMBECK_PRECISION", "float32")
    assert the_warning().startswith("LIMBECK_PRECISION=float32, and") and the_warning().endswith("Unset it.")
    monkeypatch.setenv("LIMBECK_PRECISION", "bfloat16")
    assert find_slow_setups() == []


def test_little_memory(machine):
    machine(available=1_200_000_000)
    assert the_warning().startswith("1.2 GB of 17.2 GB of memory are free. Close other programs")
    assert "train.batch_size" in the_warning()


def test_memory_on_the_disk(machine):
    machine(swap=GIB)  # what lies there for good
    assert find_slow_setups() == []
    machine(swap=3 * GIB)
    assert the_warning().startswith("3.2 GB of memory lie on the disk (swap)") and "Close programs" in the_warning()


@pytest.mark.parametrize(
    ("cuda", "visible", "said"),
    [
        (None, None, "was built without CUDA. Install one with it: pip install"),
        ("13.0", "", "CUDA_VISIBLE_DEVICES= hides it. Unset it."),
        ("13.0", "-1", "CUDA_VISIBLE_DEVICES=-1 hides it. Unset it."),
        ("13.0", None, "built for CUDA 13.0. 'nvidia-smi' shows"),
    ],
)
def test_a_gpu_that_is_not_used(machine, monkeypatch, tmp_path, cuda, visible, said):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert the_warning().startswith("There is a GPU") and said in the_warning()
    machine(cuda=True)
    assert find_slow_setups() == []


def test_a_driver_without_a_gpu_is_none(machine, monkeypatch, tmp_path):
    (tmp_path / "nvidiactl").touch()
    assert find_slow_setups() == []

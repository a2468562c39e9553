"""Break things: damage, a full disk, a second process, a loss that is no number. Nothing finished is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import torch
from helpers.saved_runs import assert_same_run, read_json
from helpers.tiny_recipes import recipe_values
from transformers import TrainerCallback

import limbeck.training.trainer
from limbeck import execute, load_recipe
from limbeck._internal.tensors import load_state, load_tensors, save_state
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory
from limbeck.training.checkpoint_folders import last_checkpoint

TRAIN = {"max_steps": 6, "batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "eval_strategy": "no"}
KEPT = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 9}
pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def values(table_files, teacher_folder):
    def values(method="kd", **train):
        return recipe_values(table_files, teacher_folder, method, train=TRAIN | KEPT | train)

    return values


@pytest.fixture(scope="module")
def recipe(values):
    return lambda *method, **train: load_recipe(values=values(*method, **train))


HOLDER = """
from pathlib import Path
from limbeck._internal.locks import locked
with locked(Path("run")):
    print("held", flush=True)
    input()
"""


@pytest.fixture()
def holder(tmp_path):
    """Start another process that holds the lock of the folder ``run`` until it is given a line."""
    command, pipe = [sys.executable, "-c", HOLDER], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_two_processes_in_one_run_directory(values, recipe, command, holder, tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(values()))
    code, said = command("distill", "recipe.yaml", "-o", "run")
    assert code == 1 and "Another process is writing into run" in said
    holder.communicate("\n", timeout=60)
    assert not (tmp_path / "run").exists()  # neither of them has written anything
    execute(recipe(max_steps=1), tmp_path / "run", show_data=False)
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_the_lock_ends_with_its_process(recipe, holder, tmp_path):
    """Let a killed run go on at once, however its process ended."""
    with pytest.raises(RunError, match="Another process"):
        execute(recipe(max_steps=1), tmp_path / "run", show_data=False)
    holder.kill()
    holder.wait()
    execute(recipe(max_steps=1), tmp_path / "run", show_data=False)


class Stop(TrainerCallback):
    """Raise after a step."""

    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise self.error


@pytest.fixture(scope="module")
def stopped_once(recipe, tmp_path_factory):
    home = tmp_path_factory.mktemp("stopped")
    execute(recipe(), home / "whole", show_data=False)
    start = limbeck.training.trainer.RunTrainer.__init__

    def stopping(self, *args, **options):
        start(self, *args, **options)
        self.add_callback(Stop(5, KeyboardInterrupt()))

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(limbeck.training.trainer.RunTrainer, "__init__", stopping)
        execute(recipe(), home / "run", show_data=False)
    assert last_checkpoint(home / "run" / "checkpoints").name == "checkpoint-4"
    return home


@pytest.fixture()
def stopped(stopped_once, tmp_path, caplog):
    """Return an unfinished run, whose last checkpoint is that of step 4, and the same run uninterrupted."""
    caplog.set_level("INFO", "limbeck")
    return shutil.copytree(stopped_once / "run", tmp_path / "run"), stopped_once / "whole"


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    content = bytearray(file.read_bytes())
    content[-9] ^= 4  # in the last tensor, or the last number
    file.write_bytes(content)


def remove(file):
    file.unlink()


DAMAGES = [(damage, name) for name in ("model", "training", "random") for damage in (cut, flip)]


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *((damage, f"{name}.safetensors") for damage, name in DAMAGES),
        (remove, "trainer_state.json"),
        (cut, "trainer_state.json"),
    ],
)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(damage, name, stopped, recipe, caplog):
    run, whole = stopped
    damage(run / "checkpoints" / "checkpoint-4" / name)
    execute(recipe(), run, resume=True, show_data=False)
    assert "checkpoint-4 is left out" in caplog.text and "Resuming from" in caplog.text
    assert_same_run(run, whole)


def test_all_checkpoints_damaged_starts_over(stopped, recipe, caplog):
    run, whole = stopped
    for checkpoint in (run / "checkpoints").iterdir():
        flip(checkpoint / "model.safetensors")
    execute(recipe(), run, resume=True, show_data=False)
    assert "Resuming from" not in caplog.text
    assert_same_run(run, whole)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_cache_is_not_trusted(damage, values, teacher_folder, tmp_path):
    wanted = values("fcd")
    wanted["teacher"]["cache"] = str(tmp_path / "cache")
    whole = execute(load_recipe(values=wanted), tmp_path / "whole", show_data=False).path
    shards = [file for file in (tmp_path / "cache").rglob("*.safetensors") if "validation" not in str(file)]
    damage(max(shards, key=lambda file: file.stat().st_size))
    again = execute(load_recipe(values=wanted), tmp_path / "again", show_data=False).path
    assert_same_run(again, whole)


@pytest.mark.parametrize(
    "content", [b"", b"text,label\n", b'text,label\n"never closed,positive\n', b"\x00\xff\xfe\x00garbage"]
)
def test_a_damaged_data_file_is_one_message(content, values, command, table_files, tmp_path):
    given = values()
    given["task"] |= {"train": "train.csv", "validation": str(table_files[1])}
    (tmp_path / "train.csv").write_bytes(content)
    (tmp_path / "recipe.yaml").write_text(json.dumps(given))
    status, shown = command("distill", "recipe.yaml", "-o", "run")
    assert status == 1 and "train.csv" in shown and "Traceback" not in shown
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("term", ["task", "kd"])
def test_a_loss_that_is_no_number_stops_the_run(term, recipe, tmp_path, monkeypatch):
    """Keep the batch for inspection, and the last checkpoint before it."""
    steps = []
    forward = limbeck.distillation.objective.Objective.forward

    def diverging(self, student, teacher, batch):
        values = forward(self, student, teacher, batch)
        steps.append(batch)
        return values | {term: values[term] * float("nan")} if len(steps) == 5 else values

    monkeypatch.setattr(limbeck.distillation.objective.Objective, "forward", diverging)
    with pytest.raises(RunError, match=rf"The loss of step 5 is nan \({term}\).*learning_rate"):
        execute(recipe(), tmp_path / "run", show_data=False)
    assert len(steps) <= 6  # noticed in the step after
    kept, _ = load_tensors(RunDirectory(tmp_path / "run").bad_batch / "batch.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in steps[4].items())
    about = read_json(RunDirectory(tmp_path / "run").bad_batch / "about.json")
    assert about["step"] == 5 and about["terms"][term] == "nan"
    assert last_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-4"
    assert all(weights.isfinite().all() for weights in model_of(tmp_path / "run", 4).values())
    monkeypatch.setattr(limbeck.distillation.objective.Objective, "forward", forward)
    execute(recipe(), tmp_path / "run", resume=True, show_data=False)


def test_a_checkpoint_is_never_written_after_such_a_loss(recipe, tmp_path, monkeypatch):
    forward = limbeck.distillation.objective.Objective.forward
    calls = []

    def diverging(self, *given):
        calls.append(1)
        return {name: value * (float("inf") if len(calls) == 4 else 1) for name, value in forward(self, *given).items()}

    monkeypatch.setattr(limbeck.distillation.objective.Objective, "forward", diverging)
    with pytest.raises(RunError, match="The loss of step 4 is inf"):
        execute(recipe(), tmp_path / "run", show_data=False)
    assert last_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"


def model_of(run, step):
    return load_tensors(run / "checkpoints" / f"checkpoint-{step}" / "model.safetensors")[0]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["gpu", "python", "cpu"],
)
def test_out_of_memory_says_what_to_change(error, recipe, tmp_path, monkeypatch):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(limbeck.distillation.objective.Objective, "forward", full)
    with pytest.raises(RunError, match=r"Out of memory.*train.batch_size.*relation_batch.*--resume"):
        execute(recipe(), tmp_path / "run", show_data=False)


@pytest.mark.parametrize("writer", ["save_tensors", "save_state"])
def test_a_full_disk_loses_nothing(writer, values, command, tmp_path, monkeypatch):
    """Fill the disk while a checkpoint is written: one message, and the one before is used."""
    (tmp_path / "recipe.yaml").write_text(json.dumps(values()))
    assert command("distill", "recipe.yaml", "-o", "whole")[0] == 0
    import limbeck.training.checkpoints

    real, calls = getattr(limbeck.training.checkpoints, writer), []

    def full(file, *given):
        if "checkpoint-4" in str(file):
            calls.append(file)
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        real(file, *given)

    with monkeypatch.context() as patched:
        patched.setattr(limbeck.training.checkpoints, writer, full)
        status, shown = command("distill", "recipe.yaml", "-o", "run")
    assert calls and status == 1
    assert "No space left on device" in shown and "Traceback" not in shown
    assert command("distill", "recipe.yaml", "-o", "run", "--resume")[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_directory_that_cannot_be_written(values, command, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(json.dumps(values()))

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    status, shown = command("distill", "recipe.yaml", "-o", "run")
    assert status == 1 and "run cannot be" in shown and "--output" in shown and "Traceback" not in shown


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="mounts a small disk: needs root")
@pytest.mark.parametrize(("option", "said"), [("size=400k", "No space left"), ("ro", "cannot be")])
def test_a_real_disk_that_is_full_or_read_only(option, said, values, command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let its root mount a disk")
    try:
        (tmp_path / "recipe.yaml").write_text(json.dumps(values()))
        code, shown = command("distill", "recipe.yaml", "-o", "disk/run")
        assert code == 1 and said in shown
    finally:
        subprocess.run(["umount", disk], check=True)


def test_states_come_back_as_they_were(tmp_path):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.randn(3, 2))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3, 2)
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "numbers": (1, 2.5, None, True, "x"), 3: [{"empty": torch.empty(0)}]}
    save_state(tmp_path / "state.safetensors", state)
    found = load_state(tmp_path / "state.safetensors")
    assert found["numbers"] == state["numbers"] and found[3][0]["empty"].shape == (0,)
    other = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 2))], lr=0.5)
    other.load_state_dict(found["optimizer"])
    assert other.param_groups[0]["lr"] == 0.1
    for name, value in optimizer.state_dict()["state"][0].items():
        assert torch.equal(other.state_dict()["state"][0][name], value), name


def test_what_cannot_be_kept_without_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="A state holds a object"):
        save_state(tmp_path / "state.safetensors", {"thing": object()})
    assert not list(tmp_path.iterdir())


def test_random_states_go_on(tmp_path):
    import numpy as np

    from limbeck.training.checkpoints import load_random_state, save_random_state

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    save_random_state(tmp_path)
    drawn = random.random(), np.random.rand(), torch.rand(1).item(), np.random.randn()
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    load_random_state(tmp_path)
    assert (random.random(), np.random.rand(), torch.rand(1).item(), np.random.randn()) == drawn


def test_no_pickle_is_in_a_checkpoint(stopped):
    run, _ = stopped
    files = {file.name for file in (run / "checkpoints" / "checkpoint-4").iterdir()}
    assert files == {"model.safetensors", "training.safetensors", "random.safetensors", "trainer_state.json"}


class Planted:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_planted_pickle_is_never_loaded(stopped, recipe, tmp_path):
    import pickle

    run, whole = stopped
    marker = tmp_path / "loaded"
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "scaler.pt",
        "pytorch_model.bin",
    ):
        (run / "checkpoints" / "checkpoint-4" / name).write_bytes(pickle.dumps(Planted(marker)))
    execute(recipe(), run, resume=True, show_data=False)
    assert not marker.exists()
    assert_same_run(run, whole)
    pickle.loads(pickle.dumps(Planted(marker)))  # it would have shown
    assert marker.exists()

"""When things break: kills, signals, damage, a full disk, a loss that is no number. Nothing finished is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from helpers.killing import wait_for
from helpers.saved_runs import read_json
from helpers.tiny_recipes import table_task
from safetensors.torch import load_file
from transformers import TrainerCallback

import limbeck.training.trainer
from limbeck import execute, load_recipe
from limbeck._internal.locks import locked
from limbeck._internal.tensors import load_state, load_tensors, save_state
from limbeck.errors import RunError
from limbeck.training.checkpoints import last_checkpoint
from limbeck.training.fault_handling import BAD_BATCH

TRAIN = {"max_steps": 6, "batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "eval_strategy": "no"}
KEPT = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 9}


@pytest.fixture(scope="module")
def values(table_files, teacher_folder):
    def values(method="kd", **train):
        return {
            "task": table_task(table_files),
            "teacher": {"model": str(teacher_folder)},
            "student": {"from": "teacher", "keep": "first:2"},
            "method": {"name": method} if isinstance(method, str) else method,
            "train": TRAIN | KEPT | train,
        }

    return values


@pytest.fixture(scope="module")
def recipe(values):
    return lambda *method, **train: load_recipe(values=values(*method, **train))


def student(run):
    return load_file(run / "student" / "model.safetensors")


def assert_same(one, other):
    ours, theirs = student(one), student(other)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = read_json(one / "metrics.json"), read_json(other / "metrics.json")
    assert ours | {"train_seconds": 0} == theirs | {"train_seconds": 0}
    assert (one / "predictions.parquet").read_bytes() == (other / "predictions.parquet").read_bytes()


# A child for each attempt is forked from a process that has loaded torch already.
KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from limbeck import execute, load_recipe
from limbeck.distillation.teachers import LiveTeacher
values, folder, dice = json.loads(sys.argv[1]), Path(sys.argv[2]), random.Random(int(sys.argv[3]))
def start(name):
    child = os.fork()
    if child:
        return child
    try:
        execute(load_recipe(values=values), folder / name, resume=True, show_data=False)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
def ended(child):
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    return not os.WIFSIGNALED(status)
begun = time.monotonic()
assert ended(start("whole"))
lasted = time.monotonic() - begun
kills, finished = 0, []
while kills < 20 or not finished:
    name = f"broken-{len(finished)}"
    child = start(name)
    time.sleep(dice.uniform(0.0, 0.5 * lasted) if kills < 20 else 0)
    if kills < 20:
        os.kill(child, signal.SIGKILL)
    if ended(child):
        finished.append(name)
    else:
        kills += 1
print(json.dumps({"kills": kills, "finished": finished}))
"""


@pytest.mark.chaos
def test_a_distillation_killed_20_times_is_that_which_nobody_killed(values, tmp_path):
    seed = random.randrange(10**6)
    method = {"name": "fsd", "memory": 8, "passes": 2}  # clusters before it trains, and trains more than its student
    train = {"max_steps": 60, "save_steps": 5, "save_total_limit": 1, "eval_strategy": "steps", "eval_steps": 7}
    given = json.dumps(values(method, **train))
    done = subprocess.run(
        [sys.executable, "-c", KILLS, given, str(tmp_path), str(seed)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 20
    for name in found["finished"]:
        assert_same(tmp_path / name, tmp_path / "whole")
        assert history(tmp_path / name) == history(tmp_path / "whole"), f"seed {seed}"


def history(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    timed = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


SLOW = """
import time
from limbeck.methods import METHODS
def slow(pair):
    objective = METHODS["kd"](pair)
    objective.register_forward_hook(lambda *_: time.sleep(0.05))
    return objective
"""


@pytest.mark.chaos
def test_sigterm_leaves_a_checkpoint_and_says_so(values, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "recipe.yaml").write_text(json.dumps(values("slow:slow", max_steps=60, save_steps=1000)))
    command = [sys.executable, "-m", "limbeck", "distill", "recipe.yaml", "-o", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "history.jsonl", process)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "SIGTERM" in shown and "--resume" in shown and "Traceback" not in shown
    checkpoint = last_checkpoint(tmp_path / "run" / "checkpoints")
    step = read_json(checkpoint / "trainer_state.json")["global_step"]
    assert 0 < step < 60 and not (tmp_path / "run" / "metrics.json").exists()

    for name, more in (("run", ["--resume"]), ("whole", [])):
        done = subprocess.run([*command[:-1], name, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_two_processes_in_one_run_directory(values, recipe, command, tmp_path):
    with locked(tmp_path / "run"):
        other = [sys.executable, "-m", "limbeck", "distill", "recipe.yaml", "-o", "run"]
        (tmp_path / "recipe.yaml").write_text(json.dumps(values()))
        done = subprocess.run(other, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "Another process is writing into run" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()  # neither of them has written anything
    execute(recipe(max_steps=1), tmp_path / "run", show_data=False)
    assert (tmp_path / "run" / "metrics.json").is_file()


class Stop(TrainerCallback):
    """Raises after a step."""

    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise self.error


@pytest.fixture(scope="module")
def stopped_once(recipe, tmp_path_factory):
    home = tmp_path_factory.mktemp("stopped")
    execute(recipe(), home / "whole", show_data=False)
    start = limbeck.training.trainer.DistillTrainer.__init__

    def stopping(self, *args, **options):
        start(self, *args, **options)
        self.add_callback(Stop(5, KeyboardInterrupt()))

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(limbeck.training.trainer.DistillTrainer, "__init__", stopping)
        execute(recipe(), home / "run", show_data=False)
    assert last_checkpoint(home / "run" / "checkpoints").name == "checkpoint-4"
    return home


@pytest.fixture()
def stopped(stopped_once, tmp_path, caplog):
    """An unfinished run, whose last checkpoint is that of step 4, and the same run uninterrupted."""
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


@pytest.mark.chaos
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
    assert_same(run, whole)


def test_all_checkpoints_damaged_starts_over(stopped, recipe, caplog):
    run, whole = stopped
    for checkpoint in (run / "checkpoints").iterdir():
        flip(checkpoint / "model.safetensors")
    execute(recipe(), run, resume=True, show_data=False)
    assert "Resuming from" not in caplog.text
    assert_same(run, whole)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_cache_is_not_trusted(damage, values, teacher_folder, tmp_path):
    wanted = values("fcd")
    wanted["teacher"]["cache"] = str(tmp_path / "cache")
    whole = execute(load_recipe(values=wanted), tmp_path / "whole", show_data=False).path
    shards = [file for file in (tmp_path / "cache").rglob("*.safetensors") if "validation" not in str(file)]
    damage(max(shards, key=lambda file: file.stat().st_size))
    again = execute(load_recipe(values=wanted), tmp_path / "again", show_data=False).path
    assert_same(again, whole)


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
    """The batch is kept for inspection, and so is the last checkpoint before it."""
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
    kept, _ = load_tensors(tmp_path / "run" / BAD_BATCH / "batch.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in steps[4].items())
    about = read_json(tmp_path / "run" / BAD_BATCH / "about.json")
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
    """While a checkpoint is written: one message, and the one before is used."""
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
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_directory_that_cannot_be_written(values, command, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(json.dumps(values()))

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    status, shown = command("distill", "recipe.yaml", "-o", "run")
    assert status == 1 and "run cannot be" in shown and "--output" in shown and "Traceback" not in shown


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="mounts a small disk: needs root")
@pytest.mark.chaos
@pytest.mark.parametrize(("option", "said"), [("size=400k", "No space left"), ("ro", "cannot be")])
def test_a_real_disk_that_is_full_or_read_only(option, said, values, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let its root mount a disk")
    try:
        (tmp_path / "recipe.yaml").write_text(json.dumps(values()))
        command = [sys.executable, "-m", "limbeck", "distill", "recipe.yaml", "-o", "disk/run"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr and "Traceback" not in done.stderr
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

    from limbeck.training.checkpoints import SafeCheckpoints

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    SafeCheckpoints._save_rng_state(None, str(tmp_path))
    drawn = random.random(), np.random.rand(), torch.rand(1).item(), np.random.randn()
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    SafeCheckpoints._load_rng_state(None, str(tmp_path))
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
    assert_same(run, whole)
    pickle.loads(pickle.dumps(Planted(marker)))  # it would have shown
    assert marker.exists()


HOLDER = """
import time
from pathlib import Path
from limbeck._internal.locks import locked
with locked(Path("run")):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.chaos
def test_the_lock_ends_with_its_process(recipe, tmp_path):
    """However that ends: a killed run can go on at once."""
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="Another process"):
            execute(recipe(max_steps=1), tmp_path / "run", show_data=False)
        process.kill()
    execute(recipe(max_steps=1), tmp_path / "run", show_data=False)

"""Train in two processes to the weights of one with twice the batch, by every method."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import yaml
from helpers import launched_training as launched
from helpers.method_cases import cases
from helpers.saved_runs import assert_same_weights, history, read_json, results
from helpers.tiny_models import without_dropout
from helpers.tiny_recipes import recipe_values, table_words
from helpers.two_processes import in_processes

SIZE = 4  # examples of a process
OPTIONS = {
    "fsd": {"memory": 5},
    "fsd_g": {"memory": 5},
    "metadistil": {"teacher_rate": 1e-3},
    "reptiledistil": {"mu": 0.05},
}
# a plain loss, one that relates samples, one with a memory, one with relations, teachers that learn, drawn blocks
USUAL = ("kd", "cka", "fsd", "fcd", "metadistil", "reptiledistil", "theseus-replacing")
FITTED = {"kd", "cka"}  # whose heads the first process fits, for all of them


def method_of(name, options):
    return {"name": name} | options | OPTIONS.get(name, {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, table_files, teacher_folder):
    """Return a function that trains a method, and others of its group, in one process and in two, into one folder."""
    home = tmp_path_factory.mktemp("launched")
    teacher = without_dropout(teacher_folder, home / "teacher")
    done = set()

    def recipes(usual, batch_size):
        train = {"max_steps": 5, "batch_size": batch_size, "learning_rate": 1e-3, "logging_steps": 1}
        train |= {"eval_strategy": "no", "save_strategy": "no", "optim": "sgd", "lr_scheduler_type": "constant"}
        found = {
            str(case.id): recipe_values(table_files, teacher, method_of(*case.values), train=train)
            for case in cases()
            if (case.id in USUAL) == usual
        }
        for name in FITTED & found.keys():
            found[name]["student"]["head"] = "fitted"
        return found

    def train(name):
        usual = name in USUAL
        if usual not in done:
            launched.train(recipes(usual, 2 * SIZE), home / "one")
            in_processes(launched.train, home, recipes(usual, SIZE), home / "two")
            done.add(usual)
        return home

    return train


def every_method():
    """Name the methods; those that differ in nothing that processes share are slow, their gradients are not."""
    return [pytest.param(case.id, marks=[] if case.id in USUAL else pytest.mark.slow) for case in cases()]


@pytest.mark.distributed
@pytest.mark.parametrize("name", every_method())
def test_the_weights_are_those_of_one_process(trained, name):
    home = trained(name)
    assert_alike(home / "two" / name, home / "one" / name)
    assert read_json(home / "two" / name / "metrics.json")["start"]["head"] == ("fitted" if name in FITTED else "kept")
    losses = [[line["loss"] for line in history(home / side / name) if "loss" in line] for side in ("one", "two")]
    starts = [(home / side / name / "start.json").read_text() for side in ("one", "two")]
    assert starts[0] == starts[1] and losses[1][0] == pytest.approx(losses[0][0], rel=1e-5)
    # fitted to features that hardly differ, a head has weights in the thousands, and so are the gradients' digits
    exact = 1e-3 if name in FITTED else 1e-5
    assert losses[1] == pytest.approx(losses[0], abs=1e-5, rel=exact) and len(losses[0]) == 5
    assert read_json(home / "one" / name / "metrics.json")["steps"] == 5


@pytest.mark.slow
@pytest.mark.distributed
def test_divided_weights_are_trained_saved_and_resumed_alike(trained, tmp_path, monkeypatch):
    """Divide by FSDP: each process holds half of the student and of the optimiser's state."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    more = {"max_steps": 6, "batch_size": SIZE, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 9}
    # Adam makes steps of one size of gradients that are rounding errors, unless epsilon is larger than those
    more |= {"optim": "adamw_torch", "adam_epsilon": 0.01}
    more |= {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    recipes = {}
    for name in ("cka", "fsd"):
        values = yaml.safe_load((trained(name) / "two" / name / "recipe.yaml").read_text())
        recipes[name] = values | {"train": values["train"] | more}
    sharded = {name: values | {"train": values["train"] | {"fsdp": True}} for name, values in recipes.items()}
    in_processes(launched.train, tmp_path, recipes, tmp_path / "whole")
    in_processes(launched.train_sharded, tmp_path, sharded, tmp_path / "divided")
    for name in recipes:
        assert_alike(tmp_path / "divided" / name, tmp_path / "whole" / name)
        shutil.copytree(tmp_path / "divided" / name, tmp_path / "broken" / name)
        shutil.rmtree(tmp_path / "broken" / name / "checkpoints" / "checkpoint-6")
        (tmp_path / "broken" / name / "metrics.json").unlink()
    in_processes(launched.train_sharded, tmp_path, sharded, tmp_path / "broken", True)
    for name in recipes:
        assert_alike(tmp_path / "broken" / name, tmp_path / "whole" / name)


def assert_alike(one, other):
    assert_same_weights(one, other, atol=1e-5)
    assert results(one)["metrics"] == pytest.approx(results(other)["metrics"])


@pytest.mark.slow
@pytest.mark.distributed
def test_commands_under_a_launcher(table_files, teacher_folder, tmp_path):
    """Hear one message of each, the first process's; a mistake is said once."""
    words = [*table_words(table_files), "--teacher", teacher_folder, "--keep", "first:2", "--batch-size", "4"]
    epochs = ["--epochs", "1"]

    def run(*command):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
        started = [*torchrun, "-m", "limbeck", *map(str, command)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)

    done = run("cache", "--method", "fcd", *words, "-o", "cache")
    assert done.returncode == 0 and done.stdout.count("Use it with") == 1, done.stderr
    for name in ("cka", "fcd"):
        done = run("distill", "--method", name, *words, *epochs, "teacher.cache=cache", "-o", f"runs/{name}")
        assert done.returncode == 0 and done.stdout.count("Run directory") == 1, done.stderr
    assert read_json(tmp_path / "runs" / "cka" / "environment.json")["processes"] == 2
    done = run("analyze", "runs/cka", "runs/fcd", "--no-cost")
    assert done.returncode == 0 and done.stdout.count(" files in analysis") == 1, done.stderr
    assert all((tmp_path / "runs" / name / "analysis" / "analysis.json").is_file() for name in ("cka", "fcd"))
    done = run("distill", "--method", "kdd", *words, *epochs, "-o", "runs/wrong")
    assert done.returncode != 0 and done.stderr.count("Did you mean") == 1

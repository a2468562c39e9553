"""Read back what real loggers keep of a run: each term's value, the dev scores, and the recipe as its settings."""

from __future__ import annotations

import json

import pytest
import yaml
from helpers.saved_runs import history
from helpers.tiny_recipes import recipe_values

from limbeck import execute, load_recipe

TRAIN = {"max_steps": 4, "batch_size": 16, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """Keep what loggers write in an empty folder, and have none of them ask a server for anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture()
def report(table_files, teacher_folder, tmp_path):
    """Train with a logger; return the run."""

    def report(service, name="run", **train):
        method = {"name": "fcd"}  # of several terms
        values = recipe_values(table_files, teacher_folder, method, train=TRAIN | {"report_to": service} | train)
        return execute(load_recipe(values=values), tmp_path / "runs" / name).path

    return report


def logged(run):
    """Return the values of each name of the history by step; without what only sums up the training."""
    found = {}
    for entry in history(run):
        for name, value in entry.items():
            if name == "loss" or name.startswith(("term/", "eval_")):
                found.setdefault(name, {})[entry["step"]] = value
    assert {"loss", "term/task", "eval_accuracy"} < found.keys() and len(found["term/task"]) == 2
    return found


def renamed(values):
    """Name values as most loggers do: train/..., eval/..."""
    names = {name: f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}" for name in values}
    return {names[name]: by_step for name, by_step in values.items()}


def settings(run):
    """Return the recipe of a run by path."""

    def flat(values, above=""):
        for key, value in values.items():
            if isinstance(value, dict):
                yield from flat(value, f"{above}{key}.")
            else:
                yield f"{above}{key}", value

    found = dict(flat(yaml.safe_load((run / "recipe.yaml").read_text())))
    assert found["method.name"] == "fcd" and found["task.max_length"] == 16 and found["train.epochs"] == 3.0
    return found


def assert_same(found, expected):
    assert expected.keys() <= found.keys()
    for name, by_step in expected.items():
        assert found[name].keys() == by_step.keys(), name
        assert list(found[name].values()) == pytest.approx(list(by_step.values()), rel=1e-6), name


def events(folder):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: pip install --group loggers",
    )
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(folder):
    found = events(folder)
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_tensorboard(report, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install --group loggers")
    run = report("tensorboard")
    assert_same(scalars(run / "tensorboard"), renamed(logged(run)))
    (text,) = events(run / "tensorboard").Tensors("args/text_summary")
    assert json.loads(text.tensor_proto.string_val[0]) == settings(run)
    assert not (run / "checkpoints").exists()  # where transformers would put the files
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "elsewhere")
    other = report("tensorboard", "other")
    assert not (other / "tensorboard").exists() and scalars("elsewhere")

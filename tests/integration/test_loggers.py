"""Read back what real loggers keep of a run: each term's value, the dev scores, and the recipe as its settings."""

from __future__ import annotations

import json
import sys

import pytest
import yaml
from helpers.saved_runs import history
from helpers.tiny_recipes import recipe_values
from helpers.wandb_files import wandb_records

from limbeck import execute, load_recipe

# what loggers warn of is theirs
pytestmark = pytest.mark.filterwarnings("default")
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
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # it would go on writing into this folder


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


def test_mlflow(report):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install --group loggers")
    run = report("mlflow")
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs(["0"])
    assert kept.info.run_name == "run" and kept.info.status == "FINISHED"
    found = {
        name: {point.step: point.value for point in client.get_metric_history(kept.info.run_id, name)}
        for name in kept.data.metrics
    }
    assert_same(found, logged(run))
    assert kept.data.params == {name: str(value) for name, value in settings(run).items()}


def kept_by_wandb(home):
    """Return the name, settings, values by step and exit code of each run that W&B kept, in their order."""
    found = []
    for file in sorted(home.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        one = {"settings": {}, "values": {}}
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                one["name"] = record.run.display_name
            elif kind == "config":
                one["settings"] |= {item.key: json.loads(item.value_json) for item in record.config.update if item.key}
            elif kind == "exit":
                one["exit"] = record.exit.exit_code
            elif kind == "history":
                row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for name, value in row.items():
                    one["values"].setdefault(name, {})[row["train/global_step"]] = value
        found.append(one)
    return found


def test_wandb(report, tmp_path):
    pytest.importorskip("wandb", reason="needs wandb: pip install --group loggers")
    runs = [report("wandb", name) for name in ("first", "second")]  # of one process, as in a study
    found = kept_by_wandb(tmp_path)
    assert [one["name"] for one in found] == ["first", "second"] and [one["exit"] for one in found] == [0, 0]
    for run, one in zip(runs, found, strict=True):
        assert_same(one["values"], renamed(logged(run)))
        assert settings(run).items() <= one["settings"].items()


def test_trackio(report):
    trackio = pytest.importorskip("trackio", reason="needs trackio: pip install --group loggers")
    from trackio.sqlite_storage import SQLiteStorage

    run = report("trackio", project="mine")
    (kept,) = trackio.Api().runs("mine")
    assert kept.name == "run" and settings(run).items() <= kept.config.items()
    found = {}
    for row in SQLiteStorage.get_logs("mine", "run"):
        for name, value in row.items():
            found.setdefault(name, {})[row["train/global_step"]] = value
    assert_same(found, renamed(logged(run)))


def fail_at_the_first_scores(monkeypatch):
    def fail(*_):
        raise RuntimeError("no scores")

    monkeypatch.setattr("limbeck.training.session.validation_scores", fail)


def test_a_training_that_failed_ends_its_wandb_run(report, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb: pip install --group loggers")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no scores"):
        fail_at_the_first_scores(patch)
        report("wandb", "broken")
    report("wandb", "whole")
    found = kept_by_wandb(tmp_path)
    assert [(one["name"], one["exit"]) for one in found] == [("broken", 1), ("whole", 0)]


def test_a_training_that_failed_ends_its_mlflow_run(report, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install --group loggers")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no scores"):
        fail_at_the_first_scores(patch)
        report("mlflow", "broken")
    report("mlflow", "whole")
    kept = mlflow.MlflowClient().search_runs(["0"], order_by=["start_time"])
    assert [(one.info.run_name, one.info.status) for one in kept] == [("broken", "FAILED"), ("whole", "FINISHED")]


def test_a_run_that_was_open_before_goes_on(report):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install --group loggers")
    with mlflow.start_run(run_name="mine") as mine:
        report("mlflow")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert [one.info.run_name for one in mlflow.MlflowClient().search_runs(["0"])] == ["mine"]


def test_stages_are_runs_of_their_own(table_files, teacher_folder, tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install --group loggers")
    train = {"max_steps": 2, "batch_size": 16, "logging_steps": 1, "report_to": "tensorboard"}
    execute(load_recipe(values=recipe_values(table_files, teacher_folder, "tinybert", train=train)), tmp_path / "run")
    for folder in ("run/stage-1/tensorboard", "run/tensorboard"):
        assert any(name.startswith("train/term/") for name in scalars(tmp_path / folder))

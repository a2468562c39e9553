"""Runs that one process makes one after the other: what they share is computed once, and changes no result."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from helpers.remembered import forget
from helpers.saved_runs import assert_same_run, read_json
from helpers.tiny_recipes import recipe_values, table_task
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoModelForSequenceClassification

import limbeck.training.head_start
import limbeck.training.teacher_outputs
from limbeck import execute, load_recipe
from limbeck.training.checkpoint_folders import last_checkpoint

pytestmark = pytest.mark.usefixtures("quick_collection")

FITTED = {"from": "teacher", "keep": "first:2", "head": "fitted"}


@pytest.fixture()
def calls(monkeypatch):
    """Count the fits of heads, and the times that the teacher is asked about validation data."""
    found = []

    def counted(module, name, what):
        function = getattr(module, name)

        def call(*args, **options):
            found.append(what)
            return function(*args, **options)

        monkeypatch.setattr(module, name, call)

    counted(limbeck.training.head_start, "fit_head", "fit")
    counted(limbeck.training.teacher_outputs, "predict_logits", "teacher")
    return found


def recipe(files, teacher, method="kd", **blocks):
    given = {"student": FITTED, "train": {"max_steps": 2, "batch_size": 16}} | blocks
    return load_recipe(values=recipe_values(files, teacher, method, **given))


def test_methods_share_what_does_not_depend_on_them(table_files, teacher_folder, calls, tmp_path):
    for method in ("kd", "fcd", "ft"):
        execute(recipe(table_files, teacher_folder, method), tmp_path / method)
    assert sorted(calls) == ["fit", "teacher"]
    for method in ("kd", "fcd", "ft"):
        forget()
        execute(recipe(table_files, teacher_folder, method), tmp_path / f"{method}-alone")
        assert_same_run(tmp_path / method, tmp_path / f"{method}-alone")
        ours, alone = (read_json(tmp_path / name / "metrics.json") for name in (method, f"{method}-alone"))
        assert ours["start"] == alone["start"] and ours["teacher"] == alone["teacher"]


def other_labels(folder):
    rows = [(text, {"positive": "negative", "negative": "positive"}[label]) for text, label in sentences(96)]
    return write_csv(folder / "other.csv", rows), folder / "dev.csv"


@pytest.mark.parametrize("change", ["seed", "labels", "validation", "student", "length"])
def test_what_they_depend_on_is_told_apart(change, table_files, teacher_folder, calls, tmp_path):
    write_csv(tmp_path / "dev.csv", sentences(40, seed=1))
    files = table_files[0], tmp_path / "dev.csv"
    first = recipe(files, teacher_folder)
    if change == "seed":
        second = recipe(files, teacher_folder, seed=5)
    elif change == "labels":
        second = recipe(other_labels(tmp_path), teacher_folder)
    elif change == "validation":
        second = recipe((table_files[0], write_csv(tmp_path / "less.csv", sentences(30, seed=2))), teacher_folder)
    elif change == "student":
        second = recipe(files, teacher_folder, student=FITTED | {"keep": [1, 4]})
    else:
        second = recipe(table_task(files) | {"max_length": 4}, teacher_folder)
    execute(first, tmp_path / "first")
    before = list(calls)
    execute(second, tmp_path / "second")
    own = {"seed": ["fit"], "labels": ["fit"], "student": ["fit"]}.get(change, ["fit", "teacher"])
    assert sorted(calls[len(before) :]) == own
    alone = tmp_path / "alone"
    forget()
    execute(second, alone)
    assert_same_run(tmp_path / "second", alone)


def test_a_teacher_that_changed_in_its_folder_is_asked_again(table_files, teacher_folder, calls, tmp_path):
    shutil.copytree(teacher_folder, tmp_path / "teacher")
    execute(recipe(table_files, tmp_path / "teacher"), tmp_path / "first")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher")
    model.classifier.weight.data.neg_()
    model.save_pretrained(tmp_path / "teacher")
    execute(recipe(table_files, tmp_path / "teacher"), tmp_path / "second")
    assert calls.count("teacher") == 2


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({}, 0),
        ({"save_seconds": 0}, 3),
        ({"save_total_limit": 2}, 3),
        ({"load_best_model_at_end": True}, 3),
        ({"save_steps": 4, "save_strategy": "steps"}, 3),
    ],
    ids=["short epochs", "asked for", "kept", "the best", "after steps"],
)
def test_short_epochs_have_no_checkpoints_of_their_own(
    options, saved, table_files, teacher_folder, monkeypatch, tmp_path
):
    written = []
    save = limbeck.training.trainer.RunTrainer.save_model

    def watched(self, folder=None, **given):
        written.append(folder)
        save(self, folder, **given)

    monkeypatch.setattr(limbeck.training.trainer.RunTrainer, "save_model", watched)
    train = {"epochs": 3, "batch_size": 24} | options  # four steps each
    execute(recipe(table_files, teacher_folder, train=train), tmp_path / "run")
    assert len(written) == saved


def test_time_decides_which_epochs_have_a_checkpoint(table_files, teacher_folder, monkeypatch, tmp_path):
    now = iter(range(0, 10_000, 10))  # each question takes ten seconds
    monkeypatch.setattr("limbeck.training.trainer.time", SimpleNamespace(monotonic=lambda: float(next(now))))
    seen = []
    save = limbeck.training.trainer.RunTrainer.save_model
    monkeypatch.setattr(
        limbeck.training.trainer.RunTrainer,
        "save_model",
        lambda self, *given, **named: (seen.append(self.state.epoch), save(self, *given, **named))[1],
    )
    train = {"epochs": 6, "batch_size": 48, "save_seconds": 20}
    execute(recipe(table_files, teacher_folder, train=train), tmp_path / "run")
    assert seen == [2, 4, 6]
    assert last_checkpoint(tmp_path / "run" / "checkpoints") is None  # all gone with the end

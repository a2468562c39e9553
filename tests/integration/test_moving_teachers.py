"""Theseus, MetaDistil and ReptileDistil through the command line: killed, resumed, and the same in the end."""

from __future__ import annotations

import pytest
import torch
from helpers.killing import kill_after
from helpers.saved_runs import read_json
from helpers.tiny_recipes import table_task
from safetensors.torch import load_file

from limbeck import execute, load_recipe
from limbeck.errors import RecipeError
from limbeck.training.assemble import assemble, load_data


def words(table_files, teacher, method, *more):
    train, dev = table_files
    task = [f"task.train={train}", f"task.validation={dev}", "task.text=text", "task.label=label", "task.max_length=16"]
    steps = ["train.max_steps=40", "train.save_steps=4", "train.batch_size=16"]
    command = ["distill", "--method", method, "--task", "table", *task, "--teacher", teacher, "--keep", "first:2"]
    return [*command, *steps, *more]


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("method", "options", "stage"),
    [
        ("theseus", ["method.schedule=linear", "method.full_after=20"], "stage-1"),
        ("metadistil", ["method.teacher_rate=1e-3"], "."),
        ("reptiledistil", ["method.mu=0.05"], "."),
    ],
)
def test_killed_and_resumed_to_the_same_weights(method, options, stage, limbeck, table_files, teacher_folder, tmp_path):
    command = words(table_files, teacher_folder, method, *options)
    limbeck(*command, "-o", "whole")
    for step in (4, 16):
        moment = tmp_path / "broken" / stage / "checkpoints" / f"checkpoint-{step}" / "trainer_state.json"
        assert kill_after(moment, *command, "-o", "broken", "--resume", cwd=tmp_path)
    assert "Resuming from" in limbeck(*command, "-o", "broken", "--resume").stderr
    for part in {stage, "."}:
        whole, broken = (load_file(tmp_path / run / part / "student/model.safetensors") for run in ("whole", "broken"))
        assert whole.keys() == broken.keys() and all(torch.equal(whole[name], broken[name]) for name in whole)
    whole, broken = (read_json(tmp_path / run / "metrics.json") for run in ("whole", "broken"))
    assert whole.pop("train_seconds") and broken.pop("train_seconds")
    assert whole == broken  # the moved teacher's scores included


def values_of(table_files, teacher_folder, **method):
    return {
        "task": table_task(table_files),
        "teacher": {"model": str(teacher_folder)},
        "student": {"from": "teacher", "keep": "first:2"},
        "method": method,
        "train": {"max_steps": 6, "batch_size": 16, "save_total_limit": 2, "save_steps": 3},
    }


def run_of(table_files, teacher_folder, folder, **method):
    return execute(load_recipe(values=values_of(table_files, teacher_folder, **method)), folder)


def test_reptile_that_does_not_move_gives_the_weights_of_kd(table_files, teacher_folder, tmp_path):
    runs = [
        run_of(table_files, teacher_folder, tmp_path / "kd", name="kd", alpha=0.5),
        run_of(table_files, teacher_folder, tmp_path / "still", name="reptiledistil", mu=0.0),
    ]
    ours, theirs = (load_file(run.student / "model.safetensors") for run in runs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_teacher_is_in_the_checkpoint_and_not_in_the_student(table_files, teacher_folder, tmp_path):
    before = load_file(teacher_folder / "model.safetensors")
    for name in ("metadistil", "reptiledistil"):
        run = run_of(table_files, teacher_folder, tmp_path / name, name=name)
        saved = load_file(run.path / "checkpoints" / "checkpoint-6" / "model.safetensors")
        moved = {key: saved[f"teacher.model.{key}"] for key in before}
        assert any(not torch.equal(moved[key], before[key]) for key in before)
        assert not any(key.startswith("teacher") for key in load_file(run.student / "model.safetensors"))
    for key, tensor in load_file(teacher_folder / "model.safetensors").items():
        assert torch.equal(tensor, before[key])  # the teacher's own folder is never written


def test_the_quiz_is_held_out_of_the_training_data(table_files, teacher_folder):
    recipe = load_recipe(values=values_of(table_files, teacher_folder, name="metadistil", quiz=0.25))
    data = load_data(recipe, assemble(recipe))
    train_ids, quiz_ids = (set(data.splits[name]["id"][:]) for name in ("train", "quiz"))
    assert len(quiz_ids) == 24 and len(train_ids) == 72 and not train_ids & quiz_ids
    assert len(data.splits["validation"]) == 40
    again = load_data(recipe, assemble(recipe))
    assert set(again.splits["quiz"]["id"][:]) == quiz_ids


def test_a_stream_has_no_quiz(table_files, teacher_folder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sees a dog\n" * 200)
    text = {"name": "text", "train": str(corpus), "max_length": 16}
    values = values_of(table_files, teacher_folder, name="metadistil", inner="fcd") | {"task": text}
    with pytest.raises(RecipeError, match="a stream of text does not allow"):
        execute(load_recipe(values=values), tmp_path / "run")

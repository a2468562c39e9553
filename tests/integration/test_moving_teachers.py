"""Train with teachers that move: what MetaDistil and ReptileDistil save, and where their quiz comes from."""

from __future__ import annotations

import pytest
import torch
from helpers.saved_runs import assert_same_weights
from helpers.tiny_recipes import recipe_values
from safetensors.torch import load_file

from limbeck import execute, load_recipe
from limbeck.errors import RecipeError
from limbeck.training.assemble import assemble, load_data


def values_of(table_files, teacher_folder, **method):
    train = {"max_steps": 6, "batch_size": 16, "save_total_limit": 2, "save_steps": 3}
    return recipe_values(table_files, teacher_folder, method, train=train)


def run_of(table_files, teacher_folder, folder, **method):
    return execute(load_recipe(values=values_of(table_files, teacher_folder, **method)), folder)


def test_reptile_that_does_not_move_gives_the_weights_of_kd(table_files, teacher_folder, tmp_path):
    run_of(table_files, teacher_folder, tmp_path / "kd", name="kd", alpha=0.5)
    run_of(table_files, teacher_folder, tmp_path / "still", name="reptiledistil", mu=0.0)
    assert_same_weights(tmp_path / "still", tmp_path / "kd")


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
    train_ids, quiz_ids = (set(data.splits[name]["id"][:]) for name in ("train", "held_out"))
    assert len(quiz_ids) == 24 and len(train_ids) == 72 and not train_ids & quiz_ids
    assert len(data.splits["validation"]) == 40
    again = load_data(recipe, assemble(recipe))
    assert set(again.splits["held_out"]["id"][:]) == quiz_ids


def test_a_stream_has_no_quiz(table_files, teacher_folder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sees a dog\na dog sees the cat\n" * 100)
    text = {"name": "text", "train": str(corpus), "max_length": 16}
    values = values_of(table_files, teacher_folder, name="metadistil", inner="fcd") | {"task": text}
    with pytest.raises(RecipeError, match="a stream of text does not allow"):
        execute(load_recipe(values=values), tmp_path / "run")

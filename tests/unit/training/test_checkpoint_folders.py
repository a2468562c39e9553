"""Check which checkpoints stay against Trainer's own rules."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from transformers.trainer_utils import rotate_checkpoints

from limbeck.training.checkpoint_folders import RotateCheckpoints, checkpoint_folders


def saved(folder, steps):
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3, 9])
def test_the_same_stay_as_trainer_keeps(limit, tmp_path):
    for number, (steps, best) in enumerate(itertools.product([(2,), (8, 10), (2, 4, 10, 20)], [None, 0, -1])):
        ours, theirs = (saved(tmp_path / f"{name}-{number}", steps) for name in ("ours", "theirs"))
        name = None if best is None else f"checkpoint-{steps[best]}"
        state = SimpleNamespace(global_step=steps[-1], best_model_checkpoint=name and f"/moved/since/{name}")
        RotateCheckpoints(ours, limit).on_save(SimpleNamespace(should_save=True), state, None)
        rotate_checkpoints(str(theirs), limit, name and str(theirs / name))
        assert [path.name for path in checkpoint_folders(ours)] == [path.name for path in checkpoint_folders(theirs)]


def test_damaged_ones_go_when_a_later_one_is_there(tmp_path):
    saved(tmp_path, (2, 4))
    saved(tmp_path / "set-aside", (6,))
    args = SimpleNamespace(should_save=True)
    for step in (4, 6):
        assert (tmp_path / "set-aside" / "checkpoint-6").is_dir()
        saved(tmp_path, (6,) if step == 6 else ())
        state = SimpleNamespace(global_step=step, best_model_checkpoint=None)
        RotateCheckpoints(tmp_path, 1).on_save(args, state, None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-6"]


def test_other_processes_remove_nothing(tmp_path):
    saved(tmp_path, (2, 4))
    state = SimpleNamespace(global_step=4, best_model_checkpoint=None)
    RotateCheckpoints(tmp_path, 1).on_save(SimpleNamespace(should_save=False), state, None)
    assert len(checkpoint_folders(tmp_path)) == 2

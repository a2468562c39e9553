"""Line 11: looking deletes nothing; what cannot be read is set aside with its reason, or stops the command."""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from helpers.saved_runs import assert_same_run
from helpers.tiny_recipes import recipe_values

from limbeck import execute, load_recipe
from limbeck.analysis.loaded_run import LoadedRun
from limbeck.errors import Interrupted
from limbeck.runs.directory import RunDirectory
from limbeck.training.checkpoint_folders import inspect_checkpoints, last_checkpoint

TRAIN = {"max_steps": 6, "batch_size": 8, "logging_steps": 1, "eval_strategy": "no"}
KEPT = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 9}
pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture(scope="module")
def recipe(table_files, teacher_folder):
    return load_recipe(values=recipe_values(table_files, teacher_folder, train=TRAIN | KEPT))


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    return execute(recipe, tmp_path_factory.mktemp("runs") / "whole", show_data=False).path


@pytest.fixture()
def stopped(whole, recipe, tmp_path):
    """Return a run that was stopped after its checkpoint of step 4, with the recipe to resume it by beside it."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "metrics.json").unlink()
    for folder in (run / "student", run / "checkpoints" / "checkpoint-6"):
        shutil.rmtree(folder)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    return run


RESUME = ("distill", "recipe.yaml", "-o", "run", "--resume")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


DAMAGES = {
    "cut off": ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:100])),
    "empty": ("trainer_state.json", lambda file: file.write_bytes(b"")),
    "of another shape": ("trainer_state.json", lambda file: file.write_text("[1]")),
    "missing": ("trainer_state.json", lambda file: file.unlink()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_with_its_reason(damage, stopped, whole, command):
    name, do = DAMAGES[damage]
    checkpoint = stopped / "checkpoints" / "checkpoint-4"
    do(checkpoint / name)
    before = contents(checkpoint)
    moved = stopped / "checkpoints" / "set-aside" / "checkpoint-4"
    seen: list[dict[str, bytes]] = []
    train = "limbeck.training.session.RunTrainer.train"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train, lambda self, **_: seen.append(contents(moved)) or stop())
        code, said = command(*RESUME)
    assert code == 130 and seen == [before]
    assert moved.with_name("checkpoint-4.txt").read_text().strip()
    assert "checkpoint-4 is left out and kept as" in said and "Resuming from run/checkpoints/checkpoint-2" in said
    assert command(*RESUME)[0] == 0
    assert_same_run(stopped, whole)


def stop():
    raise Interrupted("Stopped here.")


def test_two_of_one_name_are_both_kept(tmp_path):
    for content in ("first", "second"):
        (tmp_path / "checkpoint-4").mkdir()
        (tmp_path / "checkpoint-4" / "trainer_state.json").write_text(content)
        inspect_checkpoints(tmp_path).set_damaged_aside()
    kept = [file.read_text() for file in sorted((tmp_path / "set-aside").rglob("trainer_state.json"))]
    assert kept == ["first", "second"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors", "training.safetensors"])
def test_a_failing_disk_stops_the_command(number, name, stopped, command, monkeypatch):
    checkpoints, before = stopped / "checkpoints", contents(stopped)
    opened = io.open

    def failing(file, *given, **options):
        if str(file).endswith(f"checkpoint-4/{name}"):
            raise OSError(number, os.strerror(number), str(file))
        return opened(file, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", failing)
        code, said = command(*RESUME)
    assert code == 1 and os.strerror(number) in said and f"checkpoint-4/{name} cannot be read" in said
    assert "incomplete" not in said and "--resume again" in said
    assert contents(checkpoints) == {
        name.removeprefix("checkpoints/"): content
        for name, content in before.items()
        if name.startswith("checkpoints/")
    }
    assert last_checkpoint(checkpoints).name == "checkpoint-4"  # the disk came back


def test_a_folder_of_checkpoints_that_cannot_be_listed_is_not_an_empty_one(stopped, command, monkeypatch):
    def refusing(real):
        def look(path="."):
            if str(path).endswith("checkpoints"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path)

        return look

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refusing(os.listdir))
        patched.setattr(os, "scandir", refusing(os.scandir))
        code, said = command(*RESUME)
    assert code == 1 and "run/checkpoints cannot be read: Permission denied" in said
    assert (stopped / "checkpoints" / "checkpoint-4").is_dir() and not (stopped / "metrics.json").exists()


def test_a_checkpoint_always_holds_what_resuming_needs(command, recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    code, said = command("validate", "recipe.yaml", "train.save_only_model=true")
    assert code == 1 and "train.save_only_model" in said and "checkpoints hold what --resume needs" in said


def test_other_names_are_ignored(stopped, whole, command, recipe):
    checkpoints = stopped / "checkpoints"
    for name in ("checkpoint-best", "checkpoint-", "checkpoint-4-old", "checkpoint-x4"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "mine.txt").write_text("mine")
    (checkpoints / "checkpoint-notes.txt").write_text("mine")
    (checkpoints / "checkpoint-5").write_text("a file, in the way of nothing")
    assert command(*RESUME)[0] == 0
    assert_same_run(stopped, whole)
    assert len(list(checkpoints.rglob("mine.txt"))) == 4 and (checkpoints / "checkpoint-notes.txt").is_file()


def test_other_names_are_ignored_by_analyses(tmp_path):
    run = RunDirectory(tmp_path)
    assert list(LoadedRun.checkpoints(SimpleNamespace(run=run))) == []
    for name in ("checkpoint-best", "checkpoint-", "checkpoint-4"):
        (run.checkpoints / name).mkdir(parents=True)
    assert list(LoadedRun.checkpoints(SimpleNamespace(run=run))) == []  # the one that is one has no weights


def test_other_names_are_not_removed_by_a_limit(recipe, tmp_path):
    values = load_recipe(values=yaml.safe_load(recipe.to_yaml()), overrides=["train.save_total_limit=2"])
    run = RunDirectory(tmp_path / "run")
    for name in ("checkpoint-best", "checkpoint-"):
        (run.checkpoints / name).mkdir(parents=True)
    run.recipe.write_text(values.to_yaml())
    execute(values, run.path, resume=True, show_data=False)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        *("checkpoint-", "checkpoint-4", "checkpoint-6", "checkpoint-best")
    ]

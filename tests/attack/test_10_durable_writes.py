"""Line 10: what was written outlives a power cut, and a run whose files are empty is not finished."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers import fake_training
from helpers.power_cut import WatchedDisk
from helpers.saved_runs import read_json, results
from helpers.tiny_recipes import recipe_values

from limbeck import execute, load_recipe
from limbeck._internal import files
from limbeck._internal.files import replacing_folder, write_text
from limbeck._internal.tensors import load_state, load_tensors
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory
from limbeck.study.description import Study
from limbeck.study.engines import InProcess
from limbeck.study.runner import run_study

TRAIN = {"max_steps": 6, "batch_size": 8, "logging_steps": 1, "eval_strategy": "no"}
SAVED = {"save_strategy": "steps", "save_steps": 2}
pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture()
def disk(monkeypatch, tmp_path):
    return WatchedDisk(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def recipe(table_files, teacher_folder):
    def recipe(**train):
        return load_recipe(values=recipe_values(table_files, teacher_folder, train=TRAIN | SAVED | train))

    return recipe


@pytest.fixture(scope="module")
def finished_once(recipe, tmp_path_factory):
    return execute(recipe(), tmp_path_factory.mktemp("runs") / "run", show_data=False).path


@pytest.fixture()
def finished(finished_once, tmp_path):
    return RunDirectory(shutil.copytree(finished_once, tmp_path / "run"))


def test_a_file_is_on_the_disk_before_it_gets_its_name(disk, tmp_path):
    file = tmp_path / "deep" / "a.json"
    write_text(file, "old")
    write_text(file, "new")
    renamed = [number for number, event in enumerate(disk.events) if event == ("replace", file)]
    assert len(renamed) == 2
    for number in renamed:
        kind, written = disk.events[number - 1]
        assert kind == "fsync" and written.parent == file.parent and written != file
        assert disk.events[number + 1] == ("fsync", file.parent)
    assert (disk.after_power_cut(tmp_path, tmp_path.with_name("left")) / "deep" / "a.json").read_text() == "new"


def test_a_folder_is_on_the_disk_before_an_older_one_goes(disk, tmp_path):
    folder = tmp_path / "student"
    seen = []
    disk.before_removal = lambda path: seen.append(
        disk.after_power_cut(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{len(seen)}"))
    )
    for content in ("old", "new"):
        with replacing_folder(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / "weights").write_text(content)
    [left] = seen  # one removal: that of the older folder, when the newer one had its name
    assert (left / "student" / "inner" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_an_older_folder_steps_aside_and_comes_back(tmp_path, monkeypatch):
    folder = tmp_path / "student"
    folder.mkdir()
    (folder / "old").write_text("old")
    replace = os.replace

    def full(source, target):
        if Path(target) == folder and ".limbeck-new-" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError), replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["student"] and (folder / "old").read_text() == "old"


def test_killed_between_the_two_renames(tmp_path, monkeypatch):
    """Leave the older folder aside, as SIGKILL would, and find it again at the next call."""
    folder = tmp_path / "student"
    folder.mkdir()
    (folder / "old").write_text("old")

    class Killed(BaseException):
        pass

    replace = os.replace

    def kill(source, target):
        if Path(target) == folder:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", kill)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing
        with pytest.raises(Killed), replacing_folder(folder) as temporary:
            (temporary / "new").write_text("new")
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError), replacing_folder(folder):
        raise ZeroDivisionError
    assert (folder / "old").read_text() == "old"
    with replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert not list(tmp_path.glob(".limbeck-old*"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced_are_no_error(tmp_path, monkeypatch, number):
    calls = []

    def fsync(handle):
        calls.append(os.path.isdir(f"/proc/self/fd/{handle}"))
        if calls[-1]:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a" and True in calls and False in calls


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_file_that_does_not_reach_the_disk_is_an_error(tmp_path, monkeypatch, number):
    write_text(tmp_path / "a.txt", "old")

    def fsync(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def is_whole(checkpoint: Path) -> bool:
    """Read a checkpoint as a resumed run would."""
    try:
        load_tensors(checkpoint / "model.safetensors")
        step = load_state(checkpoint / "training.safetensors")["step"]
        return bool(step == read_json(checkpoint / "trainer_state.json")["global_step"])
    except (OSError, ValueError, RunError):
        return False


def test_a_power_cut_whenever_a_checkpoint_is_removed_leaves_a_whole_one(recipe, disk, tmp_path):
    left = []

    def cut(path):
        if path.name.startswith("checkpoint-"):
            left.append(disk.after_power_cut(tmp_path / "run", tmp_path.with_name(f"{tmp_path.name}-{len(left)}")))

    disk.before_removal = cut
    execute(recipe(save_total_limit=1), tmp_path / "run", show_data=False)
    assert len(left) == 2
    for step, run in zip((4, 6), left, strict=True):
        assert is_whole(run / "checkpoints" / f"checkpoint-{step}")
        assert read_json(run / "environment.json") and (run / "recipe.yaml").stat().st_size


def test_a_power_cut_after_the_end_leaves_a_finished_run(recipe, disk, tmp_path):
    left = []

    def cut(path):
        if path.name == "checkpoints":
            left.append(disk.after_power_cut(tmp_path / "run", tmp_path.with_name(f"{tmp_path.name}-left")))

    disk.before_removal = cut
    run = execute(recipe(save_total_limit=1), tmp_path / "run", show_data=False).path
    assert len(left) == 1  # when all checkpoints go
    theirs = {file.relative_to(left[0]): file.read_bytes() for file in left[0].rglob("*") if file.is_file()}
    for file in run.rglob("*"):
        if file.is_file():
            assert theirs[file.relative_to(run)] == file.read_bytes()


def test_the_log_of_a_training_is_synced_once(recipe, disk, tmp_path):
    execute(recipe(save_strategy="no"), tmp_path / "run", show_data=False)
    log = tmp_path / "run" / "history.jsonl"
    renamed = [number for number, event in enumerate(disk.events) if event == ("replace", log)]
    assert len(renamed) > 5
    assert disk.events.count(("fsync", log)) == 1 and disk.index("fsync", log) > renamed[-1]


EMPTY = ["metrics.json", "recipe.yaml", "student/config.json", "student/model.safetensors", "student/tokenizer.json"]


@pytest.mark.parametrize("content", [b"", b"\0" * 64], ids=["no bytes", "zeros"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_run_with_an_empty_file_is_not_finished(finished, name, content):
    assert finished.finished
    (finished.path / name).write_bytes(content)
    assert not finished.finished and Path(name).name in finished.why_unfinished()


def test_a_run_that_lost_its_student_on_purpose_is_finished(finished):
    shutil.rmtree(finished.student)
    assert finished.finished
    finished.results.write_text('{"cut')
    assert not finished.finished


@pytest.mark.parametrize("name", ["metrics.json", "student/model.safetensors"])
def test_such_a_run_goes_on_with_resume(finished, finished_once, name, recipe, command, tmp_path, caplog):
    (finished.path / name).write_bytes(b"")
    (tmp_path / "recipe.yaml").write_text(recipe().to_yaml())
    code, said = command("distill", "recipe.yaml", "-o", "run")
    assert code == 1 and "unfinished run" in said and "--resume" in said
    assert command("distill", "recipe.yaml", "-o", "run", "--resume")[0] == 0
    assert finished.finished and results(finished.path) == results(finished_once)


def test_a_disk_that_cannot_be_read_is_not_an_unfinished_run(finished, monkeypatch):
    read = Path.read_text

    def failing(self, *given, **options):
        if self == finished.results:
            raise OSError(errno.EIO, "Input/output error", str(self))
        return read(self, *given, **options)

    monkeypatch.setattr(Path, "read_text", failing)
    with pytest.raises(RunError, match=r"metrics\.json cannot be read: Input/output error\. Nothing was changed"):
        _ = finished.finished


def test_a_study_does_such_a_run_again(tmp_path):
    values = {"tasks": ["glue/rte"], "task": {"data_dir": "glue"}, "teacher": {"model": "big", "train": {"epochs": 2}}}
    student = {"from": "teacher", "keep": "first:3"}
    study = Study.model_validate(values | {"student": student, "methods": {"ft": None, "kd": None}, "seeds": [1, 2]})
    run_study(study, tmp_path / "study", InProcess(work=fake_training.quick))
    work = tmp_path / "study" / "work.txt"
    done = work.read_text().splitlines()
    lost = sorted((tmp_path / "study" / "runs").iterdir())[0]
    (lost / "metrics.json").write_bytes(b"")
    run_study(study, tmp_path / "study", InProcess(work=fake_training.quick))
    assert work.read_text().splitlines() == [*done, lost.name]
    assert json.loads((lost / "metrics.json").read_text())["score"]


def test_temporary_names_are_made_and_known_in_one_place(tmp_path):
    with files.replacing(tmp_path / "a.json") as temporary, replacing_folder(tmp_path / "b") as folder:
        assert files.is_temporary(temporary) and files.is_temporary(folder)
        temporary.write_text("a")
    assert not any(map(files.is_temporary, tmp_path.iterdir()))
    (tmp_path / ".limbeck-new-x.json").touch()
    (tmp_path / ".mine-x.json").touch()
    files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine-x.json", "a.json", "b"]

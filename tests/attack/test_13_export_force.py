"""Line 13: an older export makes room by a rename, and only an older export does."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from helpers.power_cut import WatchedDisk
from helpers.tiny_recipes import table_task

from limbeck.errors import RunError
from limbeck.inference.served import load_served

pytestmark = pytest.mark.usefixtures("quick_collection")


def is_new(folder: Path) -> bool:
    return (folder / "parity.json").is_file() and not (folder / "older.txt").exists()


def is_old(folder: Path) -> bool:
    return (folder / "older.txt").is_file() and (folder / "model.safetensors").is_file()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_older_export_goes_when_the_new_one_is_there(older, export_teacher, monkeypatch, tmp_path):
    disk = WatchedDisk(monkeypatch, tmp_path)
    seen = []

    def look(path):
        if path.parent == tmp_path:
            seen.append((is_old(path), disk.after_power_cut(tmp_path, tmp_path.with_name(f"{tmp_path.name}-left"))))

    disk.before_removal = look
    export_teacher(older, force=True)
    [(was_old, left)] = seen
    assert was_old and is_new(left / "older") and (left / "older" / "model.safetensors").stat().st_size
    assert is_new(older) and names(tmp_path) == ["older"]


def test_a_failed_rename_brings_the_older_export_back(older, export_teacher, monkeypatch, tmp_path):
    replace = os.replace

    def failing(source, target):
        if Path(target) == older and ".limbeck-new-" in str(source):
            raise OSError(errno.EIO, "Input/output error", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError):
        export_teacher(older, force=True)
    assert is_old(older) and names(tmp_path) == ["older"]


def test_killed_between_the_renames(older, export_teacher, tmp_path):
    """Find the older export again: by who reads it, and by who exports there again."""
    aside = tmp_path / ".limbeck-old-older"
    older.rename(aside)
    load_served(older)
    assert is_old(older) and not aside.exists()
    older.rename(aside)
    with pytest.raises(RunError, match="exists"):
        export_teacher(older)
    assert is_old(older) and not aside.exists()
    older.rename(aside)
    export_teacher(older, force=True)
    assert is_new(older) and names(tmp_path) == ["older"]


def test_here_is_a_place(older, export_teacher, monkeypatch, tmp_path):
    monkeypatch.chdir(older)
    with pytest.raises(RunError, match="exists"):
        export_teacher(".")
    export_teacher(".", force=True)
    assert is_new(older) and names(tmp_path) == ["older"]


def test_a_link_stays_and_its_target_is_replaced(older, export_teacher, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "current"
    link.symlink_to(older)
    with pytest.raises(RunError, match="exists"):
        export_teacher(link)
    export_teacher(link, force=True)
    assert link.is_symlink() and link.resolve() == older and is_new(older)
    assert names(tmp_path) == ["elsewhere", "older"] and names(tmp_path / "elsewhere") == ["current"]


def test_a_link_to_another_kind_of_folder_is_refused(export_teacher, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="no earlier export"):
        export_teacher(tmp_path / "link", force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("where", ["itself", "linked", "above"])
def test_the_model_that_is_read_is_never_replaced(where, older, export_teacher, tmp_path):
    """Refuse an export of an export in its own place, and in one that holds it."""
    (tmp_path / "link").symlink_to(older)
    output = {"itself": older, "linked": tmp_path / "link", "above": tmp_path}[where]
    shutil.copy(older / "parity.json", tmp_path)
    with pytest.raises(RunError, match="which is read here"):
        export_teacher(output, model=older, force=True)
    assert is_old(older) and (tmp_path / "parity.json").is_file()


def test_other_seeds_are_read_too(older, export_teacher, tmp_path):
    with pytest.raises(RunError, match="which is read here"):
        export_teacher(older, siblings=[older], force=True)


@pytest.mark.parametrize("force", [True, False])
def test_what_is_there_is_looked_at_again_before_it_goes(force, older, export_teacher, monkeypatch, tmp_path):
    output = older if force else tmp_path / "fresh"
    card = "limbeck.deploy.export.write_card"

    def meanwhile(*_):
        if force:
            shutil.rmtree(output)
        output.mkdir()
        (output / "thesis.txt").write_text("mine")

    monkeypatch.setattr(card, meanwhile)
    with pytest.raises(RunError, match="no earlier export" if force else "exists"):
        export_teacher(output, force=force)
    assert names(output) == ["thesis.txt"] and not list(tmp_path.glob(".limbeck*"))


def test_the_command_refuses_the_run_it_exports(command, teacher_folder, table_files, tmp_path):
    run = tmp_path / "runs" / "kd"
    shutil.copytree(teacher_folder, run / "student")
    (run / "recipe.yaml").write_text("task: {name: table}\n")
    options = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key not in ("name",)]
    for output in (run, tmp_path / "runs"):
        (output / "parity.json").write_text("{}")
        code, said = command("export", run, "--task", "table", *options, "-o", output, "--force")
        assert code == 1 and "which is read here" in said
    assert (run / "student" / "model.safetensors").is_file()

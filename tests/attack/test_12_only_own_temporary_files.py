"""Line 12: the cache removes only its own temporary names, where its manifest is; hidden files are files."""

from __future__ import annotations

import json

import pytest
from helpers.tiny_recipes import distill_words

from limbeck.distillation.cache_files import CacheFolder
from limbeck.errors import CacheError, RunError
from limbeck.shrink.plan import Request, Workspace
from limbeck.study.runner import _own

MADE_FOR = {"teacher": "1", "tokenizer": "2", "data": "3", "max_length": "4", "dtype": "float32", "format": "1"}
THEIRS = (".env.local", ".bash_history.1", ".notes-2.txt", ".config.d/settings")
OURS = (".limbeck-new-ab12cd34.json", ".limbeck-new-k3j4h5.safetensors", ".lock")


@pytest.fixture()
def folder(tmp_path):
    """Return a folder of hidden files that somebody wants to keep."""
    for name in THEIRS:
        file = tmp_path / "home" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    return tmp_path / "home"


def assert_untouched(folder):
    for name in THEIRS:
        assert (folder / name).read_text() == "mine"


def test_a_folder_with_hidden_files_is_no_place_for_a_cache(folder):
    before = sorted(folder.iterdir())
    with pytest.raises(CacheError, match="holds other files and is no cache"):
        CacheFolder(folder, MADE_FOR).check()
    with pytest.raises(CacheError, match="holds other files"), CacheFolder(folder, MADE_FOR).locked():
        raise AssertionError("locked")
    assert_untouched(folder)
    assert [path for path in sorted(folder.iterdir()) if path.name != ".lock"] == before


def test_the_command_refuses_it_and_removes_nothing(folder, command, table_files, teacher_folder):
    code, said = command("cache", "--method", "kd", *distill_words(table_files, teacher_folder), "-o", folder)
    assert code == 1 and "holds other files and is no cache" in said
    assert_untouched(folder)
    assert not (folder / "manifest.json").exists()


def test_a_cache_removes_its_own_temporary_files_and_no_others(folder):
    (folder / "manifest.json").write_text(json.dumps(MADE_FOR))
    for name in OURS:
        (folder / name).write_text("half")
    with CacheFolder(folder, MADE_FOR).locked():
        assert_untouched(folder)
        assert not list(folder.glob(".limbeck-new-*"))


def test_a_folder_named_validation_need_not_be_ours(tmp_path):
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "dev.csv").write_text("text,label\n")
    with pytest.raises(CacheError, match="holds other files"):
        CacheFolder(tmp_path, MADE_FOR).check()


@pytest.mark.parametrize("names", [(".limbeck-new-ab12cd34.yaml", ".lock"), (".lock",)])
def test_what_a_killed_process_left_is_in_the_way_of_nothing(names, command, tmp_path, table_files, teacher_folder):
    """Start a run, a study and 'shrink' in folders where one was killed while it wrote its first file."""
    places = [tmp_path / name for name in ("run", "study", "shrunk")]
    for place in places:
        place.mkdir()
        for name in names:
            (place / name).touch()
    words = distill_words(table_files, teacher_folder, "--method", "kd", "train.max_steps=1")
    assert command("distill", *words, "-o", places[0])[0] == 0
    assert not list(places[0].glob(".limbeck-new-*"))
    with pytest.raises(AttributeError, match="to_yaml"), _own(places[1], None):  # after the folder was looked at
        raise AssertionError("no study")
    Workspace(places[2], Request("model", str(table_files[0]), ("text",), "label", "0.5x"))


def test_hidden_files_of_others_are_in_the_way_of_everything(folder, command, table_files, teacher_folder):
    words = distill_words(table_files, teacher_folder, "--method", "kd", "train.max_steps=1")
    code, said = command("distill", *words, "-o", folder)
    assert code == 1 and "holds other files" in said
    with pytest.raises(RunError, match="holds other files"), _own(folder, None):
        raise AssertionError("no study")
    with pytest.raises(RunError, match="holds something else"):
        Workspace(folder, Request("model", str(table_files[0]), ("text",), "label", "0.5x"))
    code, said = command("export", teacher_folder, "--task", "table", "-o", folder)
    assert code == 1 and "exists. Choose another --output" in said
    assert_untouched(folder)

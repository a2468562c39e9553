from __future__ import annotations

import os
import stat

import pytest

from limbeck._internal.files import replacing, replacing_folder, write_text
from limbeck.errors import RunError


def test_a_file_appears_whole(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "new")
    assert (tmp_path / "deep" / "a.txt").read_text() == "new"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "deep" / "a.txt").stat().st_mode) == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(RuntimeError), replacing(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_is_replaced_only_when_complete(tmp_path):
    folder = tmp_path / "student"
    folder.mkdir()
    (folder / "old").touch()
    with pytest.raises(RuntimeError), replacing_folder(folder) as temporary:
        (temporary / "new").touch()
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["old"]
    with replacing_folder(folder) as temporary:
        (temporary / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RunError, match="is a folder or a device"):
        write_text(pipe, "lost")
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]

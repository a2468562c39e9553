"""The commit in environment.json: that of limbeck's own source, and of nobody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from limbeck.training import environment


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def commit_of(monkeypatch):
    def commit(file: Path) -> str:
        monkeypatch.setattr(environment, "_SOURCE", file)
        environment._commit.cache_clear()
        return environment._commit()

    yield commit
    environment._commit.cache_clear()


def test_a_checkout_names_its_commit_and_whether_it_was_changed(commit_of, tmp_path):
    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert commit_of(file) == git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("outside of the package")
    assert commit_of(file) == git(tmp_path, "rev-parse", "HEAD")
    file.write_text("a = 2\n")
    assert commit_of(file) == git(tmp_path, "rev-parse", "HEAD") + "+"


def test_an_installation_within_another_repository_has_none(commit_of, tmp_path):
    git(tmp_path, "init")
    (tmp_path / "theirs.py").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    file = tmp_path / ".venv" / "limbeck" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert commit_of(file) == ""


def test_neither_has_a_plain_folder_nor_a_machine_without_git(commit_of, tmp_path, monkeypatch):
    file = tmp_path / "module.py"
    file.write_text("")
    assert commit_of(file) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(Path(__file__)) == ""

"""Share an exported model between the attacks on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny_recipes import table_task

from limbeck.deploy.export import export


@pytest.fixture()
def export_teacher(teacher_folder: Path, table_files: tuple[Path, Path], monkeypatch) -> Callable[..., Path]:
    """Export the tiny teacher into a folder, without spending time on its latency."""
    monkeypatch.setattr("limbeck.deploy.export._SECONDS", 0.01)

    def make(output: Path | str, to: str = "hf", model: Path = teacher_folder, **options) -> Path:
        return export(model, to, output, task=table_task(table_files), max_drop=1.0, **options).path

    return make


@pytest.fixture(scope="module")
def exported_once(teacher_folder: Path, table_files: tuple[Path, Path], tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "old"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("limbeck.deploy.export._SECONDS", 0.01)
        export(teacher_folder, "hf", folder, task=table_task(table_files))
    return folder


@pytest.fixture()
def older(exported_once: Path, tmp_path: Path) -> Path:
    """Return an earlier export, with a file by which it is known."""
    folder = shutil.copytree(exported_once, tmp_path / "older")
    (folder / "older.txt").write_text("older")
    return folder

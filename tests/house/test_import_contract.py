"""No module is outside the import contract, and the contract notices what it must."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.source_tree import PACKAGE, ROOT, layers_contract, modules, rooms


def outside_the_contract(root: Path) -> set[str]:
    contract = layers_contract(root)
    return rooms(root) - set(contract["layers"]) - set(contract["exhaustive_ignores"])


@pytest.fixture
def copied_tree(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)


def test_every_room_is_in_the_contract():
    assert outside_the_contract(ROOT) == set()


def test_the_contract_names_nothing_that_is_not_there():
    contract = layers_contract(ROOT)
    assert set(contract["layers"]) <= rooms(ROOT)
    assert len(set(contract["layers"])) == len(contract["layers"])


def test_the_contract_is_exhaustive_and_leaves_out_the_entry_point_alone():
    contract = layers_contract(ROOT)
    assert contract["containers"] == [PACKAGE]
    assert contract["exhaustive"] is True
    assert contract["exhaustive_ignores"] == ["__main__"]


def test_every_package_has_an_init():
    # setuptools would leave a folder without one out of the wheel
    folders = {file.parent for file in modules(ROOT).values()}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("file", ["stray.py", "stray/__init__.py", "stray/inner.py"])
def test_a_new_room_outside_the_contract_is_found(copied_tree, file):
    assert outside_the_contract(copied_tree) == set()
    new = copied_tree / "src" / PACKAGE / file
    new.parent.mkdir(exist_ok=True)
    new.touch()
    assert outside_the_contract(copied_tree) == {"stray"}


def test_import_linter_refuses_a_new_room(copied_tree):
    (copied_tree / "src" / PACKAGE / "stray.py").touch()
    done = lint_imports(copied_tree)
    assert done.returncode != 0
    assert "limbeck.stray" in done.stdout


@pytest.mark.parametrize(
    "upward",
    [
        "from limbeck.cli import main\n",
        "def later():\n    import limbeck.cli.main\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from limbeck.cli.main import main\n",
    ],
    ids=["plain", "inside a function", "for type checking"],
)
def test_import_linter_refuses_an_import_upwards(copied_tree, upward):
    with (copied_tree / "src" / PACKAGE / "errors.py").open("a") as file:
        file.write(upward)
    done = lint_imports(copied_tree)
    assert done.returncode != 0
    assert "data flows one way BROKEN" in done.stdout

"""CONTRIBUTING's map of the house is the house, and each path and command that it names is there."""

from __future__ import annotations

import re

import pytest
from helpers.source_tree import PACKAGE, ROOT, layers_contract

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = re.search(r"```\n(.*?)```", TEXT, flags=re.DOTALL)[1]
PROSE = TEXT.replace(MAP, "")
BASES = [ROOT, ROOT / "src" / PACKAGE]  # the paths of rooms are short


def rooms_on_the_map():
    return [line.split()[0] for line in MAP.splitlines()[1:]]


def is_there(path):
    return any(next(base.glob(path.rstrip("/")), None) for base in BASES)


def paths(text):
    quoted = [part for part in re.findall(r"`([^`\n]+)`", text) if " " not in part]
    return [part for part in quoted if "/" in part or re.search(r"\.(py|md|toml|yaml|json|txt)$", part)]


def test_the_map_has_the_rooms_in_the_order_of_the_contract():
    assert MAP.splitlines()[0].strip() == f"src/{PACKAGE}/"
    names = [room.removesuffix(".py").removesuffix("/") for room in rooms_on_the_map()]
    assert names == layers_contract(ROOT)["layers"][::-1]


def test_every_place_on_the_map_exists():
    for line in MAP.splitlines()[1:]:
        room, words = line.split(maxsplit=1)
        folder = ROOT / "src" / PACKAGE / room
        assert folder.is_dir() if room.endswith("/") else folder.is_file(), room
        for place in re.findall(r"\w+/|\w+\.py", words):
            assert (folder / place).exists() or is_there(place), f"{room}: {place}"


def test_the_map_fits_one_screen():
    assert len(MAP.splitlines()) <= 40
    assert max(map(len, TEXT.splitlines())) <= 120


@pytest.mark.parametrize("path", paths(PROSE))
def test_every_path_in_the_text_exists(path):
    assert is_there(path)


def test_every_command_in_the_text_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make ([\w-]+)`", PROSE)
    modules = re.findall(r"`python -m ([\w.]+)", PROSE)
    assert len(targets) >= 3 and modules
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
    assert all(is_there(f"{module.replace('.', '/')}.py") for module in modules)


def test_a_path_that_is_not_there_is_found():
    assert paths("see `methods/nowhere.py`, `pair.py`, `a b/c` and `B L D`") == ["methods/nowhere.py", "pair.py"]
    assert not is_there("methods/nowhere.py")

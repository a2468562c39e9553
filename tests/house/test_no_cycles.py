"""No module imports itself through others, whether at once, inside a function or for type checking."""

from __future__ import annotations

import pytest
from helpers.source_tree import ROOT, cycles, import_graph


def test_no_modules_import_each_other():
    graph = import_graph(ROOT)
    assert len(graph) > 100
    assert cycles(graph) == []


@pytest.fixture
def tree(tmp_path):
    def write(files):
        for name, text in {"__init__.py": "", **files}.items():
            file = tmp_path / "src" / "limbeck" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    "back",
    [
        "import limbeck.a",
        "from limbeck import a",
        "from . import a",
        "from .a import x",
        "def f():\n    from limbeck.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from limbeck.a import x",
        "from limbeck.c import y",
    ],
)
def test_a_cycle_is_found_however_it_is_written(tree, back):
    root = tree({"a.py": "from limbeck.b import y", "b.py": back, "c.py": "import limbeck.a"})
    (cycle,) = cycles(import_graph(root))
    assert {"limbeck.a", "limbeck.b"} <= set(cycle)


def test_a_module_that_asks_its_own_package_is_found(tree):
    root = tree({"room/__init__.py": "from limbeck.room.inner import x", "room/inner.py": "from limbeck.room import x"})
    assert cycles(import_graph(root)) == [["limbeck.room", "limbeck.room.inner"]]


def test_a_package_that_shows_what_its_modules_hold_is_no_cycle(tree):
    root = tree(
        {
            "room/__init__.py": "from limbeck.room.inner import x",
            "room/inner.py": "from limbeck.room.deep import x",
            "room/deep.py": "x = 1",
            "user.py": "from limbeck.room import x",
        }
    )
    assert cycles(import_graph(root)) == []


def test_a_public_name_counts_as_its_own_module(tree):
    files = {"__init__.pyi": "from .b import Y as Y", "a.py": "from limbeck import Y", "b.py": "import limbeck.a"}
    assert cycles(import_graph(tree(files))) == [["limbeck.a", "limbeck.b"]]

"""Modules, names and files that README and docs mention exist."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.source_tree import PACKAGE, ROOT, modules, public_names

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = modules(ROOT)
GROUPS = {f"{PACKAGE}.families"}  # of entry points


def exists(name):
    """Say whether a dotted name is a module, a public name, or a name at the top of a module."""
    if name in MODULES or name in GROUPS:
        return True
    module, _, last = name.rpartition(".")
    if module == PACKAGE:
        return last in public_names(ROOT) | {"__version__"}
    return module in MODULES and last in _names_of(module)


def _names_of(module):
    found = set()
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_names_and_files_exist(page):
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(rf"\b{PACKAGE}(?:\.\w+)+", text))
    files = set(re.findall(r"(?<![\w/])(?:src|tests|benchmarks|evidence)/[\w/]+\.\w+", text))
    assert [name for name in sorted(names) if not exists(name)] == []
    # evidence.md shows pictures from the folder beside it
    assert [file for file in sorted(files) if not any((at / file).exists() for at in (ROOT, page.parent))] == []


@pytest.mark.parametrize("name", ["limbeck.METHODS", "limbeck.stats", "limbeck.tasks.encode.encode"])
def test_a_name_that_is_there_is_found(name):
    assert exists(name)


@pytest.mark.parametrize("name", ["limbeck.nowhere", "limbeck.tasks.nowhere", "limbeck.tasks.encode.nowhere.more"])
def test_a_name_that_is_nowhere_is_not(name):
    assert not exists(name)

"""Read the source tree as text: modules, imports, docstrings and the import contract. Nothing is imported."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.paths import ROOT as ROOT

PACKAGE = "limbeck"


def layers_contract(root: Path) -> dict[str, Any]:
    """Return the contract of `root`'s pyproject.toml that orders the packages."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    return contract


def rooms(root: Path) -> set[str]:
    """Return the names of the packages and modules directly under the package."""
    found = set()
    for path in (root / "src" / PACKAGE).iterdir():
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))):
            found.add(path.stem)
    return found - {"__init__"}


def modules(root: Path) -> dict[str, Path]:
    """Return the file of each module by its dotted name; that of a package is its ``__init__.py``."""
    found = {}
    for file in sorted((root / "src" / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return which modules each module imports, inside functions and for type checking too."""
    files = modules(root)
    public = _public_names(root)
    return {name: set(_imported(name, file, files, public)) - {name} for name, file in files.items()}


def _imported(name: str, file: Path, files: dict[str, Path], public: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, name, file.name == "__init__.py")
            for alias in node.names:
                # a submodule, a public name (which the package loads lazily from elsewhere), or a name of the module
                below = f"{source}.{alias.name}"
                target = below if below in files else public.get(below, source)
                if target in files:
                    yield target


def _source(node: ast.ImportFrom, name: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _public_names(root: Path) -> dict[str, str]:
    """Return the module behind each name of ``limbeck``'s stub, which its ``__init__`` loads on first use."""
    stub = root / "src" / PACKAGE / "__init__.pyi"
    if not stub.exists():
        return {}
    found = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            source = _source(node, PACKAGE, is_package=True)
            found |= {f"{PACKAGE}.{alias.asname or alias.name}": source for alias in node.names}
    return found


def public_names(root: Path) -> set[str]:
    """Return the names that the stub promises."""
    return {name.removeprefix(f"{PACKAGE}.") for name in _public_names(root)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reachable = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reachable[name] if name in reachable[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring in `file`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text

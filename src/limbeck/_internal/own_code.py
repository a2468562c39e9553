"""Remember which code of the user's own may be imported, and import it.

A method can be somebody's own function, named ``module:function``. Recipes, studies and run directories come from other
people, so that a name in a file is no reason to import it: the user types the name, or says that the file is trusted.
A module that registers something (a family of models) has to be typed: no file can name one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from limbeck._internal import yaml as plain_yaml
from limbeck.errors import RecipeError

_METHOD_KEYS = {"method", "methods"}  # below which names are those of methods, in recipes and in studies
_allowed: set[str] = set()
_imported: list[str] = []  # modules that the user typed


class Trusted(NamedTuple):
    """Hold the user's own code that a process may import or has imported, for another that does the same work."""

    methods: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()


def is_own_code(name: str) -> bool:
    """Tell whether a method's name is that of somebody's own function: ``module:function``."""
    return ":" in name


def allow(names: Iterable[str]) -> None:
    """Let these names be imported, in this process."""
    _allowed.update(names)


def allowed() -> frozenset[str]:
    """Return the names that may be imported, for a process that goes on with the same work."""
    return frozenset(_allowed)


def trusted() -> Trusted:
    """Return what this process may import, and which modules it did, for a process that goes on with the same work."""
    return Trusted(allowed(), tuple(_imported))


def trust(given: Trusted) -> None:
    """Do as the process whose ``trusted`` this is: allow the same methods, import the same modules."""
    allow(given.methods)
    import_typed(given.modules)


def import_typed(modules: Iterable[str]) -> None:
    """Import modules that the user typed (``--import``), for what they register."""
    for name in modules:
        if name.endswith(".py") or os.sep in name:
            raise RecipeError(
                f"--import {name}: this is the name of a file. Write the module's name as Python imports it, for "
                "my_family.py in this folder: --import my_family"
            )
        import_from_here(name, f"--import {name}")
        if name not in _imported:
            _imported.append(name)


def import_from_here(module: str, asked: str) -> ModuleType:
    """Import a module of the user's, which may lie in the folder of the command; ``asked`` says what needs it."""
    # which an installed command does not search by itself
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:  # a name that is none, a module that is not there, or a mistake in it
        raise RecipeError(
            f"{asked}: module '{module}' cannot be imported ({type(error).__name__}: {error}). Run the command in the "
            f"folder that holds {module}.py, or install the module."
        ) from error


def allow_typed(overrides: Iterable[str]) -> None:
    """Let those names be imported that the user typed as ``key=value`` on this command line."""
    for override in overrides:
        path, _, text = override.partition("=")
        try:
            value = plain_yaml.load(text)
        except yaml.YAMLError:
            value = text
        allow(names_in({path: value}))


def names_in(values: Any, below_method: bool = False) -> set[str]:
    """Find the names of own code in the values of a recipe or a study: in its methods, stages and grids."""
    if isinstance(values, str):
        return {values} if below_method and is_own_code(values) else set()
    if isinstance(values, list):
        return set().union(*(names_in(value, below_method) for value in values))
    if not isinstance(values, dict):
        return set()
    found = set()
    for key, value in values.items():
        below = below_method or not _METHOD_KEYS.isdisjoint(str(key).split("."))
        found |= names_in(str(key), below_method) | names_in(value, below)
    return found


def refusal(name: str) -> str:
    """Say why a name is not imported, and what to do."""
    return (
        f"'{name}' is code, and code that only a file names is not imported. If you trust it, add --allow-code to this "
        "command (allow_code=True in Python)."
    )

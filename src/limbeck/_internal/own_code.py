"""Remember which code of the user's own may be imported.

A method can be somebody's own function, named ``module:function``. Recipes, studies and run directories come from other
people, so that a name in a file is no reason to import it: the user types the name, or says that the file is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from limbeck._internal import yaml as plain_yaml

_METHOD_KEYS = {"method", "methods"}  # below which names are those of methods, in recipes and in studies
_allowed: set[str] = set()


def is_own_code(name: str) -> bool:
    """Tell whether a method's name is that of somebody's own function: ``module:function``."""
    return ":" in name


def allow(names: Iterable[str]) -> None:
    """Let these names be imported, in this process."""
    _allowed.update(names)


def allowed() -> frozenset[str]:
    """Return the names that may be imported, for a process that goes on with the same work."""
    return frozenset(_allowed)


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

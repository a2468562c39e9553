"""Check the ``method`` block of a recipe, without importing code that only a file names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from limbeck._internal import own_code
from limbeck.errors import RecipeError
from limbeck.options import Mistake, OpenBlock, check_options, options_naming_methods

# What becomes of a method that is code of somebody's own and was not allowed yet.
CodePolicy = Literal["refused", "allowed", "unchecked"]


class MethodBlock(OpenBlock):
    """Name a method and its options."""

    name: str


def check_method(given: Any, code: CodePolicy) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the options of a method with their defaults filled in, and what is wrong with them.

    Options of code that is not imported stay as they were given.
    """
    from limbeck.methods import find_method

    if code == "unchecked" and isinstance(given, dict) and _is_foreign(given.get("name")):
        return {key: value for key, value in given.items() if key not in MethodBlock.model_fields}, []
    options, mistakes = check_options("method", given, MethodBlock, find_method)
    for key, name in _inner_methods(given["name"], options) if options else ():
        if code == "unchecked" and _is_foreign(name):
            continue
        try:
            find_method(name)
        except RecipeError as error:
            mistakes.append(Mistake(("method", key), str(error)))
    return options, mistakes


def foreign_code(block: MethodBlock) -> str:
    """Return the name of the code that a method needs and that may not be imported; empty where there is none."""
    if _is_foreign(block.name):
        return block.name
    return next((name for _, name in _inner_methods(block.name, block.options) if _is_foreign(name)), "")


def _is_foreign(name: Any) -> bool:
    return isinstance(name, str) and own_code.is_own_code(name) and name not in own_code.allowed()


def _inner_methods(name: str, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options in which a method names another one, with that name."""
    from limbeck.methods import find_method

    yield from ((key, options[key]) for key in options_naming_methods(find_method(name)) if key in options)

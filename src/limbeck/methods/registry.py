"""Find a method by its name, or a user's own as ``module:function``, which is imported only where the user allowed it.

The table is filled by ``limbeck.methods``. It lives here, so that a method that wraps another one (MetaDistil) can look
that up without importing the package that imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from limbeck._internal import own_code
from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.errors import RecipeError, unknown

MethodFunction = Callable[..., Objective | Method]

METHODS: dict[str, MethodFunction] = {}


def find_method(name: str) -> MethodFunction:
    """Return the method of that name, or the function that ``module:function`` names, if that name was allowed."""
    if own_code.is_own_code(name):
        return _user_method(name)
    if name not in METHODS:
        raise RecipeError(unknown("method", name, METHODS, "Run 'limbeck methods'."))
    return METHODS[name]


def allow_method(name: str) -> None:
    """Let ``module:function`` be imported in this process: the user typed it, or trusts the file that names it."""
    own_code.allow([name])


def allowed_methods() -> frozenset[str]:
    """Return the names that may be imported here, for a worker process to allow them too."""
    return own_code.allowed()


def _user_method(name: str) -> MethodFunction:
    if name not in own_code.allowed():
        raise RecipeError(own_code.refusal(name))
    module_name, _, function_name = name.partition(":")
    module = own_code.import_from_here(module_name, f"Method '{name}'")
    method: Any = getattr(module, function_name, None)
    if not callable(method):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise RecipeError(unknown(f"function in {module_name}", function_name, functions))
    return method

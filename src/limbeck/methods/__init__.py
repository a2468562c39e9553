"""The methods by name. A method is a function ``method(pair, *, options)`` whose signature is its schema.

It returns an Objective, or a Method where it changes more than the loss.

A method of your own needs no entry here: name it ``module:function`` in the recipe.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.errors import RecipeError, unknown
from limbeck.methods.cckd import cckd
from limbeck.methods.cka import cka
from limbeck.methods.distilbert import distilbert
from limbeck.methods.fcd import fcd
from limbeck.methods.fitnets import fitnets
from limbeck.methods.fsd import fsd, fsd_g, fsd_i, fsd_il, fsd_l
from limbeck.methods.ft import ft
from limbeck.methods.ics import ics
from limbeck.methods.kd import kd
from limbeck.methods.metadistil import metadistil
from limbeck.methods.minilm import minilm
from limbeck.methods.minilmv2 import minilmv2
from limbeck.methods.pkd import pkd
from limbeck.methods.reptiledistil import reptiledistil
from limbeck.methods.rkd import rkd
from limbeck.methods.shape import shape
from limbeck.methods.spkd import spkd
from limbeck.methods.theseus import theseus
from limbeck.methods.tinybert import tinybert

MethodFunction = Callable[..., Objective | Method]

METHODS: dict[str, MethodFunction] = {
    "ft": ft,
    "kd": kd,
    "cka": cka,
    "shape": shape,
    "fsd": fsd,
    "fsd_i": fsd_i,
    "fsd_l": fsd_l,
    "fsd_g": fsd_g,
    "fsd_il": fsd_il,
    "fcd": fcd,
    "ics": ics,
    "pkd": pkd,
    "rkd": rkd,
    "distilbert": distilbert,
    "tinybert": tinybert,
    "minilm": minilm,
    "minilmv2": minilmv2,
    "spkd": spkd,
    "cckd": cckd,
    "fitnets": fitnets,
    "theseus": theseus,
    "metadistil": metadistil,
    "reptiledistil": reptiledistil,
}


def find_method(name: str) -> MethodFunction:
    """The method of that name, or the function that ``module:function`` names."""
    if ":" in name:
        return _user_method(name)
    if name not in METHODS:
        raise RecipeError(unknown("method", name, METHODS, "Run 'limbeck methods'."))
    return METHODS[name]


def _user_method(name: str) -> MethodFunction:
    module_name, _, function_name = name.partition(":")
    # A user's file lies where the command is run, which an installed command does not search by itself.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a name that is none, a module that is not there, or a mistake in it
        raise RecipeError(
            f"Method '{name}': module '{module_name}' cannot be imported ({type(error).__name__}: {error}). Run the "
            f"command in the folder that holds {module_name}.py, or install the module."
        ) from error
    method: Any = getattr(module, function_name, None)
    if not callable(method):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise RecipeError(unknown(f"function in {module_name}", function_name, functions))
    return method

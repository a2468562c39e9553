"""List the methods by name. A method is a function ``method(pair, *, options)`` whose signature is its schema.

It returns an Objective, or a Method where it changes more than the loss.

A method of your own needs no entry here: name it ``module:function`` on the command line, or in the
recipe together with ``--allow-code``.
"""

from __future__ import annotations

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
from limbeck.methods.registry import METHODS, MethodFunction, allow_method, allowed_methods, find_method
from limbeck.methods.reptiledistil import reptiledistil
from limbeck.methods.rkd import rkd
from limbeck.methods.shape import shape
from limbeck.methods.spkd import spkd
from limbeck.methods.theseus import theseus
from limbeck.methods.tinybert import tinybert

__all__ = ["METHODS", "MethodFunction", "allow_method", "allowed_methods", "find_method"]

METHODS.update(
    {
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
)

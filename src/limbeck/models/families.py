"""Find the family of a model, limbeck's own or one that somebody registered, and with it the model's parts."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from importlib import metadata
from typing import Any

from torch import Tensor, nn

from limbeck.errors import ModelError
from limbeck.models.family_table import FAMILIES, REFUSED, Family
from limbeck.protocols import Model

logger = logging.getLogger("limbeck")

_GROUP = "limbeck.families"  # of entry points
_PART = {"queries": 0, "keys": 1, "values": 2}
_registered: dict[str, Family] = {}


def register_family(model_type: str, family: Family) -> None:
    """Let models of a further family be used in this process; ``model_type`` is what their ``config.json`` says.

    Nothing else of limbeck has to change, whether transformers ships the family or its classes are your own. An entry
    of yours may be given again; limbeck's own stay as they are. ``docs/families.md`` shows a whole file.

    Example::

        path = "self_attn.{}_proj".format
        limbeck.register_family("phi", limbeck.Family("layers", path("q"), path("k"), path("v"), causal=True))
    """
    if model_type in FAMILIES:
        raise ModelError(
            f"The family '{model_type}' is one of limbeck's own, and cannot be replaced. Give the models of yours "
            "another model_type."
        )
    _registered[model_type] = family


def all_families() -> dict[str, Family]:
    """Return every family that is known here, also those of installed packages and of the user."""
    register_installed()
    return FAMILIES | _registered


@cache
def register_installed() -> None:
    """Register the families of installed packages: their entry points ``model_type = module:FAMILY``.

    What lies in the folder where the command runs is not installed, even where Python searches that folder.
    """
    here = os.path.realpath(os.getcwd())
    places = [place for place in sys.path if place and os.path.realpath(place) != here]
    for package in metadata.distributions(path=places):
        for entry in package.entry_points:
            if entry.group == _GROUP:
                _register_entry(entry, package.metadata["Name"])


def _register_entry(entry: metadata.EntryPoint, package: str) -> None:
    """Register a family of a package; one that is broken must not be in the way of other families."""
    try:
        family = entry.load()
        if not isinstance(family, Family):
            raise ModelError(f"{entry.value} is a {type(family).__name__}, not a limbeck.Family.")
        register_family(entry.name, family)
    except Exception as error:
        seen = f"{type(error).__name__}: {error}"
        logger.warning("The family '%s' of the installed package %s is left out: %s", entry.name, package, seen)


def family_of(model: Any) -> Family:
    """Return the family of a transformers model or config; raise where there is none, with what is missing."""
    config = getattr(model, "config", model)
    kind = config.model_type
    family = FAMILIES.get(kind) or all_families().get(kind)
    if family is None:
        raise ModelError(_why_unknown(config))
    for name, value in family.requires.items():
        if (seen := getattr(config, name, None)) not in (value, None):
            raise ModelError(
                f"This {kind} model has {name}={seen!r} in its config, and such models are not supported. "
                f"Use one with {name}={value!r}."
            )
    return family


def _why_unknown(config: Any) -> str:
    kind = config.model_type
    if kind in REFUSED:
        return f"Models of the type '{kind}' cannot be used: {REFUSED[kind]}"
    known = f"Known: {', '.join(sorted(all_families()))}."
    if getattr(config, "is_encoder_decoder", False):
        return (
            f"Models of the type '{kind}' cannot be used: they have an encoder and a decoder, and a student is made of "
            f"one stack of blocks. {known}"
        )
    return (
        f"Models of the type '{kind}' are not known here. A file of ten lines can say where their blocks and "
        "projections are (limbeck.register_family, see docs/families.md); name its module with --import MODULE. "
        f"{known}"
    )


def why_not_shipped(kind: str) -> str:
    """Say what is missing of a family that transformers has no classes for, and what to do."""
    if kind in REFUSED:
        return f"models of the type '{kind}' cannot be used: {REFUSED[kind]}"
    return (
        f"transformers {metadata.version('transformers')} has no classes for models of the type '{kind}', and no code "
        "is run that comes with a model. Take a model of a family that it has, or write the classes into a module of "
        "your own that registers them (see docs/families.md), and name it with --import MODULE."
    )


def positions_follow_padding(config: Any) -> bool:
    """Tell whether a model counts its positions from the id of its padding token on."""
    family = all_families().get(config.model_type)
    return family is not None and family.positions_after_padding


def values_per_block(config: Any) -> dict[str, list[Any]]:
    """Return the lists of a config that have a value for each block, which must go along with the blocks."""
    found = {name: getattr(config, name, None) for name in family_of(config).per_block}
    return {name: list(values) for name, values in found.items() if values}


def blocks_of(model: Model) -> nn.ModuleList:
    """Return the transformer blocks of a model with or without a head."""
    path = family_of(model).blocks
    blocks = _part(model.base_model, path, f"the blocks of {model.config.model_type} models")
    if not isinstance(blocks, nn.ModuleList):
        raise ModelError(
            f"The blocks of {model.config.model_type} models should be at '{path}', but that is a "
            f"{type(blocks).__name__}, not a ModuleList. Correct the family's entry."
        )
    return blocks


def _part(module: Any, path: str, what: str) -> nn.Module:
    try:
        part: nn.Module = module.get_submodule(path)
    except AttributeError as error:
        raise ModelError(
            f"{what[0].upper()}{what[1:]} should be at '{path}', but: {error}. Correct the family's entry."
        ) from error
    return part


def decides_tokens(model: Model) -> bool:
    """Tell whether the model's head has logits for each token (tags, answers) and not for each text."""
    return head_of(type(model).__name__) in ("TokenClassification", "QuestionAnswering")


def head_of(class_name: str) -> str:
    """Return ``TokenClassification`` of ``BertForTokenClassification``, and "" of a model without a head."""
    return class_name.partition("For")[2]


def has_raw_scores(model: Model) -> bool:
    """Tell whether q·k/√d_head is what this model's attention softmaxes."""
    family = family_of(model)
    return family.raw_scores and all(
        getattr(model.config, key, value) == value for key, value in family.raw_scores_if.items()
    )


def projection(family: Family, kind: str, block: nn.Module) -> nn.Module:
    """Return the module of a block whose output holds its ``queries``, ``keys`` or ``values``."""
    return _part(block, getattr(family, kind), f"the {kind} of a {type(block).__name__}")


def width_of(model: Model, kind: str) -> int:
    """Return the width of the ``queries``, ``keys`` or ``values`` of a layer, or of what else is kept of it.

    Keys and values that several heads share are narrower than the queries, which need not have the model's width.
    """
    if kind not in _PART:
        return int(model.config.hidden_size)
    family = family_of(model)
    module: Any = projection(family, kind, blocks_of(model)[0])
    # GPT-2 has a linear module of its own
    width = int(module.out_features if hasattr(module, "out_features") else module.nf)
    return width // 3 if family.fused else width


def projected(family: Family, kind: str, output: Tensor, heads: int) -> Tensor:
    """Select the queries, keys or values in that module's output."""
    if family.fused == "heads":
        output = output.unflatten(-1, (heads, -1))
        return output.chunk(3, dim=-1)[_PART[kind]].flatten(-2)
    return output.chunk(3, dim=-1)[_PART[kind]] if family.fused else output

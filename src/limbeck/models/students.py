"""Build a student: some layers of a teacher or of another checkpoint, or a smaller config from a random start."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from limbeck.errors import ModelError, RecipeError, unknown
from limbeck.models.families import all_families, blocks_of, family_of, values_per_block
from limbeck.models.heads import model_class
from limbeck.models.kept_layers import layers_to_keep
from limbeck.problems import Problem
from limbeck.protocols import Model

# What head of the task a student's source has: one of a whole model, one of a model that lost layers, none beside
# pre-trained layers (so that a new one was made), or none at all.
SourceHead = Literal["whole", "cut", "new", "random"]


def keep_layers(source: Model, layers: str | Sequence[int]) -> Model:
    """Make a model of the same class with only these blocks (counted from 1) and every other weight of the source.

    ``layers`` may be a strategy: ``first:6``, ``last:6``, ``spread:6`` (evenly, ending in the last) or ``ends:6``.
    """
    if isinstance(layers, str):
        layers = layers_to_keep(layers, len(blocks_of(source)))
    config = copy.deepcopy(source.config)
    config.num_hidden_layers = len(layers)
    for name, values in values_per_block(source.config).items():
        setattr(config, name, [values[layer - 1] for layer in layers])
    make: Any = type(source)
    student: Model = make(config)
    prefix = f"{source.base_model_prefix}.{family_of(source).blocks}."
    new_index = {layer - 1: position for position, layer in enumerate(layers)}
    state = {}
    for name, tensor in source.state_dict().items():
        if name.startswith(prefix):
            index, _, rest = name.removeprefix(prefix).partition(".")
            if int(index) in new_index:
                state[f"{prefix}{new_index[int(index)]}.{rest}"] = tensor
        else:
            state[name] = tensor
    missing, unexpected = student.load_state_dict(state, strict=False)
    if missing or unexpected:
        # ModernBERT's first block has no input norm, so another block cannot take its place.
        raise ModelError(
            f"The blocks {list(layers)} of this {config.model_type} model do not fit their new places "
            f"({', '.join([*missing, *unexpected][:3])}). Keep block 1 as the first."
        )
    return student


def from_config(
    changes: Mapping[str, Any], base: Any | None, problem: Problem = "classification", **inherited: Any
) -> Any:
    """Make a randomly initialised model: ``changes`` over the config ``base``, or over a family's defaults.

    ``inherited`` (vocabulary size, special tokens, labels) is set where another family's config is started from its
    defaults.
    """
    changes = dict(changes)
    model_type = changes.pop("model_type", base.model_type if base is not None else None)
    if model_type is None:
        raise RecipeError("student.config: without a teacher, name the family: model_type: bert (or another).")
    if model_type not in all_families():
        raise RecipeError("student.config: " + unknown("model_type", str(model_type), all_families()))
    if base is not None and model_type == base.model_type:
        config = copy.deepcopy(base)
    else:
        config = AutoConfig.for_model(model_type, **inherited)
    for name in changes:
        if not hasattr(config, name):
            raise RecipeError("student.config: " + unknown(f"{model_type} option", name, config.to_dict()))
    try:
        _change(config, changes)
        return model_class(problem, config).from_config(type(config)(**config.to_dict()))
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        seen = " ".join(str(error).split())
        raise RecipeError(f"student.config: these sizes do not make a {model_type} model: {seen}") from error


def _change(config: Any, changes: Mapping[str, Any]) -> None:
    """Set these entries, and again those that the config derived from them when it was made."""
    derived = [name for name, value in _derived(config).items() if getattr(config, name, None) == value]
    for name in values_per_block(config):
        setattr(config, name, None)  # derived from the depth, when a config is made
    for name, value in changes.items():
        setattr(config, name, value)
    again = _derived(config)
    for name in derived:
        if name not in changes:
            setattr(config, name, again[name])
    heads, shared = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    if shared and heads % shared:
        raise ValueError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({shared})")
    if "head_dim" in derived and "head_dim" not in changes and config.hidden_size % heads:
        raise ValueError(f"hidden_size ({config.hidden_size}) is not a multiple of num_attention_heads ({heads})")


def _derived(config: Any) -> dict[str, int]:
    heads = config.num_attention_heads
    return {
        "pooler_hidden_size": config.hidden_size,  # DeBERTa
        "head_dim": config.hidden_size // heads,
        "num_key_value_heads": heads,
    }


def check_not_deeper(student: Model, teacher: Model) -> None:
    """Raise where the student has more blocks than its teacher."""
    layers, depth = len(blocks_of(student)), len(blocks_of(teacher))
    if layers > depth:
        raise ModelError(
            f"The student has {layers} layers and its teacher {depth}: a student must not be deeper than its teacher. "
            f"Keep fewer layers (student.keep=first:{depth}), or choose a deeper teacher."
        )

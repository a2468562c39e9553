"""Tell which models are equally fast: those of one architecture, whatever their weights and vocabulary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limbeck.models.heads import model_class
from limbeck.models.loading import load_config
from limbeck.problems import Problem

# what a config says about speed beside the shapes of the weights; each family has some of them
_SETTINGS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "_attn_implementation"),
    *("hidden_act", "hidden_activation", "activation", "activation_function"),
    *("local_attention", "global_attn_every_n_layers", "sliding_window", "relative_attention", "pos_att_type"),
)


def architecture_of(model: Any) -> str:
    """Return a name that models share if they have the same head and blocks of the same number, shape and kind.

    The number of labels and of words do not count, because neither costs time; of a language model the words do.
    """
    config = model.config
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    shapes = [
        (name, list(weight.shape)) for name, weight in model.base_model.named_parameters() if id(weight) not in tables
    ]
    settings = [getattr(config, name, None) for name in _SETTINGS]
    output = model.get_output_embeddings()
    words = None if output is None else output.out_features
    digest = hashlib.sha256(json.dumps([shapes, settings, words]).encode()).hexdigest()
    return f"{type(model).__name__} {config.num_hidden_layers}x{config.hidden_size} {digest[:12]}"


def build_like(source: str | Path, problem: Problem) -> Any:
    """Make a model of the architecture at ``source``, with random weights: those do not change how fast it is."""
    config = load_config(source)
    with torch.random.fork_rng():
        return model_class(problem, config).from_config(config, dtype=torch.float32).eval()

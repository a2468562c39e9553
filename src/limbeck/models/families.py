"""Find the blocks of a model and its query, key and value projections, which each family keeps elsewhere.

Adding a family is one entry in ``FAMILIES``; paths start at the base model (blocks, final_norm) or at a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from limbeck.errors import ModelError
from limbeck.protocols import Model


@dataclass(frozen=True)
class Family:
    """Describe where the models of a family keep their parts, and how their attention works."""

    blocks: str  # the ModuleList of transformer blocks
    queries: str  # inside a block: the module whose output holds the queries
    keys: str
    values: str
    fused: bool = False  # queries, keys and values are three equal parts of one module's output
    final_norm: str | None = None  # applied after the last block, as part of the last hidden state
    causal: bool = False  # a token sees only the tokens before it
    raw_scores: bool = True  # q·k/√d_head is what the model's attention softmaxes (no rotary, no relative part)
    raw_scores_if: Mapping[str, Any] = field(default_factory=dict)  # ... as long as the config says so
    base_names: tuple[str, ...] = ()  # what models with different heads call their base model, where they disagree


_SELF = "attention.self."
_BERT = Family("encoder.layer", _SELF + "query", _SELF + "key", _SELF + "value")
_LLAMA = Family(
    "layers",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    final_norm="norm",
    causal=True,
    raw_scores=False,
    base_names=("model", "transformer"),
)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": Family("transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "deberta-v2": Family(
        "encoder.layer", _SELF + "query_proj", _SELF + "key_proj", _SELF + "value_proj", raw_scores=False
    ),
    "gpt2": Family(
        "h",
        "attn.c_attn",
        "attn.c_attn",
        "attn.c_attn",
        fused=True,
        final_norm="ln_f",
        causal=True,
        raw_scores_if={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ),
    "modernbert": Family(
        "layers", "attn.Wqkv", "attn.Wqkv", "attn.Wqkv", fused=True, final_norm="final_norm", raw_scores=False
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}

_PART = {"queries": 0, "keys": 1, "values": 2}


def family_of(model: Any) -> Family:
    """Return the family of a transformers model or config."""
    config = getattr(model, "config", model)
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        raise ModelError(
            f"Model type '{config.model_type}' is not supported yet. Supported: {', '.join(sorted(FAMILIES))}."
        ) from None


def positions_follow_padding(config: Any) -> bool:
    """Tell whether a model counts its positions from the id of its padding token on."""
    return config.model_type in ("roberta", "xlm-roberta")


def blocks_of(model: Model) -> nn.ModuleList:
    """Return the transformer blocks of a model with or without a head."""
    blocks: nn.ModuleList = model.base_model.get_submodule(family_of(model).blocks)
    return blocks


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
    return block.get_submodule(getattr(family, kind))


def width_of(model: Model, kind: str) -> int:
    """Return the width of the ``queries``, ``keys`` or ``values`` of a layer, or of what else is kept of it.

    Keys and values that several heads share are narrower than the queries, which need not have the model's width.
    """
    if kind not in _PART:
        return int(model.config.hidden_size)
    family = family_of(model)
    module: Any = projection(family, kind, blocks_of(model)[0])
    # GPT-2 has a linear module of its own
    width = int(module.out_features if isinstance(module, nn.Linear) else module.nf)
    return width // 3 if family.fused else width


def projected(family: Family, kind: str, output: Tensor) -> Tensor:
    """Select the queries, keys or values in that module's output."""
    return output.chunk(3, dim=-1)[_PART[kind]] if family.fused else output

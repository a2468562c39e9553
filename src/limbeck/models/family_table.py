"""List the families of models: where each keeps its blocks and its query, key and value projections.

Adding a family is one entry in ``FAMILIES``; paths start at the base model (blocks) or at a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# How queries, keys and values share one module's output: a third of it each, or a third of each head's part.
Fused = Literal["thirds", "heads"]


@dataclass(frozen=True)
class Family:
    """Describe where the models of a family keep their parts, and how their attention works."""

    blocks: str  # the ModuleList of transformer blocks
    queries: str  # inside a block: the module whose output holds the queries
    keys: str
    values: str
    fused: Fused | None = None  # that module is the same for all three
    causal: bool = False  # a token sees only the tokens before it
    raw_scores: bool = False  # q·k/√d_head is what the model's attention softmaxes (no rotary, no relative part)
    raw_scores_if: Mapping[str, Any] = field(default_factory=dict)  # ... as long as the config says so
    requires: Mapping[str, Any] = field(default_factory=dict)  # models whose config says otherwise are refused
    positions_after_padding: bool = False  # positions are counted from the id of the padding token on
    per_block: tuple[str, ...] = ("layer_types",)  # lists in the config that have a value for each block
    base_names: tuple[str, ...] = ()  # what models with different heads call their base model, where they disagree


_SELF = "attention.self."
_BERT = Family("encoder.layer", _SELF + "query", _SELF + "key", _SELF + "value", raw_scores=True)
_ROBERTA = Family(
    "encoder.layer", _SELF + "query", _SELF + "key", _SELF + "value", raw_scores=True, positions_after_padding=True
)
_PROJECTIONS = ("layers", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ROTARY_ENCODER = Family(*_PROJECTIONS)
_DECODER = Family(*_PROJECTIONS, causal=True)
_LLAMA = Family(*_PROJECTIONS, causal=True, base_names=("model", "transformer"))

FAMILIES: dict[str, Family] = {
    # encoders
    "bert": _BERT,
    "electra": _BERT,
    "roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
    "distilbert": Family("transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", raw_scores=True),
    "mpnet": Family(  # a learned part for the distance of two tokens is added to its scores
        "encoder.layer", "attention.attn.q", "attention.attn.k", "attention.attn.v", positions_after_padding=True
    ),
    "deberta-v2": Family("encoder.layer", _SELF + "query_proj", _SELF + "key_proj", _SELF + "value_proj"),
    "modernbert": Family("layers", "attn.Wqkv", "attn.Wqkv", "attn.Wqkv", fused="thirds"),
    "eurobert": _ROTARY_ENCODER,
    "nomic_bert": _ROTARY_ENCODER,
    "gte": _ROTARY_ENCODER,
    # decoders
    "gpt2": Family(
        "h",
        "attn.c_attn",
        "attn.c_attn",
        "attn.c_attn",
        fused="thirds",
        causal=True,
        raw_scores=True,
        raw_scores_if={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ),
    "gpt_neox": Family(
        "layers",
        "attention.query_key_value",
        "attention.query_key_value",
        "attention.query_key_value",
        fused="heads",
        causal=True,
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": Family(
        *_PROJECTIONS,
        causal=True,
        per_block=("layer_types", "no_rope_layers"),
        base_names=("model", "transformer"),
    ),
    "gemma": _DECODER,
    "gemma2": _DECODER,
    "gemma3_text": Family(*_PROJECTIONS, causal=True, requires={"use_bidirectional_attention": False}),
    "modernbert-decoder": Family("layers", "attn.q_proj", "attn.k_proj", "attn.v_proj", causal=True),
}

# Families that people ask for and that cannot be used: what is missing, and what to do.
REFUSED: dict[str, str] = {
    "albert": (
        "its blocks share one set of weights, so that a student cannot be made of some of them. Use a model whose "
        "blocks have weights of their own: bert, roberta or electra."
    ),
    "gemma3": (
        "it reads images too, and its blocks are in a text model inside. Save that one, and use it: "
        "AutoModel.from_pretrained(NAME).language_model.save_pretrained(FOLDER), with the tokenizer beside it."
    ),
    "new": (
        "its classes come with the model, and no code of a model is run. transformers has them as the family gte: "
        "take a model whose config says so, such as alibaba-nlp-community/gte-multilingual-base, or a GTE of another "
        "family: thenlper/gte-base (bert), Alibaba-NLP/gte-modernbert-base (modernbert)."
    ),
}

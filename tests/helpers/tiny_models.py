"""Make tiny models of every family, and batches for them: enough to run everything in seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from helpers.saved_runs import read_json
from limbeck.models.heads import model_class
from limbeck.problems import Problem

VOCAB = 120
_PLAIN: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
_PLACES: dict[str, Any] = _PLAIN | {"max_position_embeddings": 66}
_SHARED: dict[str, Any] = _PLAIN | {"num_key_value_heads": 2, "max_position_embeddings": 64}
_ENDS: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3}
SIZES: dict[str, dict[str, Any]] = {
    "bert": _PLAIN,
    "roberta": _PLACES,
    "xlm-roberta": _PLACES,
    "electra": _PLAIN | {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "hidden_dim": 48},
    "deberta-v2": _PLAIN | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_positions": 64, **_ENDS},
    "modernbert": _PLAIN | _ENDS | {"cls_token_id": 2, "sep_token_id": 3},
    # heads that share keys and values, all of them in mistral; heads wider than the hidden size in qwen3
    "llama": _SHARED,
    "mistral": _SHARED | {"num_key_value_heads": 1},
    "qwen2": _SHARED | {"tie_word_embeddings": True},
    "qwen3": _SHARED | {"head_dim": 16},
    "camembert": _PLACES,
    "xlm-roberta-xl": _PLACES,
    "mpnet": _PLACES,
    "eurobert": _SHARED | _ENDS | {"mask_token_id": 4},
    "nomic_bert": _PLAIN | {"max_position_embeddings": 64},
    "gte": _PLAIN | {"max_position_embeddings": 64},
    "gpt_neox": _PLAIN | {"max_position_embeddings": 64},
    "smollm3": _SHARED | _ENDS | {"no_rope_layer_interval": 2},
    "gemma": _SHARED | {"head_dim": 16},
    # every other block sees a window of a few tokens; scores are divided by another number than √d_head
    "gemma2": _SHARED | {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 24},
    "gemma3_text": _SHARED
    | {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    "modernbert-decoder": _PLAIN | _ENDS | {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
}
NEWER = tuple(SIZES)[12:]  # tried less often with methods and tasks, where nothing depends on the family
# of queries, keys and values, where it is not the hidden size
WIDTHS = {
    "llama": (32, 16, 16),
    "mistral": (32, 8, 8),
    "qwen2": (32, 16, 16),
    "qwen3": (64, 32, 32),
    "eurobert": (32, 16, 16),
    "smollm3": (32, 16, 16),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), (64, 32, 32)),
}
DECODERS = (
    *("gpt2", "llama", "mistral", "qwen2", "qwen3"),
    *("gpt_neox", "smollm3", "gemma", "gemma2", "gemma3_text", "modernbert-decoder"),
)
# heads that transformers has not got
NO_HEAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("eurobert", "nomic_bert", "gte", "gemma", "gemma2"), ("span",)),
    **dict.fromkeys(("gemma3_text", "modernbert-decoder"), ("tokens", "span")),
}


def families_for(problem: str) -> list[str]:
    """Return the families that have a head for the problem."""
    return [family for family in SIZES if problem not in NO_HEAD.get(family, ())]


def with_heads(problems: Iterable[str]) -> list[tuple[str, str]]:
    """Return each family with each of these problems that it has a head for."""
    return [(family, problem) for problem in problems for family in families_for(problem)]


def mostly_slow(pairs: Iterable[tuple[str, Any]], often: Any) -> list[Any]:
    """Leave to the long run what newer families are tried with beside ``often``."""
    slow = {True: (pytest.mark.slow,), False: ()}
    return [pytest.param(*pair, marks=slow[pair[0] in NEWER and pair[1] not in often]) for pair in pairs]


def tiny_model(
    family: str,
    depth: int = 3,
    num_labels: int = 2,
    seed: int = 0,
    problem: Problem = "classification",
    **changes: Any,
) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        **{"vocab_size": VOCAB, "pad_token_id": 0, "num_hidden_layers": depth, "num_labels": num_labels}
        | SIZES[family]
        | changes,
    )
    return model_class(problem, config).from_config(config)


def tiny_batch(
    lengths: tuple[int, ...] = (7, 4, 5), *, width: int | None = None, left: bool = False, seed: int = 0
) -> Any:
    """Draw token ids; the same rows whatever the width and side of the padding."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        tokens = torch.randint(5, VOCAB, (length,), generator=generator)
        place = slice(width - length, width) if left else slice(0, length)
        ids[row, place] = tokens
        mask[row, place] = 1
    labels = torch.randint(0, 2, (len(lengths),), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def without_dropout(teacher: Path, folder: Path) -> Path:
    """Copy a BERT so that its students compute the same in any division of a batch: dropout is drawn by the batch."""
    shutil.copytree(teacher, folder)
    config = read_json(folder / "config.json") | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder

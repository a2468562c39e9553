"""Make tiny models of every family, and batches for them: enough to run everything in seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from helpers.saved_runs import read_json
from limbeck.models.heads import model_class
from limbeck.problems import Problem

VOCAB = 120
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48},
    "roberta": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 66},
    "xlm-roberta": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 66,
    },
    "electra": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "hidden_dim": 48},
    "deberta-v2": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
    },
    "gpt2": {"n_embd": 32, "n_head": 4, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 3},
    "modernbert": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    # heads that share keys and values, all of them in mistral; heads wider than the hidden size in qwen3
    "llama": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
    "mistral": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
    "qwen2": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}
# of queries, keys and values, where it is not the hidden size
WIDTHS = {"llama": (32, 16, 16), "mistral": (32, 8, 8), "qwen2": (32, 16, 16), "qwen3": (64, 32, 32)}
DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


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

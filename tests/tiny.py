"""Tiny models of every family, batches and tables: enough to run everything in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

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
}

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "sees",
    "likes",
    "chases",
    "finds",
    "big",
    "small",
    "red",
    "quick",
    "today",
    "never",
    "often",
    "here",
    "there",
    "with",
    "and",
    "but",
    "not",
    "good",
    "bad",
    "fine",
    "poor",
    "happy",
    "sad",
    "old",
    "new",
    "bright",
    "dark",
]


def tiny_model(family: str, depth: int = 3, num_labels: int = 2, seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        pad_token_id=0,
        num_hidden_layers=depth,
        num_labels=num_labels,
        **SIZES[family] | changes,
    )
    return AutoModelForSequenceClassification.from_config(config)


def tiny_batch(
    lengths: tuple[int, ...] = (7, 4, 5), *, width: int | None = None, left: bool = False, seed: int = 0
) -> Any:
    """Random token ids; the same rows whatever the width and side of the padding."""
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


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Short texts whose label follows from one word, so that a tiny model can learn them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        size = int(torch.randint(3, 12, (), generator=generator))
        words = [WORDS[int(i)] for i in torch.randint(0, len(WORDS), (size,), generator=generator)]
        label = "positive" if len({"good", "fine", "happy", "bright"} & set(words)) else "negative"
        rows.append((" ".join(words), label))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text(header + "\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return path


def table_task(files: tuple[Path, Path]) -> dict[str, Any]:
    """The task block of a recipe over two such files."""
    train, dev = (str(path) for path in files)
    return {"name": "table", "train": train, "validation": dev, "text": "text", "label": "label", "max_length": 16}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())

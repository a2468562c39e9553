"""Tiny models of every family, batches and tables: enough to run everything in seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from limbeck.models.heads import model_class
from limbeck.problems import Problem

ROOT = Path(__file__).parents[2]
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
# the kind of byte-level tokenizer that a family has, where it has one
STYLES = {"roberta": "roberta", "xlm-roberta": "roberta", "gpt2": "gpt2", "qwen2": "gpt2", "qwen3": "gpt2"}
STYLES |= {"llama": "llama", "mistral": "llama"}

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


def make_bpe(folder: Path, style: str) -> Path:
    """A byte-level tokenizer of ``WORDS`` with the special tokens of roberta, gpt2 or llama; only roberta's can pad."""
    special = {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "gpt2": ["<|endoftext|>"],
        "llama": ["<s>", "</s>"],
    }
    # a word after a blank becomes one token, a first word its letters
    merges = dict.fromkeys(("Ġ" + word[:end], word[end]) for word in WORDS for end in range(len(word)))
    pieces = [*special[style], "Ġ", *sorted(set("".join(WORDS))), *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if style == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
        named = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
        named |= dict(cls_token="<s>", sep_token="</s>")
    elif style == "gpt2":
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        named = dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    else:
        start = [("<s>", 0)]
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", start)
        named = dict(bos_token="<s>", eos_token="</s>")
    names = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **named).save_pretrained(folder)
    return folder


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


def real_tokenizer(name: str) -> Any:
    """gte-small's word pieces, or the byte-level vocabulary of roberta or gpt2."""
    folder = {
        "gte-small": SHARED / "models" / "gte-small",
        "roberta": SHARED / "tokenizers" / "roberta-base",
        "gpt2": SHARED / "tokenizers" / "gpt2",
    }[name]
    if not folder.is_dir():
        pytest.skip(f"real vocabularies are not at ../shared/{folder.relative_to(SHARED)}")
    if name == "gte-small":
        return AutoTokenizer.from_pretrained(folder)
    if name == "roberta":
        return RobertaTokenizer.from_pretrained(folder)
    return GPT2Tokenizer.from_pretrained(folder, pad_token="<|endoftext|>")


def without_dropout(teacher: Path, folder: Path) -> Path:
    """A copy of a BERT whose students compute the same in any division of a batch: dropout is drawn by the batch."""
    shutil.copytree(teacher, folder)
    config = read_json(folder / "config.json") | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder

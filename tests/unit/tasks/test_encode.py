"""Encoding and collation with a tiny word-level tokenizer."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from limbeck.errors import DataError, ModelError
from limbeck.tasks import Collator, Task, encode
from limbeck.tasks.task import make_split

CLS, SEP = 2, 3
TYPED = ["input_ids", "token_type_ids", "attention_mask"]


def build(**options: Any) -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]  # a is 4
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", **options}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def make_task(texts: list[str], second: list[str] | None = None, labels: list[Any] | None = None) -> Task:
    columns: dict[str, list[Any]] = {"id": [10 * i for i in range(len(texts))], "a": texts}
    if second:
        columns["b"] = second
    if labels:
        columns["label"] = labels
    return Task(
        name="glue/rte",
        problem="classification",
        text_columns=("a", "b") if second else ("a",),
        label_names=("no", "yes"),
        metrics=("accuracy",),
        splits={"train": make_split("train", columns)},
    )


def test_single_texts() -> None:
    task = make_task(["a b", "h"], labels=[1, 0])
    encoded = encode(task.text_columns, task.split("train"), build(), 8)
    assert encoded[:] == {
        "input_ids": [[CLS, 4, 5, SEP], [CLS, 11, SEP]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1]],
        "id": [0, 10],
        "labels": [1, 0],
    }


def test_pairs_get_token_types_where_the_tokenizer_makes_them() -> None:
    task = make_task(["a"], ["b c"])
    encoded = encode(task.text_columns, task.split("train"), build(model_input_names=TYPED), 8)
    assert encoded["input_ids"][:] == [[CLS, 4, SEP, 5, 6, SEP]]
    assert encoded["token_type_ids"][:] == [[0, 0, 0, 1, 1, 1]]
    assert "labels" not in encoded.column_names
    assert "token_type_ids" not in encode(task.text_columns, task.split("train"), build(), 8).column_names


def test_long_texts_are_cut_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(["a b c d e f", "a", "a b c"], ["g h", "b", "d e f g"])
    encoded = encode(task.text_columns, task.split("train"), build(model_input_names=TYPED), 7, task=task.name)
    # the longer half of a pair gives way first, the closing separators stay
    assert encoded["input_ids"][:] == [[2, 4, 5, 3, 10, 11, 3], [2, 4, 3, 5, 3], [2, 4, 5, 3, 7, 8, 3]]
    assert [len(row) for row in encoded["token_type_ids"]] == [7, 5, 7]
    assert [len(row) for row in encoded["attention_mask"]] == [7, 5, 7]
    assert [record.getMessage() for record in caplog.records] == [
        "glue/rte train: 2 of 3 texts (66.7%) are longer than 7 tokens and were cut; "
        "raise task.max_length to keep them."
    ]
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].name == "limbeck"


def test_exactly_the_limit_is_not_cut(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(["a b c"])
    assert encode(task.text_columns, task.split("train"), build(), 5)["input_ids"][:] == [[2, 4, 5, 6, 3]]
    assert not caplog.records


def test_refusing_long_texts_names_the_first() -> None:
    task = make_task(["a", "a b c d", "a b c d e"])
    with pytest.raises(DataError) as caught:
        encode(task.text_columns, task.split("train"), build(), 5, too_long="refuse", task=task.name)
    text = str(caught.value)
    assert "glue/rte train: the row with id 10 ('a b c d" in text
    assert "has 6 tokens, more than the 5 allowed" in text and "task.max_length" in text


def test_more_rows_than_one_chunk(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.import_module("limbeck.tasks.encode"), "_CHUNK", 2)
    texts = ["a", "b b b", "c", "d d d", "e"]
    encoded = encode(["a"], make_task(texts).split("train"), build(), 4)
    assert [row[1:-1] for row in encoded["input_ids"]] == [[4], [5, 5], [6], [7, 7], [8]]
    assert encoded["id"][:] == [0, 10, 20, 30, 40]
    assert "train: 2 of 5 texts (40.0%)" in caplog.text
    with pytest.raises(DataError, match="id 30"):
        encode(["a"], make_task([*"abc", "d d d"]).split("train"), build(), 4, too_long="refuse")


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_pads_to_the_longest_of_the_batch(side: str) -> None:
    tokenizer = build(model_input_names=TYPED, padding_side=side)
    task = make_task(["a", "b"], ["c", "d e"], labels=[1, 0])
    encoded = encode(task.text_columns, task.split("train"), tokenizer, 8)
    batch = Collator(tokenizer)([encoded[0], encoded[1]])
    positions = {"position_ids"} if side == "left" else set()
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "labels", "ids"} | positions
    if side == "left":  # the first real token is at position 0
        assert batch["position_ids"].tolist() == [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    short = {"right": [2, 4, 3, 6, 3, 0], "left": [0, 2, 4, 3, 6, 3]}[side]
    assert batch["input_ids"].tolist() == [short, [2, 5, 3, 7, 8, 3]]
    mask = {"right": [1, 1, 1, 1, 1, 0], "left": [0, 1, 1, 1, 1, 1]}[side]
    assert batch["attention_mask"].tolist() == [mask, [1] * 6]
    types = {"right": [0, 0, 0, 1, 1, 0], "left": [0, 0, 0, 0, 1, 1]}[side]
    assert batch["token_type_ids"].tolist() == [types, [0, 0, 0, 1, 1, 1]]
    assert batch["ids"].tolist() == [0, 10]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_collator_uses_the_tokenizers_pad_id() -> None:
    tokenizer = build(pad_token="h")
    batch = Collator(tokenizer)([{"input_ids": [2]}, {"input_ids": [2, 3]}])
    assert batch["input_ids"].tolist() == [[2, 11], [2, 3]]
    assert set(batch) == {"input_ids"}


def test_collator_pads_to_a_fixed_width() -> None:
    rows = [{"input_ids": [2, 3], "attention_mask": [1, 1]}]
    assert Collator(build(), pad_to=4)(rows)["attention_mask"].tolist() == [[1, 1, 0, 0]]
    with pytest.raises(DataError, match="2 tokens but batches are padded to 1"):
        Collator(build(), pad_to=1)(rows)


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [([1, 0], torch.int64, (2,)), ([1.5, 2.0], torch.float32, (2,)), ([[0.0, 1.0], [1.0, 1.0]], torch.float32, (2, 2))],
)
def test_label_types(labels: list[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    task = make_task(["a", "b"], labels=labels)
    encoded = encode(task.text_columns, task.split("train"), build(), 8)
    batch = Collator(build())([encoded[0], encoded[1]])
    assert batch["labels"].dtype == dtype and tuple(batch["labels"].shape) == shape
    assert batch["labels"].tolist() == labels


def test_tokenizer_without_a_pad_token() -> None:
    with pytest.raises(ModelError, match=r"no padding token.*pad_token = tokenizer\.eos_token"):
        Collator(build(pad_token=None))


def test_importing_tasks_does_not_import_heavy_packages() -> None:
    code = "import sys, limbeck.tasks; print([m for m in ('torch', 'datasets', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

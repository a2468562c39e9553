"""The text task: streams of texts, blocks of one length, and what is predicted in them."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.tiny_tables import sentences
from torch.utils.data import DataLoader

from limbeck.errors import DataError, ModelError, RecipeError
from limbeck.problems import IGNORED
from limbeck.tasks import load_task
from limbeck.tasks.batching import Batches
from limbeck.tasks.encode import Collator
from limbeck.tasks.packing import Blocks, Packing
from limbeck.tasks.stream import Texts

LINES = [text for text, _ in sentences(300, seed=5)]


@pytest.fixture()
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES) + "\n\n   \n")
    return path


def table(tmp_path, kind):
    path = tmp_path / f"corpus.{kind}"
    if kind == "csv":
        path.write_text("id,body\n" + "".join(f'{i},"{line}, ""quoted"""\n' for i, line in enumerate(LINES)))
        return path, [f'{line}, "quoted"' for line in LINES]
    if kind == "tsv":
        path.write_text("id\tbody\n" + "".join(f"{i}\t{line}\n" for i, line in enumerate(LINES)))
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"id": i, "body": line}) + "\n" for i, line in enumerate(LINES)))
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(len(LINES))), "body": LINES}), path)
    return path, LINES


def test_plain_text_is_read_line_by_line_without_blank_ones(corpus):
    assert list(Texts(str(corpus))) == LINES


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_text_column(kind, tmp_path):
    path, expected = table(tmp_path, kind)
    assert list(Texts(str(path), "body")) == expected


def test_a_file_is_a_stream(tmp_path, tokenizer):
    """The first block comes after a few thousand lines at most, however long the file is."""
    path = tmp_path / "endless.txt"
    path.write_text("the cat sees a dog\n" * 200_000)
    read = 0

    class Counted:
        def __iter__(self):
            nonlocal read
            for text in Texts(str(path)):
                read += 1
                yield text

    blocks = Blocks(Counted(), Packing(tokenizer, 64, causal=False, mask=0.15), 0, shuffle=True)
    next(iter(blocks))
    assert read < 100_000


def test_without_a_validation_file_a_hundredth_of_the_texts_is_held_out(corpus):
    task = load_task("text", train=str(corpus))
    held = list(task.splits["validation"])
    assert 1 <= len(held) <= 15 and held == [line for line in LINES if line in held]
    assert list(task.splits["train"]) == [line for line in LINES if line not in held]


def test_blocks_hold_every_token_once_in_order(tokenizer):
    packing = Packing(tokenizer, 16, causal=False, mask=0.15)
    blocks = list(packing.blocks(LINES))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert all(len(block) == 16 for block in blocks[:-1]) and len(blocks[-1]) <= 16
    assert all(block[0] == cls and block[-1] == sep for block in blocks)
    bodies = list(itertools.chain.from_iterable(block[1:-1] for block in blocks))
    expected = [id for line in LINES for id in [*tokenizer(line, add_special_tokens=False)["input_ids"], sep]]
    assert bodies == expected


def test_a_text_longer_than_many_blocks_is_cut_not_lost(tokenizer):
    packing = Packing(tokenizer, 8, causal=False, mask=0.15)
    long = " ".join(["cat", "dog", "bird"] * 500)
    bodies = list(itertools.chain.from_iterable(block[1:-1] for block in packing.blocks([long])))
    assert bodies[:-1] == tokenizer(long, add_special_tokens=False)["input_ids"]


def test_masking(tokenizer):
    packing = Packing(tokenizer, 128, causal=False, mask=0.15)
    chosen = masked = kept = other = total = 0
    for number, block in enumerate(packing.blocks(LINES * 60)):
        example = packing.example(block, np.random.default_rng(number))
        ids, labels = example["input_ids"], example["labels"]
        where = labels != IGNORED
        block = np.asarray(block)
        np.testing.assert_array_equal(ids[~where], block[~where])
        np.testing.assert_array_equal(labels[where], block[where])
        assert not np.isin(block[where], tokenizer.all_special_ids).any()
        total += int((~np.isin(block, tokenizer.all_special_ids)).sum())
        chosen += int(where.sum())
        masked += int((ids[where] == tokenizer.mask_token_id).sum())
        kept += int((ids[where] == block[where]).sum())
        other += int(((ids[where] != block[where]) & (ids[where] != tokenizer.mask_token_id)).sum())
    assert chosen / total == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.8, abs=0.02)
    assert kept / chosen == pytest.approx(0.1, abs=0.015) and other / chosen == pytest.approx(0.1, abs=0.015)


def test_a_decoder_predicts_the_next_token(tokenizer):
    packing = Packing(tokenizer, 16, causal=True, mask=0.15)
    block = next(packing.blocks(LINES))
    example = packing.example(block, np.random.default_rng(0))
    assert example["input_ids"].tolist() == block
    assert example["labels"].tolist() == [*block[1:], IGNORED]


def examples(blocks):
    return [(example["input_ids"].tolist(), example["labels"].tolist()) for example in blocks]


def test_blocks_follow_from_seed_and_epoch(corpus, tokenizer):
    packing = Packing(tokenizer, 16, causal=False, mask=0.15)

    def read(seed, epoch, shuffle=True):
        blocks = Blocks(Texts(str(corpus)), packing, seed, shuffle=shuffle)
        blocks.set_epoch(epoch)
        return examples(blocks)

    assert read(0, 0) == read(0, 0)
    assert read(0, 0) != read(0, 1) and read(0, 0) != read(1, 0)
    assert read(0, 0, shuffle=False) != read(0, 1, shuffle=False)  # in the same order, other tokens are masked
    assert len(read(0, 0)) == len(read(0, 0, shuffle=False))
    # the same blocks in another order: masks depend on the block, not on its place
    assert sorted(read(0, 0)) == sorted(read(0, 0, shuffle=False)) and read(0, 0) != read(0, 0, shuffle=False)


def test_the_number_of_blocks_is_known_after_counting(corpus, tokenizer):
    blocks = Blocks(Texts(str(corpus)), Packing(tokenizer, 16, causal=False, mask=0.15), 0, shuffle=True)
    with pytest.raises(TypeError, match="count"):
        len(blocks)
    blocks.count()
    assert len(blocks) == len(list(blocks))
    batches = Batches(blocks, Collator(tokenizer, problem="language_model"), 32)
    assert len(batches) == len(list(batches))


def test_several_loader_processes_read_each_block_once(corpus, tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # as the command line has it
    tokenizer(LINES * 20)  # its threads exist before the processes are made
    blocks = Blocks(Texts(str(corpus)), Packing(tokenizer, 16, causal=False, mask=0.15), 0, shuffle=True)
    loaded = DataLoader(blocks, batch_size=None, num_workers=2)
    assert sorted(examples(loaded)) == sorted(examples(blocks))


def test_a_batch_pads_labels_with_what_is_ignored(tokenizer):
    rows = [{"input_ids": [2, 7, 3], "attention_mask": [1, 1, 1], "labels": [IGNORED, 7, IGNORED]}]
    rows.append({"input_ids": [2, 3], "attention_mask": [1, 1], "labels": [IGNORED, 9]})
    batch = Collator(tokenizer, problem="language_model")(rows)
    assert batch["labels"].tolist() == [[IGNORED, 7, IGNORED], [IGNORED, 9, IGNORED]]
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64


def test_a_tokenizer_without_a_mask_token(tokenizer_folder):
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tokenizer_folder)
    own.mask_token = None
    with pytest.raises(ModelError, match="no mask token"):
        Packing(own, 16, causal=False, mask=0.15)
    Packing(own, 16, causal=True, mask=0.15)


def test_no_room_for_text(tokenizer):
    with pytest.raises(DataError, match="no room"):
        Packing(tokenizer, 2, causal=False, mask=0.15)


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "message"),
    [
        ("none.txt", None, {}, DataError, "does not exist"),
        ("empty.txt", b"", {}, DataError, "has no text for the split"),
        ("one.txt", b"a single line\n", {}, DataError, "no text for the split 'train'"),
        ("bytes.txt", b"good\n\xff\xfe\n" * 3, {}, DataError, "line 2: byte 0xff is not UTF-8"),
        ("plain.txt", b"a\nb\n", {"text": "body"}, RecipeError, "plain text without columns"),
        ("table.csv", b"body\na\nb\n", {}, RecipeError, "name its text column"),
        ("table.csv", b"bodi\na\nb\n", {"text": "body"}, DataError, "Did you mean 'bodi'"),
        ("table.csv", b"", {"text": "body"}, DataError, "is empty"),
        ("rows.jsonl", b'{"body": "a"}\n{"bo', {"text": "body"}, DataError, "cut off"),
        ("rows.jsonl", b'{"body": ["a"]}\n' * 3, {"text": "body"}, DataError, "holds a list"),
        ("rows.parquet", b"PAR1 no", {"text": "body"}, DataError, "not a readable Parquet"),
        ("data.docx", b"a", {}, DataError, "not supported"),
    ],
)
def test_bad_files_get_a_clear_message(tmp_path, name, content, options, error, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        for texts in load_task("text", train=str(path), **options).splits.values():
            list(texts)


def test_a_compressed_file_is_refused_clearly(tmp_path):
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(DataError, match=r"extension '\.gz' is not supported"):
        load_task("text", train=str(path))

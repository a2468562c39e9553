"""Rows without labels: which files they may come from, what is left out, and what is said about broken ones."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.tiny_tables import sentences, write_csv

from limbeck.errors import DataError, LimbeckError, RecipeError
from limbeck.problems import IGNORED, UNKNOWN
from limbeck.tasks import load_task
from limbeck.tasks.mixing import MixedRows, encode_unlabelled
from limbeck.tasks.task import Encoding

TEXTS = ["the cat sees here", "a dog likes the red bird", "never often there"]


@pytest.fixture
def table(tmp_path):
    """Return a function that loads a small table with these further options."""
    train = write_csv(tmp_path / "train.csv", sentences(20))
    dev = write_csv(tmp_path / "dev.csv", sentences(10, seed=1))

    def load(**options):
        return load_task("table", train=str(train), validation=str(dev), text="text", label="label", **options)

    load.folder = tmp_path
    return load


def texts_of(task):
    return [cell for part in task.unlabelled.parts() for cell in part.rows[task.text_columns[0]]]


def write(path, content):
    path.write_text(content)
    return str(path)


def test_every_kind_of_file_gives_the_same_texts(table):
    folder = table.folder
    pq.write_table(pa.table({"text": TEXTS, "other": [1, 2, 3]}), folder / "more.parquet")
    files = [
        write(folder / "more.csv", "n,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS))),
        write(folder / "more.tsv", "text\n" + "".join(f"{text}\n" for text in TEXTS)),
        write(folder / "more.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)),
        write(folder / "more.txt", "\n".join(TEXTS) + "\n\n"),
        str(folder / "more.parquet"),
    ]
    for file in files:
        assert texts_of(table(unlabelled=file)) == TEXTS
    assert texts_of(table(unlabelled=files)) == len(files) * TEXTS


def test_texts_of_labelled_rows_are_left_out_whatever_their_case(table):
    train, dev = sentences(20)[3][0], sentences(10, seed=1)[4][0]
    more = write(table.folder / "more.txt", f"{train.upper()}\n{TEXTS[0]}\n  {dev}\n")
    task = table(unlabelled=more)
    assert texts_of(task) == TEXTS[:1]
    assert sum(part.left_out for part in task.unlabelled.parts()) == 2


@pytest.mark.parametrize("label", ["numbers", "flags", "classes"])
def test_encoded_rows_have_no_label_and_ids_of_their_own(label, tmp_path, tokenizer):
    rows = sentences(20)
    cells = {"numbers": "{}.5", "flags": '"x,y{}"', "classes": "c{}"}[label]
    train = write_csv(tmp_path / "train.csv", [(text, cells.format(n % 3)) for n, (text, _) in enumerate(rows)])
    more = write(tmp_path / "more.txt", "\n".join(TEXTS))
    problem = {"numbers": "regression", "flags": "multi_label", "classes": "classification"}[label]
    task = load_task("table", train=str(train), text="text", label="label", problem=problem, unlabelled=more)
    how = Encoding(tokenizer, 8)
    splits = task.encode_all(("train", "validation"), how)
    unlabelled = encode_unlabelled(task, how, 100)
    assert [unlabelled[row]["id"] for row in range(3)] == [100, 101, 102]
    expected = tokenizer(TEXTS, truncation=True, max_length=8)
    assert [unlabelled[row]["input_ids"] for row in range(3)] == expected["input_ids"]
    assert [unlabelled[row]["attention_mask"] for row in range(3)] == expected["attention_mask"]
    given = unlabelled[0]["labels"]
    if problem == "classification":
        assert given == IGNORED
    else:
        assert np.isnan(given).all() and np.shape(given) == np.shape(splits["train"][0]["labels"])
    mixed = MixedRows(splits["train"], unlabelled, 0.5)
    assert len(mixed) == len(splits["train"]) + 3
    assert mixed.lengths.tolist() == [len(row["input_ids"]) for row in mixed]
    assert mixed["id"].tolist() == [row["id"] for row in mixed]
    keys = [len(mixed) - 1, 0, len(mixed) - 2]
    assert str(mixed.__getitems__(keys)) == str([mixed[key] for key in keys])  # as text, in which nan equals nan
    assert set(mixed[0]) == set(mixed[len(mixed) - 1])


def test_pairs_are_read_as_pairs(tmp_path, tokenizer):
    train = write_csv(tmp_path / "train.csv", [(f"{text},{text}", label) for text, label in sentences(20)], "a,b,label")
    more = write(tmp_path / "more.csv", "b,a\nthe dog,a cat\n")
    task = load_task("table", train=str(train), text=["a", "b"], label="label", unlabelled=more)
    row = encode_unlabelled(task, Encoding(tokenizer, 16), 100)[0]
    expected = tokenizer("a cat", "the dog")
    assert row["input_ids"] == expected["input_ids"]
    assert row["token_type_ids"] == expected["token_type_ids"]


CONLL = "the A\ncat B\n\na A\ndog B\n\nred A\nbird B\n\nbig A\nfish B\n"


@pytest.mark.parametrize(
    "kind", ["words.conll", "words.txt", "words.jsonl", "words.parquet", "words.csv", "text.jsonl"]
)
def test_sentences_without_tags(kind, tmp_path, tokenizer):
    train = write(tmp_path / "train.conll", CONLL)
    words = [["never", "often", "happy"], ["here", "there"]]
    joined = [" ".join(row) for row in words]
    file = tmp_path / kind
    if kind.endswith("parquet"):
        pq.write_table(pa.table({"tokens": words}), file)
    else:
        file.write_text(
            {
                "words.conll": "\n\n".join("\n".join(row) for row in words),
                "words.txt": "\n".join(joined),
                "words.jsonl": "".join(json.dumps({"tokens": row}) + "\n" for row in words),
                "text.jsonl": "".join(json.dumps({"tokens": row}) + "\n" for row in joined),
                "words.csv": "tokens\n" + "\n".join(joined) + "\n",
            }[kind]
        )
    task = load_task("tokens", train=train, validation=train, unlabelled=str(file))
    assert texts_of(task) == words
    rows = encode_unlabelled(task, Encoding(tokenizer, 16), 50)
    assert rows[0]["labels"] == [IGNORED, UNKNOWN, UNKNOWN, UNKNOWN, IGNORED]  # a token at the start of each word
    assert list(task.unlabelled.texts()) == joined


def test_files_are_told_apart(table):
    file = table.folder / "more.txt"
    digests = set()
    for content in ("the cat\n", "the dog\n"):
        file.write_text(content)
        digests.add(table(unlabelled=str(file)).unlabelled.digest())
    assert len(digests) == 2


def message(load, error=DataError, **options):
    with pytest.raises(error) as caught:
        load(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_message_for_each_broken_file(table):
    folder = table.folder
    known = sentences(20)[0][0]
    cases = {
        "more.csv": ("body\nhello\n", "has no column 'text'. Its columns are 'body'"),
        "empty.csv": ("", "is empty"),
        "none.csv": ("text\n", "has no rows"),
        "gap.csv": ('text\nthe cat\n""\n', "gap.csv, line 3: 1 of 2 rows have an empty text"),
        "known.csv": (f"text\n{known}\n", "every row has the text of a labelled row"),
        "blank.txt": ("\n\n", "has no text"),
        "more.xlsx": ("text", "the extension '.xlsx' is not supported"),
        "broken.jsonl": ('{"text": "a"}\n{"text": \n', "broken.jsonl, line 2"),
    }
    for name, (content, expected) in cases.items():
        assert expected in message(table, LimbeckError, unlabelled=write(folder / name, content)), name
    assert "does not exist" in message(table, unlabelled=str(folder / "nowhere.csv"))
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    assert "byte 0xe9 is not UTF-8" in message(table, unlabelled=str(folder / "latin.txt"))
    pq.write_table(pa.table({"text": [["a", "list"]]}), folder / "lists.parquet")
    assert "row 1: column 'text' holds a list" in message(table, unlabelled=str(folder / "lists.parquet"))


def test_options_that_make_no_sense(table, tmp_path):
    more = write(table.folder / "more.txt", "\n".join(TEXTS))
    assert "names no file" in message(table, RecipeError, unlabelled=[])
    for share in (0.0, 1.0):
        assert "more than 0, less than 1" in message(table, RecipeError, unlabelled=more, unlabelled_share=share)
    assert "name them, task.unlabelled" in message(table, RecipeError, unlabelled_share=0.5)
    pairs = write_csv(tmp_path / "pairs.csv", [(f"{text},{text}", label) for text, label in sentences(20)], "a,b,label")

    def load(**options):
        return load_task("table", train=str(pairs), text=["a", "b"], label="label", **options)

    assert "but the columns a and b are needed" in message(load, RecipeError, unlabelled=more)


def test_a_row_of_tags_needs_words(tmp_path):
    train = write(tmp_path / "train.conll", CONLL)
    more = write(tmp_path / "more.jsonl", '{"tokens": ["a", ""]}\n')
    with pytest.raises(DataError, match=r"more.jsonl, line 1: a word is empty"):
        load_task("tokens", train=train, validation=train, unlabelled=more)
    write(tmp_path / "more.jsonl", '{"tokens": 5}\n')
    with pytest.raises(DataError, match="must hold a list of words, or a text; seen: 5"):
        load_task("tokens", train=train, validation=train, unlabelled=more)

"""Check how shrink divides its rows, and what it writes of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.tiny_tables import sentences, write_csv

from limbeck.shrink.data import divide, halves, unlabelled_texts, with_teachers_labels
from limbeck.shrink.plan import Request
from limbeck.tasks import load_task


def texts_of(labels):
    return [f"text {row}" for row in range(len(labels))]


@pytest.mark.parametrize("labels", [[0, 1] * 20, [0] * 30 + [1] * 10 + [2] * 5, list(range(9))])
def test_both_halves_have_the_same_share_of_each_class(labels):
    choosing, reported = halves(labels, texts_of(labels))
    assert sorted([*choosing, *reported]) == list(range(len(labels)))
    ours, theirs = (Counter(np.array(labels)[rows].tolist()) for rows in (choosing, reported))
    assert all(abs(ours[label] - theirs[label]) <= 1 for label in set(labels))
    assert list(choosing) == sorted(choosing) and list(reported) == sorted(reported)


def test_halves_of_label_sets():
    labels = np.array([[0, 1], [1, 0]] * 10)
    for rows in halves(labels, texts_of(labels)):
        assert labels[rows].sum(axis=0).tolist() == [5, 5]


@pytest.fixture
def asked(tmp_path):
    data = write_csv(tmp_path / "train.csv", sentences(120))
    dev = write_csv(tmp_path / "dev.csv", sentences(41, seed=1))
    return Request("m", str(data), ("text",), "label", dev=str(dev))


def loaded(block):
    return load_task("table", **{key: value for key, value in block.items() if key != "name"})


def rows_of(split):
    return list(zip(split["text"][:], split["label"][:], strict=True))


def test_every_row_is_in_one_part_and_means_what_it_meant(asked, tmp_path):
    task = loaded(asked.task_block())
    block = divide(asked, task, tmp_path / "data")
    found = loaded(block)
    assert found.label_names == task.label_names and found.problem == task.problem
    assert rows_of(found.split("train")) == rows_of(task.split("train"))
    dev = [*rows_of(found.split("validation")), *rows_of(found.split("test"))]
    assert sorted(dev) == sorted(rows_of(task.split("validation")))
    assert abs(len(found.split("validation")) - len(found.split("test"))) <= 1
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "data").iterdir()}
    assert divide(asked, task, tmp_path / "data") == block
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "data").iterdir()}


@pytest.mark.parametrize("kind", ["multi_label", "regression"])
def test_label_sets_and_numbers_are_the_same_afterwards(kind, tmp_path):
    cells = {"multi_label": ["a|b", "b", "", "a|c"], "regression": ["0.5", "1.25", "3", "-2.5"]}[kind]
    rows = [(f"text {number}", cells[number % 4]) for number in range(60)]
    data = write_csv(tmp_path / "d.csv", rows)
    separator = "|" if kind == "multi_label" else None
    asked = Request("m", str(data), ("text",), "label", separator=separator)
    task = loaded(asked.task_block())
    assert task.problem == kind
    found = loaded(divide(asked, task, tmp_path / "data"))
    assert found.problem == kind and found.label_names == task.label_names
    assert rows_of(found.split("train")) == rows_of(task.split("train"))


def test_unlabelled_rows_are_new_ones_and_follow_the_labelled(asked, tmp_path):
    known = sentences(120)[0][0]
    file = tmp_path / "more.csv"
    file.write_text(f"text\n{known}\nsomething new\nsomething new\nand another\n")
    asked = Request("m", asked.data, ("text",), "label", dev=asked.dev, unlabelled=str(file))
    task = loaded(asked.task_block())
    more = unlabelled_texts(asked, task)
    assert more == {"text": ["something new", "and another"]}
    block = divide(asked, task, tmp_path / "data")
    taught = with_teachers_labels(block, more, ["positive", "negative"], tmp_path / "taught.parquet")
    table = pq.read_table(tmp_path / "taught.parquet").to_pydict()
    assert table["text"][-2:] == more["text"] and table["label"][-2:] == ["positive", "negative"]
    assert len(table["text"]) == 122 and taught == {**block, "train": str(tmp_path / "taught.parquet")}
    assert rows_of(loaded(taught).split("test")) == rows_of(loaded(block).split("test"))

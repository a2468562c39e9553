"""A file of probabilities or logits: which forms it may have, what is kept of it, and what is said of broken ones."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.tiny_tables import write_csv

from limbeck.errors import DataError, LimbeckError, ModelError
from limbeck.tasks import load_task
from limbeck.tasks.answer_file import AnswerFile, keys_of

TEXTS = ["a cat", "the dog", "one bird", "two fish"]
NAMES = ("bad", "fine", "good")
PROBABILITIES = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.05, 0.15, 0.8], [1 / 3, 1 / 3, 1 / 3]])


@pytest.fixture
def task(tmp_path):
    rows = [(text, NAMES[number % 3]) for number, text in enumerate(TEXTS)]
    train = write_csv(tmp_path / "train.csv", rows)
    return load_task("table", train=str(train), validation=str(train), text="text", label="label")


def columns(style="p({})", probabilities=PROBABILITIES):
    return {style.format(name): probabilities[:, place].tolist() for place, name in enumerate(NAMES)}


def write(path, values):
    values = {name: list(column) for name, column in values.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(values), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, values)
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def answers_of(file, rows):
    return file.task.probabilities(file.logits(file.find(keys_of(file.task, rows))))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("style", ["p({})", "{}"])
def test_rows_are_found_by_their_texts_in_any_order(suffix, style, task, tmp_path):
    order = [2, 0, 3, 1]
    values = {"text": [TEXTS[row] for row in order], "prediction": ["x"] * 4, **columns(style, PROBABILITIES[order])}
    file = AnswerFile(write(tmp_path / f"soft.{suffix}", values), "probabilities", task)
    np.testing.assert_allclose(answers_of(file, {"text": TEXTS}), PROBABILITIES, atol=1e-7)
    assert file.find(keys_of(task, {"text": ["  the   dog ", "The dog", "no"]})).tolist() == [3, -1, -1]
    assert file.says_order


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_list_is_in_the_order_of_the_labels(suffix, task, tmp_path):
    values = {"text": TEXTS, "probabilities": PROBABILITIES.tolist()}
    file = AnswerFile(write(tmp_path / f"soft.{suffix}", values), "probabilities", task)
    np.testing.assert_allclose(answers_of(file, {"text": TEXTS}), PROBABILITIES, atol=1e-7)
    assert not file.says_order and "task.labels=[bad, fine, good]" in file.how_to_state()


def test_zero_stays_zero_at_every_temperature(task, tmp_path):
    file = AnswerFile(write(tmp_path / "soft.parquet", {"text": TEXTS, **columns()}), "probabilities", task)
    logits = file.logits(np.array([1]))
    assert np.isfinite(logits).all()
    for temperature in (1.0, 20.0):
        assert task.probabilities(logits / temperature).tolist() == [[1.0, 0.0, 0.0]]


def test_logits_are_kept_as_they_are(task, tmp_path):
    given = np.array([[0.5, -2.0, 30.0]] * 4)
    values = {"text": TEXTS, **columns("{}", given)}
    file = AnswerFile(write(tmp_path / "scores.parquet", values), "logits", task)
    assert file.logits(np.arange(4)).tolist() == given.tolist()


def test_several_labels_and_numbers(tmp_path):
    rows = list(zip(TEXTS, ['"x,y"', "x", "y", '""'], strict=True))
    train = write_csv(tmp_path / "train.csv", rows)
    options = {"validation": str(train), "text": "text", "label": "label"}
    task = load_task("table", train=str(train), problem="multi_label", **options)
    given = np.array([[0.0, 1.0], [0.9, 0.9], [0.5, 0.25], [0.1, 0.0]])
    values = {"text": TEXTS, "x": given[:, 0].tolist(), "y": given[:, 1].tolist()}
    file = AnswerFile(write(tmp_path / "soft.parquet", values), "probabilities", task)
    np.testing.assert_allclose(answers_of(file, {"text": TEXTS}), given, atol=1e-7)

    train = write_csv(tmp_path / "numbers.csv", list(zip(TEXTS, ["1.5", "2", "0.5", "3"], strict=True)))
    task = load_task("table", train=str(train), **options | {"validation": str(train)})
    file = AnswerFile(
        write(tmp_path / "numbers.parquet", {"text": TEXTS, "prediction": [1.0, 2, 3, 4]}), "logits", task
    )
    assert file.logits(np.arange(4)).tolist() == [[1.0], [2.0], [3.0], [4.0]]
    with pytest.raises(DataError, match=r"Write teacher.logits="):
        AnswerFile(str(tmp_path / "numbers.parquet"), "probabilities", task)


def test_rows_are_found_by_their_ids(tmp_path):
    rows = [(f"{100 + number},{text}", NAMES[number % 3]) for number, text in enumerate(TEXTS)]
    train = write_csv(tmp_path / "train.csv", rows, "uid,text,label")
    task = load_task("table", train=str(train), text="text", label="label", id="uid", seed=1)
    values = {"uid": [103.0, 102.0, 101.0, 100.0], **columns("{}", PROBABILITIES[::-1])}
    file = AnswerFile(write(tmp_path / "soft.parquet", values), "probabilities", task)
    split = task.split("train")
    expected = [PROBABILITIES[row] for row in split["id"]]
    np.testing.assert_allclose(answers_of(file, split[:]), expected, atol=1e-7)


def test_one_id_for_two_rows_is_refused(tmp_path):
    train = write_csv(tmp_path / "train.csv", [(f"{n},{t}", NAMES[n % 3]) for n, t in enumerate(TEXTS)], "n,text,label")
    dev = write_csv(tmp_path / "dev.csv", [("0,other", "bad")], "n,text,label")
    with pytest.raises(DataError, match=r"dev.csv, line 2: 'n' is 0, as in .*train.csv, line 2"):
        load_task("table", train=str(train), validation=str(dev), text="text", label="label", id="n")


BROKEN = {
    "one label less": ({"bad": [0.5] * 4, "good": [0.5] * 4}, "has no column for 'fine'"),
    "no label": ({"other": [1.0] * 4}, "has no probabilities: neither a column 'probabilities' with lists"),
    "one label more": ({**columns(), "p(goood)": [0.0] * 4}, "Unknown label 'goood'. Did you mean 'good'?"),
    "sums": (columns("{}", PROBABILITIES / 2), "add up to 0.5 and not to 1"),
    "negative": (columns("{}", PROBABILITIES - 0.1), "which is not a probability, from 0 to 1"),
    "a word": (columns("{}") | {"bad": ["0.2", "x", "0.05", "0.3"]}, "the answer of 'bad' is 'x'"),
    "a gap": (columns("{}") | {"bad": ["0.2", "", "0.05", "0.3"]}, "line 3: the answer of 'bad' is ''"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_message_for_each_broken_file(name, task, tmp_path):
    values, expected = BROKEN[name]
    path = write(tmp_path / "soft.csv", {"text": TEXTS, **values})
    with pytest.raises(LimbeckError) as caught:
        AnswerFile(path, "probabilities", task)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_lists_of_another_length_and_lists_in_a_csv(task, tmp_path):
    short = write(tmp_path / "soft.jsonl", {"text": TEXTS, "probabilities": [[0.5, 0.5]] * 4})
    with pytest.raises(DataError, match=r"line 1: 'probabilities' must hold a list of 3 numbers.*seen: a list of 2"):
        AnswerFile(short, "probabilities", task)
    text = write(tmp_path / "soft.csv", {"text": TEXTS, "probabilities": ["[0.2 0.3 0.5]"] * 4})
    with pytest.raises(DataError, match="A CSV file has no lists"):
        AnswerFile(text, "probabilities", task)


def test_a_text_with_two_answers(task, tmp_path):
    twice = [*TEXTS, TEXTS[1]]
    same = np.vstack([PROBABILITIES, PROBABILITIES[1]])
    file = AnswerFile(write(tmp_path / "soft.parquet", {"text": twice, **columns("{}", same)}), "probabilities", task)
    assert file.find(keys_of(task, {"text": TEXTS})).min() >= 0
    other = np.vstack([PROBABILITIES, PROBABILITIES[0]])
    with pytest.raises(DataError, match="rows 2 and 5: the same text has two different answers"):
        AnswerFile(write(tmp_path / "two.parquet", {"text": twice, **columns("{}", other)}), "probabilities", task)


def test_tags_are_not_answered(tmp_path):
    (tmp_path / "train.conll").write_text("the A\ncat B\n\na A\ndog B\n")
    train = str(tmp_path / "train.conll")
    task = load_task("tokens", train=train, validation=train)
    with pytest.raises(ModelError, match="decides single tokens"):
        AnswerFile(train, "probabilities", task)


def test_files_are_told_apart(task, tmp_path):
    digests = set()
    for probabilities in (PROBABILITIES, PROBABILITIES[::-1]):
        file = write(tmp_path / "soft.parquet", {"text": TEXTS, **columns("{}", probabilities)})
        digests.add(AnswerFile(file, "probabilities", task).digest)
    assert len(digests) == 2

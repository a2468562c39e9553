"""Predict for files of any size: some rows in memory, in the file's order, and nothing written for a bad file."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.tiny_tables import sentences

from limbeck.errors import DataError
from limbeck.inference import predict
from limbeck.inference.predict import predict_file
from limbeck.tasks.files import read_columns

TEXTS = [text for text, _ in sentences(50, seed=5)]
TEXTS[20] = 'the "big" cat, and\u2028a dog'
ENDINGS = ("csv", "tsv", "jsonl", "parquet")


def write(path, texts):
    if path.suffix == ".csv":
        quoted = (text.replace('"', '""') for text in texts)
        path.write_text("number,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(quoted)))
    elif path.suffix == ".tsv":
        path.write_text("number\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"number": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    else:
        table = pa.table({"number": range(len(texts)), "text": texts})
        pq.write_table(table, path, row_group_size=20, compression="none", use_dictionary=False)
    return path


@pytest.fixture()
def few_rows(monkeypatch):
    monkeypatch.setattr(predict, "CHUNK_TEXTS", 7)


@pytest.mark.parametrize("ending", ENDINGS)
def test_rows_keep_their_order(ending, teacher_folder, tmp_path, monkeypatch):
    file, columns = write(tmp_path / f"texts.{ending}", TEXTS), ["prediction", "p(negative)", "p(positive)"]
    found = {}
    for rows in (1_000, 7):
        monkeypatch.setattr(predict, "CHUNK_TEXTS", rows)
        assert predict_file(teacher_folder, file, tmp_path / "out.csv", text=["text"]) == len(TEXTS)
        found[rows] = read_columns(tmp_path / "out.csv", columns).values
    at_once, streamed = found[1_000], found[7]
    assert len(set(at_once["p(positive)"])) > 20 and at_once["prediction"] == streamed["prediction"]
    for name in columns[1:]:
        np.testing.assert_allclose(*(np.array(side[name], float) for side in (at_once, streamed)), atol=1e-6)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_output_is_the_same_table(ending, teacher_folder, tmp_path, few_rows):
    file = write(tmp_path / "texts.csv", TEXTS)
    for name in ("out.jsonl", f"other.{ending}"):
        predict_file(teacher_folder, file, tmp_path / name, text=["text"])
    columns = ["prediction", "p(negative)", "p(positive)"]
    ours, theirs = (read_columns(tmp_path / name, columns).values for name in ("out.jsonl", f"other.{ending}"))
    assert ours["prediction"] == theirs["prediction"]
    np.testing.assert_array_equal(*(np.array(side["p(positive)"], float) for side in (ours, theirs)))


def test_few_rows_are_in_memory_at_once(teacher_folder, tmp_path, monkeypatch, few_rows):
    alive, most, original = weakref.WeakSet(), [], predict.text_chunks

    def watched(*arguments):
        for texts in original(*arguments):
            alive.add(texts)
            most.append(sum(len(one) for one in alive))
            yield texts

    monkeypatch.setattr(predict, "text_chunks", watched)
    predict_file(teacher_folder, write(tmp_path / "t.csv", TEXTS * 4), tmp_path / "out.csv", text=["text"])
    # the rows that are answered, those before them that are still named, and the next ones
    assert len(most) == 2 * -(-len(TEXTS) * 4 // 7) and max(most) <= 3 * 7


BAD = {
    "not closed.csv": ("text\n" + "a cat\n" * 30 + '"a dog\n' + "a cat\n" * 5, "starts in line 32 is not valid CSV"),
    "two cells.csv": ("text\n" + "a cat\n" * 30 + "a dog,b\n" + "a cat\n" * 5, "line 32: 2 columns were found"),
    "empty.csv": ("text,n\n" + "a cat,1\n" * 30 + ",2\n" + "a cat,1\n" * 5, "line 32: 1 of"),
    "tab.tsv": ("text\tn\n" + "a cat\t1\n" * 30 + "a\tb\t1\n", "line 32: 3 columns were found"),
    "no text.jsonl": ('{"text": "a cat"}\n' * 30 + '{"body": "a dog"}\n', "line 31: 1 of"),
    "list.jsonl": ('{"text": "a cat"}\n' * 30 + '{"text": ["a dog"]}\n', "line 31: column 'text' holds a list"),
    "cut.jsonl": ('{"text": "a cat"}\n' * 30 + '{"text": "a d', "line 31: the file looks cut off"),
    "bytes.csv": ("text\n" + "a cat\n" * 30 + "na\udcefve\n", "line 32: byte 0xef is not UTF-8"),
    "header.csv": ("text\n", "has no rows"),
    "nothing.csv": ("", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_found_before_anything_is_predicted(
    name, teacher_folder, tmp_path, command, monkeypatch, few_rows
):
    content, said = BAD[name]
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    (tmp_path / "out.csv").write_text("of yesterday\n")
    monkeypatch.setattr(predict, "logits_in_order", lambda *_: pytest.fail("it predicted"))
    code, shown = command("predict", teacher_folder, name, "--text", "text", "-o", "out.csv", "--force")
    assert code == 1 and said in shown and name in shown
    assert (tmp_path / "out.csv").read_text() == "of yesterday\n" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["end", "middle"])
def test_a_damaged_parquet_file_is_one_message(damage, teacher_folder, tmp_path, few_rows):
    file = write(tmp_path / "texts.parquet", TEXTS)
    whole = file.read_bytes()
    place = whole.index(TEXTS[25].encode()) - 40  # in the second group of rows
    file.write_bytes(
        whole[: len(whole) // 2] if damage == "end" else whole[:place] + b"\xff" * 120 + whole[place + 120 :]
    )
    with pytest.raises(DataError, match=r"texts\.parquet is not a readable Parquet file"):
        predict_file(teacher_folder, file, tmp_path / "out.csv", text=["text"])
    assert not list(tmp_path.glob("*out*"))


def test_a_failure_on_the_way_leaves_nothing(teacher_folder, tmp_path, monkeypatch, few_rows):
    calls, original = [], predict.logits_in_order

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(predict, "logits_in_order", failing)
    with pytest.raises(KeyboardInterrupt):
        predict_file(teacher_folder, write(tmp_path / "t.csv", TEXTS), tmp_path / "out.csv", text=["text"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_a_quote_at_the_end_of_a_tsv_counts(teacher_folder, tmp_path, few_rows):
    """Quote as in a CSV from the first row to the last, or not at all."""
    rows = ['"a ""big"" cat"'] * 30
    for end, same in (('"a dog"', 'a "big" cat'), ('5" dog', '"a ""big"" cat"')):
        (tmp_path / "quoted.tsv").write_text("n\ttext\n" + "".join(f"1\t{row}\n" for row in [*rows, end]))
        (tmp_path / "plain.jsonl").write_text(json.dumps({"text": same}) + "\n")
        for name in ("quoted.tsv", "plain.jsonl"):
            predict_file(teacher_folder, tmp_path / name, tmp_path / f"{name}.csv", text=["text"])
        ours, theirs = (
            read_columns(tmp_path / f"{name}.csv", ["p(positive)"]).values["p(positive)"]
            for name in ("quoted.tsv", "plain.jsonl")
        )
        assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=1e-6)


def test_texts_that_are_cut_are_counted_once(teacher_folder, tmp_path, caplog, few_rows):
    file = write(tmp_path / "t.csv", ["a cat", "a cat sees the dog here"] * 20)
    with caplog.at_level("WARNING", logger="limbeck"):
        predict_file(teacher_folder, file, tmp_path / "out.csv", text=["text"], max_length=6)
    assert caplog.messages == [
        "20 of 40 texts (50.0%) are longer than 6 tokens and were cut; raise --max-length to keep them."
    ]

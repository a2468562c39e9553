"""Line 9: the number of text columns, labels that are almost all numbers, and Parquet columns of bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.tiny_tables import sentences, write_csv

from limbeck.errors import DataError
from limbeck.tasks import load_task

TEXTS = [text for text, _ in sentences(30)]
PAIRS = "".join(f"{text},{other}\n" for text, other in zip(TEXTS, TEXTS[::-1], strict=True))


@pytest.fixture()
def run_of(tmp_path: Path, teacher_folder: Path) -> Callable[..., str]:
    """Make a run directory of a task that the teacher stands for."""

    def make(**task: Any) -> str:
        folder = tmp_path / "run"
        shutil.copytree(teacher_folder, folder / "student")
        (folder / "recipe.yaml").write_text(yaml.safe_dump({"task": task}))
        (tmp_path / "new.csv").write_text("a,b\n" + PAIRS)
        return "run"

    return make


TABLE = {"name": "table", "train": "train.csv", "label": "label"}
TOO_MANY = {
    "one text": (TABLE | {"text": "text"}, ("a", "b"), "reads one text (text) in each row, but 2 columns were named"),
    "a pair": (
        TABLE | {"text": ["x", "y"]},
        ("a",),
        "a pair of texts (x, y) in each row, but 1 column was named",
    ),
    "glue/sst2": ({"name": "glue/sst2"}, ("a", "b"), "reads one text (sentence) in each row, but 2 columns"),
    "glue/rte": (
        {"name": "glue/rte"},
        ("a",),
        "a pair of texts (sentence1, sentence2) in each row, but 1 column",
    ),
    "glue/mnli": ({"name": "glue/mnli"}, ("b",), "a pair of texts (premise, hypothesis) in each row, but 1 column"),
    "squad/2.0": ({"name": "squad/2.0"}, ("a",), "a pair of texts (question, context) in each row, but 1 column"),
    "tokens": ({"name": "tokens", "train": "train.conll"}, ("a", "b"), "reads one text in each row, but 2 columns"),
    "reviews": ({"name": "reviews"}, ("a", "b"), "reads one text (review) in each row, but 2 columns were named"),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_predict_with_another_number_of_columns_names_both(case, run_of, command, tmp_path):
    task, columns, expected = TOO_MANY[case]
    words = [word for name in columns for word in ("--text", name)]
    code, said = command("predict", run_of(**task), "new.csv", *words, "-o", "out.csv")
    assert code == 1 and expected in said and " ".join(words) in said
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("task", [TABLE | {"text": ["x", "y"]}, {"name": "glue/rte"}])
def test_predict_with_as_many_columns_works_whatever_their_names(task, run_of, command):
    code, said = command("predict", run_of(**task), "new.csv", "--text", "a", "--text", "b", "-o", "out.csv")
    assert code == 0 and "30 predictions" in said
    code, said = command("predict", "run", "new.csv", "--text", "a", "--text", "b", "--text", "a", "-o", "3.csv")
    assert code == 1 and "3 columns were named" in said


def test_a_glue_run_reads_the_columns_of_its_task_where_none_are_named(run_of, command, tmp_path):
    run_of(name="glue/rte")
    (tmp_path / "new.csv").write_text("sentence1,sentence2\n" + PAIRS)
    assert command("predict", "run", "new.csv", "-o", "out.csv")[0] == 0


def test_an_export_knows_how_many_texts_it_reads(command, tmp_path, teacher_folder):
    write_csv(tmp_path / "train.csv", sentences(60))
    (tmp_path / "new.csv").write_text("a,b\n" + PAIRS)
    columns = ("task.train=train.csv", "task.text=text", "task.label=label")
    code, said = command("export", teacher_folder, "--task", "table", *columns, "--max-drop", 1, "-o", "out")
    assert code == 0, said
    code, said = command("predict", "out", "new.csv", "--text", "a", "--text", "b", "-o", "out.csv")
    assert code == 1 and "out reads one text (text) in each row, but 2 columns were named" in said
    assert command("predict", "out", "new.csv", "--text", "a", "-o", "out.csv")[0] == 0


def test_an_older_export_that_does_not_tell_is_still_read(command, tmp_path, teacher_folder):
    shutil.copytree(teacher_folder, tmp_path / "old")
    (tmp_path / "new.csv").write_text("a,b\n" + PAIRS)
    reads: dict[str, Any] = {"columns": [], "max_length": 32, "decoding": {}}
    (tmp_path / "old" / "parity.json").write_text(json.dumps({"reads": reads}))
    for number, words in enumerate((["--text", "a"], ["--text", "a", "--text", "b"])):
        assert command("predict", "old", "new.csv", *words, "-o", f"{number}.csv")[0] == 0
    code, said = command("predict", "old", "new.csv", *["--text", "a"] * 3, "-o", "3.csv")
    assert code == 1 and "one text or a pair in each row, but 3 columns were named" in said


# Labels


@pytest.mark.parametrize("stray", ["nan", "inf", "-Infinity", "unknown", "1e999"])
def test_one_stray_label_among_numbers_names_its_line(stray, command, tmp_path):
    rows = [(f"text {i}", f"{i / 7:.3f}") for i in range(60)]
    rows.insert(20, ("another", stray))
    write_csv(tmp_path / "train.csv", rows)
    columns = ("task.train=train.csv", "task.text=text", "task.label=label")
    code, said = command("finetune", "table", *columns, "--model", "nowhere")
    assert code == 1 and "train.csv, line 22:" in said and repr(stray) in said
    assert "task.problem=classification" in said and "task.problem=regression" in said
    task = load_task("table", train="train.csv", text="text", label="label", problem="classification")
    assert stray in task.label_names  # the advice works
    write_csv(tmp_path / "train.csv", [row for row in rows if row[1] != stray])
    assert load_task("table", train="train.csv", text="text", label="label").problem == "regression"


@pytest.mark.parametrize("value", ["Infinity", "1" * 400, '"x"', "-Infinity"])
def test_one_stray_label_of_jsonl_names_its_line(value, tmp_path):
    lines = [f'{{"text": "text {i}", "label": {i / 7}}}\n' for i in range(30)]
    lines[11] = f'{{"text": "text", "label": {value}}}\n'
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl, line 12: 1 of 30 rows"):
        load_task("table", train=str(tmp_path / "a.jsonl"), text="text", label="label")


def test_a_stray_label_of_parquet_names_its_row(tmp_path):
    labels = [i / 7 for i in range(30)]
    labels[4] = float("inf")
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(30)], "label": labels}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 5: 1 of 30 rows"):
        load_task("table", train=str(tmp_path / "a.parquet"), text="text", label="label")


def test_every_stray_label_is_counted_and_five_lines_are_named(tmp_path):
    rows = [(f"text {i}", "x" if i % 4 == 0 else f"{i}.5") for i in range(40)]
    with pytest.raises(DataError, match="lines 2, 6, 10, 14, 18: 10 of 40 rows"):
        load_task("table", train=str(write_csv(tmp_path / "a.csv", rows)), text="text", label="label")


# Bytes

KINDS = {
    "binary": pa.binary(),
    "large": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.binary()),
}


def write_bytes(path: Path, kind: str, broken: int | None = None) -> Path:
    """Write 30 texts and labels as bytes; the row ``broken`` is not UTF-8."""
    texts = [f"naïve {text}".encode() for text in TEXTS]
    if broken is not None:
        texts[broken] = b"na\xefve"
    labels = [b"good" if i % 2 else b"b\xc3\xa4d" for i in range(len(texts))]
    arrays = [pa.array(values, pa.binary()).cast(KINDS[kind]) for values in (texts, labels)]
    pq.write_table(pa.table(dict(zip(("text", "label"), arrays, strict=True))), path, row_group_size=7)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_in_parquet_are_read_as_utf8(kind, tmp_path, command, teacher_folder):
    file = str(write_bytes(tmp_path / "a.parquet", kind))
    task = load_task("table", train=file, validation=file, text="text", label="label")
    expected = [f"naïve {text}" for text in TEXTS]
    assert task.split("train")["text"][:] == expected and task.label_names == ("bäd", "good")
    assert sorted(
        [*(plain := load_task("text", train=file, text="text")).split("train"), *plain.split("validation")]
    ) == sorted(expected)
    write_csv(tmp_path / "b.csv", [(text, "x") for text in expected])
    for name in ("a.parquet", "b.csv"):
        assert command("predict", teacher_folder, name, "--text", "text", "-o", f"{name}.csv")[0] == 0
    assert (tmp_path / "a.parquet.csv").read_text() == (tmp_path / "b.csv.csv").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_are_not_utf8_name_their_row(kind, tmp_path, command, teacher_folder, monkeypatch):
    monkeypatch.setattr("limbeck.inference.predict.CHUNK_TEXTS", 4)
    file = write_bytes(tmp_path / "a.parquet", kind, broken=17)
    expected = "column 'text', row 18: byte 0xef is not UTF-8"
    with pytest.raises(DataError, match=expected):
        load_task("table", train=str(file), text="text", label="label")
    with pytest.raises(DataError, match=expected):
        list(load_task("text", train=str(file), validation=str(file), text="text").split("train"))
    code, said = command("predict", teacher_folder, "a.parquet", "--text", "text", "-o", "out.csv")
    assert code == 1 and expected in said


def test_text_columns_that_were_written_unchecked_name_their_row(tmp_path):
    cells = pa.array([b"fine", b"na\xefve"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, cells.buffers())
    pq.write_table(pa.table({"text": broken, "label": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'text', row 2: byte 0xef is not UTF-8"):
        load_task("table", train=str(tmp_path / "a.parquet"), text="text", label="label")


def test_lists_of_bytes_are_words_and_tags(tmp_path):
    words = pa.array([[b"Br\xc3\xbcssel", b"is"], [b"here"]] * 10, pa.list_(pa.binary()))
    tags = pa.array([[b"B-LOC", b"O"], [b"O"]] * 10, pa.list_(pa.binary()))
    pq.write_table(pa.table({"tokens": words, "tags": tags}), tmp_path / "a.parquet")
    task = load_task("tokens", train=str(tmp_path / "a.parquet"))
    assert task.label_names == ("O", "B-LOC") and ["Brüssel", "is"] in [
        *task.split("train")["words"],
        *task.split("validation")["words"],
    ]

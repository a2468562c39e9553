"""Tables: formats, kinds of labels, the hold-out, bad files, and writing."""

from __future__ import annotations

import json
import logging
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from limbeck.errors import DataError, RecipeError
from limbeck.tasks import TASKS, Task, load_task, read_texts, write_table
from limbeck.tasks.table import hold_out as split_rows

REAL = Path(__file__).parents[3].parent / "shared" / "data"


class Folder:
    """Writes small files and loads tables from them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: str | bytes | list[dict[str, Any]]) -> str:
        path = self.path / name
        if isinstance(content, list) and name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(content), path)
        elif isinstance(content, list):
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def task(self, name: str, content: Any, text: Any = "text", label: Any = "label", **options: Any) -> Task:
        train = self.write(name, content)
        options.setdefault("validation", train)
        return load_task("table", train=train, text=text, label=label, **options)

    def message(self, name: str, content: Any, **options: Any) -> str:
        with pytest.raises(DataError) as caught:
            self.task(name, content, **options)
        text = str(caught.value)
        assert "\n" not in text
        return text


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# Formats


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,text,label\n7,"Hi, ""you""\nthere",pos\n8,Bye,neg\n\n'),
        ("a.CSV", b'\xef\xbb\xbfid,text,label\r\n7,"Hi, ""you""\nthere",pos\r\n8,Bye,neg'),
        ("a.jsonl", [{"text": 'Hi, "you"\nthere', "label": "pos"}, {"text": "Bye", "label": "neg", "x": 1}]),
        ("a.json", [{"text": 'Hi, "you"\nthere', "label": "pos"}, {"text": "Bye", "label": "neg"}]),
        ("a.parquet", [{"text": 'Hi, "you"\nthere', "label": "pos"}, {"text": "Bye", "label": "neg"}]),
    ],
)
def test_formats_give_the_same_task(folder: Folder, name: str, content: Any) -> None:
    task = folder.task(name, content)
    assert task.split("train")[:] == {"id": [0, 1], "text": ['Hi, "you"\nthere', "Bye"], "label": [1, 0]}
    assert (task.name, task.problem, task.label_names) == ("table", "classification", ("neg", "pos"))
    assert task.metrics == ("accuracy", "macro_f1")


def test_tsv_keeps_stray_quotes_and_undoes_real_quoting(folder: Folder) -> None:
    task = folder.task("a.tsv", 'text\tlabel\n" Hi\tpos\nBye "\tneg\n')
    assert task.split("train")["text"][:] == ['" Hi', 'Bye "']
    task = folder.task("c.tsv", 'text\tlabel\n"Hi"\tpos\nBye\tneg\n')
    assert task.split("train")["text"][:] == ['"Hi"', "Bye"]  # wrapped, but nothing proves that a writer did it
    task = folder.task("b.tsv", 'text\tlabel\n"Hi ""you"""\tpos\nBye\tneg\n')
    assert task.split("train")["text"][:] == ['Hi "you"', "Bye"]


def test_pairs(folder: Folder) -> None:
    task = folder.task("a.csv", "q,a,label\nx,y,1\nz,w,0\n", text=["q", "a"])
    assert task.text_columns == ("q", "a")
    assert task.split("train")[1] == {"id": 1, "q": "z", "a": "w", "label": 0}


def test_a_whole_document_fits_into_a_cell(folder: Folder) -> None:
    document = "word " * 40_000
    task = folder.task("a.csv", f'text,label\n"{document}",a\ny,b\n')
    assert task.split("train")["text"][0] == document


# Labels


@pytest.mark.parametrize(
    ("cells", "problem", "names", "labels"),
    [
        (["b", "a", "b"], "classification", ("a", "b"), [1, 0, 1]),
        (["10", "9", "2"], "classification", ("2", "9", "10"), [2, 1, 0]),
        ([10, 9, 2], "classification", ("2", "9", "10"), [2, 1, 0]),
        ([1.0, 0.0, 1.0], "classification", ("0", "1"), [1, 0, 1]),
        ([True, False, True], "classification", ("False", "True"), [1, 0, 1]),
        (["1", "2.5", "3"], "regression", (), [1.0, 2.5, 3.0]),
        ([1, 2.5, 3], "regression", (), [1.0, 2.5, 3.0]),
        (["2.5", "inf", "x"], "classification", ("2.5", "inf", "x"), [0, 1, 2]),
        ([["b"], ["a", "b"], []], "multi_label", ("a", "b"), [[0, 1], [1, 1], [0, 0]]),
    ],
)
def test_auto(folder: Folder, cells: list[Any], problem: str, names: tuple[str, ...], labels: list[Any]) -> None:
    rows = [{"text": f"t{i}", "label": cell} for i, cell in enumerate(cells)]
    task = folder.task("a.jsonl", rows)
    assert (task.problem, task.label_names) == (problem, names)
    assert task.split("train")["label"][:] == labels
    assert task.num_labels == (len(names) or 1)


def test_multi_label_from_separated_names(folder: Folder) -> None:
    content = "text,label\nx,joy; fear\ny,\nz,fear\n"
    task = folder.task("a.csv", content, problem="multi_label", separator=";")
    assert task.label_names == ("fear", "joy")
    assert task.split("train")["label"][:] == [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    assert task.metrics == ("micro_f1", "macro_f1")


def test_multi_label_from_several_columns(folder: Folder) -> None:
    content = "text,joy,fear\nx,1,0\ny,0,0\nz,true,1\n"
    task = folder.task("a.csv", content, label=["joy", "fear"])
    assert (task.problem, task.label_names) == ("multi_label", ("joy", "fear"))
    assert task.split("train")["label"][:] == [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    logits = [[3.0, -0.1], [-0.1, -1.0], [0.1, -1.0]]
    assert task.predictions(logits).tolist() == [[1, 0], [0, 0], [1, 0]]
    assert task.probabilities([[0.0, 0.0]]).tolist() == [[0.5, 0.5]]
    # tp 2, fn 1; per label 1 and 0
    scores = task.score(logits, {"labels": task.split("train")["label"]})
    assert scores == {"micro_f1": pytest.approx(4 / 5), "macro_f1": pytest.approx(1 / 2)}


def test_regression_scores(folder: Folder) -> None:
    task = folder.task("a.csv", "text,label\nx,1\ny,2\nz,4\n", problem="regression")
    scores = task.score([[1.0], [2.0], [3.0]], {"labels": [1.0, 2.0, 4.0]})
    assert list(scores) == ["pearson", "spearman", "mse"]
    assert scores["mse"] == pytest.approx(1 / 3)
    assert task.probabilities([[0.5]]).tolist() == [0.5]


def test_test_file_may_lack_labels(folder: Folder) -> None:
    test = folder.write("test.csv", "text\nwhat?\n")
    task = folder.task("a.csv", "text,label\nx,a\ny,b\n", test=test)
    assert task.split("test")[:] == {"id": [0], "text": ["what?"]}
    test = folder.write("test.csv", "label,text\nb,what?\n")
    assert folder.task("a.csv", "text,label\nx,a\ny,b\n", test=test).split("test")["label"][:] == [1]


def test_signature_is_the_schema() -> None:
    hints = typing.get_type_hints(TASKS["table"])
    assert hints["text"] == str | list[str]
    assert typing.get_args(hints["problem"]) == ("auto", "classification", "regression", "multi_label")


@pytest.mark.parametrize("labels", [["1", "2", "x"], ["1", "2", "nan"], ["a", "b", "2.5"], ["a", "1.5", "2.5", "b"]])
def test_words_among_whole_numbers_or_beside_as_many_others_are_classes(folder: Folder, labels: list[str]) -> None:
    content = "text,label\n" + "".join(f"t{i},{labels[i % len(labels)]}\n" for i in range(24))
    assert folder.task("a.csv", content).label_names == tuple(sorted(labels))


# Hold-out


def hold_out(folder: Folder, content: str, seed: int = 0) -> Task:
    return folder.task("a.csv", content, validation=None, seed=seed)


def test_hold_out_is_stratified_seeded_and_said(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    content = "text,label\n" + "".join(f"t{i},{'rare' if i % 10 == 0 else 'common'}\n" for i in range(200))
    with caplog.at_level(logging.INFO, logger="limbeck"):
        task = hold_out(folder, content)
    assert len(caplog.records) == 1
    assert "20 of 200 rows are held out for validation (seed 0, stratified" in caplog.text
    assert list(task.splits) == ["train", "validation"]
    assert Counter(task.split("validation")["label"]) == {0: 18, 1: 2}
    train, held = task.split("train")["id"][:], task.split("validation")["id"][:]
    assert sorted(train + held) == list(range(200)) and train == sorted(train)
    assert task.split("validation")["text"][:] == [f"t{i}" for i in held]
    assert hold_out(folder, content).split("validation")["id"][:] == held
    assert hold_out(folder, content, seed=1).split("validation")["id"][:] != held


@pytest.mark.parametrize(
    "content",
    [
        "text,label\nlonely,c\n" + "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(40)),
        "text,label\n" + "".join(f"t{i},{i % 5}\n" for i in range(10)),  # no room for 5 classes in one row
        "text,label\n" + "".join(f"t{i},{i}.5\n" for i in range(20)),
    ],
)
def test_hold_out_falls_back(folder: Folder, content: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="limbeck"):
        task = hold_out(folder, content)
    assert "not stratified" in caplog.text
    assert len(task.split("validation")) == round(0.1 * (content.count("\n") - 1))


def test_hold_out_needs_rows(folder: Folder) -> None:
    text = folder.message("a.csv", "text,label\nx,1.5\n", validation=None)
    assert "too few" in text and "task.validation" in text


# Bad files


def test_missing_file_suggests_a_close_name(folder: Folder) -> None:
    folder.write("reviews_train.csv", "text,label\nx,a\n")
    with pytest.raises(DataError, match=r"review_train\.csv does not exist\. Did you mean 'reviews_train\.csv'"):
        load_task("table", train=str(folder.path / "review_train.csv"), text="text", label="label")
    with pytest.raises(DataError, match=r"nor does its folder"):
        load_task("table", train=str(folder.path / "no" / "a.csv"), text="text", label="label")
    (folder.path / "dir.csv").mkdir()
    with pytest.raises(DataError, match=r"is a folder"):
        load_task("table", train=str(folder.path / "dir.csv"), text="text", label="label")


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.xlsx", "x", {}, ["a.xlsx", "'.xlsx' is not supported", ".csv, .tsv, .jsonl, .json, .parquet"]),
        ("data", "x", {}, ["no extension"]),
        ("a.csv", "", {}, ["a.csv is empty"]),
        ("a.jsonl", "\n\n", {}, ["a.jsonl is empty"]),
        ("a.csv", "text,label\n", {}, ["has no rows"]),
        ("a.parquet", "PAR1 but not really", {}, ["not a readable Parquet file"]),
        ("a.csv", "Text,label\nx,a\n", {}, ["no column 'text'", "'Text', 'label'", "Did you mean 'Text'?"]),
        ("a.jsonl", [{"texts": "x", "label": 1}], {}, ["no column 'text'", "Did you mean 'texts'?"]),
        ("a.parquet", [{"texts": "x", "label": 1}], {}, ["no column 'text'", "Did you mean 'texts'?"]),
        ("a.csv", "text;label\nx;a\n", {}, ["no column 'text'", "separated by ';'"]),
        ("a.csv", "text,text,label\nx,y,a\n", {}, ["more than one column 'text'"]),
        ("a.csv", "text,label\nx,a\nHello, you,b\n", {}, ["line 3", "3 columns were found, 2 expected", "quotes"]),
        ("a.csv", 'text,label\nx,a\n"two\nlines",b\n"open,c\nd,e\n', {}, ["line 5", "not valid CSV", "not closed"]),
        ("a.csv", 'text,label\nx,a\n"He said "no"",b\n', {}, ["line 3", "not valid CSV"]),
        ("a.csv", "text,label\nx,a\ny", {}, ["line 3", "1 columns were found", "complete"]),
        ("a.tsv", "text\tlabel\nx\ta\ty\n", {}, ["line 2", "3 columns were found, 2 expected", "tab"]),
        ("a.tsv", "text\tlabel\nx\ta\nhalf of", {}, ["line 3", "looks cut off"]),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y", "la', {}, ["line 2", "looks cut off", 'y", "la\'']),
        ("a.jsonl", '{"text": "x"}\n{text: y}\n{"text": "z"}\n', {}, ["line 2", "'{text: y}' is not a JSON object"]),
        ("a.json", '[\n{"text": "x"}\n]\n', {}, ["line 1", "not a JSON object", "without brackets"]),
        ("a.csv", b"text,label\nx,a\ncaf\xe9,b\n", {}, ["line 3", "byte 0xe9 is not UTF-8"]),
        ("a.csv", "text,label\nx,a\n  ,b\ny,a\n,b\n", {}, ["lines 3, 5", "2 of 4 rows have an empty text"]),
        ("a.jsonl", [{"text": "x", "label": "a"}, {"label": "b"}], {}, ["line 2", "1 of 2 rows", "empty text"]),
        ("a.parquet", [{"text": "x", "label": "a"}, {"text": None, "label": "b"}], {}, ["row 2", "empty text"]),
        ("a.jsonl", [{"text": ["x"], "label": "a"}, {"text": "y", "label": "b"}], {}, ["line 1", "holds a list"]),
        ("a.csv", "text,label\nx,a\ny,\nz,b\n", {}, ["line 3", "1 of 3 rows have no label in column 'label'"]),
        ("a.jsonl", [{"text": "x", "label": float("nan")}, {"text": "y", "label": 1.5}], {}, ["line 1", "no label"]),
        ("a.csv", "text,label\nx,1.5\ny,\n", {}, ["line 3", "no label"]),
        ("a.jsonl", [{"text": "x", "label": ["a"]}, {"text": "y", "label": None}], {}, ["line 2", "no label"]),
        ("a.csv", "text,label\nx,1\ny,much\n", {"problem": "regression"}, ["line 3", "'much'", "number"]),
        ("a.csv", "text,label\nx,1\ny,nan\n", {"problem": "regression"}, ["line 3", "'nan'"]),
        ("a.csv", "text,label\nx,a\ny,a\n", {}, ["every row has the label 'a'", "nothing to learn"]),
        ("a.csv", "text,label\nx,\ny,\n", {"problem": "multi_label"}, ["no row has any label"]),
        ("a.csv", "text,a,b\nx,1,0\ny,2,0\n", {"label": ["a", "b"]}, ["line 3", "'2' in column 'a'", "0 or 1"]),
        (
            "a.jsonl",
            [{"text": "x", "label": ["a"]}, {"text": "y", "label": "b"}],
            {"problem": "classification"},
            ["line 1", "multi_label"],
        ),
    ],
)
def test_bad_files(folder: Folder, name: str, content: Any, options: dict[str, Any], expected: list[str]) -> None:
    text = folder.message(name, content, **options)
    for part in [name, *expected]:
        assert part in text


@pytest.mark.parametrize("split", ["validation", "test"])
def test_label_never_seen_in_training(folder: Folder, split: str) -> None:
    other = folder.write("other.csv", "text,label\nx,pos\ny,posi\n")
    text = folder.message("a.csv", "text,label\nx,pos\ny,neg\n", **{split: other})
    assert "other.csv, line 3: the label 'posi' never occurs" in text
    assert "'neg', 'pos'" in text and "Did you mean 'pos'?" in text


def test_validation_needs_labels(folder: Folder) -> None:
    other = folder.write("other.csv", "text\nx\n")
    assert "other.csv has no column 'label'" in folder.message("a.csv", "text,label\nx,a\ny,b\n", validation=other)


def test_half_labelled_test_file(folder: Folder) -> None:
    other = folder.write("other.csv", "text,a\nx,1\n")
    assert "lacks the label columns 'b'" in folder.message(
        "a.csv", "text,a,b\nx,1,0\ny,0,1\n", label=["a", "b"], test=other
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": ["a", "b", "c"]}, "one text or a pair"),
        ({"text": "label"}, r"task\.text cannot be 'label'"),
        ({"text": ["q", "id"]}, r"task\.text cannot be 'id'"),
        ({"text": "q", "label": "q"}, r"task\.text cannot be 'q'"),
        ({"text": []}, r"task\.text names no column"),
        ({"label": ["a", "a"]}, "twice"),
        ({"label": ["a", "b"], "problem": "regression"}, "multi-label"),
        ({"separator": ""}, "separator is empty"),
    ],
)
def test_bad_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        load_task("table", **{"train": "a.csv", "text": "text", "label": "label", **options})


# Prediction input and output


def test_read_texts_keeps_only_the_texts(folder: Folder) -> None:
    path = folder.write("a.csv", "n,b,a\n1,x,y\n2,z,w\n")
    assert read_texts(path, ["a", "b"])[:] == {"id": [0, 1], "a": ["y", "w"], "b": ["x", "z"]}
    with pytest.raises(DataError, match="no column 'text'"):
        read_texts(path, ["text"])
    path = folder.write("e.csv", "a,b\nx,1\n,2\n")
    with pytest.raises(DataError, match="line 3: 1 of 2 rows have an empty text"):
        read_texts(path, ["a"])


COLUMNS = {"text": ['a, "b"\nc', "é"], "label": np.array([1, 0]), "p": np.array([0.25, 0.5], dtype=np.float32)}


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "new/deep/out.parquet"])
def test_write_table_round_trip(folder: Folder, name: str) -> None:
    path = folder.path / name
    write_table(path, COLUMNS)
    assert read_texts(path, ["text"])["text"][:] == COLUMNS["text"]
    if name == "out.csv":
        assert path.read_bytes() == 'text,label,p\n"a, ""b""\nc",1,0.25\né,0,0.5\n'.encode()
    if name == "out.jsonl":
        assert json.loads(path.read_text("utf-8").splitlines()[1]) == {"text": "é", "label": 0, "p": 0.5}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_write_table_leaves_the_old_file_when_it_fails(folder: Folder) -> None:
    path = Path(folder.write("out.jsonl", "old"))
    with pytest.raises(TypeError):
        write_table(path, {"text": ["fine", object()]})
    assert path.read_text() == "old"
    assert [entry.name for entry in folder.path.iterdir()] == ["out.jsonl"]


def test_write_table_errors(folder: Folder) -> None:
    with pytest.raises(DataError, match=r"'\.tsv' is not supported. Use one of \.csv"):
        write_table(folder.path / "a.tsv", COLUMNS)
    with pytest.raises(ValueError, match="differ in length"):
        write_table(folder.path / "a.csv", {"a": [1], "b": [1, 2]})
    folder.write("file", "x")
    with pytest.raises(DataError, match=r"cannot be written"):
        write_table(folder.path / "file" / "a.csv", COLUMNS)


@pytest.mark.real
def test_banking77() -> None:
    if not REAL.is_dir():
        pytest.skip(f"the real data is not in {REAL}")
    files = {"train": str(REAL / "banking77/train.csv"), "test": str(REAL / "banking77/test.csv")}
    task = load_task("table", text="text", label="category", **files)
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 9003,
        "validation": 1000,
        "test": 3080,
    }
    assert sorted(task.label_names) == sorted(json.loads((REAL / "banking77/categories.json").read_text()))
    assert len(set(task.split("validation")["label"])) == 77
    assert set(Counter(task.split("test")["label"]).values()) == {40}


@pytest.mark.real
def test_clinc150_is_refused_clearly() -> None:
    if not REAL.is_dir():
        pytest.skip(f"the real data is not in {REAL}")
    with pytest.raises(DataError, match=r"line 1: '\{' is not a JSON object"):
        load_task("table", train=str(REAL / "clinc150/data_small.json"), text="text", label="label")


# Class weights

UNEVEN = "text,label\n" + "".join(f"t{i},{label}\n" for i, label in enumerate("aaaaaabbbc"))


def test_balanced_weights_average_one_over_the_training_rows(folder: Folder) -> None:
    task = folder.task("a.csv", UNEVEN, class_weights="balanced")
    assert task.class_weights == pytest.approx((10 / 18, 10 / 9, 10 / 3))
    labels = task.split("train")["label"][:]
    assert np.mean([task.class_weights[label] for label in labels]) == pytest.approx(1)


def test_balanced_weights_are_of_the_rows_that_are_trained_on(folder: Folder) -> None:
    """Without a validation file a part of the rows is held out, never the only row of a class."""
    content = "text,label\nlonely,c\n" + "".join(f"t{i},{'aab'[i % 3]}\n" for i in range(39))
    for seed in range(20):
        task = folder.task("a.csv", content, validation=None, seed=seed, class_weights="balanced")
        labels = task.split("train")["label"][:]
        assert 2 in labels and len(labels) < 40 and task.class_weights is not None
        assert np.mean([task.class_weights[label] for label in labels]) == pytest.approx(1)
        assert task.class_weights[2] == pytest.approx(len(labels) / 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("none", None),
        ({"c": 5}, (1.0, 1.0, 5.0)),
        ({"c": "1e1", "a": 0.5}, (0.5, 1.0, 10.0)),
        ({}, (1.0, 1.0, 1.0)),
    ],
)
def test_weights_by_name(folder: Folder, given: Any, expected: Any) -> None:
    assert folder.task("a.csv", UNEVEN, class_weights=given).class_weights == expected


def test_weights_of_labels_that_are_whole_numbers(folder: Folder) -> None:
    content = "text,label\nx,0\ny,1\nz,10\n"
    assert folder.task("a.csv", content, class_weights={10: 4, 1.0: 2}).class_weights == (1.0, 2.0, 4.0)


def test_multi_label_weights(folder: Folder) -> None:
    content = "text,often,rare,never,always\n" + "".join(f"t{i},{int(i < 6)},{int(i < 2)},0,1\n" for i in range(8))
    labels = ["often", "rare", "never", "always"]
    task = folder.task("a.csv", content, label=labels, class_weights="balanced")
    # rows without it by rows with it; where one of the two is missing there is nothing to balance
    assert task.class_weights == pytest.approx((2 / 6, 6 / 2, 1.0, 1.0))
    task = folder.task("a.csv", content, label=labels, class_weights={"rare": 2})
    assert task.class_weights == (1.0, 2.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("content", "weights", "expected"),
    [
        (UNEVEN, {"d": 2}, r"Unknown label in task\.class_weights: 'd'.*The labels are a, b, c\."),
        ("text,label\nx,spam\ny,ham\n", {"spqm": 2}, r"'spqm'\. Did you mean 'spam'\?"),
        (UNEVEN, "balance", r"task\.class_weights: write none, balanced, or weights .* seen: 'balance'"),
        (UNEVEN, None, "seen: None"),
        (UNEVEN, ["a"], r"seen: \['a'\]"),
        (UNEVEN, {"a": 0}, "weight of 'a' must be a finite number above 0; seen: 0"),
        (UNEVEN, {"a": -1}, "seen: -1"),
        (UNEVEN, {"a": float("nan")}, "seen: nan"),
        (UNEVEN, {"a": float("inf")}, "seen: inf"),
        (UNEVEN, {"a": True}, "seen: True"),
        (UNEVEN, {"a": "much"}, "seen: 'much'"),
        (UNEVEN, {True: 2}, "in quotes"),
        (UNEVEN, {None: 2}, "None is not a label's name"),
        ("text,label\nx,1.5\ny,2\n", "balanced", "regression.*Leave it out"),
        ("text,label\nx,1.5\ny,2\n", {"2": 3}, "regression"),
    ],
)
def test_bad_class_weights(folder: Folder, content: str, weights: Any, expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        folder.task("a.csv", content, class_weights=weights)


def test_a_class_with_one_row_is_trained_on_not_held_out():
    texts = [f"text {number}" for number in range(60)]
    labels = [number if number < 30 else 30 for number in range(60)]  # thirty classes with one row
    for seed in range(5):
        kept, out = split_rows({"text": texts, "label": labels}, texts, labels, "rows.csv", seed)
        assert out["text"] and sorted(kept["text"] + out["text"]) == sorted(texts)
        assert set(kept["label"]) == set(labels)


def test_equal_texts_of_several_classes_go_back_together():
    texts = [f"text {number // 2}" for number in range(40)]
    labels = [number if number < 20 else 99 for number in range(40)]
    for seed in range(5):
        kept, out = split_rows({"text": texts, "label": labels}, texts, labels, "rows.csv", seed)
        assert not set(kept["text"]) & set(out["text"])

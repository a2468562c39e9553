"""A table from a data set of the hub: local folders, a loader that stands in for the hub, and what is said offline."""

from __future__ import annotations

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

from limbeck._internal import hub
from limbeck.errors import DataError, LimbeckError, RecipeError
from limbeck.tasks import load_task

NAMES = ["zebra", "ape", "mouse"]  # not in the order of the alphabet, and the last one never occurs
TEXTS = [f"text number {number}" for number in range(20)]
LABELS = [number % 2 for number in range(20)]
FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=NAMES), "other": Value("int64")})


def rows(start, end, labels=None):
    values = {"text": TEXTS[start:end], "label": (labels or LABELS[start:end]), "other": list(range(end - start))}
    return Dataset.from_dict(values, features=FEATURES)


@pytest.fixture
def everything():
    return DatasetDict({"train": rows(0, 12), "dev": rows(12, 16), "test": rows(16, 20, [-1] * 4)})


def load(dataset, **options):
    return load_task("table", dataset=str(dataset), **{"text": "text", "label": "label"} | options)


def check(task):
    assert task.label_names == tuple(NAMES) and task.label_order == "fixed"
    assert {name: len(split) for name, split in task.splits.items()} == {"train": 12, "validation": 4, "test": 4}
    assert task.split("train")["text"][:] == TEXTS[:12] and task.split("train")["label"][:] == LABELS[:12]
    assert task.split("validation")["label"][:] == LABELS[12:16]
    assert "label" not in task.split("test").column_names


def test_what_save_to_disk_wrote(everything, tmp_path):
    everything.save_to_disk(tmp_path / "saved")
    check(load(tmp_path / "saved"))


def test_a_folder_of_parquet_files(everything, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, split in everything.items():
        (tmp_path / "folder").mkdir(exist_ok=True)
        split.to_parquet(tmp_path / "folder" / f"{ {'dev': 'validation'}.get(name, name) }.parquet")
    check(load(tmp_path / "folder"))


@pytest.fixture
def fake_hub(monkeypatch, everything):
    """Stand in for the loader; return what it was asked."""
    asked = []

    def loader(*address, **options):
        asked.append((address, options))
        return everything

    monkeypatch.setattr(datasets, "load_dataset", loader)
    return asked


def test_a_name_and_a_config_of_the_hub(fake_hub):
    check(load("org/name", config="small"))
    assert fake_hub == [(("org/name", "small"), {})]  # in particular no trust_remote_code


def test_splits_by_other_names(fake_hub, everything):
    task = load("org/name", split={"train": "dev", "validation": "train"})
    assert len(task.split("train")) == 4 and len(task.split("validation")) == 12 and "test" not in task.splits
    task = load("org/name", split="train")
    assert len(task.split("train")) + len(task.split("validation")) == 12  # some are held out
    assert task.label_names == tuple(NAMES)
    message = said(DataError, "org/name", split="valid")
    assert "org/name has no split 'valid' (task.split). It has: train, dev, test." in message
    assert "names no training data" in said(RecipeError, "org/name", split={"validation": "dev"})
    assert "Unknown split in task.split: 'trian'. Did you mean 'train'?" in said(
        RecipeError, "org/name", split={"trian": "dev"}
    )
    del everything["train"]
    assert "has no split 'train'. It has: dev, test. Say which one trains" in said(DataError, "org/name")


def said(kind, *given, **options):
    with pytest.raises(kind) as caught:
        load(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_labels_that_are_names_numbers_and_lists(monkeypatch):
    kinds = {
        "names": (["b", "a"] * 10, None, "classification", ("a", "b")),
        "numbers": ([0.5, 2.0] * 10, None, "regression", ()),
        "lists": ([[0, 2], [1]] * 10, Sequence(ClassLabel(names=NAMES)), "multi_label", tuple(NAMES)),
    }
    for labels, feature, problem, names in kinds.values():
        features = None if feature is None else Features({"text": Value("string"), "label": feature})
        data = Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, data=data: DatasetDict({"train": data}))
        task = load("org/name")
        assert task.problem == problem and task.label_names == names
    assert task.split("train")["label"][0] in ([1.0, 0.0, 1.0], [0.0, 1.0, 0.0])


def test_a_stated_order_counts(fake_hub):
    task = load("org/name", labels=["mouse", "zebra", "ape"])
    assert task.label_names == ("mouse", "zebra", "ape") and task.label_order == "stated"
    assert task.split("train")["label"][:2] == [1, 2]


def test_unlabelled_training_rows_are_an_error(fake_hub, everything):
    everything["train"] = rows(0, 12, [0, 1, -1] * 4)
    assert "rows 3, 6, 9, 12: 4 of 12 rows have no label in column 'label'" in said(DataError, "org/name")


def test_other_labels_in_another_split(fake_hub, everything):
    other = everything["dev"].cast_column("label", ClassLabel(names=["ape", "zebra", "mouse"]))
    everything["dev"] = other
    assert "its labels are ('ape', 'zebra', 'mouse')" in said(DataError, "org/name")


def test_columns_that_are_not_there(fake_hub):
    assert "has no column 'txet'" in said(DataError, "org/name", text="txet")
    assert "Did you mean 'text'?" in said(DataError, "org/name", text="txet")


def test_offline_it_says_which_files_to_put_where(monkeypatch):
    monkeypatch.setattr(hub, "connection_problem", lambda: "offline")
    message = str(said_long("org/never-seen"))
    assert "could not be loaded from the hub (org/never-seen)" in message
    assert "put the data set's Parquet, CSV or JSONL files into a folder and set task.dataset to it" in message


def said_long(dataset):
    with pytest.raises(DataError) as caught:
        load(dataset)
    return caught.value


def test_no_code_runs(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(LimbeckError):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_what_is_broken(tmp_path, everything):
    everything.save_to_disk(tmp_path / "saved")
    for file in (tmp_path / "saved" / "train").glob("*.arrow"):
        file.write_bytes(b"broken")
    assert "cannot be read as a data set" in said(DataError, tmp_path / "saved")
    assert "is no folder here, and no name of the hub" in said(DataError, tmp_path / "nowhere")


def test_what_does_not_go_together(tmp_path):
    file = tmp_path / "train.csv"
    file.write_text("text,label\na,b\n")

    def message(**options):
        with pytest.raises(RecipeError) as caught:
            load_task("table", text="text", label="label", **options)
        return str(caught.value)

    assert "Give the training data: task.train=FILE, or task.dataset=NAME" in message()
    assert "give one of both" in message(train=str(file), dataset="org/name")
    assert "belong to task.dataset" in message(train=str(file), split="train")

"""Compare the linear models on TF-IDF with scikit-learn's own pipelines, and give them data that are hard to fit."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
from helpers.real_data import BANKING
from helpers.tiny_runs import write_data
from helpers.tiny_tables import sentences, write_csv
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC

from limbeck import load_task
from limbeck.errors import DataError
from limbeck.models.linear import fold_numbers
from limbeck.rivals.sparse_linear import STRENGTHS
from limbeck.rivals.tfidf import tfidf_rival
from limbeck.tasks.task import make_split


def table(folder, rows, dev=None, **options):
    train = write_csv(folder / "train.csv", rows)
    dev = write_csv(folder / "dev.csv", dev or rows)
    return load_task("table", train=str(train), validation=str(dev), **{"text": "text", "label": "label"} | options)


def vectors():
    return make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b"),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )


def columns(task, split):
    rows = task.split(split)[:]
    return rows["text"], np.array(rows["label"])


def test_classes_are_those_of_a_plain_pipeline(tmp_path):
    words = ["good", "bad", "cat", "dog", "never"]
    rows = [(text, next((word for word in words if word in text.split()), "none")) for text, _ in sentences(150)]
    task = table(tmp_path, rows[:100], rows[100:])
    found = tfidf_rival(task)
    texts, labels = columns(task, "train")
    plain = make_pipeline(vectors(), LinearSVC(C=found.details["strength"], random_state=0)).fit(texts, labels)
    dev, truth = columns(task, "validation")
    assert found.answers["validation"]["prediction"].tolist() == plain.predict(dev).tolist()
    assert found.predict(dev).tolist() == plain.predict(dev).tolist()
    assert found.metrics["accuracy"] == pytest.approx(accuracy_score(truth, plain.predict(dev)))
    assert list(found.answers["validation"]["label"]) == truth.tolist()
    assert found.details["features"] == len(plain[0].get_feature_names_out())


def test_the_strength_is_the_best_of_a_cross_validation_in_which_equal_texts_stay_together(tmp_path):
    rows = sentences(60)
    rng = np.random.default_rng(1)
    rows = [(text, label if rng.random() < 0.8 else "negative") for text, label in rows + rows[:20]]
    task = table(tmp_path, rows)
    texts, labels = columns(task, "train")
    _, groups = np.unique([" ".join(text.split()).casefold() for text in texts], return_inverse=True)
    folds = fold_numbers(len(texts), groups, 0)
    assert all(len(set(folds[groups == group])) == 1 for group in groups)
    features = vectors().fit_transform(texts).tocsr()
    scores = {}
    for strength in STRENGTHS:
        guessed = np.empty_like(labels)
        for fold in range(3):
            one = LinearSVC(C=strength, random_state=0).fit(features[folds != fold], labels[folds != fold])
            guessed[folds == fold] = one.predict(features[folds == fold])
        scores[strength] = accuracy_score(labels, guessed)
    assert len(set(scores.values())) > 1
    assert tfidf_rival(task).details["strength"] == max(scores, key=lambda one: scores[one])


def test_numbers_are_those_of_ridge_and_labels_those_of_one_against_rest(tmp_path):
    task = load_task(**without_length(write_data("regression", tmp_path / "numbers")))
    found = tfidf_rival(task)
    texts, labels = columns(task, "train")
    plain = make_pipeline(vectors(), Ridge(alpha=1 / found.details["strength"])).fit(texts, labels)
    dev, _ = columns(task, "validation")
    assert found.answers["validation"]["prediction"] == pytest.approx(plain.predict(dev), abs=1e-6)
    task = load_task(**without_length(write_data("multi_label", tmp_path / "labels")))
    found = tfidf_rival(task)
    texts, labels = columns(task, "train")
    each = OneVsRestClassifier(LinearSVC(C=found.details["strength"], random_state=0))
    plain = make_pipeline(vectors(), each).fit(texts, labels.astype(int))
    dev, truth = columns(task, "validation")
    assert found.predict(dev).tolist() == plain.predict(dev).tolist()
    assert found.metrics["micro_f1"] == pytest.approx(f1_score(truth, plain.predict(dev), average="micro"))


def without_length(block):
    return {key: value for key, value in block.items() if key != "max_length"}


def test_a_pair_is_told_by_what_its_texts_share(tmp_path):
    """Let the label be whether both texts are the same, which no word of either tells."""
    texts = [text for text, _ in sentences(300, seed=3)]
    rows = [(text, text if number % 2 else texts[number - 7], number % 2) for number, text in enumerate(texts)]
    for name, part in (("train", rows[:220]), ("dev", rows[220:])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("a", "b", "label"), *part])
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "dev.csv")}
    found = tfidf_rival(load_task("table", text=["a", "b"], label="label", **files))
    assert found.metrics["accuracy"] > 0.95
    assert found.predict(["a red cat"] * 2, ["a red cat", "never here"]).tolist() == [1, 0]


def test_words_are_tagged_by_themselves_and_their_neighbours(tmp_path):
    task = load_task(**without_length(write_data("tokens", tmp_path / "tags")))
    found = tfidf_rival(task)
    assert found.name == "linear on words and neighbours" and found.metrics["entity_f1"] == 1.0
    tags = found.predict([["the", "cat", "sees", "a", "dog"]])[0]
    assert [task.label_names[tag] for tag in tags] == ["B-A", "O", "O", "B-A", "O"]


@pytest.mark.parametrize(
    "rows",
    [
        [("the same", "a"), ("the same", "b"), ("the same", "a")] * 4,  # a constant text
        [("one thing", "a"), ("two things", "a"), ("three things", "a"), ("four", "b")],  # a class with one row
        [("one", "a"), ("two", "b"), ("three", "c")],  # as many classes as rows
        [("!!!", "a"), ("???", "b"), ("!? !?", "a"), ("?? !!", "b")],  # no words
        [("x", "a"), ("y", "b"), ("x", "a"), ("y", "b")],
    ],
)
def test_little_to_go_by_is_no_error(tmp_path, rows):
    found = tfidf_rival(table(tmp_path, rows))
    assert 0 <= found.metrics["accuracy"] <= 1
    assert found.predict(["never seen", ""]).shape == (2,)


def test_texts_without_anything_are_said_to_be_empty(tmp_path):
    task = table(tmp_path, [("a", "a"), ("b", "b")])
    blank = make_split("train", {"id": [0, 1, 2], "text": ["", " ", "  "], "label": [0, 1, 0]})
    with pytest.raises(DataError, match="hold no words or characters"):
        tfidf_rival(dataclasses.replace(task, splits={"train": blank, "validation": task.split("validation")}))
    some = make_split("train", {"id": [0, 1, 2], "text": ["", "good", " "], "label": [0, 1, 0]})
    found = tfidf_rival(dataclasses.replace(task, splits={"train": some, "validation": some}))
    assert found.predict(["good", ""]).tolist() == [1, 0]


def test_the_same_data_give_the_same_model(tmp_path):
    task = table(tmp_path, sentences(80))
    one, two = tfidf_rival(task), tfidf_rival(task)
    assert one.metrics == two.metrics and one.details == two.details


@pytest.mark.real
@pytest.mark.skipif(not BANKING.is_dir(), reason="real data are not at ../shared/data/banking77")
def test_real_intents(tmp_path):
    with (BANKING / "train.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1::12]
    with (BANKING / "test.csv").open(newline="") as file:
        dev = list(csv.reader(file))[1::6]
    for name, part in (("train", rows), ("dev", dev)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "dev.csv")}
    found = tfidf_rival(load_task("table", text="text", label="label", **files))
    assert found.metrics["accuracy"] > 0.65  # with 10 texts of each intent; with all 91.4

"""Tags of words: reading them, words against sub-words, and scores of predictions made to break them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.paths import SHARED
from helpers.real_data import real_tokenizer
from transformers import AutoTokenizer

from limbeck.errors import DataError, RecipeError
from limbeck.models.vocabulary import make_wordpiece
from limbeck.problems import IGNORED
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator
from limbeck.tasks.task import make_split
from limbeck.tasks.tokens import TokenTask

WNUT = SHARED / "data" / "wnut17"

GOOD = "Anna\tB-person\nsees\tO\nNew\tB-place\nYork\tI-place\n\nIt\tO\nrains\tO\n"
WORDS = [["Anna", "sees", "New", "York"], ["It", "rains"]]
TAGS = [["B-person", "O", "B-place", "I-place"], ["O", "O"]]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Load the task from files with this content; the validation file is the training file."""

    def run(train: str | bytes = GOOD, name: str = "train.conll", **options: Any) -> Any:
        path = tmp_path / name
        path.write_bytes(train if isinstance(train, bytes) else train.encode())
        return load_task("tokens", **{"train": str(path), "validation": str(path)} | options)

    return run


def content(task: Any, split: str = "train") -> tuple[list[list[str]], list[list[str]]]:
    rows = task.split(split)
    return rows["words"][:], [[task.label_names[tag] for tag in row] for row in rows["label"]]


# CoNLL files


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD[:-1],  # no newline at the end
        GOOD + "\n\n\n",
        "\n\n" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.replace("\t", " "),
        GOOD.replace("\t", "   "),
        GOOD.replace("\t", " \t "),
        GOOD.replace("\n\n", "\n \n"),  # blanks in a blank line
        GOOD.replace("\n\n", "\n\t\n"),
        GOOD.replace("\n\n", "\n \t \n"),
        GOOD.replace("\n", " \n"),
        GOOD.replace("\t", "\tNN\t_\t"),  # the tag is the last column
        GOOD.replace("\t", " NN _ "),
        "-DOCSTART-\tO\n\n" + GOOD,
        "-DOCSTART- -X- -X- O\n\n" + GOOD.replace("\t", " NN _ "),
        "-DOCSTART- -X- -X- O\n" + GOOD,  # other columns than the rest, and no blank line after it
        GOOD.replace("\n\n", "\n\n-DOCSTART-\n\n"),
        GOOD.replace("\n\n", "\n-DOCSTART-\n"),
    ],
)
def test_columns_blanks_and_document_marks(load: Callable[..., Any], text: str) -> None:
    task = load(text)
    assert content(task) == (WORDS, TAGS)
    assert task.split("train")["id"][:] == [0, 1]


def test_unusual_blanks_are_words(load: Callable[..., Any]) -> None:
    task = load("\u00a0\tO\n10\u00a0000\tB-sum\n\u2028\tO\n\u3000 \tO\n")
    assert content(task) == ([["\u00a0", "10\u00a0000", "\u2028", "\u3000"]], [["O", "B-sum", "O", "O"]])
    assert content(load("10\u00a0000 B-sum\n\u00a0 O\n"))[0] == [["10\u00a0000", "\u00a0"]]


def test_quotes_and_hashes_are_words(load: Callable[..., Any]) -> None:
    assert content(load("\"\tO\n#\tO\n'\tB-x\n"))[0] == [['"', "#", "'"]]


def test_label_names_begin_with_outside(load: Callable[..., Any]) -> None:
    task = load("a\tI-b\nb\tB-b\nc\tB-a\nd\tO\ne\tI-creative-work\n")
    assert task.label_names == ("O", "B-a", "B-b", "I-b", "I-creative-work")
    assert task.problem == "tokens" and task.num_labels == 5


@pytest.mark.parametrize(
    ("tags", "main"),
    [
        ("O B-x I-x", "entity_f1"),
        ("O S-x B-y I-y E-y", "entity_f1"),
        ("O U-x B-y L-y", "entity_f1"),
        ("NN VB DT", "token_accuracy"),
        ("O NN", "token_accuracy"),
        ("O B-", "token_accuracy"),
        ("B-x I-x", "token_accuracy"),  # without outside this is no scheme for entities
        ("O X-y", "token_accuracy"),
    ],
)
def test_the_main_metric_follows_from_the_tags(load: Callable[..., Any], tags: str, main: str) -> None:
    assert load("".join(f"w\t{tag}\n" for tag in tags.split())).metrics[0] == main


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no sentences"),
        ("\n \n\t\n", "has no sentences"),
        ("-DOCSTART- O\n", "has no sentences"),
        ("Anna\tB-x\nsees\n", r"line 2: 1 columns were found, 2 as in the lines before expected.*sees"),
        ("Anna\tB-x\nsees\t\nit\tO\n", r"line 2: a word or a tag is empty.*Fill it in"),
        ("Anna\tB-x\n\tO\n", "line 2: a word or a tag is empty"),
        ("Anna\nsees\n", "line 1: 1 columns were found, at least 2, a word and its tag"),
        ("Anna\tNN\tB-x\nsees\tO\n", "line 2: 2 columns were found, 3 as in the lines before"),
        ("Anna\tB-x\nsees\tVB\tO\n", "line 2: 3 columns were found, 2 as in the lines before"),
        ("Anna\tB-x\nsees\tO\nNew", "line 3: the file looks cut off"),
        ("Anna\tB-x\nsees\tO\nNew\t", "line 3: the file looks cut off"),
        ("Anna\tNN\tB-x\nsees\tO\tO\nNew\tNN", "line 3: the file looks cut off"),
        ("a\tO\nb\tO\n", "every word has the tag 'O'"),
        (b"Anna\tB-x\n\xff\tO\n", "line 2: byte 0xff is not UTF-8"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(load: Callable[..., Any], text: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(text)
    assert "train.conll" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "train.conl").write_text(GOOD)
    with pytest.raises(DataError, match=r"train\.conll does not exist\. Did you mean 'train\.conl'"):
        load_task("tokens", train=str(tmp_path / "train.conll"))


def test_a_tag_that_training_never_saw(load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_text("It\tO\n\nBonn\tB-plaec\n")
    with pytest.raises(DataError, match=r"dev\.conll, line 3.*'B-plaec' never occurs.*Did you mean 'B-place'"):
        load(validation=str(tmp_path / "dev.conll"))


def test_a_test_file_may_lack_tags(load: Callable[..., Any], tmp_path: Path) -> None:
    test = tmp_path / "test.conll"
    test.write_text("Anna\nsees\n\nit\n")
    task = load(test=str(test))
    assert task.split("test")["words"][:] == [["Anna", "sees"], ["it"]]
    assert "label" not in task.split("test").column_names
    test.write_text(GOOD)
    assert content(load(test=str(test)), "test") == (WORDS, TAGS)
    test.write_text("Anna\nsees\tO\n")
    with pytest.raises(DataError, match="line 2: 2 columns were found, 1 as in the lines before"):
        load(test=str(test))


# Lists in JSONL and Parquet


def rows(words: str = "tokens", tags: str = "tags", **more: Any) -> list[dict[str, Any]]:
    return [{words: w, tags: t, **more} for w, t in zip(WORDS, TAGS, strict=True)]


def test_lists_in_jsonl_and_parquet(load: Callable[..., Any], tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows(extra=1))
    assert content(load(text, "train.jsonl")) == (WORDS, TAGS)
    named = "".join(json.dumps(row) + "\n" for row in rows("w", "t"))
    assert content(load(named, "train.jsonl", words="w", tags="t")) == (WORDS, TAGS)
    path = str(tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows()), path)
    task = load_task("tokens", train=path, validation=path, test=path)
    assert content(task) == content(task, "test") == (WORDS, TAGS)


def test_numbers_are_names_of_tags(load: Callable[..., Any]) -> None:
    task = load('{"tokens": ["a", 7], "tags": [0, 1]}\n', "train.jsonl")
    assert content(task) == ([["a", "7"]], [["0", "1"]])
    assert task.metrics[0] == "token_accuracy"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "line 3: 2 words have 1 tags"),
        ({"tokens": [], "tags": []}, "line 3.*lists that are not empty"),
        ({"tokens": "a b", "tags": "O O"}, "line 3.*must hold lists"),
        ({"tokens": ["a"]}, "line 3.*must hold lists"),
        ({"tokens": ["a", None], "tags": ["O", "O"]}, "line 3: a word or a tag is empty"),
        ({"tokens": ["a", "b"], "tags": ["O", ""]}, "line 3: a word or a tag is empty"),
    ],
)
def test_lists_that_do_not_fit(load: Callable[..., Any], row: dict[str, Any], message: str) -> None:
    text = "".join(json.dumps(row) + "\n" for row in [*rows(), row])
    with pytest.raises(DataError, match=message):
        load(text, "train.jsonl")


def test_a_missing_column_of_lists(load: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"has no column 'tags'.*'tag'.*Did you mean 'tag'"):
        load('{"tokens": ["a"], "tag": ["O"]}\n', "train.jsonl")


# Held-out sentences


def test_a_tenth_is_held_out(load: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(f"word{i}\t{'B-x' if i % 3 else 'O'}\nend\tO\n\n" for i in range(50))
    with caplog.at_level(logging.INFO, logger="limbeck"):
        task = load(text, validation=None)
    assert any("5 of 50 rows are held out" in record.getMessage() for record in caplog.records)
    ids = {split: task.split(split)["id"][:] for split in ("train", "validation")}
    assert len(ids["validation"]) == 5 and sorted(ids["train"] + ids["validation"]) == list(range(50))
    for split, numbers in ids.items():
        assert content(task, split)[0] == [[f"word{i}", "end"] for i in numbers]
    assert load(text, validation=None).split("validation")["id"][:] == ids["validation"]
    assert load(text, validation=None, seed=1).split("validation")["id"][:] != ids["validation"]


@pytest.mark.skipif(not WNUT.is_dir(), reason="real entities are not at ../shared/data/wnut17")
def test_real_entities() -> None:
    files = {"train": "train", "validation": "dev", "test": "test"}
    task = load_task("tokens", **{split: str(WNUT / f"{stem}.conll") for split, stem in files.items()})
    assert [len(task.split(split)) for split in files] == [3394, 1009, 1287]
    kinds = ("corporation", "creative-work", "group", "location", "person", "product")
    assert task.label_names == ("O", *(f"{part}-{kind}" for kind in kinds for part in "BI"))
    assert task.metrics[0] == "entity_f1"
    # as many entities as there are beginnings, which is how this set is written
    for split, stem in files.items():
        lines = (WNUT / f"{stem}.conll").read_text(encoding="utf-8").split("\n")
        tags = [tag for row in content(task, split)[1] for tag in row]
        assert sum(tag.startswith("B-") for tag in tags) == sum("\tB-" in line for line in lines)
        assert len(tags) == sum(bool(line.strip()) for line in lines)


# Words and sub-words

ODD = [
    ["Anna", "unbelievably", "likes", "New-York", "."],
    ["smile", "😀", "👨‍👩‍👧‍👦", "end"],
    ["cafe\u0301", "Zürich", "İstanbul", "straße", "ﬁn"],
    ["before", "\u200b", "\ufeff", "\u00ad", "after"],  # some vocabularies drop these entirely
    ["\u200b", "first"],
    ["\u00a0", "10\u00a0000", "\u3000", "x"],
    ["two words", "in", "one"],
    ["日本語", "東京", "x"],
    ["w" * 150, "z"],
    ["...", "-", "--", "''", "``"],
    ["one"],
    ["\u200b"],
]


@pytest.fixture(scope="module", params=["wordpiece", "gte-small", "roberta", "gpt2"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "wordpiece":
        folder = tmp_path_factory.mktemp("tokenizer") / "words"
        make_wordpiece([" ".join(row) for row in ODD], folder, vocab_size=120)
        return AutoTokenizer.from_pretrained(folder)
    return real_tokenizer(request.param)


NAMES = ("O", "B-x", "I-x", "B-y", "I-y")


def make_task(sentences: list[list[str]], labels: list[list[int]] | None = None, names: Any = NAMES) -> TokenTask:
    labels = labels or [[(i + row) % len(names) for i in range(len(words))] for row, words in enumerate(sentences)]
    split = make_split("validation", {"id": list(range(len(labels))), "words": sentences, "label": labels})
    metrics = ("entity_f1", "entity_precision", "entity_recall", "token_accuracy")
    return TokenTask("tokens", "tokens", ("words",), names, metrics, {"validation": split})


def first_tokens(words: list[str], places: list[tuple[int, int]]) -> dict[int, int]:
    """Token -> word: the first token that has a character of the word which is not blank."""
    text, found, start = " ".join(words), {}, 0
    for number, word in enumerate(words):
        stop = start + len(word)
        for token, (begin, end) in enumerate(places):
            if any(start <= place < stop and text[place] != " " for place in range(begin, end)):
                found[token] = number
                break
        start = stop + 1
    return found


def perfect(encoded: Any, classes: int = len(NAMES)) -> list[np.ndarray]:
    """Logits that say what the labels say; where nothing is decided they say the last class."""
    rows = []
    for labels in encoded["labels"]:
        logits = np.zeros((len(labels), classes), dtype=np.float32)
        logits[range(len(labels)), [label if label != IGNORED else classes - 1 for label in labels]] = 1.0
        rows.append(logits)
    return rows


def test_each_word_is_decided_at_its_first_token(tokenizer: Any) -> None:
    task = make_task(ODD)
    encoded = task.encode("validation", tokenizer, 512)
    for words, row, gold in zip(ODD, encoded, task.split("validation")["label"], strict=True):
        places = tokenizer(" ".join(words), return_offsets_mapping=True)
        assert row["input_ids"] == places["input_ids"]
        expected = first_tokens(words, places["offset_mapping"])
        assert {token: word for token, word in enumerate(row["word"]) if word >= 0} == expected
        labels = [gold[expected[token]] if token in expected else IGNORED for token in range(len(row["input_ids"]))]
        assert row["labels"] == labels
        assert row["size"] == len(words) and row["tags"] == gold


def test_ordinary_words_are_all_decided(tokenizer: Any) -> None:
    sentences = [
        ["Anna", "unbelievably", "likes", "New-York", "."],
        ["smile", "😀", "ok"],
        ["日本語", "x"],
        ["Zürich", "é"],
    ]
    task = make_task(sentences)
    encoded = task.encode("validation", tokenizer, 64)
    assert [sum(label != IGNORED for label in row) for row in encoded["labels"]] == [5, 3, 2, 2]
    assert [tags.tolist() for tags in task.tags(perfect(encoded), encoded)] == task.split("validation")["label"][:]
    scores = task.score(perfect(encoded), encoded)
    assert set(scores.values()) == {1.0} and list(scores) == list(task.metrics)


def test_words_without_tokens_are_outside(tokenizer: Any) -> None:
    task = make_task(ODD, [[1] * len(words) for words in ODD])
    encoded = task.encode("validation", tokenizer, 512)
    for row, tags in zip(encoded, task.tags(perfect(encoded), encoded), strict=True):
        decided = {word for word in row["word"] if word >= 0}
        assert tags.tolist() == [1 if word in decided else 0 for word in range(row["size"])]


@pytest.mark.parametrize("max_length", [8, 12])
def test_words_that_are_cut_off_count_as_outside_and_still_count(
    tokenizer: Any, max_length: int, caplog: pytest.LogCaptureFixture
) -> None:
    words, labels = ["one"] * 40, [1] * 40
    task = make_task([words, ["w" * 300, "end"], ["short"]], [labels, [1, 3], [3]])
    with caplog.at_level(logging.WARNING):
        encoded = task.encode("validation", tokenizer, max_length)
    assert max(len(ids) for ids in encoded["input_ids"]) == max_length
    assert any("longer than" in record.getMessage() for record in caplog.records)
    tags = task.tags(perfect(encoded), encoded)
    kept = sum(word >= 0 for word in encoded["word"][0])
    assert 0 < kept < 40
    assert tags[0].tolist() == [1] * kept + [0] * (40 - kept)
    assert tags[1][0] == 1  # a word longer than the limit is decided at its first token
    scores = task.score(perfect(encoded), encoded)
    right = kept + sum(word >= 0 for word in encoded["word"][1]) + 1
    assert scores["entity_recall"] == pytest.approx(right / 43) and scores["entity_precision"] == 1.0
    assert scores["token_accuracy"] == pytest.approx(right / 43)
    saved = task.answers(perfect(encoded), encoded)
    assert [len(row) for row in saved["prediction"]] == [len(row) for row in saved["label"]] == [40, 2, 1]
    with pytest.raises(DataError, match="more than the"):
        task.encode("validation", tokenizer, max_length, "refuse")


def test_thousands_of_sentences_keep_their_order(tokenizer: Any) -> None:
    sizes = [1 + i % 3 for i in range(4100)]
    task = make_task([["one"] * size for size in sizes])
    encoded = task.encode("validation", tokenizer, 16)
    assert encoded["id"][:] == list(range(4100)) and encoded["size"][:] == sizes
    assert set(task.score(perfect(encoded), encoded).values()) == {1.0}


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_are_padded_with_the_tokens(tokenizer: Any, side: str) -> None:
    task = make_task(ODD)
    encoded = task.encode("validation", tokenizer, 512)
    before = tokenizer.padding_side
    try:
        tokenizer.padding_side = side
        batch = Collator(tokenizer, problem="tokens")([encoded[i] for i in range(len(ODD))])
    finally:
        tokenizer.padding_side = before
    assert batch["labels"].shape == batch["input_ids"].shape and batch["labels"].dtype == torch.int64
    for row, labels, mask in zip(encoded, batch["labels"], batch["attention_mask"].bool(), strict=True):
        assert labels[mask].tolist() == row["labels"]
        assert (labels[~mask] == IGNORED).all()


def test_the_suggested_length_cuts_no_word(tokenizer: Any) -> None:
    task = make_task(ODD)
    whole = TokenTask("tokens", "tokens", ("words",), NAMES, ("entity_f1",), {"train": task.split("validation")})
    longest = max(len(ids) for ids in tokenizer([" ".join(words) for words in ODD])["input_ids"])
    assert whole.suggest_length(tokenizer, 512)[0] == -(-longest // 8) * 8


# Scores of adversarial predictions


def logits_of(task: TokenTask, encoded: Any, tags: list[list[int]]) -> list[np.ndarray]:
    """Logits whose decisions are these tags."""
    rows = []
    for row, chosen in zip(encoded, tags, strict=True):
        logits = np.zeros((len(row["word"]), task.num_labels))
        for token, word in enumerate(row["word"]):
            logits[token, chosen[word] if word >= 0 else 0] = 1.0
        rows.append(logits)
    return rows


@pytest.mark.parametrize(
    ("tags", "f1", "precision", "recall", "accuracy"),
    [
        ([[1, 2, 0, 3], [0, 1]], 1, 1, 1, 1),
        ([[0, 0, 0, 0], [0, 0]], 0, 0, 0, 2 / 6),  # all outside
        ([[1, 1, 1, 1], [1, 1]], 2 / 9, 1 / 6, 1 / 3, 2 / 6),  # all one class: the last is right
        ([[2, 2, 2, 2], [2, 2]], 0, 0, 0, 1 / 6),  # one entity over each sentence
        ([[0, 1, 2, 0], [3, 0]], 0, 0, 0, 0),  # shifted by one
        ([[2, 2, 0, 4], [0, 2]], 1, 1, 1, 3 / 6),  # an I- without a beginning begins
        ([[3, 4, 0, 1], [0, 3]], 0, 0, 0, 2 / 6),  # right places, wrong types
        ([[1, 0, 0, 3], [0, 1]], 2 / 3, 2 / 3, 2 / 3, 5 / 6),  # an entity's end is missing
    ],
)
def test_scores_of_adversarial_tags(
    tokenizer: Any, tags: list[list[int]], f1: float, precision: float, recall: float, accuracy: float
) -> None:
    task = make_task([["Anna", "Berg", "in", "Rome"], ["with", "Otto"]], [[1, 2, 0, 3], [0, 1]])
    encoded = task.encode("validation", tokenizer, 32)
    expected = {"entity_f1": f1, "entity_precision": precision, "entity_recall": recall, "token_accuracy": accuracy}
    assert task.score(logits_of(task, encoded, tags), encoded) == pytest.approx(expected)


def test_ties_take_the_first_class(tokenizer: Any) -> None:
    task = make_task([["a", "b"]], [[1, 2]])
    encoded = task.encode("validation", tokenizer, 16)
    zeros = [np.zeros((len(encoded["word"][0]), 5))]
    assert task.tags(zeros, encoded)[0].tolist() == [0, 0]


def test_no_entity_anywhere(tokenizer: Any) -> None:
    task = make_task([["a", "b"], ["c"]], [[0, 0], [0]])
    encoded = task.encode("validation", tokenizer, 16)
    nothing = task.score(logits_of(task, encoded, [[0, 0], [0]]), encoded)
    assert nothing == {"entity_f1": 0.0, "entity_precision": 0.0, "entity_recall": 0.0, "token_accuracy": 1.0}
    assert task.score(logits_of(task, encoded, [[1, 0], [0]]), encoded)["entity_f1"] == 0.0


def test_agreement_is_over_words(tokenizer: Any) -> None:
    task = make_task([["a", "b"], ["c", "d"]], [[0, 1], [2, 3]])
    encoded = task.encode("validation", tokenizer, 16)
    ours, theirs = (logits_of(task, encoded, tags) for tags in ([[0, 1], [2, 3]], [[0, 1], [2, 4]]))
    assert task.agreement(ours, theirs, encoded) == 0.75
    assert task.agreement(ours, ours, encoded) == 1.0


def test_predictions_for_people(tokenizer: Any) -> None:
    texts = make_split("predict", {"id": [0, 1], "text": ["Anna  likes\tNew York\n", "Hm ."]})
    task = TokenTask.of_texts(texts, ["text"], NAMES)
    encoded = task.encode("predict", tokenizer, 32)
    assert encoded["size"][:] == [4, 2]
    readable = task.readable(logits_of(task, encoded, [[1, 0, 3, 4], [0, 0]]), encoded)
    assert readable == {"prediction": ["B-x O B-y I-y", "O O"]}
    with pytest.raises(RecipeError, match="2 columns were named"):
        TokenTask.of_texts(texts, ["a", "b"], NAMES)

"""What a data set's profile counts, and what it warns of, by hand-made tasks of every kind."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.paths import SHARED

from limbeck.cli.main import app
from limbeck.cli.render import out
from limbeck.errors import RecipeError
from limbeck.tasks import load_task
from limbeck.tasks.profile import profile
from limbeck.tasks.task import Task, make_split


def task_of(problem: str, names: tuple[str, ...], **splits: list[tuple[str, Any]]) -> Task:
    made = {}
    for split, rows in splits.items():
        texts, labels = ([row[i] for row in rows] for i in (0, 1))
        columns = {"id": list(range(len(rows))), "text": texts} | ({"label": labels} if labels[:1] != [None] else {})
        made[split] = make_split(split, columns)
    return Task("made", problem, ("text",), names, ("accuracy",), made)  # type: ignore[arg-type]


def words(count: int, number: int = 0) -> str:
    """A text of so many tokens (two of them special), another one for each number."""
    vocabulary = ["cat", "dog", "bird", "fish", "the", "a"]
    digits = [vocabulary[number // len(vocabulary) ** place % len(vocabulary)] for place in range(count - 2)]
    return " ".join(digits)


def plain(count: int, label: Any = 0, first: int = 0) -> list[tuple[str, Any]]:
    return [(words(8, first + i), label) for i in range(count)]


# Lengths


def test_rows_lengths_and_the_share_that_is_cut(tokenizer: Any) -> None:
    sizes = [4] * 50 + [10] * 44 + [20] * 5 + [40]
    rows = [(words(size, i), i % 2) for i, size in enumerate(sizes)]
    found = profile(task_of("classification", ("a", "b"), train=rows, validation=rows[:10]), tokenizer, 15)
    train = found.splits["train"]
    assert (train.rows, found.splits["validation"].rows) == (100, 10)
    assert train.lengths == {"median": 10, "95%": 20, "longest": 40}
    assert train.too_long == pytest.approx(0.06) and found.splits["validation"].too_long == 0
    assert "median 10, 95% 20, longest 40; 6.0% are cut at task.max_length=15." in found.lines()[1]


def test_without_a_length_the_one_that_training_would_choose(tokenizer: Any) -> None:
    task = task_of("classification", ("a", "b"), train=[*plain(120), (words(40), 1)], validation=plain(5))
    assert profile(task, tokenizer).max_length == 8 == task.suggest_length(tokenizer, 512)[0]


@pytest.mark.parametrize("max_length", [5, 8, 12, 100])
def test_encoded_rows_give_the_same_profile_with_less_work(max_length: int, tokenizer: Any, monkeypatch: Any) -> None:
    rows = [(words(4 + i % 13, i), i % 2) for i in range(150)]
    task = task_of("classification", ("a", "b"), train=rows, validation=rows[:40], test=rows[:5])
    alone = profile(task, tokenizer, max_length)
    encoded = {split: task.encode(split, tokenizer, max_length) for split in ("train", "validation")}
    read: list[int] = []
    original = Task.token_ids
    monkeypatch.setattr(Task, "token_ids", lambda self, r, t: read.append(len(r["text"])) or original(self, r, t))
    found = profile(task, tokenizer, max_length, encoded)
    assert list(found.splits) == ["train", "validation"]
    assert all(found.splits[split] == alone.splits[split] for split in found.splits)
    full = sum(4 + i % 13 >= max_length for i in range(150)) + sum(4 + i % 13 >= max_length for i in range(40))
    assert sum(read) == full


def test_a_large_split_is_measured_at_evenly_spaced_rows_and_counted_whole(tokenizer: Any, monkeypatch: Any) -> None:
    import limbeck.tasks.task

    monkeypatch.setattr(limbeck.tasks.task, "_SAMPLE", 10)
    rows = [(words(8, i) if i % 3 else words(20, i), int(i == 1)) for i in range(30)]
    train = profile(task_of("classification", ("a", "b"), train=rows), tokenizer, 10).splits["train"]
    assert train.too_long == 1.0  # every third row, and those are the long ones
    assert train.counts == {"a": 29, "b": 1} and train.rows == 30


# Labels


def test_counts_of_classes_with_the_most_frequent_first(tokenizer: Any) -> None:
    names = tuple(f"c{i:02}" for i in range(14))
    rows = [(words(9, 50 * i + j), i) for i in range(14) for j in range(6 + i)]
    found = profile(task_of("classification", names, train=rows, validation=rows[:6]), tokenizer, 16)
    train = found.splits["train"]
    assert list(train.counts.items())[:2] == [("c13", 19), ("c12", 18)] and len(train.counts) == 14
    shown, more = train.most_frequent()
    assert len(shown) == 10 and more == 4
    assert "c13 19 (10.9%)" in found.lines()[2] and "and 9 more" in found.lines()[2]
    assert "c08" not in found.lines()[2]


def test_numbers(tokenizer: Any) -> None:
    rows = [(words(8, i), value) for i, value in enumerate([1.0, 2.0, 2.0, 5.0])]
    found = profile(task_of("regression", (), train=rows, validation=rows[:1]), tokenizer, 16)
    expected = {"minimum": 1.0, "mean": 2.5, "maximum": 5.0, "deviation": 1.5}
    assert found.splits["train"].numbers == pytest.approx(expected)
    assert found.splits["train"].counts == {}
    assert "minimum 1, mean 2.5, maximum 5, deviation 1.5" in found.lines()[2]


def test_several_labels(tokenizer: Any) -> None:
    flags = [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    rows = [(words(8, i), row) for i, row in enumerate(flags)]
    train = profile(task_of("multi_label", ("x", "y", "z"), train=rows), tokenizer, 16).splits["train"]
    assert list(train.counts.items()) == [("z", 3), ("x", 1), ("y", 0)]
    assert train.numbers == {"labels per row": 1.0, "rows without any": 1}


def conll(path: Any, sentences: list[str]) -> str:
    path.write_text("\n\n".join("\n".join(word.replace("/", " ") for word in s.split()) for s in sentences) + "\n")
    return str(path)


def test_entities_and_other_tags(tokenizer: Any, tmp_path: Any) -> None:
    lines = ["the/O cat/B-PER dog/I-PER sees/O bird/B-LOC", "a/O fish/B-PER", "a/O big/O cat/O"]
    file = conll(tmp_path / "a.conll", lines)
    found = profile(load_task("tokens", train=file, validation=file), tokenizer, 16)
    assert found.counted == "entities" and found.splits["train"].counts == {"PER": 2, "LOC": 1}
    assert found.splits["train"].lengths["longest"] == 7
    file = conll(tmp_path / "b.conll", ["the/DET cat/NOUN", "a/DET big/ADJ fish/NOUN"])
    found = profile(load_task("tokens", train=file, validation=file), tokenizer, 16)
    assert found.counted == "tags" and found.splits["train"].counts == {"DET": 2, "NOUN": 2, "ADJ": 1}


def squad_file(folder: Any, stem: str, questions: list[tuple[str, str, str | None]]) -> None:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"{stem}{i}",
                    "question": question,
                    "is_impossible": answer is None,
                    "answers": [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}],
                }
            ],
        }
        for i, (question, context, answer) in enumerate(questions)
    ]
    (folder / f"{stem}-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def test_questions_with_and_without_an_answer_and_long_texts(tokenizer: Any, tmp_path: Any, monkeypatch: Any) -> None:
    long = " ".join(["the big dog"] * 20)
    after = [(words(6), words(4 + size), None) for size in range(8)]  # whose windows are not where their rows are
    squad_file(tmp_path, "train", [("the cat", "a cat sees", "cat"), ("a bird", long, "dog"), *after])
    squad_file(tmp_path, "dev", [("the cat", "a cat likes", "cat")])
    task = load_task("squad/2.0", data_dir=str(tmp_path))
    found = profile(task, tokenizer, 32)
    assert found.splits["train"].counts == {"without an answer": 8, "with an answer": 2}
    assert found.splits["train"].too_long == pytest.approx(1 / 10)
    assert found.lines()[0] == "squad/2.0: 10 train, 1 validation questions."
    assert "10.0% are read in several windows of task.max_length=32" in found.lines()[1]
    encoded = {split: task.encode(split, tokenizer, 32) for split in ("train", "validation")}
    assert len(encoded["train"]) == 12
    monkeypatch.setattr(Task, "lengths", None)  # only what fills a window is measured again
    assert profile(task, tokenizer, 32, encoded).splits == found.splits
    assert found.warnings == ()


def test_a_stream_is_not_counted(tokenizer: Any, tmp_path: Any) -> None:
    (tmp_path / "corpus.txt").write_text("the cat\nthe dog\n" * 150)
    found = profile(load_task("text", train=str(tmp_path / "corpus.txt")), tokenizer)
    assert found.splits == {} and found.warnings == ()
    assert found.lines() == ["text: plain text, read as a stream in blocks of 128 tokens."]


def test_an_unlabelled_split_and_an_empty_one(tokenizer: Any) -> None:
    task = task_of("classification", ("a", "b"), train=plain(6) + plain(6, 1, 6), validation=plain(6, 0, 12), test=[])
    unlabelled = task_of("classification", ("a", "b"), train=plain(6), test=[(words(8, 99), None)])
    assert profile(unlabelled, tokenizer, 16).splits["test"].counts == {}
    empty = profile(task, tokenizer, 16).splits["test"]
    assert (empty.rows, empty.lengths, empty.too_long) == (0, {}, 0.0)


# Warnings


def warnings_of(tokenizer: Any, names: tuple[str, ...] = ("a", "b"), **splits: list[tuple[str, Any]]) -> list[str]:
    found = profile(task_of("classification", names, **splits), tokenizer, 16)
    line = [text for text in found.lines() if text.startswith("Worth knowing")]
    assert line == ([f"Worth knowing: {'; '.join(found.warnings)}."] if found.warnings else [])
    return list(found.warnings)


BALANCED = plain(10, 0) + plain(10, 1, 10)
FRESH = plain(5, 0, 100) + plain(5, 1, 110)


def test_nothing_to_warn_of(tokenizer: Any) -> None:
    assert warnings_of(tokenizer, train=BALANCED, validation=FRESH, test=plain(3, 0, 200)) == []


def test_repeated_texts(tokenizer: Any) -> None:
    rows = BALANCED + plain(2, 0) + plain(1, 1, 5)  # two with the same label, one with another
    assert warnings_of(tokenizer, train=rows, validation=FRESH) == [
        "3 of 23 training rows repeat the text of another, 1 of them with another label"
    ]
    assert warnings_of(tokenizer, train=BALANCED + plain(2, 0), validation=FRESH) == [
        "2 of 22 training rows repeat the text of another"
    ]


def test_leaks(tokenizer: Any) -> None:
    found = warnings_of(tokenizer, train=BALANCED, validation=FRESH + plain(2, 1, 3), test=plain(4, 0, 8))
    assert found == [
        "2 of 12 validation rows have a text that is also in training",
        "4 of 4 test rows have a text that is also in training",
    ]


def test_a_pair_leaks_only_as_a_pair(tokenizer: Any) -> None:
    def pairs(rows: list[tuple[str, str]]) -> dict[str, list[Any]]:
        firsts, seconds = zip(*rows, strict=True)
        return {"id": list(range(len(rows))), "q": list(firsts), "a": list(seconds), "label": [0.5] * len(rows)}

    splits = {
        "train": pairs([("the cat", "a dog"), ("a dog", "the cat")]),
        "validation": pairs([("the cat", "the cat")]),
    }
    task = Task("made", "regression", ("q", "a"), (), ("mse",), {n: make_split(n, c) for n, c in splits.items()})
    assert profile(task, tokenizer, 16).warnings == ()


def test_classes_without_rows(tokenizer: Any) -> None:
    rows = BALANCED + plain(4, 2, 40) + plain(30, 3, 60)
    found = warnings_of(tokenizer, ("a", "b", "c", "d"), train=rows, validation=FRESH + plain(1, 3, 200))
    assert found == ["fewer than 5 training examples of c (4)", "no validation examples of c"]
    names = tuple(f"c{i}" for i in range(8))
    rare = [(words(8, i), i) for i in range(8)]
    found = warnings_of(tokenizer, names, train=rare, validation=rare[:1])
    assert "c0 (1), c1 (1), c2 (1), c3 (1), c4 (1) and 3 more" in found[1]


@pytest.mark.parametrize(("share", "said"), [(18, False), (19, True)])
def test_one_class_above_nine_tenths(share: int, said: bool, tokenizer: Any) -> None:
    rows = [(words(8, i), int(i >= share * 5)) for i in range(100)]
    found = warnings_of(tokenizer, train=rows, validation=[(words(8, 500), 0), (words(8, 501), 1)])
    assert found == (["95.0% of the training rows are 'a': compare scores with always guessing it"] if said else [])


def test_class_weights_are_shown(tokenizer: Any, tmp_path: Any) -> None:
    rows = "".join(f"{words(8, i)},{'rare' if i % 4 == 0 else 'often'}\n" for i in range(40))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    file = str(tmp_path / "a.csv")
    task = load_task("table", train=file, validation=file, text="text", label="label", class_weights="balanced")
    found = profile(task, tokenizer, 16)
    assert found.class_weights == pytest.approx({"often": 2 / 3, "rare": 2.0})
    assert "Class weights: rare 2, often 0.667." in found.lines()


# The command


def shown(*parts: Any) -> str:
    with out.capture() as captured:
        app(["profile", *map(str, parts)], standalone_mode=False)
    return re.sub(r"[^\S\n]+", " ", re.sub(r"[│┃|]", " ", captured.get()))


def test_the_command_prints_tables(tokenizer_folder: Any, tmp_path: Any) -> None:
    names = [f"[c{i}]" for i in range(12)]  # brackets are markup to the library that draws the tables
    rows = [(words(8, 20 * i + j), name) for i, name in enumerate(names) for j in range(20 - i)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{name}\n" for text, name in rows))
    (tmp_path / "b.csv").write_text("text,label\n" + "".join(f"{text},{name}\n" for text, name in rows[:30]))
    data = [f"task.train={tmp_path / 'a.csv'}", f"task.validation={tmp_path / 'b.csv'}", "task.text=text"]
    printed = shown("table", *data, "task.label=label", "--model", tokenizer_folder, "--max-length", 7)
    assert "table: classification, read up to 7 tokens" in printed
    assert " train 174 8 8 8 100.0% " in printed and " validation 30 8 8 8 100.0% " in printed
    assert " [c0] 20 20 " in printed and " [c1] 19 10 " in printed and " [c9] 11 0 " in printed
    assert " 2 more 19 0 " in printed and "[c10]" not in printed.partition("Worth knowing")[0]
    assert "Worth knowing: 30 of 30 validation rows have a text that is also in training." in printed
    assert "weight" not in printed
    weighted = shown("table", *data, "task.label=label", "task.class_weights={'[c1]': 3}", "--model", tokenizer_folder)
    assert " [c0] 20 20 1 " in weighted and " [c1] 19 10 3 " in weighted


def test_the_command_for_numbers_and_streams(tokenizer_folder: Any, tmp_path: Any) -> None:
    (tmp_path / "a.csv").write_text("text,score\n" + "".join(f"{words(8, i)},{i}.5\n" for i in range(10)))
    data = [f"task.train={tmp_path / 'a.csv'}", f"task.validation={tmp_path / 'a.csv'}", "task.text=text"]
    printed = shown("table", *data, "task.label=score", "--model", tokenizer_folder)
    assert " minimum 0.5 0.5 " in printed and " mean 5 5 " in printed
    (tmp_path / "c.txt").write_text("the cat\nthe dog\n" * 100)
    printed = shown("text", f"task.train={tmp_path / 'c.txt'}", "--model", tokenizer_folder)
    assert "read as a stream" in printed


def test_the_command_needs_a_model() -> None:
    with pytest.raises(RecipeError, match="Add --model"):
        app(["profile", "table"], standalone_mode=False)


# Real data


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="real data are not at ../shared")
def test_real_tasks(tokenizer: Any) -> None:
    rte = load_task("glue/rte", data_dir=str(SHARED / "data" / "glue"))
    found = profile(rte, tokenizer, 128)
    labels = Counter(rte.split("train")["label"][:])
    assert found.splits["train"].counts == {name: labels[i] for i, name in enumerate(rte.label_names)}
    assert found.splits["test"].counts == {}
    stsb = profile(load_task("glue/stsb", data_dir=str(SHARED / "data" / "glue")), tokenizer, 128)
    assert stsb.splits["train"].numbers["minimum"] == 0 and stsb.splits["train"].numbers["maximum"] == 5
    files = {split: str(SHARED / "data" / "banking77" / f"{split}.csv") for split in ("train", "test")}
    bank = profile(load_task("table", text="text", label="category", **files), tokenizer, 64)
    assert len(bank.splits["train"].counts) == 77 and bank.splits["train"].most_frequent()[1] == 67
    assert bank.splits["test"].rows == 3080 and set(bank.splits["test"].counts.values()) == {40}
    wnut = {
        split: str(SHARED / "data" / "wnut17" / f"{name}.conll")
        for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    tags = profile(load_task("tokens", **wnut), tokenizer, 64)
    assert tags.counted == "entities" and sum(tags.splits["test"].counts.values()) == 1079
    assert np.isfinite(tags.splits["train"].too_long)

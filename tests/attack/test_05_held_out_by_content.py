"""Line 5: what is held out is chosen by content, so that sorting or shuffling a file moves no row between the sides."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_tables import sentences, write_csv

from limbeck import load_recipe
from limbeck.shrink.data import halves
from limbeck.tasks import load_task
from limbeck.training.assemble import assemble, load_data

ROWS = [(f"text number {i}", "rare" if i % 10 == 0 else "common") for i in range(300)]


def table(path: Path, rows: list[tuple[str, str]], **options: Any) -> Any:
    return load_task("table", train=str(write_csv(path, rows)), text="text", label="label", **options)


def texts(task: Any, split: str = "validation", column: str = "text") -> list[Any]:
    return sorted(task.split(split)[column][:])


def shuffled(rows: list[Any], seed: int = 1) -> list[Any]:
    return random.Random(seed).sample(rows, len(rows))


def test_sorting_or_shuffling_a_table_moves_no_row(tmp_path):
    before = table(tmp_path / "a.csv", ROWS)
    for rows in (sorted(ROWS), ROWS[::-1], sorted(ROWS, key=lambda row: row[1]), shuffled(ROWS)):
        after = table(tmp_path / "b.csv", rows)
        assert texts(after) == texts(before) and texts(after, "train") == texts(before, "train")
    assert len(texts(before)) == 30 and Counter(before.split("validation")["label"]) == {0: 27, 1: 3}
    assert texts(table(tmp_path / "c.csv", ROWS, seed=1)) != texts(before)


def test_sorting_moves_no_pair_no_number_and_no_label_set(tmp_path):
    def held(rows: list[str], **options: Any) -> list[str]:
        (tmp_path / "a.csv").write_text("a,b,label\n" + "".join(rows))
        return texts(load_task("table", train=str(tmp_path / "a.csv"), label="label", **options), column="a")

    pairs = [f"first {i},second {i % 7},{i % 3}\n" for i in range(90)]
    assert held(pairs, text=["a", "b"]) == held(shuffled(pairs), text=["a", "b"])
    numbers = [f"first {i},x,{i / 7:.3f}\n" for i in range(90)]
    assert held(numbers, text="a") == held(shuffled(numbers), text="a")
    sets = [f"first {i},x,{'u;v' if i % 2 else 'v'}\n" for i in range(90)]
    options = {"text": "a", "problem": "multi_label", "separator": ";"}
    assert held(sets, **options) == held(shuffled(sets), **options)


def test_rows_with_equal_text_are_on_one_side(tmp_path, caplog):
    rows = [(f"text number {i % 60}", "ab"[i % 2]) for i in range(300)]  # each text five times
    rows += [(f"  Text   NUMBER {i}", "ab"[i % 2]) for i in range(60)]
    with caplog.at_level("INFO", logger="limbeck"):
        task = table(tmp_path / "a.csv", rows)
    train, held = ({" ".join(text.split()).lower() for text in texts(task, split)} for split in ("train", "validation"))
    assert not train & held and len(train | held) == 60
    assert 30 <= len(task.split("validation")) <= 42
    assert "360 rows that share a text with others were kept together" in caplog.text


def test_a_text_with_two_labels_counts_as_the_more_frequent_one(tmp_path):
    rows = ROWS + [(text, "other") for text, _ in ROWS[:40]] + [(f"other {i}", "other") for i in range(60)]
    task = table(tmp_path / "a.csv", rows)
    assert not set(texts(task)) & set(texts(task, "train"))
    assert texts(table(tmp_path / "b.csv", shuffled(rows))) == texts(task)


def test_a_text_that_is_half_of_the_file_does_not_become_the_validation_data(tmp_path):
    rows = [("always the same", "common")] * 150 + ROWS[:150]
    for seed in range(8):
        task = table(tmp_path / "a.csv", rows, seed=seed)
        assert 25 <= len(task.split("validation")) <= 35
        assert "always the same" not in texts(task) and texts(task, "train").count("always the same") == 150


def test_a_file_with_one_text_says_that_nothing_can_be_held_out(tmp_path, command):
    write_csv(tmp_path / "a.csv", [("the same", "a"), ("the same", "b")] * 20)
    options = ("task.train=a.csv", "task.text=text", "task.label=label", "--model", "x")
    code, said = command("finetune", "table", *options)
    assert code == 1 and "40 rows have the same text" in said and "task.validation" in said


def test_rows_that_are_added_move_few_of_the_others(tmp_path):
    before = set(texts(table(tmp_path / "a.csv", ROWS)))
    added = [(f"a new one {i}", "common") for i in range(10)]
    after = set(texts(table(tmp_path / "b.csv", added + ROWS)))
    old = {text for text, _ in ROWS}
    assert len((before ^ after) & old) <= 3


def test_the_choice_is_the_same_in_another_process_and_on_another_day():
    from limbeck.tasks.held_out import content_hash

    words = "from limbeck.tasks.held_out import content_hash; print(content_hash('a text', 3))"
    for hash_seed in "12":
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == str(content_hash("a text", 3)) == "18236690358931475853"


def test_sorting_sentences_with_tags_moves_none(tmp_path):
    rows = [{"tokens": [f"word{i % 80}", "end"], "tags": ["B-x" if i % 3 else "O", "O"]} for i in range(120)]

    def load(name: str, rows: list[dict[str, Any]]) -> Any:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_task("tokens", train=str(tmp_path / name))

    before = load("a.jsonl", rows)
    for other in (rows[::-1], shuffled(rows)):
        assert texts(load("b.jsonl", other), column="words") == texts(before, column="words")
    train, held = ({row[0] for row in before.split(split)["words"]} for split in ("train", "validation"))
    assert not train & held and 8 <= len(before.split("validation")) <= 16


def test_sorting_plain_text_moves_no_line(tmp_path):
    lines = [f"line number {i % 900} of the file" for i in range(1000)]

    def load(lines: list[str]) -> Any:
        (tmp_path / "a.txt").write_text("".join(line + "\n" for line in lines))
        return load_task("text", train=str(tmp_path / "a.txt"))

    sides = [
        {split: sorted(load(order).split(split)) for split in ("train", "validation")}
        for order in (lines, sorted(lines), shuffled(lines))
    ]
    assert sides[0] == sides[1] == sides[2]
    assert not set(sides[0]["train"]) & set(sides[0]["validation"])
    assert sorted(sides[0]["train"] + sides[0]["validation"]) == sorted(lines)
    assert 2 <= len(sides[0]["validation"]) <= 25


@pytest.mark.parametrize("count", [2, 3, 10, 50])
def test_small_plain_text_has_a_line_on_each_side_whatever_the_order(tmp_path, count):
    lines = [f"line {i}" for i in range(count)]
    held = []
    for order in (lines, lines[::-1]):
        (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in order))
        task = load_task("text", train=str(tmp_path / "a.txt"))
        held.append(list(task.split("validation")))
        assert len(held[-1]) >= 1 and len(list(task.split("train"))) >= 1
    assert sorted(held[0]) == sorted(held[1])


def test_the_quiz_of_a_method_is_chosen_by_content(tmp_path, teacher_folder):
    rows = sentences(40)
    quizzes = []
    for order in (rows + rows, shuffled(rows + rows)):
        file = write_csv(tmp_path / "a.csv", order)
        values = {
            "task": {"name": "table", "train": str(file), "validation": str(file), "text": "text", "label": "label"},
            "teacher": {"model": str(teacher_folder)},
            "student": {"from": "teacher", "keep": "first:1"},
            "method": {"name": "metadistil", "quiz": 0.25},
        }
        recipe = load_recipe(values=values)
        splits = load_data(recipe, assemble(recipe)).splits
        train, quiz = ([tuple(ids) for ids in splits[name]["input_ids"]] for name in ("train", "held_out"))
        assert not set(train) & set(quiz) and 16 <= len(quiz) <= 24
        quizzes.append(sorted(quiz))
    assert quizzes[0] == quizzes[1]


def test_the_rows_that_choose_among_students_are_chosen_by_content():
    rows = [(f"text {i % 50}", i % 50 % 3) for i in range(70)]
    found = []
    for order in (rows, shuffled(rows)):
        both = halves([label for _, label in order], [text for text, _ in order])
        sides = [{order[row][0] for row in half} for half in both]
        assert not sides[0] & sides[1] and abs(len(sides[0]) - len(sides[1])) <= 1
        found.append(sides)
    assert found[0] == found[1]


def test_evaluate_gives_the_same_score_after_the_file_was_sorted(tmp_path, command, teacher_folder):
    """Score what was trained on a file on a sorted copy of it, which once put training rows among the others."""
    rows = [(f"{text} {i}", label) for i, (text, label) in enumerate(sentences(200))]
    for name, order in (("data.csv", rows), ("sorted.csv", sorted(rows))):
        write_csv(tmp_path / name, order)
    columns = ("task.text=text", "task.label=label")
    options = ("--model", teacher_folder, "--epochs", 4, "--learning-rate", 3e-3, "-o", "run")
    code, said = command("finetune", "table", "task.train=data.csv", *columns, *options)
    assert code == 0, said
    scores = {}
    for name in ("data.csv", "sorted.csv"):
        code, said = command("evaluate", "run/student", "--task", "table", f"task.train={name}", *columns)
        scores[name] = re.findall(r"(accuracy|macro_f1) (\d+\.\d\d)", said)
        assert code == 0 and len(scores[name]) == 2, said
    assert scores["data.csv"] == scores["sorted.csv"]
    trained, scored = (
        set(load_task("table", train=name, text="text", label="label").split(split)["text"])
        for name, split in (("data.csv", "train"), ("sorted.csv", "validation"))
    )
    assert not trained & scored

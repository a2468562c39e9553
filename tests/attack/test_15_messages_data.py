"""Line 15, data and paths: one message, with the line, and nothing written where nobody looks for it."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from helpers.tiny_tables import sentences, write_csv

from limbeck._internal.progress import progress
from limbeck.cli.main import app
from limbeck.errors import DataError
from limbeck.study.watch import watching
from limbeck.tasks import load_task

COLUMNS = ("task.text=text", "task.label=label")
TRAIN = ("train.max_steps=2", "train.batch_size=8", "train.eval_strategy=no")

# JSON

DEEP = "[" * 100_000 + "]" * 100_000
BAD_VALUES = {
    "lone surrogate": ('"half \\ud83d of it"', "is half of a character (a lone surrogate)"),
    "upper case": ('"half \\uD800"', "is half of a character (a lone surrogate)"),
    "digits": ("9" * 5_000, "a number has more digits than can be read"),
    "nesting": (DEEP, "nested too deep"),
}


def write_jsonl(path: Path, value: str, column: str = "text") -> Path:
    """Write 40 rows; the one in line 12 has this value."""
    rows = [json.dumps({"text": f"a cat {i}", "label": "ab"[i % 2]}) for i in range(40)]
    rows[11] = f'{{"text": "a dog", "label": "a", "{column}": {value}}}'
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_jsonl_value_that_cannot_be_read_names_its_line(case, command, tmp_path, teacher_folder):
    value, expected = BAD_VALUES[case]
    write_jsonl(tmp_path / "bad.jsonl", value)
    write_jsonl(tmp_path / "good.jsonl", '"\\ud83d\\ude00 whole"')
    table, text = ("finetune", "table", *COLUMNS), ("finetune", "text", "task.text=text")
    for words in (
        (*table, "--model", teacher_folder, "task.train=bad.jsonl"),
        (*table, "--model", teacher_folder, "task.train=good.jsonl", "task.validation=bad.jsonl"),
        (*table, "--model", teacher_folder, "task.train=good.jsonl", "task.test=bad.jsonl"),
        (*text, "--model", teacher_folder, "task.train=bad.jsonl", "task.validation=bad.jsonl", *TRAIN),
        ("profile", "table", *COLUMNS, "--model", teacher_folder, "task.train=bad.jsonl"),
        ("predict", teacher_folder, "bad.jsonl", "--text", "text"),
    ):
        code, said = command(*words)
        assert code == 1 and "bad.jsonl, line 12:" in said and expected in said, (words, said[:500])
    assert command("predict", teacher_folder, "good.jsonl", "--text", "text")[0] == 0


@pytest.mark.parametrize("case", BAD_VALUES)
def test_labels_tags_and_words_that_cannot_be_read_name_their_line(case, tmp_path):
    value, expected = BAD_VALUES[case]
    path = write_jsonl(tmp_path / "a.jsonl", value, column="label")
    with pytest.raises(DataError, match=re.escape("a.jsonl, line 12: ")) as error:
        load_task("table", train=str(path), text="text", label="label")
    assert expected in str(error.value)
    rows = [json.dumps({"tokens": ["a", f"cat{i}"], "tags": ["O", "B-x"]}) for i in range(20)]
    for column, other in (("tokens", "tags"), ("tags", "tokens")):
        rows[6] = f'{{"{other}": ["x", "y"], "{column}": ["z", {value}]}}'
        path.write_text("\n".join(rows))
        with pytest.raises(DataError, match=re.escape("a.jsonl, line 7: ")) as error:
            load_task("tokens", train=str(path))
        assert expected in str(error.value)


def test_a_lone_surrogate_in_a_name_is_said_and_in_an_unused_column_is_no_matter(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", '1, "\\udc00": 2')
    with pytest.raises(DataError, match=r"a\.jsonl, line 12: .*lone surrogate"):
        load_task("table", train=str(path), text="text", label="label")
    path = write_jsonl(tmp_path / "b.jsonl", '"\\ud800"', column="author")
    assert load_task("table", train=str(path), text="text", label="label").label_names == ("a", "b")


def write_squad(path: Path, question: str, start: str) -> None:
    answers = f'[{{"text": "cat", "answer_start": {start}}}]'
    qas = f'[{{"id": "7", "question": {question}, "answers": {answers}}}]'
    path.write_text(f'{{"data": [{{"paragraphs": [{{"context": "a cat", "qas": {qas}}}]}}]}}')


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_squad_value_that_cannot_be_read_is_one_message(case, command, tmp_path, teacher_folder):
    value, _ = BAD_VALUES[case]
    for question, start in ((value, "2"), ('"who?"', value)):
        for stem in ("train", "dev"):
            write_squad(tmp_path / f"{stem}-v1.1.json", question, start)
        code, said = command("finetune", "squad/1.1", "--data-dir", ".", "--model", teacher_folder)
        assert code == 1 and "train-v1.1.json" in said and "Traceback" not in said


def test_an_infinite_answer_start_is_one_message(tmp_path):
    write_squad(tmp_path / "train-v1.1.json", '"who?"', "Infinity")
    with pytest.raises(DataError, match=r"near data\[0\]\.paragraphs\[0\]\.qas\[0\]"):
        load_task("squad/1.1", data_dir=str(tmp_path))


def test_nan_is_no_text(tmp_path, command, teacher_folder):
    write_jsonl(tmp_path / "a.jsonl", "NaN")
    with pytest.raises(DataError, match=r"a\.jsonl, line 12: 1 of 40 rows have an empty text"):
        load_task("table", train="a.jsonl", text="text", label="label")
    code, said = command("predict", teacher_folder, "a.jsonl", "--text", "text")
    assert code == 1 and "line 12: 1 of" in said
    stream = load_task("text", train="a.jsonl", validation="a.jsonl", text="text").split("train")
    assert len(list(stream)) == 39 and "nan" not in list(stream)
    (tmp_path / "b.jsonl").write_text('{"tokens": ["a", NaN], "tags": ["O", "B-x"]}\n' * 3)
    with pytest.raises(DataError, match=r"b\.jsonl, line 1: a word or a tag is empty"):
        load_task("tokens", train="b.jsonl")


# Labels of a model


def save_with_labels(folder: Path, teacher: Path, names: Any) -> None:
    """Copy a model, and change the names of its labels in its config."""
    shutil.copytree(teacher, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": names, "label2id": {}}))


@pytest.mark.parametrize("names", [["negative", "positive"], "negative"])
def test_labels_that_are_not_counted_at_all_are_one_message(names, command, tmp_path, teacher_folder):
    save_with_labels(tmp_path / "model", teacher_folder, names)
    write_csv(tmp_path / "data.csv", sentences(40))
    said = [
        command("evaluate", "model", "--task", "table", "task.train=data.csv", *COLUMNS),
        command("predict", "model", "data.csv", "--text", "text"),
    ]
    assert all(code == 1 and "Cannot load model" in words and "config.json" in words for code, words in said), said


@pytest.mark.parametrize("names", [{1: "negative", 2: "positive"}, {0: "negative", 2: "positive"}])
def test_labels_that_are_not_counted_from_0_are_one_message(names, command, tmp_path, teacher_folder):
    save_with_labels(tmp_path / "model", teacher_folder, names)
    write_csv(tmp_path / "data.csv", sentences(40))
    task = ("--task", "table", "task.train=data.csv", "task.validation=data.csv", *COLUMNS)
    for words in (
        ("evaluate", "model", *task),
        ("predict", "model", "data.csv", "--text", "text", "-o", "out.csv"),
        ("export", "model", *task, "-o", "exported"),
        ("distill", "--method", "kd", *task, "--teacher", "model", "--keep", "first:1", *TRAIN, "-o", "run"),
    ):
        code, said = command(*words)
        assert code == 1 and "id2label in its config.json" in said and ", ".join(map(str, names)) in said, (words, said)
        assert "counted from 0 to 1" in said
    assert not any((tmp_path / name).exists() for name in ("out.csv", "exported"))


# Markup

ODD = "a[/x]:bug:"


@pytest.fixture()
def said_by(command, tmp_path, teacher_folder):
    """Run a command beside data and a model whose folder looks like markup; return what it said, without blanks."""
    write_csv(tmp_path / "data.csv", sentences(40))
    shutil.copytree(teacher_folder, tmp_path / f"model{ODD}")
    return lambda *words: command(*words)[1].replace(" ", "")


OF_TABLE = ("--task", "table", "task.train=data.csv", "task.validation=data.csv", *COLUMNS)
WITH_ODD = ("--method", "kd", *OF_TABLE, "--teacher", f"model{ODD}", "--keep", "first:1")


def test_paths_that_look_like_markup_are_printed_as_they_are(said_by, tmp_path):
    recipe = {"task": {"name": "table", "train": "data.csv", "text": "text", "label": "label"}}
    recipe |= {"student": {"model": f"model{ODD}"}, "method": {"name": "ft"}}
    (tmp_path / f"{ODD}.yaml").parent.mkdir()
    (tmp_path / f"{ODD}.yaml").write_text(yaml.safe_dump(recipe))
    said = said_by("predict", f"model{ODD}", "data.csv", "--text", "text", "-o", f"{ODD}.csv")
    assert f"predictionsin{ODD}.csv" in said
    assert f"Rundirectory:runs{ODD}" in said_by("distill", *WITH_ODD, *TRAIN, "-o", f"runs{ODD}")
    assert f"model{ODD}ontable" in said_by("evaluate", f"model{ODD}", *OF_TABLE)
    assert f"Written:{ODD}.md" in said_by("compare", f"runs{ODD}", "-o", f"{ODD}.md")
    assert f"model{ODD}" in said_by("validate", f"{ODD}.yaml")
    assert f"nowhere{ODD}" in said_by("evaluate", f"nowhere{ODD}", *OF_TABLE)
    assert f"--no{ODD}" in said_by("predict", "x", "y", f"--no{ODD}")


@pytest.mark.slow
def test_paths_that_look_like_markup_are_printed_by_the_other_commands(said_by):
    said_by("distill", *WITH_ODD, *TRAIN, "-o", f"runs{ODD}")
    said = said_by("export", f"model{ODD}", *OF_TABLE, "--max-drop", "1", "-o", f"out{ODD}")
    assert f"hfinout{ODD}" in said
    assert f"Useitwithteacher.cache=c{ODD}" in said_by("cache", *WITH_ODD, "-o", f"c{ODD}")
    assert f"Report:{ODD}.html" in said_by("report", f"runs{ODD}", "--no-analyze", "-o", f"{ODD}.html")
    said = said_by("bench", f"model{ODD}", "--seconds", "1", "--no-memory", "-o", f"{ODD}.json")
    assert f"Written:{ODD}.json" in said


def test_labels_that_look_like_markup_are_printed_as_they_are(command, tmp_path, teacher_folder):
    rows = [(f"{text} {i}", "[/red]" if i % 2 else ":bug: [bold]") for i, (text, _) in enumerate(sentences(40))]
    write_csv(tmp_path / "data.csv", rows)
    said = command("profile", "table", "task.train=data.csv", *COLUMNS, "--model", teacher_folder)[1]
    assert "[/red]" in said and ":bug: [bold]" in said
    code, said = command("tasks", "table")
    assert code == 0 and "str | list[str]" in said


def test_progress_shows_names_that_look_like_markup(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    with progress(f"count blocks in {ODD}", 3) as steps:
        steps.advance(note="[/note]")
    job: Any = SimpleNamespace(key="k", title=f"train {ODD}")
    with watching(1) as watcher:
        watcher.started(job)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert f"count blocks in {ODD}" in said and "[/note]" in said and f"train {ODD}" in said


# The home folder


@pytest.fixture()
def home(tmp_path, monkeypatch, teacher_folder):
    """Make a home with a model, data and files; a folder named ``~`` in the working directory is a failure."""
    folder = tmp_path / "my home"
    shutil.copytree(teacher_folder, folder / "teacher")
    write_csv(folder / "data.csv", sentences(60))
    task = {"name": "table", "train": "~/data.csv", "validation": "~/data.csv", "text": "text", "label": "label"}
    train = {"max_steps": 2, "batch_size": 8, "eval_strategy": "no"}
    recipe = {
        "task": task,
        "teacher": {"model": "~/teacher", "cache": "~/cache", "confirmed": True},
        "method": {"name": "kd"},
    }
    recipe |= {"student": {"from": "~/teacher", "keep": "first:1"}, "train": train}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    study = {"tasks": {"table": {}}, "task": {key: task[key] for key in task if key != "name"}, "seeds": [0]}
    study["rivals"] = False
    study |= {
        "teacher": {"fine_tuned": "~/teacher", "cache": "off", "confirmed": True},
        "methods": {"ft": {"method.name": "ft"}},
    }
    study |= {"student": {"from": "teacher", "keep": "first:1"}, "train": train}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.setenv("HOME", str(folder))
    yield folder
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("~")]


TABLE = ("task.train=~/data.csv", "task.validation=~/data.csv", *COLUMNS)
BY_OPTIONS = ("--task", "table", *TABLE, "--teacher", "~/teacher", "teacher.confirmed=true")


def do_all(command: Any, home: Path, *commands: tuple[tuple[Any, ...], str]) -> None:
    """Run commands, after each of which there must be something in the home folder."""
    for words, made in commands:
        code, said = command(*words)
        assert code == 0 and (home / made).exists(), (words, said)


def test_a_tilde_in_quotes_is_the_home_folder(command, home):
    do_all(
        command,
        home,
        (("validate", "~/recipe.yaml"), ""),
        (("distill", "~/recipe.yaml", "-o", "~/run"), "run/metrics.json"),
        (("evaluate", "~/run"), ""),
        (("predict", "~/run", "~/data.csv", "-o", "~/out/p.csv"), "out/p.csv"),
        (("compare", "~/run", "-o", "~/table.md"), "table.md"),
        (("profile", "table", *TABLE, "--model", "~/teacher"), ""),
    )
    assert any((home / "cache").iterdir())


@pytest.mark.slow
def test_a_tilde_in_quotes_is_the_home_folder_in_the_other_commands(command, home):
    student = (*BY_OPTIONS, "--student", "~/tuned", *TRAIN)
    do_all(
        command,
        home,
        (("finetune", "table", *TABLE, "--model", "~/teacher", *TRAIN, "-o", "~/tuned"), "tuned/metrics.json"),
        (("distill", "--method", "kd", *student, "-o", "~/run"), "run/metrics.json"),
        (("cache", "--method", "kd", *BY_OPTIONS, "--keep", "first:1", "-o", "~/kept"), "kept"),
        (("report", "~/run", "--no-analyze", "-o", "~/r.html", "--figures", "~/figures"), "figures"),
        (("export", "~/run", "--max-drop", "1", "--with", "~/run", "-o", "~/exported"), "exported/parity.json"),
        (("bench", "~/run", "--seconds", "1", "--no-memory", "-o", "~/b.json", "--plot", "~/b.svg"), "b.svg"),
        (("study", "~/study.yaml", "-o", "~/studied"), "studied/results.json"),
    )


# though their help speaks of files or recipes
_NO_PATHS = ("overrides", "to", "method", "task", "licence", "part", "allow_code", "name")


def test_no_command_takes_a_path_without_knowing_the_home_folder(monkeypatch):
    """Give every parameter that is a path, or may be one, a tilde: also those of commands that are yet to come."""
    from limbeck.cli.options import expanding_home

    monkeypatch.setenv("HOME", "/home/of/mine")
    named = re.compile(r"folder|file|hub|run director|recipe", re.IGNORECASE)
    checked = 0
    for info in app.registered_commands:
        command: Any = info.callback
        assert inspect.unwrap(command) is not command, f"{command.__name__} does not expand ~"
        hints = typing.get_type_hints(inspect.unwrap(command), include_extras=True)
        for name, hint in hints.items():
            about = str(getattr((getattr(hint, "__metadata__", None) or [None])[0], "help", ""))
            sample: Any = None
            if "Path" in str(hint):
                sample = Path("~/x")
            elif "str" in str(typing.get_args(hint)[:1]) and named.search(about) and name not in _NO_PATHS:
                sample = "~/x"
            if sample is not None:
                seen: dict[str, Any] = {}
                expanding_home(seen.update)(**{name: [sample] if "list" in str(hint) else sample})
                assert "/home/of/mine/x" in str(seen[name]), (info.callback, name)
                checked += 1
    assert checked > 30


def test_a_file_whose_name_begins_with_a_tilde_is_no_home(tmp_path, command, teacher_folder):
    write_csv(tmp_path / "~backup.csv", sentences(40))
    assert load_task("table", train="~backup.csv", text="text", label="label").label_names == ("negative", "positive")
    code, said = command("predict", teacher_folder, "~backup.csv", "--text", "text", "-o", "out.csv")
    assert code == 0, said


# A working directory that is gone


def test_every_command_says_that_its_working_directory_is_gone(tmp_path, command, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for info in app.registered_commands:
        name = typing.cast(Any, info.callback).__name__
        code, said = command(name)
        assert code == 1 and "does not exist any more" in said and "(cd)" in said, (name, said)


def test_a_process_in_a_folder_that_is_gone_ends_with_one_message(tmp_path):
    words = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m limbeck doctor'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["sh", "-c", words, sys.executable], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr.startswith("Error: The folder in which this command was started") and "Traceback" not in done.stderr
    )

"""Write nothing through a link in a received folder that leaves the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.saved_runs import read_json
from helpers.tiny_recipes import distill_words, recipe_values, table_task, tiny_recipe

from limbeck import execute
from limbeck._internal.locks import LOCK
from limbeck.analysis.analyze import Settings, analyze

Command = Callable[..., tuple[int, str]]
SECRET = "something of the user's own"


class Elsewhere:
    """Hold a folder of the user's that no command may change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "notes.txt"
        folder.mkdir()
        self.file.write_text(SECRET)

    def is_untouched(self) -> bool:
        return [path.name for path in self.folder.rglob("*")] == ["notes.txt"] and self.file.read_text() == SECRET


@pytest.fixture()
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "elsewhere")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, table_files: tuple[Path, Path], teacher_folder: Path) -> Path:
    return execute(tiny_recipe(table_files, teacher_folder), tmp_path_factory.mktemp("runs") / "kd").path


@pytest.fixture()
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "theirs")


def link(place: Path, target: Path) -> None:
    """Put a link in the place of what is there."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def refused(answer: tuple[int, str], place: str) -> None:
    code, said = answer
    assert code == 1 and f"{place} is a link to" in said and "remove it" in said, said


@pytest.mark.parametrize("place", ["analysis", "analysis/arrays.npz", "analysis/deep/er"])
def test_report_and_analyze_refuse_them(command: Command, run: Path, elsewhere: Elsewhere, place: str) -> None:
    link(run / place, elsewhere.folder)
    refused(command("report", "theirs", "-o", "r.html"), f"theirs/{place}")
    refused(command("analyze", "theirs", "-o", "figures"), f"theirs/{place}")
    assert elsewhere.is_untouched() and not Path("r.html").exists() and not Path("figures").exists()


@pytest.mark.parametrize("target", ["../../elsewhere", "nowhere/../../elsewhere", "../theirs-too"])
def test_links_to_what_is_not_there_and_relative_ones(
    command: Command, run: Path, elsewhere: Elsewhere, target: str
) -> None:
    link(run / "analysis", Path(target))
    refused(command("report", "theirs", "-o", "r.html"), "theirs/analysis")
    assert not Path("theirs-too").exists() and elsewhere.is_untouched()


def test_links_in_a_circle(command: Command, run: Path) -> None:
    link(run / "a", Path("b"))
    link(run / "b", Path("a"))
    assert command("report", "theirs", "-o", "r.html")[0] == 1


def test_a_run_that_a_link_takes_out_of_its_study(
    command: Command, run: Path, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    folder = run.rename(elsewhere.folder / "run")
    link(tmp_path / "study" / "runs" / "x", folder)
    entry = {"task": "table", "label": "kd", "chosen": {}, "searched": [], "runs": ["runs/x"], "missing": 0, "why": ""}
    about = {"study": "study", "baselines": [], "test": "welch", "sided": "two", "level": 0.05, "selection": ""}
    results = about | {"entries": [entry | {"reported": []}], "teachers": {}}
    (tmp_path / "study" / "results.json").write_text(json.dumps(results))
    for words in (["report", "study", "-o", "r.html"], ["analyze", "study"], ["report", "study/runs", "-o", "r.html"]):
        code, said = command(*words)
        assert code == 1 and "study/runs/x is a link to" in said, said
    assert not (folder / "analysis").exists()


def test_links_that_stay_inside_and_a_folder_that_is_one(
    command: Command, run: Path, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    (run / "measured").mkdir()
    link(run / "analysis", Path("measured"))
    link(tmp_path / "shortcut", run)  # which the user names
    analyze([tmp_path / "shortcut"], Settings(examples=8, cost=False))
    assert (run / "measured" / "analysis.json").is_file()
    link(run / "other", elsewhere.folder)
    refused(command("analyze", "shortcut", "-o", "figures"), "shortcut/other")


@pytest.mark.parametrize("place", ["checkpoints", "student", "teacher-cache", "prepared", "bad-batch", "stage-1", LOCK])
@pytest.mark.parametrize("verb", ["distill", "finetune"])
def test_a_resumed_run_refuses_them(
    command: Command,
    run: Path,
    elsewhere: Elsewhere,
    verb: str,
    place: str,
    table_files: tuple[Path, Path],
    teacher_folder: Path,
) -> None:
    (run / "metrics.json").unlink()
    link(run / place, elsewhere.file if place == LOCK else elsewhere.folder)
    if verb == "distill":
        words: list[Any] = ["distill", "theirs/recipe.yaml"]
    else:
        task = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key != "name"]
        words = ["finetune", "table", *task, "--model", teacher_folder, "train.max_steps=1"]
        ft = recipe_values(table_files, teacher_folder, "ft", student={"model": str(teacher_folder)})
        (run / "recipe.yaml").write_text(yaml.safe_dump({key: ft[key] for key in ft if key != "teacher"}))
    refused(command(*words, "-o", "theirs", "--resume"), f"theirs/{place}")
    assert elsewhere.is_untouched()


def test_a_lock_alone_is_no_way_out(
    command: Command, tmp_path: Path, elsewhere: Elsewhere, table_files: tuple[Path, Path], teacher_folder: Path
) -> None:
    """A folder with nothing but a lock counts as empty, and taking a lock opens the file for writing."""
    link(tmp_path / "theirs" / LOCK, elsewhere.file)
    words = distill_words(table_files, teacher_folder, "train.max_steps=1")
    refused(command("distill", "--method", "kd", *words, "-o", "theirs"), f"theirs/{LOCK}")
    refused(command("cache", "--method", "kd", *words, "-o", "theirs"), f"theirs/{LOCK}")
    assert elsewhere.is_untouched()


@pytest.mark.parametrize(
    "place", ["runs", "teachers", "caches", "logs", "failures", "runs/x/analysis", "teachers/x", LOCK]
)
def test_a_study_that_is_continued_refuses_them(
    command: Command,
    tmp_path: Path,
    elsewhere: Elsewhere,
    place: str,
    table_files: tuple[Path, Path],
    teacher_folder: Path,
) -> None:
    values = {
        "tasks": ["table"],
        "task": {key: value for key, value in table_task(table_files).items() if key != "name"},
        "teacher": {"fine_tuned": str(teacher_folder), "cache": "off"},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 1, "batch_size": 16},
        "methods": ["ft"],
        "rivals": False,
        "seeds": [0],
    }
    study = tmp_path / "theirs" / "study.yaml"
    study.parent.mkdir()
    study.write_text(yaml.safe_dump(values))
    link(study.parent / place, elsewhere.file if place == LOCK else elsewhere.folder)
    refused(command("study", study, "-o", "theirs"), f"theirs/{place}")
    assert elsewhere.is_untouched()


@pytest.mark.parametrize("place", ["teacher", "race", "students", "data", "base", LOCK])
def test_shrink_that_is_continued_refuses_them(
    command: Command,
    tmp_path: Path,
    elsewhere: Elsewhere,
    place: str,
    table_files: tuple[Path, Path],
    teacher_folder: Path,
) -> None:
    words = ["shrink", "--model", teacher_folder, "--data", table_files[0], "--dev", table_files[1], "--text", "text"]
    link(tmp_path / "theirs" / place, elsewhere.file if place == LOCK else elsewhere.folder)
    if place != LOCK:
        (tmp_path / "theirs" / "plan.json").write_text(json.dumps({"asked": {}}))
    refused(command(*words, "--label", "label", "--minutes", "0.1", "-o", "theirs"), f"theirs/{place}")
    assert elsewhere.is_untouched()


def test_demo_refuses_them(command: Command, tmp_path: Path, elsewhere: Elsewhere) -> None:
    link(tmp_path / "demo-runs" / "made-up", elsewhere.folder)
    refused(command("demo"), "demo-runs/made-up")
    assert elsewhere.is_untouched()


def test_an_export_replaces_a_folder_of_links_and_nothing_behind_them(
    command: Command, run: Path, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    assert command("export", "theirs", "-o", "out", "--examples", "4")[0] == 0
    link(tmp_path / "out" / "config.json", elsewhere.file)
    link(tmp_path / "out" / "more", elsewhere.folder)
    code, said = command("export", "theirs", "-o", "out", "--examples", "4", "--force")
    assert code == 0 and elsewhere.is_untouched(), said
    assert read_json(tmp_path / "out" / "config.json")["model_type"] == "bert"


def test_a_received_recipe_makes_no_cache_elsewhere(run: Path, elsewhere: Elsewhere) -> None:
    """Name a place for the teacher's features in the recipe of a run: only a cache that is there is used again."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    for place in (elsewhere.folder, elsewhere.folder / "new"):
        recipe["teacher"]["cache"] = str(place)
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        assert len(analyze([run], Settings(cost=False), force=True)) == 1
        assert elsewhere.is_untouched()

"""Kill caches, studies and ``shrink`` where they write: the same command goes on to what it would have been."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import yaml
from helpers.forked_commands import FIXED_COST, FIXED_TIME, ForkedCommands
from helpers.paths import ROOT
from helpers.saved_runs import assert_same_run, read_json
from helpers.tiny_recipes import distill_words, recipe_values, table_task
from helpers.tiny_tables import sentences, write_csv
from transformers import TrainerCallback

import limbeck.training.trainer
from limbeck import execute, load_recipe

pytestmark = pytest.mark.chaos
KILLED = -9
RENAME = "os.replace"


@pytest.fixture(scope="module")
def run():
    with ForkedCommands() as run:
        yield run


def shards(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.safetensors")}


@pytest.mark.parametrize(
    "at",
    [
        ("limbeck.distillation.cache_files.CacheFolder.save", 1),
        ("limbeck.distillation.cache_files.CacheFolder.save", 2),
        *((RENAME, call) for call in (1, 3)),
    ],
)
def test_a_cache_killed_while_it_is_written(at, run, table_files, teacher_folder, tmp_path):
    small = {"limbeck.distillation.feature_cache.TOKENS_IN_A_SHARD": 200}  # so that there are several
    words = ["cache", *distill_words(table_files, teacher_folder, "--method", "fcd"), "-o"]
    assert run(*words, "whole", cwd=tmp_path, patches=small)[0] == 0
    assert run(*words, "broken", cwd=tmp_path, at=at, patches=small)[0] == KILLED
    status, said = run(*words, "broken", cwd=tmp_path, patches=small)
    assert status == 0, said
    whole = shards(tmp_path / "whole")
    assert len(whole) > 3 and shards(tmp_path / "broken") == whole
    assert [file.name for file in (tmp_path / "broken").rglob(".*") if file.name != ".lock"] == []


@pytest.fixture(scope="module")
def study(run, table_files, teacher_folder, tmp_path_factory):
    values = {
        "tasks": ["table"],
        "task": table_task(table_files),
        "teacher": {"fine_tuned": str(teacher_folder)},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 2, "batch_size": 16},
        "methods": {"ft": None, "kd": {"grid": {"method.temperature": [2, 5]}}},
        "rivals": False,
        "seeds": [1],
    }
    folder = tmp_path_factory.mktemp("study")
    (folder / "my.yaml").write_text(yaml.safe_dump(values))
    assert run("study", "my.yaml", "-o", "whole", cwd=folder)[0] == 0
    return folder


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(("limbeck.study.runner.write_text", 1), marks=pytest.mark.slow),  # study.yaml
        pytest.param(("limbeck.study.jobs.write_text", 1), marks=pytest.mark.slow),  # the marker of a cache
        pytest.param(("limbeck.study.runner._delete_unreported_students", 1), marks=pytest.mark.slow),
        pytest.param(("limbeck.study.runner._results", 1), marks=pytest.mark.slow),
        ("limbeck.study.runner.write_text", 2),  # results.json
        pytest.param(("limbeck.cli.train.show_study", 1), marks=pytest.mark.slow),
    ],
)
def test_a_study_killed_while_it_writes_its_own_files(at, run, study, tmp_path):
    shutil.copy(study / "my.yaml", tmp_path)
    assert run("study", "my.yaml", "-o", "broken", cwd=tmp_path, at=at)[0] == KILLED
    assert (tmp_path / "broken" / "results.json").exists() == ("show" in at[0])
    status, said = run("study", "my.yaml", "-o", "broken", cwd=tmp_path)
    assert status == 0, said
    found, whole = (read_json(file / "results.json") for file in (tmp_path / "broken", study / "whole"))
    assert found | {"study": ""} == whole | {"study": ""}
    for path in found["entries"][1]["runs"]:
        assert_same_run(tmp_path / "broken" / path, study / "whole" / path)


HURRY = {
    "limbeck.shrink.schedule._MOST_EPOCHS": 1.0,
    "limbeck.shrink.schedule._ENOUGH_EPOCHS": 1.0,
    "limbeck.shrink.pipeline._Pipeline._left": FIXED_TIME,
    "limbeck.shrink.pipeline.measure_cost": FIXED_COST,
    "limbeck.shrink.forms._SECONDS": 0.05,
    "limbeck.inference.latency._WARM_UP": 0.005,
    "limbeck.inference.latency._MEASURED": 0.005,
    "limbeck.shrink.scores._RESAMPLES": 50,
    "limbeck.shrink.forms.FORMS": {"hf": "model"},
}
MOMENTS = [
    ("limbeck.shrink.plan.write_text", 1),  # what was asked
    ("limbeck.shrink.plan.write_text", 2),  # what was decided
    ("limbeck.shrink.data.write_table", 2),
    ("limbeck.shrink.teacher.replacing_folder", 1),  # the trimmed model
    ("limbeck.study.jobs.execute", 2),  # in the first rung
    ("limbeck.study.jobs.execute", 4),
    ("limbeck.study.jobs.execute", 6),  # in the last rung
    ("limbeck.shrink.plan.write_text", 6),  # how the race went
    ("limbeck.deploy.export.replacing_folder", 2),
    ("limbeck.shrink.page.write_text", 1),  # the page
    ("limbeck.shrink.page.write_text", 2),
    ("limbeck.shrink.pipeline.write_text", 1),  # the summary
]


@pytest.fixture(scope="module")
def shrink(run, teacher_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shrink")
    files = write_csv(folder / "train.csv", sentences(96)), write_csv(folder / "dev.csv", sentences(61, seed=1))
    data = ["--data", files[0], "--dev", files[1], "--text", "text", "--label", "label"]
    words = ["shrink", "--model", teacher_folder, *data, "--threads", 1, "--minutes", 0.1]
    status, said = run(*words, "-o", "whole", cwd=folder, patches=HURRY)
    assert status == 0, said
    return words, *(read_json(folder / "whole" / name) for name in ("summary.json", "plan.json"))


@pytest.mark.slow
@pytest.mark.parametrize("at", MOMENTS)
def test_shrink_killed_while_it_writes(at, run, shrink, tmp_path):
    words, whole, whole_plan = shrink
    assert run(*words, "-o", "broken", cwd=tmp_path, at=at, patches=HURRY)[0] == KILLED
    assert not (tmp_path / "broken" / "summary.json").exists()
    status, said = run(*words, "-o", "broken", cwd=tmp_path, patches=HURRY)
    assert status == 0, said
    found, plan = (read_json(tmp_path / "broken" / name) for name in ("summary.json", "plan.json"))
    assert plan["race"] == whole_plan["race"] and len(plan["race"]["decisions"]["2"]) == 2
    assert (plan["layers"], plan["asked"]) == (whole_plan["layers"], whole_plan["asked"])
    for key in ("asked", "metric", "rows", "majority", "vocabulary", "students", "race", "not_exported"):
        assert found[key] == whole[key], key
    for ours, theirs in zip(found["models"], whole["models"], strict=True):
        for key in ("name", "kind", "chosen_by", "score", "agreement", "parameters", "against_teacher"):
            assert ours.get(key) == theirs.get(key), (ours["name"], key)


class ClockSetBack(TrainerCallback):
    """Let the first checkpoint look as if it was made after all that follow, and end the training in step 5."""

    def on_save(self, args, state, control, **_):
        if state.global_step == 2:
            ahead = time.time() + 3600
            os.utime(Path(args.output_dir) / "checkpoint-2", (ahead, ahead))

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 5:
            raise KeyboardInterrupt


def test_the_newest_checkpoint_is_kept_where_the_clock_was_set_back(table_files, teacher_folder, tmp_path, monkeypatch):
    train = {"max_steps": 6, "batch_size": 8, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    values = recipe_values(table_files, teacher_folder, train=train | {"eval_strategy": "no", "learning_rate": 1e-3})
    start = limbeck.training.trainer.RunTrainer.__init__

    def starting(self, *args, **options):
        start(self, *args, **options)
        self.add_callback(ClockSetBack())

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(limbeck.training.trainer.RunTrainer, "__init__", starting)
        execute(load_recipe(values=values), tmp_path / "run", show_data=False)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-4"]


def test_no_duration_or_choice_rests_on_the_clock_of_the_day():
    source = ROOT / "src" / "limbeck"

    words = ("time.time(", "st_mtime", "getmtime", "datetime.now", "utcnow", "use_mtime=True")
    found = [str(file) for file in source.rglob("*.py") if any(word in file.read_text() for word in words)]
    assert found == []

"""Press Ctrl-C more than once: one message, no traceback, nothing broken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from helpers.killing import wait_for, write_slow_methods
from helpers.saved_runs import assert_same_run
from helpers.signals import signal_in, signals_put_back
from helpers.tiny_recipes import distill_words, recipe_values

pytestmark = pytest.mark.chaos
STEP = "limbeck.distillation.objective.Objective.forward"
CLEANUPS = [
    "limbeck._internal.locks.FileLock.release",
    "limbeck._internal.files.shutil.rmtree",
    "limbeck.cli.main._fail",
]


@pytest.fixture()
def recipe(tmp_path, table_files, teacher_folder):
    train = {"max_steps": 3, "batch_size": 16, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "no"}
    train["save_total_limit"] = 9  # no older checkpoint is removed
    values = recipe_values(table_files, teacher_folder, train=train)
    (tmp_path / "recipe.yaml").write_text(json.dumps(values))
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize(
    ("cleanup", "second"),
    [
        pytest.param(
            cleanup, second, marks=[] if (cleanup, second) == (CLEANUPS[0], signal.SIGINT) else pytest.mark.slow
        )
        for cleanup in CLEANUPS
        for second in (signal.SIGINT, signal.SIGTERM)
    ],
)
def test_a_second_signal_while_cleaning_up_changes_nothing(cleanup, second, recipe, command, tmp_path):
    moment = "transformers.PreTrainedTokenizerBase.save_pretrained" if "rmtree" in cleanup else STEP
    with signals_put_back(), signal_in(moment, signal.SIGINT), signal_in(cleanup, second):
        code, said = command("distill", recipe, "-o", "run")
    assert code == 130, said
    assert said.count("Error:") == 1 and said.endswith("Interrupted. The same command with --resume continues run.")
    assert not [path for path in tmp_path.rglob(".*")]
    for folder, more in (("run", ["--resume"]), ("whole", [])):
        code, said = command("distill", recipe, "-o", folder, *more)
        assert code == 0, said
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_commands_that_cannot_be_continued_say_so_too(recipe, command, tmp_path):
    with signals_put_back(), signal_in("torch.nn.functional.layer_norm", signal.SIGINT):
        code, said = command("evaluate", "nothing", "--task", "reviews")
    assert code == 1  # no model is there, so nothing was run
    assert command("distill", recipe, "-o", "run")[0] == 0
    with signals_put_back(), signal_in("torch.nn.functional.layer_norm", signal.SIGINT):
        code, said = command("evaluate", "run")
    assert code == 130 and "Interrupted. Nothing half-written is left: the same command does it again." in said


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.05, 0.2])
def test_pressed_twice_in_a_process_of_its_own(pause, table_files, teacher_folder, tmp_path):
    write_slow_methods(tmp_path)
    words = distill_words(table_files, teacher_folder, "method.name=slow:kd", "train.max_steps=5000", "-o", "run")
    started = [sys.executable, "-m", "limbeck", "distill", *map(str, words)]
    process = subprocess.Popen(started, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "history.jsonl", process)
    process.send_signal(signal.SIGINT)
    time.sleep(pause)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.count("Error: Interrupted. The same command with --resume continues run.") == 1

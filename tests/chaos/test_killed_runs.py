"""Kill and interrupt runs, resume them, and expect what an uninterrupted run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from helpers.killing import kill_after, wait_for, write_slow_methods
from helpers.saved_runs import assert_same_run, assert_same_weights, history, read_json, results, student_weights
from helpers.tiny_recipes import distill_words, recipe_values, table_task
from safetensors.torch import load_file

from limbeck.training.checkpoint_folders import last_checkpoint

pytestmark = pytest.mark.chaos


def kill(words, folder, moments):
    """Start a training and kill it shortly after a file has appeared, for each of some files."""
    for moment in moments:
        assert kill_after(folder / "broken" / moment, *words, "-o", "broken", "--resume", cwd=folder), moment


def resume(command, words):
    code, said = command(*words, "-o", "broken", "--resume")
    assert code == 0 and "Resuming from" in said, said


def checkpoint(step):
    return f"checkpoints/checkpoint-{step}/trainer_state.json"


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(command, table_files, teacher_folder, tmp_path):
    """Kill it inside the first epoch of six steps, later, and near the end."""
    write_slow_methods(tmp_path)
    settings = ["method.name=slow:kd", "train.max_steps=26", "train.save_steps=4", "train.eval_steps=6"]
    words = ["distill", *distill_words(table_files, teacher_folder, *settings)]
    assert command(*words, "-o", "whole")[0] == 0
    kill(words, tmp_path, map(checkpoint, (4, 12, 20)))
    code, said = command(*words, "-o", "broken")
    assert code == 1 and "already holds an unfinished run" in said
    resume(command, words)
    assert_same_weights(tmp_path / "broken", tmp_path / "whole")
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


@pytest.mark.slow
def test_tinybert_in_two_stages_killed_and_resumed(command, table_files, teacher_folder, tmp_path):
    write_slow_methods(tmp_path)
    settings = ["method.name=slow:tinybert", "train.save_steps=4", "train.max_steps=14"]
    words = ["distill", *distill_words(table_files, teacher_folder, *settings)]
    killed_in_both_stages(command, tmp_path, words, (8, 8))
    found = read_json(tmp_path / "whole" / "metrics.json")
    assert found["method"] == "slow:tinybert" and found["steps"] == 14
    # the intermediate stage left the classifier as it was, the prediction stage trained it
    first, last = student_weights(tmp_path / "whole" / "stage-1"), student_weights(tmp_path / "whole")
    teacher = load_file(teacher_folder / "model.safetensors")
    assert torch.equal(first["classifier.weight"], teacher["classifier.weight"])
    assert not torch.equal(last["classifier.weight"], first["classifier.weight"])
    terms = {"term/embeddings", "term/hidden", "term/attention"}
    assert any(terms <= entry.keys() for entry in history(tmp_path / "whole" / "stage-1"))


@pytest.mark.slow
def test_text_then_task_killed_and_resumed(command, table_files, teacher_folder, language_model, corpus, tmp_path):
    write_slow_methods(tmp_path)
    text = {"name": "text", "train": str(corpus), "max_length": 24}
    stages = [
        {"task": text, "teacher": {"model": str(language_model)}, "train": {"save_steps": 5}},
        {
            "task": table_task(table_files),
            "teacher": {"model": str(teacher_folder), "confirmed": True},
            "train": {"save_steps": 4},
        },
    ]
    for stage in stages:
        stage["method"] = {"name": "slow:distilbert"}
        stage["train"] |= {"epochs": 2, "batch_size": 16}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"student": {"from": "teacher", "keep": "uniform:2"}, "stages": stages}))
    killed_in_both_stages(command, tmp_path, ["distill", recipe, "--allow-code"], (10, 8))
    first = read_json(tmp_path / "whole" / "stage-1" / "metrics.json")
    assert first["task"] == "text" and first["metrics"].keys() == {"loss", "perplexity", "token_accuracy"}
    assert "perplexity" in command("evaluate", "whole/stage-1")[1]  # a stage is a run directory of its own
    assert "accuracy" in command("evaluate", "whole")[1]  # scored on the last stage's task
    assert "finished already" in command("distill", recipe, "--allow-code", "-o", "whole", "--resume")[1]
    # a student can start from the general stage
    options = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key != "name"]
    more = ["--student", "whole/stage-1", "--teacher", teacher_folder, "--task", "table", "train.max_steps=1"]
    code, said = command("distill", "--method", "kd", *more, *options, "-o", "again")
    assert code == 0, said


def killed_in_both_stages(command, folder, words, saved):
    """Run once without a break, and once killed inside each stage; ``saved`` is a step that is saved in each."""
    assert command(*words, "-o", "whole")[0] == 0
    moments = (f"stage-1/{checkpoint(saved[0])}", "stage-1/metrics.json", checkpoint(saved[1]))
    kill(words, folder, moments)
    resume(command, words)
    for stage in ("stage-1", "."):
        assert_same_weights(folder / "broken" / stage, folder / "whole" / stage)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "stage"),
    [
        ("theseus", ["method.schedule=linear", "method.full_after=20"], "stage-1"),
        ("metadistil", ["method.teacher_rate=1e-3"], "."),
        ("reptiledistil", ["method.mu=0.05"], "."),
    ],
)
def test_moving_teachers_killed_and_resumed(method, options, stage, command, table_files, teacher_folder, tmp_path):
    settings = ["--method", method, "train.max_steps=40", "train.save_steps=4", *options]
    words = ["distill", *distill_words(table_files, teacher_folder, *settings)]
    assert command(*words, "-o", "whole")[0] == 0
    kill(words, tmp_path, [f"{stage}/{checkpoint(step)}" for step in (4, 16)])
    resume(command, words)
    for part in {stage, "."}:
        assert_same_weights(tmp_path / "broken" / part, tmp_path / "whole" / part)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")  # the moved teacher's scores included


# A child for each attempt is forked from a process that has loaded torch already.
KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from limbeck import execute, load_recipe
from limbeck.distillation.teachers import LiveTeacher
values, folder, dice = json.loads(sys.argv[1]), Path(sys.argv[2]), random.Random(int(sys.argv[3]))
wanted = int(sys.argv[4])
def start(name):
    child = os.fork()
    if child:
        return child
    try:
        execute(load_recipe(values=values), folder / name, resume=True, show_data=False)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
def ended(child):
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    return not os.WIFSIGNALED(status)
begun = time.monotonic()
assert ended(start("whole"))
lasted = time.monotonic() - begun
kills, finished = 0, []
while kills < wanted or not finished:
    name = f"broken-{len(finished)}"
    child = start(name)
    time.sleep(dice.uniform(0.0, 0.5 * lasted) if kills < wanted else 0)
    if kills < wanted:
        os.kill(child, signal.SIGKILL)
    if ended(child):
        finished.append(name)
    else:
        kills += 1
print(json.dumps({"kills": kills, "finished": finished}))
"""


@pytest.mark.parametrize(
    ("kills", "steps", "seed"),
    [(3, 20, 0), pytest.param(20, 60, 1, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments(kills, steps, seed, table_files, teacher_folder, tmp_path):
    method = {"name": "fsd", "memory": 8, "passes": 2}  # clusters before it trains, and trains more than its student
    train = {"max_steps": steps, "batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1}
    train |= {"save_strategy": "steps", "save_steps": 5, "save_total_limit": 1, "eval_strategy": "steps"}
    values = recipe_values(table_files, teacher_folder, method, train=train | {"eval_steps": 7})
    done = subprocess.run(
        [sys.executable, "-c", KILLS, json.dumps(values), str(tmp_path), str(seed), str(kills)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == kills
    for name in found["finished"]:
        assert_same_run(tmp_path / name, tmp_path / "whole")
        assert untimed(tmp_path / name) == untimed(tmp_path / "whole"), f"seed {seed}"


def untimed(run):
    timed = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
    return [{key: value for key, value in line.items() if key not in timed} for line in history(run)]


def test_ctrl_c_says_how_to_continue(table_files, teacher_folder, tmp_path):
    code, said = interrupted(signal.SIGINT, table_files, teacher_folder, tmp_path, "train.max_steps=5000")
    assert code == 130
    assert "--resume continues run" in said and "Traceback" not in said


def test_sigterm_leaves_a_checkpoint_and_says_so(command, table_files, teacher_folder, tmp_path):
    more = ["train.max_steps=60", "train.save_steps=1000", "train.logging_steps=1"]
    code, said = interrupted(signal.SIGTERM, table_files, teacher_folder, tmp_path, *more)
    assert code == 143
    assert "SIGTERM" in said and "--resume" in said and "Traceback" not in said
    step = read_json(last_checkpoint(tmp_path / "run" / "checkpoints") / "trainer_state.json")["global_step"]
    assert 0 < step < 60 and not (tmp_path / "run" / "metrics.json").exists()
    words = ["distill", *distill_words(table_files, teacher_folder, "method.name=slow:kd", *more)]
    for name, resume in (("run", ["--resume"]), ("whole", [])):
        code, said = command(*words, "-o", name, *resume)
        assert code == 0, said
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def interrupted(sent, table_files, teacher_folder, folder, *more):
    """Send a signal to a training that has begun; return its exit code and what it said."""
    write_slow_methods(folder)
    words = ["distill", *distill_words(table_files, teacher_folder, "method.name=slow:kd", *more), "-o", "run"]
    started = [sys.executable, "-m", "limbeck", *map(str, words)]
    process = subprocess.Popen(started, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(folder / "run" / "history.jsonl", process)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    return process.returncode, said

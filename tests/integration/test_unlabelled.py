"""Train with rows that have no label: what the run says, keeps and repeats; and that scores are not touched by them."""

from __future__ import annotations

import logging

import pytest
import yaml
from helpers import launched_training as launched
from helpers.saved_runs import assert_same_run, assert_same_weights, history, read_json
from helpers.still_runs import StillRuns, largest_difference
from helpers.tiny_models import without_dropout
from helpers.tiny_recipes import recipe_values, table_task
from helpers.tiny_tables import sentences
from helpers.two_processes import in_processes

from limbeck import execute, load_recipe
from limbeck.errors import RecipeError, RunError
from limbeck.inference.evaluate import evaluate
from limbeck.study.engines import InProcess
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study

TRAIN = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3, "eval_strategy": "no", "save_steps": 0.5}


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    file = tmp_path_factory.mktemp("more") / "more.txt"
    file.write_text("".join(f"{text}\n" for text, _ in sentences(200, seed=5)))
    return file


@pytest.fixture(scope="module")
def values(table_files, teacher_folder, more):
    task = table_task(table_files) | {"unlabelled": str(more), "unlabelled_share": 0.75}
    return recipe_values(task, teacher_folder, "fcd", train=TRAIN)


@pytest.fixture(scope="module")
def whole(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    execute(load_recipe(values=values), folder, show_data=False)
    return folder


def test_a_run_says_what_it_had(whole, more, caplog):
    found = read_json(whole / "metrics.json")
    assert found["unlabelled"]["share"] == 0.75
    assert 150 < found["unlabelled"]["rows"] == 200 - found["unlabelled"]["left_out"]
    assert found["examples"] == 40  # of the validation data
    assert found["steps"] == 24  # 96 labelled rows, 4 in each step
    assert yaml.safe_load((whole / "recipe.yaml").read_text())["task"]["unlabelled"] == str(more)
    terms = {name for entry in history(whole) for name in entry if name.startswith("term/")}
    assert terms == {"term/task", "term/tokens", "term/samples"}


def test_the_run_says_what_a_step_holds(values, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="limbeck"):
        execute(load_recipe(values=values, overrides=["train.max_steps=1"]), tmp_path / "run")
    assert "12 of the 16 rows of each step" in caplog.text
    assert "An epoch has 24 steps, in which each labelled row comes 1 times." in caplog.text


def test_a_run_that_waited_is_one_that_did_not(values, whole, tmp_path):
    execute(load_recipe(values=values), tmp_path, resume=True, pause_after=0.4, show_data=False)
    execute(load_recipe(values=values), tmp_path, resume=True, show_data=False)
    assert_same_run(tmp_path, whole)


def test_a_cache_changes_nothing(values, whole, tmp_path):
    cached = values | {"teacher": values["teacher"] | {"cache": str(tmp_path / "cache")}}
    execute(load_recipe(values=cached), tmp_path / "run", show_data=False)
    ours, theirs = ([entry["loss"] for entry in history(run) if "loss" in entry] for run in (tmp_path / "run", whole))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_evaluation_knows_nothing_of_them(values, whole):
    scores = evaluate(str(whole)).metrics
    assert scores["accuracy"] == read_json(whole / "metrics.json")["metrics"]["accuracy"]


def test_other_rows_are_noticed(values, table_files, teacher_folder, tmp_path):
    file = tmp_path / "more.txt"
    file.write_text("the cat never finds the fish\n" * 8)
    task = table_task(table_files) | {"unlabelled": str(file)}
    changed = recipe_values(task, teacher_folder, "kd", train=TRAIN | {"max_steps": 4})
    execute(load_recipe(values=changed), tmp_path / "run", pause_after=0.5, show_data=False)
    file.write_text("the dog never finds the fish\n" * 8)
    with pytest.raises(RunError, match="the rows without labels"):
        execute(load_recipe(values=changed), tmp_path / "run", resume=True, show_data=False)


def test_fine_tuning_leaves_them_out(values, table_files, tmp_path, caplog):
    alone = values | {"method": {"name": "ft"}, "train": TRAIN | {"max_steps": 2}}
    with caplog.at_level(logging.INFO, logger="limbeck"):
        execute(load_recipe(values=alone), tmp_path / "with", show_data=False)
    assert "ft learns from labels alone: the rows of task.unlabelled are left out." in caplog.text
    execute(load_recipe(values=alone | {"task": table_task(table_files)}), tmp_path / "without", show_data=False)
    assert_same_run(tmp_path / "with", tmp_path / "without")
    assert "unlabelled" not in read_json(tmp_path / "with" / "metrics.json")


def test_a_step_needs_room_for_both(values, tmp_path):
    small = values | {"train": TRAIN | {"batch_size": 1}}
    with pytest.raises(RecipeError, match="cannot mix rows with and without a label"):
        execute(load_recipe(values=small), tmp_path / "run")


@pytest.mark.parametrize("problem", ["classification", "regression", "multi_label", "tokens"])
def test_every_problem_trains_and_parts_of_a_step_add_up_to_it(problem, tokenizer_folder, tmp_path, more):
    still = StillRuns(tmp_path / "still", tokenizer_folder)
    slow = {"learning_rate": 1e-3} if problem == "regression" else {}
    found = []
    for name, train in (("once", {"batch_size": 10}), ("parts", {"batch_size": 5, "gradient_accumulation_steps": 2})):
        train |= {"max_steps": 6} | slow
        recipe = still.recipe(problem, {"name": "distilbert"}, train, unlabelled=str(more), unlabelled_share=0.7)
        found.append(still.weights_and_log(recipe, tmp_path / name))
    (weights, log), (in_parts, log_in_parts) = found
    assert len(log) == 6
    for entry, other in zip(log, log_in_parts, strict=True):
        logged = [name for name in entry if name in ("loss", "grad_norm") or name.startswith("term/")]
        expected = {name: entry[name] for name in logged}
        assert {name: other[name] for name in logged} == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert largest_difference(weights, in_parts) < 2e-5


@pytest.mark.parametrize("method", ["metadistil", "reptiledistil", "ics", "fsd"])
def test_methods_of_other_kinds_take_them(method, values, tmp_path):
    options = {"memory": 4, "passes": 1} if method == "fsd" else {}
    recipe = values | {"method": {"name": method, **options}, "train": TRAIN | {"max_steps": 3}}
    execute(load_recipe(values=recipe), tmp_path / "run", show_data=False)
    assert read_json(tmp_path / "run" / "metrics.json")["unlabelled"]["rows"] > 150


def test_a_trimmed_vocabulary_keeps_their_pieces(table_files, teacher_folder, tmp_path):
    file = tmp_path / "more.txt"
    file.write_text("zzz qqq zzz\n" * 3)
    known = {}
    for name, task in (("with", {"unlabelled": str(file)}), ("without", {})):
        recipe = recipe_values(table_task(table_files) | task, teacher_folder, "kd", train={"max_steps": 1})
        recipe["student"]["vocabulary"] = "trimmed"
        execute(load_recipe(values=recipe), tmp_path / name, show_data=False)
        known[name] = read_json(tmp_path / name / "metrics.json")["vocabulary"]["kept"]
    assert known["with"] >= known["without"]


def test_a_study_compares_with_and_without(table_files, teacher_folder, more, tmp_path):
    train, dev = map(str, table_files)
    study = tmp_path / "study.yaml"
    values = {
        "tasks": ["table"],
        "task": {"train": train, "validation": dev, "text": "text", "label": "label", "max_length": 16},
        "teacher": {"fine_tuned": str(teacher_folder), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2", "head": "kept"},
        "methods": {"ft": {}, "kd": {}, "kd with more": {"method.name": "kd", "task.unlabelled": str(more)}},
        "seeds": [0],
        "rivals": False,
        "train": {"max_steps": 2, "batch_size": 8},
    }
    study.write_text(yaml.safe_dump(values))
    run_study(load_study(study), tmp_path / "out", InProcess())
    runs = [read_json(file) for file in sorted((tmp_path / "out" / "runs").glob("*/metrics.json"))]
    assert sorted("unlabelled" in run for run in runs) == [False, False, True]


@pytest.mark.distributed
def test_two_processes_train_as_one(table_files, teacher_folder, more, tmp_path):
    teacher = without_dropout(teacher_folder, tmp_path / "teacher")
    task = table_task(table_files) | {"unlabelled": str(more), "unlabelled_share": 0.7}
    methods = {"kd": {"name": "kd"}, "ics": {"name": "ics", "reduction": "mean", "alpha_1": 0.1}}

    def recipes(batch_size):
        train = {"max_steps": 5, "batch_size": batch_size, "learning_rate": 1e-3, "logging_steps": 1}
        train |= {"eval_strategy": "no", "save_strategy": "no", "optim": "sgd", "lr_scheduler_type": "constant"}
        return {name: recipe_values(task, teacher, method, train=train) for name, method in methods.items()}

    launched.train(recipes(8), tmp_path / "one")
    in_processes(launched.train, tmp_path, recipes(4), tmp_path / "two")
    for name in methods:
        assert_same_weights(tmp_path / "two" / name, tmp_path / "one" / name, atol=2e-6)
        losses = [
            [line["loss"] for line in history(tmp_path / side / name) if "loss" in line] for side in ("one", "two")
        ]
        assert losses[1] == pytest.approx(losses[0], abs=1e-5) and len(losses[0]) == 5

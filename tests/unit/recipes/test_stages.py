"""Recipes with stages: what is shared, what a stage changes, and where mistakes are reported."""

from __future__ import annotations

import pytest
import yaml

from limbeck.errors import RecipeError
from limbeck.recipes.recipe import load_recipe

STAGED = {
    "task": {"name": "glue/mrpc", "max_length": 64},
    "teacher": {"model": "runs/teacher"},
    "student": {"from": "teacher", "keep": "first:6"},
    "train": {"batch_size": 8},
    "stages": [
        {"method": {"name": "fcd", "alpha": 0.4}, "train": {"epochs": 5}},
        {"method": {"name": "kd"}, "task": {"max_length": 128}},
    ],
    "seed": 3,
}


def with_stages(*stages):
    return {name: block for name, block in STAGED.items() if name != "stages"} | {"stages": list(stages)}


def test_a_stage_changes_keys_of_the_shared_blocks():
    first, second = load_recipe(values=STAGED).split()
    assert first.task.max_length == 64 and second.task.max_length == 128
    assert first.task.name == second.task.name == "glue/mrpc"
    assert first.train.batch_size == second.train.batch_size == 8
    assert (first.train.epochs, second.train.epochs) == (5, 3)
    assert first.method.options["alpha"] == 0.4 and second.method.name == "kd"
    assert first.seed == second.seed == 3 and first.stages is None


def test_a_task_or_method_of_another_name_takes_nothing_over():
    values = with_stages({"task": {"name": "text", "train": "corpus.txt"}, "method": {"name": "fcd"}}, {})
    values["task"]["data_dir"] = "data"
    values["method"] = {"name": "kd", "temperature": 2}
    first, second = load_recipe(values=values).split()
    assert first.task.options == {"train": "corpus.txt", "mask": 0.15} and first.task.max_length == "auto"
    assert second.task.options == {"data_dir": "data"} and second.method.options["temperature"] == 2


def test_a_stage_may_do_without_the_shared_teacher():
    values = with_stages({"method": {"name": "kd"}}, {"teacher": None, "method": {"name": "ft"}})
    first, second = load_recipe(values=values).split()
    assert first.teacher is not None and second.teacher is None


def test_what_is_written_is_the_same_recipe():
    recipe = load_recipe(values=STAGED)
    written = yaml.safe_load(recipe.to_yaml())
    assert list(written) == ["student", "stages", "seed"]  # every stage is complete, nothing is said twice
    assert load_recipe(values=written) == recipe


@pytest.mark.parametrize("name, stages", [("tinybert", ["intermediate", "prediction"]), ("fitnets", ["hint", "kd"])])
def test_a_method_brings_its_stages(name, stages):
    values = {key: block for key, block in STAGED.items() if key != "stages"}
    recipe = load_recipe(values=values | {"method": {"name": name}})
    assert [stage.method.options["stage"] for stage in recipe.split()] == stages
    one = load_recipe(values=values | {"method": {"name": name, "stage": stages[1]}})
    assert one.stages is None and one.split() == [one]


def test_overrides_of_one_stage_and_of_all():
    recipe = load_recipe(values=STAGED, overrides=["stages.2.train.epochs=1", "train.batch_size=4", "seed=7"])
    first, second = recipe.split()
    assert (first.train.epochs, second.train.epochs) == (5, 1)
    assert first.train.batch_size == second.train.batch_size == 4
    assert first.seed == second.seed == 7


def test_stages_that_a_method_brings_can_be_overridden():
    values = {key: block for key, block in STAGED.items() if key != "stages"} | {"method": {}}
    recipe = load_recipe(values=values, overrides=["stages.1.train.epochs=20", "method.name=tinybert"])
    assert [stage.train.epochs for stage in recipe.split()] == [20, 3]


def test_an_override_that_no_stage_uses_is_refused():
    first, second = ({"method": {"name": "kd"}, "train": {"epochs": epochs}} for epochs in (5, 1))
    values = with_stages(first, second)
    with pytest.raises(RecipeError, match=r"each stage has its own train.epochs. Name the stage: stages.1.train"):
        load_recipe(values=values, overrides=["train.epochs=2"])
    assert load_recipe(values=values, overrides=["train.learning_rate=1e-3"]).train.learning_rate == 1e-3


@pytest.mark.parametrize("path", ["stages.3.train.epochs=1", "stages.0.train.epochs=1", "stages.one.train.epochs=1"])
def test_a_stage_that_does_not_exist(path):
    with pytest.raises(RecipeError, match="the recipe has 2 stages, counted from 1"):
        load_recipe(values=STAGED, overrides=[path])


def test_mistakes_are_reported_once_and_where_they_are(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        """task: {name: glue/mrpc, max_length: many}
teacher: {model: runs/teacher}
student: {from: teacher, keep: "first:6"}
stages:
  - method: {name: fcdd}
    train: {epochs: 2}
  - method:
      name: kd
      alpa: 1
    train: {epoch: 2}
"""
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert message.count("task.max_length") == 1 and "line 1: task.max_length" in message
    assert "line 5: stages.1.method.name: Unknown method 'fcdd'" in message
    assert "line 9: stages.2.method.alpa: Unknown key 'alpa'. Did you mean 'alpha'?" in message
    assert "line 10: stages.2.train.epoch: Unknown key 'epoch'" in message
    assert "4 mistakes" in message


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages: is a list of stages"),
        ("twice", "stages: is a list of stages"),
        (["kd"], "stages.1: is a mapping with task, teacher, method, train; seen: 'kd'"),
        ([{"method": {"name": "kd"}, "student": {"model": "x"}}], "stages.1.student: belongs to the whole recipe"),
        ([{"method": {"name": "kd"}, "seed": 1}], "stages.1.seed: Unknown key 'seed'"),
    ],
)
def test_lists_of_stages_that_are_none(stages, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe(values=STAGED | {"stages": stages})
    assert message in str(caught.value)


def test_a_grid_may_search_over_a_stage():
    grid = {"stages.2.train.learning_rate": [1e-5, 2e-5]}
    assert load_recipe(values=STAGED | {"grid": grid}).grid == [grid]
    with pytest.raises(RecipeError, match="grid"):
        load_recipe(values=STAGED | {"grid": {"stages.2.train.learning_rate": ["fast"]}})

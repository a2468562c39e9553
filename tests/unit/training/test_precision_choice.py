"""``train.precision: auto`` becomes what suits the machine, is written down, and stays what a run began with."""

from __future__ import annotations

import pytest
import yaml

from limbeck import load_recipe
from limbeck.errors import RecipeError
from limbeck.runs.directory import RunDirectory
from limbeck.training import precision
from limbeck.training.output import create_run


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Forget what was measured, and let each test say what the machine is."""
    monkeypatch.delenv(precision.PRECISION_VARIABLE, raising=False)
    precision.automatic_precision.cache_clear()
    yield monkeypatch
    precision.automatic_precision.cache_clear()


def recipe(**train):
    values = {"task": {"name": "reviews"}, "student": {"model": "somewhere"}, "method": {"name": "ft"}}
    return load_recipe(values=values | {"train": train})


@pytest.mark.parametrize(
    ("units", "speed", "found"), [(True, 1.8, "bfloat16"), (True, 1.05, "float32"), (False, 3.0, "float32")]
)
def test_auto_is_bfloat16_where_it_is_clearly_faster(machine, units, speed, found):
    machine.setattr(precision, "has_bfloat16_units", lambda: units)
    machine.setattr(precision, "bfloat16_speed", lambda: speed)
    machine.setattr(precision.torch.cuda, "is_available", lambda: False)
    assert precision.precision_of(recipe()) == found
    assert precision.precision_of(recipe(precision="float32")) == "float32"


def test_several_machines_can_be_made_to_agree(machine):
    machine.setenv(precision.PRECISION_VARIABLE, "bfloat16")
    assert precision.automatic_precision() == "bfloat16"
    precision.automatic_precision.cache_clear()
    machine.setenv(precision.PRECISION_VARIABLE, "bfloat61")
    with pytest.raises(RecipeError, match="Did you mean 'bfloat16'"):
        precision.automatic_precision()


def test_a_run_goes_on_as_it_began(machine, tmp_path):
    run = RunDirectory(tmp_path / "run")
    machine.setenv(precision.PRECISION_VARIABLE, "bfloat16")
    machine.setattr(precision, "has_bfloat16_units", lambda: True)
    settled = precision.settle_precision(recipe(), run)
    create_run(run, settled)
    assert yaml.safe_load(run.recipe.read_text())["train"]["precision"] == "bfloat16"
    precision.automatic_precision.cache_clear()
    machine.setenv(precision.PRECISION_VARIABLE, "float32")
    assert precision.settle_precision(recipe(), run).train.precision == "bfloat16"


def test_each_stage_goes_on_as_it_began(machine, tmp_path):
    run = RunDirectory(tmp_path / "run")
    stages = [{"train": {"precision": "float32"}}, {"train": {"epochs": 1}}]
    values = {"task": {"name": "reviews"}, "student": {"model": "somewhere"}, "method": {"name": "ft"}}
    staged = load_recipe(values=values | {"stages": stages})
    machine.setenv(precision.PRECISION_VARIABLE, "bfloat16")
    machine.setattr(precision, "has_bfloat16_units", lambda: True)
    create_run(run, precision.settle_precision(staged, run))
    machine.setenv(precision.PRECISION_VARIABLE, "float32")
    precision.automatic_precision.cache_clear()
    again = precision.settle_precision(staged, run)
    assert [stage.train.precision for stage in again.split()] == ["float32", "bfloat16"]


def test_bfloat16_without_units_works_with_a_warning_that_says_how_slow(machine, tmp_path, caplog):
    machine.setattr(precision, "has_bfloat16_units", lambda: False)
    machine.setattr(precision, "bfloat16_speed", lambda: 0.25)
    settled = precision.settle_precision(recipe(precision="bfloat16"), RunDirectory(tmp_path / "run"))
    assert settled.train.precision == "bfloat16"
    assert "4.0 times as long" in caplog.text


def test_float16_on_a_processor_is_refused(machine, tmp_path):
    machine.setattr(precision.torch.accelerator, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="needs a GPU"):
        precision.settle_precision(recipe(precision="float16"), RunDirectory(tmp_path / "run"))


@pytest.mark.parametrize(("key", "word"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_the_older_keys_say_what_to_write(key, word):
    with pytest.raises(RecipeError, match=f"precision: {word}"):
        recipe(**{key: True})


def test_the_speed_is_measured_and_is_a_ratio():
    precision.bfloat16_speed.cache_clear()
    assert 0.01 < precision.bfloat16_speed() < 100

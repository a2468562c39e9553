"""Every command answers --help with an example, and the listing commands print what they list."""

from __future__ import annotations

import pytest

from limbeck.methods import METHODS
from limbeck.recipes.files import shipped_recipes
from limbeck.tasks import TASKS

COMMANDS = (
    *("finetune", "distill", "cache", "evaluate", "export", "predict", "profile", "glue"),
    *("study", "studies", "compare"),
    *("methods", "tasks", "recipes", "validate", "doctor", "demo"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(limbeck, command):
    assert f"limbeck {command}" in limbeck(command, "--help").stdout.partition("Example")[2]


def test_overview_lists_every_command(limbeck):
    shown = limbeck("--help").stdout
    assert all(f" {command} " in shown for command in COMMANDS)


def test_listings(limbeck):
    shown = limbeck("methods").stdout
    assert all(name in shown for name in METHODS)
    shown = limbeck("methods", "kd").stdout
    assert "temperature" in shown and "5.0" in shown and "softmax(t/T)" in shown
    shown = limbeck("tasks").stdout
    assert all(name in shown for name in TASKS)
    assert "separator" in limbeck("tasks", "table").stdout
    shown = limbeck("recipes").stdout
    assert all(name in shown for name in shipped_recipes())
    some = limbeck("recipes", "mrpc-tiny").stdout
    assert "tinybert/mrpc-tinybert" in some and "tinybert/rte-tinybert" not in some
    assert "Unknown recipe 'mprc'" in limbeck("recipes", "mprc", check=False).stderr
    options = limbeck("methods", "minilmv2").stdout
    assert "relation_heads" in options and "int | None" in options


def test_validate_prints_the_resolved_recipe(limbeck):
    shown = limbeck("validate", "kd-rte", "method.temperature=7").stdout
    assert "temperature: 7.0" in shown and shown.strip().endswith("valid")


def test_doctor(limbeck):
    shown = limbeck("doctor").stdout
    assert "torch" in shown and "transformers" in shown and "HF_HUB_OFFLINE" in shown


def test_help_is_fast_because_torch_is_not_loaded(limbeck, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    limbeck("--help")
    limbeck("finetune", "--help")

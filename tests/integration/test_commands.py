"""Every command answers --help with an example, and the listing commands print what they list."""

from __future__ import annotations

import pytest
from typer.main import get_command

from limbeck import __version__
from limbeck.cli.main import app
from limbeck.methods import METHODS
from limbeck.recipes.files import shipped_recipes
from limbeck.tasks import TASKS

COMMANDS = tuple(get_command(app).commands)  # of the program itself, so that a new command cannot be forgotten


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(limbeck, command):
    assert f"limbeck {command}" in limbeck(command, "--help").stdout.partition("Example")[2]


def test_overview_lists_every_command(limbeck):
    shown = limbeck("--help").stdout
    assert all(f" {command} " in shown for command in COMMANDS)


def test_the_commands_that_the_documentation_names_are_there():
    assert {"finetune", "distill", "cache", "evaluate", "study", "compare", "analyze", "report", "glue"} <= set(
        COMMANDS
    )
    assert {"export", "predict", "bench", "shrink", "profile", "validate", "doctor", "demo"} <= set(COMMANDS)


def test_version(limbeck):
    assert limbeck("--version").stdout == f"limbeck {__version__}\n"


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
    limbeck("--version")

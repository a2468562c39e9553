"""Every command answers --help with an example, and the listing commands print what they list."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_a_method_shows_what_its_loss_costs(command, teacher_folder):
    code, said = command("methods", "fcd", "--student", teacher_folder, "--batch-size", 8, "--length", 16)
    assert code == 0 and "Operations of the loss, without the backward pass: P·(2B·L²·D + 2B²·L·D)" in said
    flops = 4 * 2 * (8 * 16**2 + 8**2 * 16) * 64  # 4 pairs of layers, 32 + 32 wide
    assert f"8 texts of 16 tokens: {flops / 1e9:.3g} GFLOPs, {4 * 4 * 2 * (8 * 16**2 + 8**2 * 16) / 1e6:.3g} MB" in said
    assert "GFLOPs" not in command("methods", "fcd")[1]


FAMILY = """
base: {task: {name: glue/rte}, teacher: {model: t}, student: {from: teacher, keep: "first:2"}, method: {name: kd}}
tables:
  - {where: here, metrics: [accuracy], rows: {a: {}, b: {set: {method.alpha: 0.3}}, c: {set: {method.temperature: 5}}}}
"""


def test_validate_checks_every_row_of_a_file(command, tmp_path):
    (tmp_path / "rows.yaml").write_text(FAMILY)
    code, said = command("validate", "rows.yaml")
    assert code == 0 and "3 recipes are valid" in said and "alpha" not in said
    assert "alpha: 0.3" in command("validate", "rows.yaml/b")[1]
    (tmp_path / "rows.yaml").write_text(FAMILY.replace("0.3", "3").replace("temperature: 5", "heat: 5"))
    code, said = command("validate", "rows.yaml")
    assert code == 1 and "2 of the 3 recipes in rows.yaml are not valid." in said
    assert "rows.yaml/b" in said and "method.alpha" in said and "rows.yaml/c" in said and "'heat'" in said
    code, said = command("validate", "ics")  # a shipped family
    assert code == 0 and "21 recipes are valid" in said


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


def answer_of_the_shell(tmp_path, **given):
    """Return what the command prints when a shell asks it by its variables."""
    program = "import sys; sys.argv = ['limbeck']; from limbeck.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("limbeck dis", "distill"), ("limbeck demo --qu", "--quick"), ("limbeck evaluate --js", "--json")],
)
def test_a_shell_completes_commands_and_options(tmp_path, typed, completed):
    given = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    assert answer_of_the_shell(tmp_path, _LIMBECK_COMPLETE="complete_bash", **given) == f"{completed}\n"


def test_a_shell_can_be_taught_to(tmp_path, limbeck):
    script = answer_of_the_shell(tmp_path, _LIMBECK_COMPLETE="source_bash")
    assert "complete -o default -F _limbeck_completion limbeck" in script
    shown = limbeck("--help").stdout
    assert "--install-completion" in shown and "--show-completion" in shown

"""End with the exit codes that docs/install.md lists, and with no others."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from helpers.paths import ROOT

TABLE = re.findall(r"^\| (\d+) +\|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_documented_codes_are_those_tested_here():
    assert TABLE == ["0", "1", "2", "130", "143"]


def test_done(command):
    assert command("tasks")[0] == command("--version")[0] == command("compare", "--help")[0] == 0


def test_what_cannot_be_done(command):
    code, said = command("evaluate", "nowhere")
    assert code == 1 and said.startswith("Error: ")


@pytest.mark.parametrize(
    "words",
    [("distil",), ("methods", "--colour"), ("bench",), ("evaluate", "run", "--batch-size", "0")],
    ids=["no such command", "no such option", "nothing to work on", "no such value"],
)
def test_a_command_line_that_cannot_be_read(command, words):
    code, said = command(*words)
    assert code == 2 and "Usage: " in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_told_to_stop(tmp_path, number, code):
    program = (
        "import os\n"
        "import limbeck.study.loading as loading\n"
        "from limbeck.cli.main import main\n"
        f"loading.list_studies = lambda: os.kill(os.getpid(), {int(number)})\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "studies"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code and "Traceback" not in done.stderr and done.stderr.startswith("Error: ")


def test_an_error_that_is_nobodys_mistake_shows_where_it_happened():
    """Have a traceback and 1, as any Python program has."""
    program = (
        "import limbeck.study.loading as loading\n"
        "from limbeck.cli.main import main\n"
        "loading.list_studies = lambda: 1 / 0\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "studies"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "Traceback" in done.stderr

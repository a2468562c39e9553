"""Check that docs/papers.md has every table and figure of the papers, that its commands parse and its studies load."""

from __future__ import annotations

import re
import shlex
from functools import cache

import pytest
import typer
from helpers.paths import ROOT

from limbeck.cli.main import app
from limbeck.study.loading import load_study, shipped_studies

PAGE = (ROOT / "docs/papers.md").read_text()
COMMANDS = sorted(set(re.findall(r"`limbeck ([^`]+)`", PAGE)))
SECTIONS = {
    title: body for title, body in re.findall(r"^## (\w+)[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
# of the figures, those that show results
RESULTS = {
    "Anonymous": ({1, 2, 3, 4}, set()),
    "Jung": ({1, 2, 3, 4, 5, 6, 7, 8}, {3, 4, 5, 6, 7, 8}),
    "Huang": ({1, 2, 3, 4, 5}, {3, 5}),
    "Saadi": ({1}, {2}),
}


@cache
def commands():
    return typer.main.get_command(app).commands


def rows(section):
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_parses(words):
    name, *arguments = shlex.split(words)
    commands()[name].make_context(name, list(arguments))  # which takes them out of the list
    if name == "study":
        source, *rest = arguments
        load_study(source, [word for word in rest if not word.startswith("-")])


@pytest.mark.parametrize("section", RESULTS)
def test_every_table_and_figure_has_a_row(section):
    found = {"table": set(), "figure": set()}
    for what, *_ in rows(section):
        for kind, first, last in re.findall(r"(table|figure)s? (\d+)(?: (?:to|and) (\d+))?", what):
            numbers = range(int(first), int(last or first) + 1) if " to " in what else (int(first), int(last or first))
            found[kind] |= set(numbers)
    assert (found["table"], found["figure"]) == RESULTS[section]


@pytest.mark.parametrize("section", RESULTS)
def test_every_row_says_both_commands_and_what_differs(section):
    for what, full, small, differs in rows(section):
        assert what and differs
        assert re.fullmatch(r"`limbeck [^`]+`", full) and re.fullmatch(r"`limbeck [^`]+`", small)


def test_every_study_of_a_paper_is_named():
    named = {words.split()[1].partition("/")[0] for words in COMMANDS if words.startswith("study ")}
    assert set(shipped_studies()) - named == {"first", "evidence"}


def test_folders_are_those_that_the_studies_write():
    made = set()
    for name in shipped_studies():
        variants = re.findall(rf"limbeck study {name}/(\w+)", shipped_studies()[name].read_text())
        made |= {f"studies/{name}", *(f"studies/{name}-{variant}" for variant in variants)}
    assert set(re.findall(r"studies/[\w-]+", "\n".join(COMMANDS))) <= made

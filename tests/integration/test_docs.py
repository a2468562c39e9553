"""Run the code in README and docs as it is printed there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from helpers.paths import ROOT

from limbeck.recipes.recipe import load_recipe
from limbeck.study.loading import load_study

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_the_readme_opens_with_both_commands_and_twelve_lines():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("```python")
    assert sum(bool(line) for line in blocks(ROOT / "README.md", "python")[0].splitlines()) == 12
    assert len(text[: text.index("## Install")].splitlines()) <= 40


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_blocks_run(path, tmp_path, teacher_folder):
    demo = tmp_path / "demo-runs" / "reviews-scratch-s0" / "teacher"
    demo.mkdir(parents=True)
    (demo / "student").symlink_to(teacher_folder)
    for number, block in enumerate(blocks(path, "python")):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_yaml_blocks_are_valid_recipes_or_studies(path, tmp_path):
    for block in blocks(path, "yaml"):
        values = yaml.safe_load(block)
        if "methods" not in values:
            load_recipe(values=values)
            continue
        (tmp_path / "study.yaml").write_text(block)
        load_study(tmp_path / "study.yaml")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_and_options_in_the_text_exist(path, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    used = set(re.findall(r"limbeck ([a-z]+)", "\n".join(blocks(path, ""))))
    for name in used:
        code, shown = command(name, "--help")
        assert code == 0, shown
        for line in re.findall(rf"limbeck {name}([^\n#]*)", "\n".join(blocks(path, ""))):
            for option in re.findall(r"(--[a-z-]+)", line):
                assert option in shown, f"limbeck {name} has no {option}"

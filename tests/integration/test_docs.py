"""Run the code in README and docs as it is printed there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from helpers.paths import ROOT
from helpers.tiny_models import VOCAB, tiny_model

from limbeck.models.vocabulary import make_wordpiece
from limbeck.recipes.recipe import load_recipe
from limbeck.study.loading import load_study
from limbeck.tasks import load_task

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


TITLES = (
    "Knowledge Distillation through Representational Alignment",
    "Feature Structure Distillation with Centered Kernel Alignment in BERT Transferring",
    "Towards Efficient Pre-Trained Language Model via Feature Correlation Distillation",
    "Intra-Class Similarity-Guided Feature Distillation",
)


def test_the_readme_opens_with_what_it_is_and_what_works():
    first, _, rest = (ROOT / "README.md").read_text().partition("## Install")
    words = " ".join(first.split())
    assert all(title in words for title in TITLES)
    places = [first.index(part) for part in ("pip install", "```python", "make demo", "make test")]
    assert places == sorted(places) and len(first.splitlines()) <= 45
    picture = re.search(r"!\[[^]]+\]\(https://[^)]+/(docs/[^)]+)\)", first + rest)
    assert picture is not None and picture[1] == "docs/front.png" and (ROOT / picture[1]).is_file()


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory):
    """Save a model with the labels of the demo's reviews."""
    folder = tmp_path_factory.mktemp("demo") / "student"
    task = load_task("reviews", size=100)
    make_wordpiece(task.split("train")["review"], folder, vocab_size=VOCAB)
    tiny_model("bert", depth=4, num_labels=len(task.label_names)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_blocks_run(path, tmp_path, demo_folder):
    for name in ("reviews-scratch-s0", "reviews-scratch-s0-quick"):
        (tmp_path / "demo-runs" / name / "teacher").mkdir(parents=True)
        (tmp_path / "demo-runs" / name / "teacher" / "student").symlink_to(demo_folder)
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

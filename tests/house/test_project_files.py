"""The files around the code (workflows, citation, issue forms, hooks) have their published form and fit each other."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from helpers.paths import ROOT

import limbeck

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
needs_schemas = pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="check-jsonschema is not installed")
REPOSITORY = "https://github.com/limbeck/limbeck"


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def checked(schema, files):
    """Return the exit code and the words of a check by a schema that comes with check-jsonschema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def steps(workflow):
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_tests_docs_and_release():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_an_end(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())
    for job in workflow["jobs"].values():  # only a job that runs none of the project's code may write
        assert "permissions" not in job or all("run" not in step for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_major_version(path):
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used and [name for name in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)", name)] == []


def test_targets_that_workflows_make_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    targets = {target for command in commands for target in re.findall(r"make (\w+)", command)}
    assert targets == {"test", "lowest", "docs"}
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_matrix_has_every_python_from_the_lowest_on():
    (lowest,) = re.findall(r'^requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    tests = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    assert tests["test"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(int(lowest), 14)]
    assert tests["lowest"]["steps"][1]["with"]["python-version"] == f"3.{lowest}"


@needs_schemas
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_a_file_is_of_its_published_form(schema, files):
    code, said = checked(schema, files)
    assert code == 0, said


@needs_schemas
def test_a_workflow_of_another_form_is_found(tmp_path):
    file = tmp_path / "tests.yml"
    file.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "run-on:"), encoding="utf-8")
    code, said = checked("github-workflows", [file])
    assert code != 0 and "run-on" in said


def test_the_citation_is_of_this_version_and_names_the_papers():
    citation = read(ROOT / "CITATION.cff")
    assert (citation["title"], citation["version"]) == ("limbeck", limbeck.__version__)
    methods = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert len(citation["references"]) == 4
    assert [work["title"] for work in citation["references"] if work["title"] not in methods] == []


def test_the_hooks_have_the_linters_version():
    (ruff,) = re.findall(r"^ruff==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = {repo["repo"].rpartition("/")[2]: repo["rev"] for repo in read(ROOT / ".pre-commit-config.yaml")["repos"]}
    assert hooks["ruff-pre-commit"] == f"v{ruff}"


def test_links_to_the_repository_are_of_one_address():
    files = [
        ROOT / name for name in ("CITATION.cff", "SECURITY.md", "zensical.toml", ".github/ISSUE_TEMPLATE/config.yml")
    ]
    links = [link for file in files for link in re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", file.read_text())]
    assert links and set(links) == {REPOSITORY}

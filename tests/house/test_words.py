"""The words of the tree: docstrings that open with a verb, papers by their authors, one version, one list of names."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.imperative import opens_with_a_verb
from helpers.source_tree import PACKAGE, ROOT, docstrings, modules, public_names, rooms

import limbeck

BESIDE_THE_PACKAGE = ["benchmarks", "evidence"]


def files_of(room):
    if room in BESIDE_THE_PACKAGE:
        return sorted((ROOT / room).rglob("*.py"))
    names = {f"{PACKAGE}.{room}", PACKAGE if room == "__init__" else None}
    return [file for name, file in modules(ROOT).items() if name in names or name.startswith(f"{PACKAGE}.{room}.")]


@pytest.mark.parametrize("room", [*sorted(rooms(ROOT) | {"__init__"}), *BESIDE_THE_PACKAGE])
def test_docstrings_open_with_a_verb(room):
    files = files_of(room)
    assert files
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in docstrings(file)
        if not opens_with_a_verb(text)
    ]
    assert not found, f"{len(found)} in {room}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Hold an exclusive lock on `folder`; released when the process exits.",
        "Return the rows of each shard, long ones first.",
        "Compute, for each layer, how far the student is.",
        "Fine-tune a teacher.",
        "Process the rows of one file.",
        "Apply the mask.",
        "Embed the tokens.",
        "Do nothing.",
    ],
)
def test_an_imperative_is_taken_for_one(text):
    assert opens_with_a_verb(text)


@pytest.mark.parametrize(
    "text",
    [
        "What is held while a folder is written.",
        "The rows of each shard.",
        "One pass over the data.",
        "Whether the hub can be reached.",
        "Returns the rows.",
        "Finished runs as pictures.",
        "Reading tables.",
        "Distillation of the logits.",
        "``python -m limbeck`` is the command.",
        "(B, L, D) to (B, D).",
        "CKA of two sets.",
        "Term: one part of a loss.",
        "limbeck: distil models.",
        "Student and objective as one module.",
        "Feature structure distillation.",
    ],
)
def test_other_openings_are_found(text):
    assert not opens_with_a_verb(text)


def test_papers_are_named_by_their_authors():
    numbered = re.compile(r"paper[ _-]?00[0-3]", re.IGNORECASE)
    folders = ["src", "docs", "benchmarks", "evidence", "tests", "results"]
    kinds = {".py", ".pyi", ".md", ".yaml", ".json", ".html", ".css", ".toml"}
    files = [*ROOT.glob("*.md"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in kinds}
    assert len(texts) > 300
    assert [str(file.relative_to(ROOT)) for file, text in texts.items() if numbered.search(text)] == []


def test_the_version_is_written_once():
    tree = ast.parse((ROOT / "src" / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (version,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__version__"]
    )
    assert version == limbeck.__version__
    written = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    # not CHANGELOG.md, whose headings are versions, nor constraints.txt, where others may have the same
    files = [ROOT / name for name in ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")]
    files += [
        file for folder in (f"src/{PACKAGE}", "evidence", "docs", "benchmarks") for file in (ROOT / folder).rglob("*")
    ]
    kinds = {".py", ".pyi", ".md", ".yaml", ".toml", ""}
    places = [
        file
        for file in files
        if file.is_file() and file.suffix in kinds and written.search(file.read_text(encoding="utf-8"))
    ]
    assert [str(file.relative_to(ROOT)) for file in places] == [f"src/{PACKAGE}/__init__.py"]


def test_dir_lists_the_public_names():
    assert set(dir(limbeck)) == public_names(ROOT)
    assert set(limbeck.__all__) == public_names(ROOT)

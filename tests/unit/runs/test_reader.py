"""Check that one reader without torch reads run directories, and that one place spells the names of their files."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_runs import make_run

import limbeck.runs
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import read_mapping
from limbeck.runs.reader import label_names, last_stage, own_task, read_history, read_run

PACKAGE = Path(limbeck.runs.__file__).parent.parent
HEAVY = ("torch", "transformers", "datasets")
RUN, STUDY = RunDirectory(Path("run")), StudyDirectory(Path("study"))
FILES = {
    *(RUN.recipe.name, RUN.environment.name, RUN.data.name, RUN.history.name, RUN.results.name, RUN.pruned.name),
    *(RUN.predictions().name, RUN.analysis_values.name, RUN.analysis_arrays.name),
    *(STUDY.description.name, STUDY.results.name),
}
FOLDERS = {
    *(RUN.student.name, RUN.checkpoints.name, RUN.teacher_cache.name, RUN.prepared.name, RUN.bad_batch.name),
    *(RUN.analysis.name, STUDY.runs.name),
}
# a name alone or at the end of a path, also one with wild cards; a sentence that mentions a name is none
FILE_LITERAL = re.compile(rf"([^\s/]*/)*({'|'.join(map(re.escape, sorted(FILES)))})")
PART_LITERAL = re.compile(r"([^\s/]*/)*(stage-|predictions-)\S*")


def literals_outside(source: str) -> list[str]:
    """Find the literals of a module that name a file of a run or study, or a folder of one that is joined to a path."""
    tree = ast.parse(source)
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node.body[0] for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    docstrings = {id(first.value) for first in documented if isinstance(first, ast.Expr)}
    joined = {
        id(node.right)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        is_file = FILE_LITERAL.fullmatch(node.value) or PART_LITERAL.fullmatch(node.value)
        if is_file or (id(node) in joined and node.value.partition("/")[0] in FOLDERS):
            found.append(f"{node.lineno}: {node.value}")
    return found


def test_reading_runs_loads_no_model():
    modules = [f"limbeck.runs.{file.stem}" for file in PACKAGE.glob("runs/[a-z]*.py")]
    assert {"limbeck.runs.directory", "limbeck.runs.files", "limbeck.runs.reader"} <= set(modules)
    code = f"import sys, {', '.join(modules)}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_names_of_files_are_spelled_in_one_place():
    modules = [file for file in sorted(PACKAGE.rglob("*.py")) if file.parent != PACKAGE / "runs"]
    assert len(modules) > 100
    found = {str(file.relative_to(PACKAGE)): literals_outside(file.read_text(encoding="utf-8")) for file in modules}
    assert {name: literals for name, literals in found.items() if literals} == {}


@pytest.mark.parametrize(
    ("line", "literals"),
    [
        ('file = folder / "recipe.yaml"', ["recipe.yaml"]),
        ('NAME = "results.json"', ["results.json"]),
        ('folder.glob("stage-*/metrics.json")', ["stage-*/metrics.json"]),
        ('folder.glob("predictions-*.parquet")', ["predictions-*.parquet"]),
        ('student = folder / "student"', ["student"]),
        ('values = {"student": 1, "analysis": 2}', []),
        ('raise ValueError(f"{folder} has no metrics.json yet")', []),
        ('def read():\n    """Read recipe.yaml"""', []),
        ('def read():\n    """recipe.yaml"""', []),
    ],
)
def test_names_are_told_from_words(line, literals):
    assert [found.partition(": ")[2] for found in literals_outside(line)] == literals


def test_stages_and_predictions_are_found_in_their_order(tmp_path):
    run = RunDirectory(tmp_path)
    for name in ("stage-10", "stage-2", "stage-x", "stages"):
        (tmp_path / name).mkdir()
    assert run.stages() == [run.stage(2), run.stage(10)]
    for split in ("", "validation_mismatched", "test"):
        run.predictions(split).touch()
    assert run.other_predictions() == {name: run.predictions(name) for name in ("test", "validation_mismatched")}


def test_a_run_begins_with_its_recipe_and_ends_with_its_results(tmp_path):
    run = RunDirectory(tmp_path)
    assert not run.exists and not run.finished
    run.recipe.touch()
    assert run.exists and not run.finished
    with pytest.raises(RunError, match=r"is no finished run: it has no metrics\.json yet.*--resume"):
        read_run(tmp_path)
    run.recipe.write_text("seed: 0\n")
    run.results.write_text('{"score": 0.5}\n')
    assert run.exists and run.finished


def test_the_runs_of_a_study_that_are_finished(tmp_path):
    study = StudyDirectory(tmp_path)
    assert study.finished_runs() == [] and not study.exists
    for name in ("b", "a"):
        make_run(study.runs / name, "kd", 1, 0.5)
    (study.runs / "c").mkdir()
    assert [run.path.name for run in study.finished_runs()] == ["a", "b"]


def test_the_task_of_the_last_stage(tmp_path):
    assert own_task(tmp_path) is None
    stages = [{"task": {"name": "first"}}, {"task": {"name": "last"}}]
    RunDirectory(tmp_path).recipe.write_text(json.dumps({"stages": stages}))
    assert own_task(tmp_path) == {"name": "last"}
    assert last_stage({"seed": 1}) == {"seed": 1}
    RunDirectory(tmp_path).recipe.write_text("{seed: 1}")
    with pytest.raises(RunError, match=r"recipe\.yaml does not hold the recipe of a run: 'task' is missing"):
        own_task(tmp_path)


def test_the_log_of_a_training(tmp_path):
    run = RunDirectory(tmp_path)
    run.history.write_text('{"step": 1}\n\n{"step": 2}\n3\n')
    assert read_history(run) == [{"step": 1}, {"step": 2}]
    run.history.write_text('{"step": 1}\n{"st')
    with pytest.raises(RunError, match=r"history\.jsonl is damaged"):
        read_history(run)


def test_labels_are_those_of_the_student(tmp_path):
    run = RunDirectory(tmp_path)
    assert label_names(run) == []
    run.student.mkdir()
    run.student_config.write_text('{"id2label": {"1": "b", "0": "a"}}')
    assert label_names(run) == ["a", "b"]


@pytest.mark.parametrize("content", ["[1]", '{"task', ""])
def test_a_damaged_file_is_named(tmp_path, content):
    file = tmp_path / "values.json"
    file.write_text(content)
    with pytest.raises(RunError, match=r"values\.json does not hold the answers: .+\. Copy it again"):
        read_mapping(file, "the answers")

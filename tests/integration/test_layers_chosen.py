"""Choose a student's layers through the command line: lists, best:N, and what goes on with them."""

from __future__ import annotations

import shutil

import pytest
import torch
import yaml
from helpers.saved_runs import assert_same_run, read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import recipe_values, table_task, table_words
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoModelForSequenceClassification

from limbeck import execute, load_recipe
from limbeck.models.families import blocks_of
from limbeck.training import layer_choosing

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture(scope="module")
def teacher(tokenizer, tmp_path_factory):
    """Save a 4-layer BERT whose last block forgets everything."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    model = tiny_model("bert", depth=4)
    model.config.id2label = {0: "negative", 1: "positive"}
    model.config.label2id = {"negative": 0, "positive": 1}
    norm = blocks_of(model)[3].output.LayerNorm
    torch.nn.init.zeros_(norm.weight)
    torch.nn.init.ones_(norm.bias)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write texts whose label is known from their first words, also where most of it is lost on the way."""
    folder = tmp_path_factory.mktemp("tables")
    rows = [
        [(f"{text} good fine happy bright" if label == "positive" else text, label) for text, label in sentences(n)]
        for n in (120, 30)
    ]
    return write_csv(folder / "train.csv", rows[0]), write_csv(folder / "dev.csv", rows[1])


@pytest.fixture()
def words(files, teacher):
    pair = ["--teacher", teacher, "teacher.confirmed=true", "--method", "kd", "train.max_steps=2", "--batch-size", 16]
    return ["distill", *table_words(files), *pair]


def kept(run):
    return yaml.safe_load((run / "recipe.yaml").read_text())["student"]["keep"]


@pytest.mark.parametrize(
    "given", [["--keep", "2,4"], ["--keep", "[2, 4]"], ["student.keep=[2,4]"], ["--keep", "spread:2"]]
)
def test_lists_and_strategies_on_the_command_line(command, words, teacher, tmp_path, given):
    code, said = command(*words, *given, "train.max_steps=1", "--learning-rate", "1e-12", "-o", "run")
    assert code == 0, said
    assert kept(tmp_path / "run") == ("spread:2" if "spread:2" in given else [2, 4])
    student, source = (
        AutoModelForSequenceClassification.from_pretrained(p) for p in (tmp_path / "run/student", teacher)
    )
    for ours, theirs in ((0, 1), (1, 3)):
        for name, weight in blocks_of(student)[ours].state_dict().items():
            torch.testing.assert_close(weight, blocks_of(source)[theirs].state_dict()[name], rtol=0, atol=1e-9)


def test_best_layers_are_shown_kept_and_run_again(command, words, tmp_path, monkeypatch):
    code, said = command(*words, "--keep", "best:2", "-o", "run")
    assert code == 0, said
    assert "Sets of layers (cross-validated accuracy of a fitted head, 120 training rows)" in said
    found = read_json(tmp_path / "run" / "layers.json")
    assert kept(tmp_path / "run") == found["chosen"] == found["candidates"][0]["layers"]
    assert f"The student keeps the layers {found['chosen']}." in said
    assert len(found["influence"]) == 4 and found["rows"] == 120 and found["metric"] == "accuracy"
    names = [name for candidate in found["candidates"] for name in candidate["proposed_by"]]
    assert sorted(names) == ["ends", "first", "halves", "influence", "influence of runs", "spread"]
    scores = {tuple(candidate["layers"]): candidate["score"] for candidate in found["candidates"]}
    assert found["chosen"] == [1, 2] and scores[1, 2] > scores[1, 4] + 0.1 and scores[1, 4] == scores[2, 4]

    # the recipe that was written, and the list on the command line, give the same run
    monkeypatch.setattr(layer_choosing, "compare_layers", None)
    assert command("distill", "run/recipe.yaml", "-o", "again")[0] == 0
    listed = ",".join(map(str, found["chosen"]))
    assert command(*words, "--keep", listed, "-o", "listed")[0] == 0
    for other in ("again", "listed"):
        assert_same_run(tmp_path / other, tmp_path / "run")
        assert not (tmp_path / other / "layers.json").exists()


def test_resume_goes_on_with_the_layers_that_were_chosen(command, words, tmp_path, monkeypatch):
    assert command(*words, "--keep", "best:2", "-o", "run")[0] == 0
    run = tmp_path / "run"
    code, said = command(*words, "--keep", "best:2", "-o", "run")
    assert code == 1 and "already holds a finished run" in said
    # had the comparison ended otherwise, and the run been killed
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["student"]["keep"] = [1, 3]
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (run / "metrics.json").unlink()
    shutil.rmtree(run / "student")
    monkeypatch.setattr(layer_choosing, "compare_layers", None)
    code, said = command(*words, "--keep", "best:2", "-o", "run", "--resume")
    assert code == 0 and kept(run) == [1, 3], said
    assert command(*words, "--keep", "1,3", "-o", "run", "--resume")[0] == 0
    code, said = command(*words, "--keep", "best:2", "-o", "run", "--resume")
    assert code == 0 and "finished already" in said
    code, said = command(*words, "--keep", "best:3", "-o", "run", "--resume")
    assert code == 1 and "it differs in: student.keep ([1, 3] there, 'best:3' now)" in said
    # a list that somebody gave was not measured
    (run / "layers.json").unlink()
    code, said = command(*words, "--keep", "best:2", "-o", "run", "--resume")
    assert code == 1 and "it differs in: student.keep ([1, 3] there, 'best:2' now)" in said


def test_a_run_killed_between_its_two_files_starts_again(command, words, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "layers.json").write_text("{}")
    assert command(*words, "--keep", "best:2", "-o", "run")[0] == 0
    assert read_json(tmp_path / "run" / "layers.json")["chosen"] == kept(tmp_path / "run")


def test_nothing_is_written_where_something_does_not_fit(command, words, tmp_path):
    code, said = command(*words, "--keep", "best:5", "-o", "run")
    assert code == 1 and "student.keep: 'best:5' asks for 5 layers, but the source has 4" in said
    assert not (tmp_path / "run").exists()


def test_a_language_model_has_no_head_to_compare_by(command, language_model, corpus, tmp_path):
    words = ["distill", "--task", "text", f"task.train={corpus}", "--max-length", 16, "--teacher", language_model]
    code, said = command(*words, "--method", "minilmv2", "--keep", "best:2", "train.max_steps=1", "-o", "run")
    assert code == 1 and not (tmp_path / "run").exists()
    assert "'best:2' compares layers by a head fitted to labels, and text has none. Write first:N, last:N" in said
    assert "best:N" not in said
    assert command(*words, "--method", "minilmv2", "--keep", "ends:2", "train.max_steps=1", "-o", "run")[0] == 0


def test_too_few_rows_are_said(command, words, tmp_path):
    few = write_csv(tmp_path / "few.csv", [("the cat", "positive"), ("the cat", "negative")])
    code, said = command(*words, f"task.train={few}", "--keep", "best:2", "-o", "run")
    assert code == 0, said
    assert "could not be compared: 2 training rows are too few. The student keeps [1, 4] (ends)" in said
    assert kept(tmp_path / "run") == [1, 4]
    assert read_json(tmp_path / "run" / "layers.json")["candidates"][0]["score"] is None


def test_layers_of_another_model_and_the_other_commands(command, words, tmp_path, files, teacher):
    code, said = command(*words, f"student={{from: {teacher}, keep: 'best:2'}}", "-o", "run")
    assert code == 0 and len(kept(tmp_path / "run")) == 2, said
    cache = ["cache", *words[1:], "--keep", "best:2", "-o", "features"]
    assert command(*[word for word in cache if word != "train.max_steps=2"])[0] == 0
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe_values(files, teacher, keep="best:2")))
    code, said = command("validate", "recipe.yaml")
    assert code == 0 and "best:2" in said
    code, said = command("validate", "recipe.yaml", "student.keep=better:2")
    assert code == 1 and "best:N or a list of blocks such as [1, 3, 5]" in said


def test_stages_share_what_was_chosen(files, teacher, tmp_path, monkeypatch):
    stages = [{"method": {"name": "kd"}}, {"method": {"name": "cka"}}]
    values = {name: block for name, block in recipe_values(files, teacher, keep="best:2").items() if name != "method"}
    recipe = load_recipe(values=values | {"stages": stages})
    run = execute(recipe, tmp_path / "run")
    chosen = read_json(run.path / "layers.json")["chosen"]
    assert kept(run.path) == kept(run.path / "stage-1") == chosen
    monkeypatch.setattr(layer_choosing, "compare_layers", None)
    run.results.unlink()
    assert execute(recipe, run.path, resume=True).finished and kept(run.path) == chosen


def test_the_runs_of_a_study_share_one_comparison(command, files, teacher, tmp_path, monkeypatch):
    calls = []
    compare = layer_choosing.compare_layers
    monkeypatch.setattr(layer_choosing, "compare_layers", lambda *a, **k: calls.append(1) or compare(*a, **k))
    task = {name: value for name, value in table_task(files).items() if name != "name"}
    study = {
        "tasks": ["table"],
        "task": task,
        "teacher": {"fine_tuned": str(teacher), "confirmed": True},
        "student": {"from": "teacher", "keep": "best:2"},
        "methods": ["kd", "cka"],
        "train": {"max_steps": 2, "batch_size": 16},
        "seeds": [1, 2],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    code, said = command("study", "study.yaml", "--dry-run")
    assert code == 0 and calls == [], said
    code, said = command("study", "study.yaml", "-o", "out")
    assert code == 0 and calls == [1], said
    runs = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(runs) == 4 and len({tuple(kept(run)) for run in runs}) == 1
    (shared,) = (tmp_path / "out" / "layers").iterdir()
    assert all((run / "layers.json").read_text() == shared.read_text() for run in runs)
    # started again, it does what is missing, under the same name; a damaged choice is made again
    shutil.rmtree(runs[0])
    shared.write_text("{")
    code, said = command("study", "study.yaml", "-o", "out")
    assert code == 0 and calls == [1, 1] and sorted((tmp_path / "out" / "runs").iterdir()) == runs

"""Add a family in a file of one's own, without a change to limbeck: train, distil, export, serve, in workers too."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import yaml
from helpers.own_family import write_own_family
from helpers.saved_runs import read_json
from helpers.tiny_recipes import table_task, table_words
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import RunDirectory
from limbeck._internal import own_code
from limbeck.models import families


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(families, "_registered", {})
    monkeypatch.setattr(own_code, "_imported", [])  # later tests' workers would import it too
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_family_in_a_users_file_from_the_first_model_to_its_export(command, table_files, tokenizer_folder, tmp_path):
    write_own_family(tmp_path, "my_family", "my-bert")
    own, words = ["--import", "my_family"], table_words(table_files)
    made = ["student.config={model_type: my-bert}", f"student.tokenizer={tokenizer_folder}", "train.max_steps=10"]
    code, said = command("finetune", *words[1:], *made, "-o", "teacher")
    assert code == 1 and "Unknown model_type 'my-bert'" in said
    code, said = command("finetune", *words[1:], *made, "--learning-rate", "3e-3", *own, "-o", "teacher")
    assert code == 0, said
    assert read_json(tmp_path / "teacher" / "student" / "config.json")["model_type"] == "my-bert"

    learn = ["--teacher", "teacher", "teacher.confirmed=true", "--keep", "first:2", "train.max_steps=3", *own]
    for method in ("fcd", "minilm"):  # the second compares the raw scores that the file says are there
        code, said = command("distill", *words, "--method", method, *learn, "-o", method)
        assert code == 0, said
    code, said = command("export", "fcd", "--to", "hf", "--examples", "8", *own, "-o", "small")
    assert code == 0, said
    code, said = command("predict", "small", table_files[1], *own, "-o", "answers.csv")
    assert code == 0, said

    again = AutoModelForSequenceClassification.from_pretrained("small").eval()
    student = AutoModelForSequenceClassification.from_pretrained(RunDirectory(tmp_path / "fcd").student).eval()
    assert again.config.num_hidden_layers == 2 and type(again).__module__ == "my_family"
    batch = AutoTokenizer.from_pretrained("small")(["the cat sees"], return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, student(**batch).logits)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", r"--import nowhere: module 'nowhere' cannot be imported (ModuleNotFoundError"),
        ("my_family.py", "this is the name of a file. Write the module's name as Python imports it"),
        ("broken", "module 'broken' cannot be imported (ModelError: The family 'bert' is one of limbeck's own"),
    ],
)
def test_modules_that_cannot_be_imported(command, name, message, tmp_path):
    code = "import limbeck\nlimbeck.register_family('bert', limbeck.Family('a', 'b', 'c', 'd'))\n"
    (tmp_path / "broken.py").write_text(code)
    code, said = command("evaluate", "model", "--import", name)
    assert code == 1 and message in said


@pytest.mark.parametrize("field", ["import", "imports", "modules", "families", "model_type"])
def test_no_file_can_name_a_module(command, field, table_files, teacher_folder, tmp_path):
    """Put a module's name wherever a recipe or a model's config might have had a place for it."""
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    model = tmp_path / "model"
    model.mkdir()
    for file in teacher_folder.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = read_json(model / "config.json") | {field: "theirs"}
    (model / "config.json").write_text(json.dumps(config))
    values = {"task": table_task(table_files), "teacher": {"model": "model"}, "student": {"from": "teacher"}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values | {field: "theirs", "method": {"name": "kd"}}))
    command("distill", recipe, "train.max_steps=1", "-o", "out")
    command("evaluate", model, *table_words(table_files))
    assert not (tmp_path / "imported").exists() and "theirs" not in sys.modules


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_of_a_study_know_the_family(limbeck, table_files, tokenizer_folder, tmp_path):
    write_own_family(tmp_path, "my_study_family", "my-study-bert")
    own = ["--import", "my_study_family"]
    made = ["student.config={model_type: my-study-bert}", f"student.tokenizer={tokenizer_folder}"]
    limbeck("finetune", *table_words(table_files)[1:], *made, "train.max_steps=2", *own, "-o", "teacher")
    values = {
        "tasks": ["table"],
        "task": {key: value for key, value in table_task(table_files).items() if key != "name"},
        "teacher": {"fine_tuned": "teacher", "cache": "off", "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
        "methods": ["ft", "fcd"],
        "train": {"max_steps": 1, "batch_size": 16},
        "seeds": [0],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values))
    done = limbeck("study", "study.yaml", "--workers", 2, "-o", "out", check=False)
    assert "my-study-bert" in done.stderr
    limbeck("study", "study.yaml", "--workers", 2, *own, "-o", "out")
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    limbeck(
        "bench", *sorted((tmp_path / "out" / "runs").iterdir()), "--seconds", 1, "--batch-size", 1, "--length", 4, *own
    )


def test_a_package_that_is_installed_needs_no_option(command, table_files, tokenizer_folder, tmp_path):
    """Lay down what pip would: a module, and beside it a folder that names its entry points."""
    place = tmp_path / "site"
    about = place / "own-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[limbeck.families]\nown-bert = own_package:FAMILY\n")
    file = write_own_family(place, "own_package", "own-bert")
    file.write_text(file.read_text().replace('limbeck.register_family(\n    "own-bert", ', "FAMILY = ("))
    sys.path.append(str(place))
    families.register_installed.cache_clear()
    made = ["student.config={model_type: own-bert}", f"student.tokenizer={tokenizer_folder}", "train.max_steps=2"]
    code, said = command("finetune", *table_words(table_files)[1:], *made, "-o", "run")
    assert code == 0, said
    assert command("evaluate", "run")[0] == 0
    families.register_installed.cache_clear()

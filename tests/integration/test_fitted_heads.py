"""Start students with fitted, fresh and kept heads, through the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from helpers.killing import kill_after, write_slow_methods
from helpers.saved_runs import assert_same_weights, read_json, results, student_weights
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import distill_words, table_words
from helpers.tiny_tables import sentences, write_csv
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import limbeck as package
from limbeck.errors import DataError

STILL = ["train.max_steps=1", "train.learning_rate=1e-30"]  # less than any weight can change by


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, tokenizer_folder):
    """Save an encoder without a head, with weights large enough that its features differ."""
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    tiny_model("bert", depth=2, initializer_range=0.3).base_model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


def finetune(command, files, model, *more):
    words = table_words(files)
    return command("finetune", words[1], "--model", model, *words[2:], *STILL, "-o", "run", *more)


def head_of(folder):
    return student_weights(folder)["classifier.weight"]


def test_finetune_fits_a_new_head_and_says_what_it_reached(command, table_files, encoder, tmp_path):
    code, said = finetune(command, table_files, encoder)
    assert code == 0 and "Head fitted to 96 training rows: accuracy" in said, said
    found = read_json(tmp_path / "run" / "metrics.json")
    start = found["start"]
    assert start["head"] == "fitted" and start["rows"] == 96 and start["score"] == found["score"]
    assert 0 < start["cross_validated"]["score"] <= 1 and "kept" not in start
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["student"]["head"] == "fitted"
    # the run that recipe.yaml describes is the same one
    assert command("distill", "run/recipe.yaml", "-o", "again")[0] == 0
    assert_same_weights(tmp_path / "again", tmp_path / "run")


def test_the_students_answers_are_those_of_scikit_learn(command, table_files, encoder, tokenizer, tmp_path):
    assert finetune(command, table_files, encoder)[0] == 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "student").eval()
    rows = sentences(96)

    def pooled(texts):
        with torch.no_grad():
            return np.stack([model.bert(**tokenizer(text, return_tensors="pt")).pooler_output[0] for text in texts])

    strength = read_json(tmp_path / "run" / "metrics.json")["start"]["strength"]
    own = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000, tol=1e-9))
    own.fit(pooled([text for text, _ in rows]), [label for _, label in rows])
    texts = [text for text, _ in sentences(40, seed=1)]
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    assert torch.stack(logits).softmax(-1).numpy() == pytest.approx(own.predict_proba(pooled(texts)), abs=2e-2)


@pytest.mark.parametrize("head", ["fitted", "kept", "fresh", None])
def test_a_student_of_the_teachers_layers(command, table_files, teacher_folder, tmp_path, head):
    asked = f"student.head={head or 'null'}"
    words = distill_words(table_files, teacher_folder, "--method", "kd", *STILL, asked)
    code, said = command("distill", *words, "-o", "run")
    assert code == 0, said
    start = read_json(tmp_path / "run" / "metrics.json")["start"]
    assert start["head"] == (head or "fitted")
    teachers = load_file(teacher_folder / "model.safetensors")["classifier.weight"]
    assert torch.equal(head_of(tmp_path / "run"), teachers) == (head == "kept")
    assert ("kept" in start) == (head in ("fitted", None))
    if head == "fresh":
        assert head_of(tmp_path / "run").std() < 0.05 and "score" not in start


def test_features_that_hardly_differ_are_said(command, table_files, teacher_folder, encoder, tmp_path):
    """Expect a warning of the teacher with small random weights, and none of the encoder with large ones."""
    words = distill_words(table_files, teacher_folder, "--method", "kd", *STILL, "student.head=fitted")
    code, said = command("distill", *words, "-o", "alike")
    assert code == 0 and "hardly differs between texts" in said, said
    assert read_json(tmp_path / "alike" / "metrics.json")["start"]["spread"] < 0.02
    code, said = finetune(command, table_files, encoder)
    assert code == 0 and "hardly differs" not in said
    assert read_json(tmp_path / "run" / "metrics.json")["start"]["spread"] > 0.02


def test_a_model_with_a_head_for_the_task_keeps_it(command, table_files, teacher_folder, tmp_path):
    assert finetune(command, table_files, teacher_folder)[0] == 0
    teachers = load_file(teacher_folder / "model.safetensors")["classifier.weight"]
    assert torch.equal(head_of(tmp_path / "run"), teachers)
    assert read_json(tmp_path / "run" / "metrics.json")["start"]["head"] == "kept"


def test_kept_where_there_is_no_head_is_fresh(command, table_files, encoder, tmp_path):
    assert finetune(command, table_files, encoder, "student.head=kept")[0] == 0
    assert read_json(tmp_path / "run" / "metrics.json")["start"]["head"] == "fresh"


def test_a_worse_start_than_the_head_that_was_there_is_said(command, table_files, encoder, tmp_path):
    """Train rows with the labels turned round, which the model with its old head knows better."""
    assert finetune(command, table_files, encoder)[0] == 0
    turned = write_csv(
        tmp_path / "turned.csv",
        [(text, "positive" if label == "negative" else "negative") for text, label in sentences(96)],
    )
    words = table_words((turned, table_files[1]))
    code, said = command(
        *("finetune", words[1], "--model", "run", *words[2:], *STILL, "-o", "worse", "student.head=fitted")
    )
    assert code == 0 and "The fitted head starts worse than the one it replaces" in said, said


@pytest.mark.parametrize("asked", [True, False])
def test_texts_that_are_all_equal(command, table_files, encoder, tmp_path, asked):
    constant = write_csv(tmp_path / "constant.csv", [("the cat", label) for _, label in sentences(40)])
    more = ["student.head=fitted"] if asked else []
    code, said = finetune(command, (constant, table_files[1]), encoder, *more)
    assert "A head cannot be fitted to 40 training rows that all have the same text" in said
    if asked:
        assert code == 1 and not (tmp_path / "run").exists()
    else:
        assert code == 0 and "Training starts with the head as it is (fresh)" in said
        assert read_json(tmp_path / "run" / "metrics.json")["start"]["head"] == "fresh"


def test_a_language_model_keeps_its_head(command, language_model, corpus, tmp_path):
    words = ["finetune", "text", "--model", language_model, f"task.train={corpus}", "task.max_length=16", *STILL]
    code, said = command(*words, "student.head=fitted", "-o", "run")
    assert code == 0 and "student.head=fitted changes nothing for a language model" in said, said
    assert "start" not in read_json(tmp_path / "run" / "metrics.json")


def test_a_stage_without_logits_leaves_the_head_to_the_next(command, table_files, teacher_folder, tmp_path):
    words = distill_words(table_files, teacher_folder, "--method", "tinybert", *STILL, "student.head=null")
    code, said = command("distill", *words, "-o", "run")
    assert code == 0, said
    first, last = (read_json(tmp_path / part / "metrics.json")["start"] for part in ("run/stage-1", "run"))
    assert first == {"head": "kept", "trained": False} and last["head"] == "fitted"


@pytest.mark.slow
@pytest.mark.chaos
def test_killed_and_resumed_starts_from_the_same_head(command, table_files, teacher_folder, tmp_path):
    """Kill it once before the first checkpoint, so that the head is fitted again, and once after it."""
    write_slow_methods(tmp_path)
    settings = ["method.name=slow:kd", "train.max_steps=12", "train.save_steps=6", "student.head=fitted"]
    words = ["distill", *distill_words(table_files, teacher_folder, *settings)]
    assert command(*words, "-o", "whole")[0] == 0
    for moment in ("start.json", "checkpoints/checkpoint-6/trainer_state.json"):
        assert kill_after(tmp_path / "broken" / moment, *words, "-o", "broken", "--resume", cwd=tmp_path)
    assert command(*words, "-o", "broken", "--resume")[0] == 0
    assert_same_weights(tmp_path / "broken", tmp_path / "whole")
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    assert read_json(tmp_path / "broken" / "metrics.json")["start"]["head"] == "fitted"


def test_fit_head_takes_texts_and_labels(encoder, tokenizer):
    names = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    texts, labels = zip(*sentences(96), strict=True)
    models = [AutoModelForSequenceClassification.from_pretrained(encoder, **names) for _ in range(3)]
    by_name = package.fit_head(models[0], tokenizer, texts, labels)
    by_number = package.fit_head(models[1], tokenizer, texts, [names["label2id"][label] for label in labels])
    assert by_name == by_number and by_name.metric == "accuracy" and by_name.rows == 96
    assert torch.equal(models[0].classifier.weight, models[1].classifier.weight)
    pairs = package.fit_head(models[2], tokenizer, [(text, "the dog") for text in texts], labels)
    assert not torch.equal(models[2].classifier.weight, models[1].classifier.weight) and pairs.rows == 96
    with pytest.raises(DataError, match="The label 'good' is none of the model's: negative, positive"):
        package.fit_head(models[0], tokenizer, texts, ["good"] * 96)
    with pytest.raises(DataError, match="96 texts and 95 labels"):
        package.fit_head(models[0], tokenizer, texts, labels[1:])
    with pytest.raises(DataError, match=r"a datasets\.Dataset with the columns"):
        package.fit_head(models[0], tokenizer, texts)

"""Real GLUE data and a real pre-trained encoder, where they are at hand."""

from __future__ import annotations

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import SHARED, read_json
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import METHODS, execute, load_recipe
from limbeck.tasks import load_task
from limbeck.tokenizer import make_wordpiece

GLUE = SHARED / "data" / "glue"
ENCODER = SHARED / "models" / "gte-small"

pytestmark = pytest.mark.real
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="real GLUE data are not at ../shared/data/glue")
needs_encoder = pytest.mark.skipif(not ENCODER.is_dir(), reason="the real encoder is not at ../shared/models/gte-small")

SMALL = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
OFFICIAL = {
    "cola": ["mcc"],
    "mrpc": ["accuracy", "f1"],
    "rte": ["accuracy"],
    "stsb": ["pearson", "spearman"],
    "sst2": ["accuracy"],
    "wnli": ["accuracy"],
    "qnli": ["accuracy"],
    "qqp": ["accuracy", "f1"],
    "mnli": ["accuracy"],
}


@needs_glue
@pytest.mark.parametrize("name", OFFICIAL)
def test_a_teacher_for_each_glue_task(name, tmp_path):
    run = teach(name, tmp_path)
    assert list(run.metrics()["metrics"]) == OFFICIAL[name]
    assert run.metrics()["examples"] == len(load_task(f"glue/{name}", data_dir=str(GLUE)).split("validation"))


@pytest.fixture(scope="module")
def small_teacher(tmp_path_factory):
    """A small teacher for a task, made once."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            teach(name, made[name])
        return made[name] / "teacher"

    return make


def teach(name, folder):
    task = load_task(f"glue/{name}", data_dir=str(GLUE))
    small = task.split("train").select(range(500))
    make_wordpiece((text for column in task.text_columns for text in small[column]), folder / "words", 800)
    student = {"config": SMALL, "tokenizer": str(folder / "words")}
    return execute(
        load_recipe(values=common(name) | {"student": student, "method": {"name": "ft"}}), folder / "teacher"
    )


def common(name):
    return {
        "task": {"name": f"glue/{name}", "data_dir": str(GLUE), "max_length": 32},
        "train": {"max_steps": 3, "batch_size": 32},
    }


FOUR_TASKS = ("rte", "stsb", "cola", "mrpc")


@needs_glue
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [*FOUR_TASKS[:2], *(pytest.param(t, marks=pytest.mark.slow) for t in FOUR_TASKS[2:])])
def test_every_method_on_real_data(name, method, small_teacher, tmp_path):
    blocks = {"teacher": {"model": str(small_teacher(name))}, "student": {"from": "teacher", "keep": "first:2"}}
    run = execute(load_recipe(values=common(name) | blocks | {"method": {"name": method}}), tmp_path / method)
    assert list(run.metrics()["metrics"]) == OFFICIAL[name]
    exported = load_file(run.student / "model.safetensors")
    assert all(key.startswith(("bert.", "classifier.")) for key in exported)  # no memory, no projector


@needs_glue
@needs_encoder
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rte", "cola"])
def test_a_real_encoder_on_real_data_through_the_command_line(name, limbeck, tmp_path):
    data = ["--data-dir", GLUE, "--max-length", "64", "--batch-size", "16"]
    limbeck("finetune", f"glue/{name}", "--model", ENCODER, *data, "train.max_steps=4", "-o", "teacher")
    keep = ["--teacher", "teacher", "--keep", "uniform:3"]
    limbeck("distill", "--task", f"glue/{name}", "--method", "kd", *data, *keep, "train.max_steps=4", "-o", "kd")
    metrics = read_json(tmp_path / "kd" / "metrics.json")
    assert list(metrics["metrics"]) == OFFICIAL[name]
    assert metrics["parameters"] < 0.6 * metrics["teacher"]["parameters"]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "kd" / "student")
    assert model.config.num_hidden_layers == 3 and model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "kd" / "student")("a test")["input_ids"]
    taught = load_file(tmp_path / "teacher" / "student" / "model.safetensors")
    kept = load_file(tmp_path / "kd" / "student" / "model.safetensors")
    # the third student layer started as the teacher's last and has moved only a little in four steps
    name = "attention.self.query.weight"
    difference = kept[f"bert.encoder.layer.2.{name}"] - taught[f"bert.encoder.layer.11.{name}"]
    assert 0 < difference.abs().max() < 1e-2


@needs_glue
@needs_encoder
@pytest.mark.slow
def test_stages_of_a_real_encoder_through_the_command_line(limbeck, tmp_path):
    """TinyBERT on MRPC, and a stage on plain text before the task."""
    data = ["--data-dir", GLUE, "--max-length", "64", "--batch-size", "16", "train.max_steps=3"]
    limbeck("finetune", "glue/mrpc", "--model", ENCODER, *data, "-o", "teacher")
    keep = ["--teacher", "teacher", "--keep", "uniform:3"]
    limbeck("distill", "--method", "tinybert", "--task", "glue/mrpc", *data, *keep, "-o", "tinybert")
    rows = load_task("glue/rte", data_dir=str(GLUE)).split("train")["sentence1"]
    (tmp_path / "corpus.txt").write_text("\n".join(rows))
    shared = {"student": {"from": "teacher", "keep": "uniform:3"}, "train": {"max_steps": 3, "batch_size": 8}}
    text = {"name": "text", "train": "corpus.txt", "max_length": 32}
    general = {"task": text, "teacher": {"model": str(ENCODER)}, "method": {"name": "minilmv2", "relation_heads": 48}}
    mrpc = {"name": "glue/mrpc", "data_dir": str(GLUE)}
    task = {"task": mrpc, "teacher": {"model": "teacher"}, "method": {"name": "kd"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(shared | {"stages": [general, task]}))
    limbeck("distill", "recipe.yaml", "-o", "general")
    for run in ("tinybert", "general"):
        assert list(read_json(tmp_path / run / "metrics.json")["metrics"]) == OFFICIAL["mrpc"]
        AutoModelForSequenceClassification.from_pretrained(tmp_path / run / "student")
    assert read_json(tmp_path / "general" / "stage-1" / "metrics.json")["task"] == "text"

"""Real GLUE data and a real pre-trained encoder, where they are at hand."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tiny import SHARED, read_json
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import execute, load_recipe
from limbeck.tasks import load_task
from limbeck.tokenizer import train_wordpiece

GLUE = SHARED / "data" / "glue"
ENCODER = SHARED / "models" / "gte-small"

pytestmark = pytest.mark.real
needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="real GLUE data are not at ../shared/data/glue")
needs_encoder = pytest.mark.skipif(not ENCODER.is_dir(), reason="the real encoder is not at ../shared/models/gte-small")

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
def test_teacher_and_student_on_each_glue_task(name, tmp_path):
    task = load_task(f"glue/{name}", data_dir=str(GLUE))
    small = task.split("train").select(range(500))
    train_wordpiece((text for column in task.text_columns for text in small[column]), tmp_path / "words", 800)
    config = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 32, "max_position_embeddings": 64}
    common = {
        "task": {"name": f"glue/{name}", "data_dir": str(GLUE), "max_length": 32},
        "train": {"max_steps": 3, "batch_size": 32},
    }
    student = {"config": config, "tokenizer": str(tmp_path / "words")}
    teacher = execute(load_recipe(values=common | {"student": student, "method": {"name": "ft"}}), tmp_path / "teacher")
    blocks = {"teacher": {"model": str(teacher.path)}, "student": {"from": "teacher", "keep": "first:1"}}
    run = execute(load_recipe(values=common | blocks | {"method": {"name": "kd"}}), tmp_path / "kd")
    assert list(run.metrics()["metrics"]) == OFFICIAL[name]
    assert run.metrics()["examples"] == len(task.split("validation"))


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

"""Train on real data and with a real pre-trained encoder, where they are at hand."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from helpers.real_data import BANKING, CLINC, ENCODER, GLUE, SQUAD, WNUT, needs_encoder, needs_glue
from helpers.saved_runs import read_json
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import METHODS, execute, load_recipe
from limbeck.models.vocabulary import make_wordpiece
from limbeck.tasks import load_task

pytestmark = pytest.mark.real

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


LARGE = ("sst2", "qnli", "qqp", "mnli")


@needs_glue
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in OFFICIAL])
def test_a_teacher_for_each_glue_task(name, tmp_path):
    run = teach(name, tmp_path)
    assert list(run.metrics()["metrics"]) == OFFICIAL[name]
    assert run.metrics()["examples"] == len(load_task(f"glue/{name}", data_dir=str(GLUE)).split("validation"))


@pytest.fixture(scope="module")
def small_teacher(tmp_path_factory):
    """Make a small teacher for a task, once."""
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


def tasks_and_methods():
    """Give every method on the smallest task and one method on two others to the usual run; the others are slow."""
    for name, method in product(("wnli", "rte", "stsb", "cola", "mrpc"), METHODS):
        usual = name == "wnli" or (name in ("rte", "stsb") and method == "kd")
        yield pytest.param(name, method, id=f"{name}-{method}", marks=() if usual else pytest.mark.slow)


@needs_glue
@pytest.mark.parametrize(("name", "method"), list(tasks_and_methods()))
def test_every_method_on_real_data(name, method, small_teacher, tmp_path):
    blocks = {
        "teacher": {"model": str(small_teacher(name)), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
    }
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
    keep = ["--teacher", "teacher", "teacher.confirmed=true", "--keep", "uniform:3"]
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
    """Run TinyBERT on MRPC, and a stage on plain text before the task."""
    data = ["--data-dir", GLUE, "--max-length", "64", "--batch-size", "16", "train.max_steps=3"]
    limbeck("finetune", "glue/mrpc", "--model", ENCODER, *data, "-o", "teacher")
    keep = ["--teacher", "teacher", "teacher.confirmed=true", "--keep", "uniform:3"]
    limbeck("distill", "--method", "tinybert", "--task", "glue/mrpc", *data, *keep, "-o", "tinybert")
    rows = load_task("glue/rte", data_dir=str(GLUE)).split("train")["sentence1"]
    (tmp_path / "corpus.txt").write_text("\n".join(rows))
    shared = {"student": {"from": "teacher", "keep": "uniform:3"}, "train": {"max_steps": 3, "batch_size": 8}}
    text = {"name": "text", "train": "corpus.txt", "max_length": 32}
    general = {"task": text, "teacher": {"model": str(ENCODER)}, "method": {"name": "minilmv2", "relation_heads": 48}}
    mrpc = {"name": "glue/mrpc", "data_dir": str(GLUE)}
    task = {"task": mrpc, "teacher": {"model": "teacher", "confirmed": True}, "method": {"name": "kd"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(shared | {"stages": [general, task]}))
    limbeck("distill", "recipe.yaml", "-o", "general")
    for run in ("tinybert", "general"):
        assert list(read_json(tmp_path / run / "metrics.json")["metrics"]) == OFFICIAL["mrpc"]
        AutoModelForSequenceClassification.from_pretrained(tmp_path / run / "student")
    assert read_json(tmp_path / "general" / "stage-1" / "metrics.json")["task"] == "text"


# Answers, tags and intents


def small_squad(version, folder):
    """Write some paragraphs of the real files, as files of the same format."""
    for stem, paragraphs in (("train", 12), ("dev", 6)):
        content = read_json(SQUAD / f"{stem}-v{version}.json")
        for article in content["data"]:
            article["paragraphs"] = article["paragraphs"][:paragraphs]
        content["data"] = content["data"][:2]
        (folder / f"{stem}-v{version}.json").write_text(json.dumps(content))
    return {"name": f"squad/{version}", "data_dir": str(folder), "max_length": 96, "stride": 32}


def entities():
    names = {"train": "train", "validation": "dev", "test": "test"}
    return {"name": "tokens", "max_length": 48} | {split: str(WNUT / f"{stem}.conll") for split, stem in names.items()}


def banking(folder):
    """Let its test file stand in for the validation file that it does not have."""
    files = {"train": str(BANKING / "train.csv"), "validation": str(BANKING / "test.csv")}
    return {"name": "table", "text": "text", "label": "category", "max_length": 48} | files


def clinc(folder):
    """Write 150 intents, and texts that have none of them as a class of its own."""
    content = read_json(CLINC / "data_small.json")
    files = {}
    for split, stem in (("train", "train"), ("validation", "val"), ("test", "test")):
        rows = content[stem] + content[f"oos_{stem}"]
        files[split] = str(folder / f"{split}.jsonl")
        lines = [json.dumps({"text": text, "intent": intent}) + "\n" for text, intent in rows]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return {"name": "table", "text": "text", "label": "intent", "max_length": 32} | files


OTHERS = {
    "squad/1.1": (lambda folder: small_squad("1.1", folder), ["f1", "exact_match"], None),
    "squad/2.0": (
        lambda folder: small_squad("2.0", folder),
        [
            *("f1", "exact_match", "has_answer_f1", "has_answer_exact_match"),
            *("no_answer_f1", "no_answer_exact_match", "best_f1", "best_exact_match"),
        ],
        None,
    ),
    "wnut17": (lambda _: entities(), ["entity_f1", "entity_precision", "entity_recall", "token_accuracy"], 1009),
    "banking77": (banking, ["accuracy", "macro_f1"], 3080),
    "clinc150": (clinc, ["accuracy", "macro_f1"], 3100),
}
needs_others = pytest.mark.skipif(
    not all(folder.is_dir() for folder in (SQUAD, WNUT, BANKING, CLINC)),
    reason="real SQuAD, wnut17, banking77 and clinc150 data are not at ../shared/data",
)


@needs_others
@pytest.mark.parametrize("name", OTHERS)
def test_a_teacher_and_a_student_for_answers_tags_and_intents(name, tmp_path):
    make, metrics, examples = OTHERS[name]
    block = make(tmp_path)
    task = load_task(block["name"], **{key: value for key, value in block.items() if key not in ("name", "max_length")})
    rows = task.split("train").select(range(300))
    columns = [rows[column] for column in task.text_columns]
    texts = (" ".join(text) if isinstance(text, list) else text for column in columns for text in column)
    make_wordpiece(texts, tmp_path / "words", 800)
    shared = {"task": block, "train": {"max_steps": 3, "batch_size": 16}}
    student = {"config": SMALL | {"max_position_embeddings": 96}, "tokenizer": str(tmp_path / "words")}
    teacher = execute(load_recipe(values=shared | {"student": student, "method": {"name": "ft"}}), tmp_path / "teacher")
    pair = {
        "teacher": {"model": str(teacher.path), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
    }
    taught = execute(load_recipe(values=shared | pair | {"method": {"name": "kd"}}), tmp_path / "kd")
    for run in (teacher, taught):
        assert list(run.metrics()["metrics"]) == metrics
        assert run.metrics()["examples"] == (examples or len(task.split("validation")))
    assert list(taught.metrics()["teacher"]["metrics"]) == metrics


@needs_others
@needs_encoder
@pytest.mark.slow
def test_a_real_encoder_learns_intents(tmp_path):
    """Score far above the 1.3% of chance after a few steps, which mixed up labels would not allow."""
    task = banking(tmp_path)
    with Path(task["validation"]).open(newline="") as file:
        rows = list(csv.reader(file))
    task["validation"] = str(tmp_path / "dev.csv")
    with Path(task["validation"]).open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *rows[1::8]])
    train = {"max_steps": 30, "batch_size": 16, "learning_rate": 5e-4, "eval_strategy": "no", "save_strategy": "no"}
    values = {"task": task, "student": {"model": str(ENCODER)}, "method": {"name": "ft"}, "train": train}
    assert execute(load_recipe(values=values), tmp_path / "run").metrics()["score"] > 0.05

"""Train, save, reload, evaluate and predict with every family, every kind of task and seven methods, two steps each.

A family is tried with the tasks that transformers has a head for. The usual run takes every family with ``kd`` (the
newer ones with labels of texts only) and every method on BERT; the others are slow.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.saved_runs import history
from helpers.tiny_models import DECODERS, NEWER, tiny_model, with_heads
from helpers.tiny_recipes import tiny_recipe
from helpers.tiny_tables import sentences, write_csv
from helpers.tiny_tokenizers import STYLES, make_bpe
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from limbeck import evaluate, execute, load_task, predict_file
from limbeck.models.heads import label_config
from limbeck.tasks import Task

pytestmark = pytest.mark.usefixtures("quick_collection")
HEADS = {
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "multi_label": AutoModelForSequenceClassification,
    "tokens": AutoModelForTokenClassification,
    "span": AutoModelForQuestionAnswering,
}
METHODS: dict[str, dict[str, Any]] = {
    "kd": {},
    "cka": {},
    "shape": {},
    "fsd": {"memory": 4, "passes": 1},
    "fcd": {},
    "ics": {},
    "minilmv2": {},
}
ANIMALS, COLOURS = ("cat", "dog", "bird", "fish"), ("red", "dark", "bright")
TEXTS = {"train": sentences(16), "dev": sentences(8, seed=1)}
MAX_LENGTH = 24


@dataclass(frozen=True)
class Setting:
    """Hold what a recipe says of a family and a kind of task, and the validation data as a file to predict for."""

    block: dict[str, Any]
    task: Task
    teacher: Path
    file: Path
    columns: list[str]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Callable[[str, str], Setting]:
    """Make the teacher and the data of a family and a kind of task, once for each."""
    home = tmp_path_factory.mktemp("matrix")
    words = {style: make_bpe(home / style, style) for style in ("roberta", "gpt2", "llama")}
    data = {problem: write_data(problem, home / problem) for problem in HEADS}
    tasks = {
        problem: load_task(**{key: value for key, value in block.items() if key != "max_length"})
        for problem, (block, *_) in data.items()
    }
    made: dict[tuple[str, str], Setting] = {}

    def make(family: str, problem: str) -> Setting:
        if (family, problem) not in made:
            (block, file, columns), task = data[problem], tasks[problem]
            folder = home / family / problem
            tokenizer = AutoTokenizer.from_pretrained(words.get(STYLES.get(family, ""), tokenizer_folder))
            special = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            if family in DECODERS and tokenizer.eos_token_id is not None:
                special |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
            teacher = tiny_model(family, 3, task.num_labels, problem=problem, **special, **label_config(task))
            teacher.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[family, problem] = Setting(block, task, folder, file, columns)
        return made[family, problem]

    return make


def combinations():
    for (family, problem), method in product(with_heads(HEADS), METHODS):
        often = family == "bert" or (method == "kd" and (family not in NEWER or problem == "classification"))
        marks = [] if often else [pytest.mark.slow]
        yield pytest.param(family, problem, method, id=f"{family}-{problem}-{method}", marks=marks)


@pytest.mark.parametrize(("family", "problem", "method"), list(combinations()))
def test_train_save_reload_predict(family, problem, method, setting, tmp_path):
    made = setting(family, problem)
    train = {"max_steps": 2, "batch_size": 8, "learning_rate": 1e-3}
    recipe = tiny_recipe(made.block, made.teacher, {"name": method} | METHODS[method], train=train)
    run = execute(recipe, tmp_path / "run")
    check_training(run, made.teacher)

    answers, readable = with_plain_transformers(run.student, made.task)
    saved = pq.read_table(run.path / "predictions.parquet").to_pydict()
    assert [name for name in saved if not name.startswith("teacher_")] == list(answers)
    for name, column in answers.items():
        assert same(saved[name], column), name

    metrics = run.metrics()["metrics"]
    assert metrics and all(np.isfinite(value) for value in metrics.values())
    assert evaluate(run.path).metrics == pytest.approx(metrics, abs=1e-6)

    count = predict_file(run.path, made.file, tmp_path / "predicted.csv", text=made.columns)
    with (tmp_path / "predicted.csv").open(newline="") as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    assert count == len(predicted) == len(made.task.split("validation"))
    if problem == "regression":
        np.testing.assert_allclose(np.array(predicted, dtype=float), readable["prediction"], atol=1e-5)
    else:
        assert predicted == list(readable["prediction"])


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_language_model_stays_tied_to_its_embeddings(family, tmp_path):
    """Find the embeddings once in checkpoints and the student, and in both places of a reloaded student."""
    folder = make_bpe(tmp_path / "teacher", STYLES[family])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = {"vocab_size": len(tokenizer), "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}
    tiny_model(family, problem="language_model", **special).save_pretrained(folder)
    (tmp_path / "corpus.txt").write_text("".join(f"{text}\n" for text, _ in sentences(60)))
    task = {"name": "text", "train": str(tmp_path / "corpus.txt"), "max_length": 16}
    recipe = tiny_recipe(task, folder, train={"max_steps": 2, "batch_size": 8, "save_total_limit": 2})
    run = execute(recipe, tmp_path / "run")
    for file in (run.path / "checkpoints" / "checkpoint-2", run.student):
        tensors = load_file(file / "model.safetensors").values()
        assert sum(len(tensor) == len(tokenizer) for tensor in tensors) == 1
    model = AutoModelForCausalLM.from_pretrained(run.student)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    perplexity = evaluate(run.path).metrics["perplexity"]
    assert perplexity == pytest.approx(run.metrics()["metrics"]["perplexity"], rel=1e-5)
    assert run.metrics()["parameters"] == model.num_parameters()


def check_training(run, teacher):
    """Check that two steps with finite losses changed most of the weights that were taken from the teacher."""
    assert run.metrics()["steps"] == 2
    losses = [value for entry in history(run.path) for key, value in entry.items() if "loss" in key or "term/" in key]
    assert losses and all(np.isfinite(value) for value in losses)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run.student, teacher))
    assert set(ours) < set(theirs)  # fewer blocks
    assert sum(not torch.equal(ours[name], theirs[name]) for name in ours) > len(ours) / 2


def with_plain_transformers(folder, task):
    """Return the answers of the saved student, text by text without padding, from transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = HEADS[task.problem].from_pretrained(folder, output_loading_info=True)
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
    assert model.config.num_hidden_layers == 2
    encoded = task.encode("validation", tokenizer, MAX_LENGTH)
    read = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in encoded.column_names]
    if getattr(model.config, "type_vocab_size", 0) < 2:
        read = read[:2]
    logits = []
    with torch.no_grad():
        for row in encoded:
            output = model.eval()(**{name: torch.tensor([row[name]]) for name in read})
            if task.problem == "span":
                logits.append(torch.stack((output.start_logits, output.end_logits), dim=-1)[0].numpy())
            else:
                logits.append(output.logits[0].numpy())
    found = logits if task.problem in ("tokens", "span") else np.stack(logits)
    return task.answers(found, encoded), task.readable(found, encoded)


def same(ours, theirs):
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs if isinstance(ours, str) else np.isclose(ours, theirs, rtol=1e-4, atol=1e-5)


def write_data(problem: str, folder: Path) -> tuple[dict[str, Any], Path, list[str]]:
    """Write files of that kind; return the task block, and the validation texts as a table with its text columns."""
    folder.mkdir()
    if problem == "span":
        return write_questions(folder)
    if problem == "tokens":
        return write_tags(folder)
    files = {}
    for split, rows in TEXTS.items():
        labels = [label_of(problem, text, label) for text, label in rows]
        texts = [text for text, _ in rows]
        files[split] = write_csv(folder / f"{split}.csv", list(zip(texts, labels, strict=True)))
    block = {"name": "table", "train": str(files["train"]), "validation": str(files["dev"]), "text": "text"}
    block |= {"label": "label", "problem": problem, "separator": ";", "max_length": MAX_LENGTH}
    return block, files["dev"], []


def label_of(problem: str, text: str, label: str) -> str:
    words = set(text.split())
    if problem == "classification":
        return label
    if problem == "regression":
        return str(len(text.split()) / 4)
    return ";".join(name for name, some in (("animal", ANIMALS), ("colour", COLOURS)) if words & set(some))


def write_tags(folder: Path) -> tuple[dict[str, Any], Path, list[str]]:
    for split, rows in TEXTS.items():
        lines = [[f"{word} {tag_of(word)}" for word in text.split()] for text, _ in rows]
        (folder / f"{split}.txt").write_text("\n\n".join("\n".join(sentence) for sentence in lines) + "\n")
    block = {"name": "tokens", "train": str(folder / "train.txt"), "validation": str(folder / "dev.txt")}
    return block | {"max_length": MAX_LENGTH}, write_csv(folder / "dev.csv", TEXTS["dev"]), ["text"]


def tag_of(word: str) -> str:
    return "B-ANIMAL" if word in ANIMALS else "B-COLOUR" if word in COLOURS else "O"


def write_questions(folder: Path) -> tuple[dict[str, Any], Path, list[str]]:
    """Ask which word stands where; every third question has no answer, and some texts take two windows."""
    questions = []
    for split, rows in TEXTS.items():
        paragraphs = []
        for number, (text, _) in enumerate(rows):
            words = text.split()
            context, answer = " ".join(words * 2), " ".join(words[1:3])
            start = len(words[0]) + 1
            about = {"id": f"{split}-{number}", "question": f"sees {words[0]}", "is_impossible": number % 3 == 0}
            about["answers"] = [] if number % 3 == 0 else [{"text": answer, "answer_start": start}]
            paragraphs.append({"context": context, "qas": [about]})
            if split == "dev":
                questions.append((about["question"], context))
        content = {"version": "2.0", "data": [{"title": split, "paragraphs": paragraphs}]}
        (folder / f"{split}-v2.0.json").write_text(json.dumps(content))
    block = {"name": "squad/2.0", "data_dir": str(folder), "stride": 4, "max_length": MAX_LENGTH}
    return block, write_csv(folder / "dev.csv", questions, "question,context"), []

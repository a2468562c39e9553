"""Run recipes with stages: TinyBERT's two, and general distillation before a task."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch
from helpers.saved_runs import read_json, student_weights
from helpers.tiny_models import DECODERS, NEWER, SIZES, tiny_model
from helpers.tiny_recipes import recipe_values, table_task
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from limbeck import execute, load_recipe
from limbeck.errors import LimbeckError


def families_and_methods():
    """Give most families with one method and every method on BERT to the usual run; the others are slow."""
    for method, family in product(("distilbert", "minilmv2", "fcd"), SIZES):
        often = family == "bert" or (method == "distilbert" and family not in NEWER)
        marks = () if often else pytest.mark.slow
        yield pytest.param(family, method, id=f"{family}-{method}", marks=marks)


@pytest.mark.parametrize(("family", "method"), list(families_and_methods()))
def test_text_stage_of_every_family(family, method, corpus, tokenizer, table_files, tmp_path):
    teacher = tiny_model(family, depth=4)
    causal = family in DECODERS
    torch.manual_seed(0)
    (AutoModelForCausalLM if causal else AutoModelForMaskedLM).from_config(teacher.config).save_pretrained(
        tmp_path / "lm"
    )
    teacher.config.id2label = {0: "negative", 1: "positive"}
    teacher.save_pretrained(tmp_path / "teacher")
    for name in ("lm", "teacher"):
        tokenizer.save_pretrained(tmp_path / name)
    values = {
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 3, "batch_size": 8},
        "stages": [
            {
                "task": {"name": "text", "train": str(corpus), "max_length": 16},
                "teacher": {"model": str(tmp_path / "lm")},
                "method": {"name": method},
            },
            {
                "task": table_task(table_files),
                "teacher": {"model": str(tmp_path / "teacher"), "confirmed": True},
                "method": {"name": "kd"},
            },
        ],
    }
    run = execute(load_recipe(values=values), tmp_path / "run")
    config = read_json(run.path / "stage-1" / "student" / "config.json")
    assert config["architectures"][0].endswith(("LMHeadModel", "ForCausalLM") if causal else "ForMaskedLM")
    assert 0 <= run.metrics()["score"] <= 1
    scores = read_json(run.path / "stage-1" / "metrics.json")["metrics"]
    assert ("perplexity" in scores) == (method != "minilmv2")  # it neither needs nor trains a head


def test_a_teacher_of_text_needs_a_head_only_for_its_predictions(command, tokenizer, corpus, tmp_path):
    tiny_model("bert", depth=3).base_model.save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    words = ["distill", "--task", "text", f"task.train={corpus}", "--max-length", "16", "--teacher", "bare"]
    words += ["--keep", "first:2", "train.max_steps=2"]
    assert command(*words, "--method", "minilmv2", "-o", "a")[0] == 0
    code, said = command(*words, "--method", "distilbert", "-o", "b")
    assert code == 1 and "no trained language modelling head" in said and not (tmp_path / "b").exists()


def test_pre_training_goes_on_with_finetune(command, language_model, corpus):
    words = ["finetune", "text", f"task.train={corpus}", "--max-length", "24", "--model", language_model]
    assert command(*words, "--epochs", "6", "--learning-rate", "5e-3", "-o", "run")[0] == 0
    before = perplexity(*command("evaluate", language_model, "--task", "text", f"task.train={corpus}"))
    assert perplexity(*command("evaluate", "run")) < 0.6 * before


def perplexity(code, said):
    assert code == 0, said
    [value] = re.findall(r"perplexity\s+([\d.]+)", said)
    return float(value)


def test_what_a_later_stage_lacks_is_said_before_the_first_one_runs(table_files, teacher_folder, tmp_path):
    shared = {"task": table_task(table_files), "teacher": {"model": str(teacher_folder)}}
    student = {"from": "teacher", "keep": "first:2"}
    for last, message in (
        ({"method": {"name": "kd"}, "teacher": {"model": str(tmp_path / "nowhere")}}, "nowhere"),
        ({"method": {"name": "minilmv2", "relation_heads": 5}}, "relation heads"),
        ({"method": {"name": "kd"}, "task": {"train": "missing.csv"}}, "missing.csv"),
        ({"method": {"name": "kd"}, "task": {"max_length": 5000}}, "task.max_length is 5000"),
        ({"method": {"name": "kd"}, "teacher": None}, "needs a teacher"),
    ):
        values = shared | {"student": student, "stages": [{"method": {"name": "fcd"}}, last]}
        with pytest.raises(LimbeckError, match=message):
            execute(load_recipe(values=values), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_stage_goes_on_with_the_student_before(table_files, teacher_folder, tmp_path):
    train = {"max_steps": 4, "batch_size": 16}
    values = recipe_values(table_files, teacher_folder)
    del values["method"], values["train"]
    values["stages"] = [
        {"method": {"name": "fcd"}, "train": train | {"learning_rate": 1e-2}},
        {"method": {"name": "kd"}, "train": train | {"learning_rate": 1e-12}},
    ]
    run = execute(load_recipe(values=values), tmp_path / "run")
    start = load_file(teacher_folder / "model.safetensors")
    first, last = student_weights(run.path / "stage-1"), student_weights(run.path)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert (first[name] - start[name]).abs().max() > 1e-3
    for key, tensor in last.items():  # the second stage hardly moves, so it is where the first one ended
        torch.testing.assert_close(tensor, first[key], rtol=0, atol=1e-8)

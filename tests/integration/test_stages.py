"""Recipes with stages through the command line: TinyBERT's two, and general distillation before a task."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from helpers.killing import kill_after
from helpers.saved_runs import read_json
from helpers.tiny_models import DECODERS, SIZES, tiny_model
from helpers.tiny_recipes import table_task
from helpers.tiny_tables import sentences
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from limbeck import execute, load_recipe
from limbeck.errors import LimbeckError

# a method that takes its time, so that it can be killed inside a stage; it brings the stages of the one that it wraps
SLOW = """
import time
from typing import Literal
import torch
from limbeck import METHODS, Objective, Term
class Sleep(Term):
    def forward(self, student, teacher, batch):
        time.sleep(0.03)
        return torch.zeros(())
def slowly(objective):
    own = {name: (weight, objective.terms[name]) for name, weight in objective.weights.items()}
    return Objective(**own, sleep=(1.0, Sleep()))
def tinybert(pair, *, stage: Literal["intermediate", "prediction"] = "intermediate"):
    return slowly(METHODS["tinybert"](pair, stage=stage))
def distilbert(pair):
    return slowly(METHODS["distilbert"](pair))
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("".join(text + "\n" for text, _ in sentences(600, seed=7)))
    return path


@pytest.fixture(scope="session")
def language_model(tmp_path_factory, tokenizer):
    """A 4-layer BERT with a head for masked tokens."""
    folder = tmp_path_factory.mktemp("models") / "lm"
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_model("bert", depth=4).config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(tmp_path, **blocks):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(blocks))
    return path


def weights(run):
    return load_file(run / "student" / "model.safetensors")


def assert_same(whole, broken):
    assert whole.keys() == broken.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, broken[name]), name


def killed_in_both_stages(limbeck, tmp_path, command, saved):
    """Run once without a break, and once killed inside each stage; ``saved`` is a step that is saved in each."""
    limbeck(*command, "-o", "whole")
    first = tmp_path / "broken" / "stage-1" / "checkpoints" / f"checkpoint-{saved[0]}" / "trainer_state.json"
    second = tmp_path / "broken" / "checkpoints" / f"checkpoint-{saved[1]}" / "trainer_state.json"
    between = tmp_path / "broken" / "stage-1" / "metrics.json"
    for moment in (first, between, second):
        assert kill_after(moment, *command, "-o", "broken", "--resume", cwd=tmp_path), moment
    done = limbeck(*command, "-o", "broken", "--resume")
    assert "Resuming from" in done.stderr
    for stage in ("stage-1", "."):
        assert_same(weights(tmp_path / "whole" / stage), weights(tmp_path / "broken" / stage))
    return read_json(tmp_path / "whole" / "metrics.json")


@pytest.mark.chaos
@pytest.mark.slow
def test_tinybert_in_two_stages_killed_and_resumed(limbeck, table_files, teacher_folder, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    settings = ["method.name=slow:tinybert", "train.save_steps=4", "train.max_steps=14", "train.batch_size=16"]
    options = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key != "name"]
    command = ["distill", "--task", "table", *options, "--teacher", teacher_folder, "--keep", "first:2", *settings]
    results = killed_in_both_stages(limbeck, tmp_path, command, (8, 8))
    assert results["method"] == "slow:tinybert" and results["steps"] == 14
    # the intermediate stage left the classifier as it was, the prediction stage trained it
    teacher, first, last = (load_file(teacher_folder / "model.safetensors"), *map(weights, stages(tmp_path / "whole")))
    assert torch.equal(first["classifier.weight"], teacher["classifier.weight"])
    assert not torch.equal(last["classifier.weight"], first["classifier.weight"])
    history = [json.loads(line) for line in (tmp_path / "whole/stage-1/history.jsonl").read_text().splitlines()]
    terms = {"term/embeddings", "term/hidden", "term/attention"}
    assert any(terms <= entry.keys() for entry in history)


def stages(run):
    return run / "stage-1", run


@pytest.mark.slow
@pytest.mark.chaos
def test_text_then_task_killed_and_resumed(limbeck, table_files, teacher_folder, language_model, corpus, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    recipe = write(
        tmp_path,
        student={"from": "teacher", "keep": "uniform:2"},
        stages=[
            {
                "task": {"name": "text", "train": str(corpus), "max_length": 24},
                "teacher": {"model": str(language_model)},
                "method": {"name": "slow:distilbert"},
                "train": {"epochs": 2, "batch_size": 16, "save_steps": 5},
            },
            {
                "task": table_task(table_files),
                "teacher": {"model": str(teacher_folder)},
                "method": {"name": "slow:distilbert"},
                "train": {"epochs": 2, "batch_size": 16, "save_steps": 4},
            },
        ],
    )
    killed_in_both_stages(limbeck, tmp_path, ["distill", recipe], (10, 8))
    first = read_json(tmp_path / "whole" / "stage-1" / "metrics.json")
    assert first["task"] == "text" and first["metrics"].keys() == {"loss", "perplexity", "token_accuracy"}
    again = limbeck("evaluate", "whole/stage-1")  # a stage is a run directory of its own
    assert "perplexity" in again.stdout
    assert "accuracy" in limbeck("evaluate", "whole").stdout  # scored on the last stage's task
    assert "finished already" in limbeck("distill", recipe, "-o", "whole", "--resume").stderr
    # a student can start from the general stage
    more = ["--student", "whole/stage-1", "--teacher", teacher_folder, "--task", "table", "train.max_steps=1"]
    options = [f"task.{key}={value}" for key, value in table_task(table_files).items() if key != "name"]
    limbeck("distill", "--method", "kd", *more, *options, "-o", "again")


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("method", ["distilbert", "minilmv2", "fcd"])
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
                "teacher": {"model": str(tmp_path / "teacher")},
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


def test_a_teacher_of_text_needs_a_head_only_for_its_predictions(limbeck, tokenizer, corpus, tmp_path):
    tiny_model("bert", depth=3).base_model.save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    command = ["distill", "--task", "text", f"task.train={corpus}", "--max-length", "16", "--teacher", "bare"]
    command += ["--keep", "first:2", "train.max_steps=2"]
    limbeck(*command, "--method", "minilmv2", "-o", "a")
    wrong = limbeck(*command, "--method", "distilbert", "-o", "b", check=False)
    assert "no trained language modelling head" in wrong.stderr and not (tmp_path / "b").exists()


def test_pre_training_goes_on_with_finetune(limbeck, language_model, corpus, tmp_path):
    words = ["finetune", "text", f"task.train={corpus}", "--max-length", "24", "--model", language_model]
    limbeck(*words, "--epochs", "6", "--learning-rate", "5e-3", "-o", "run")
    before = perplexity(limbeck("evaluate", language_model, "--task", "text", f"task.train={corpus}"))
    assert perplexity(limbeck("evaluate", "run")) < 0.6 * before


def perplexity(done):
    [line] = [line for line in done.stdout.splitlines() if "perplexity" in line]
    return float(line.split("│")[2])


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
    values = {
        "task": table_task(table_files),
        "teacher": {"model": str(teacher_folder)},
        "student": {"from": "teacher", "keep": "first:2"},
        "stages": [
            {"method": {"name": "fcd"}, "train": train | {"learning_rate": 1e-2}},
            {"method": {"name": "kd"}, "train": train | {"learning_rate": 1e-12}},
        ],
    }
    run = execute(load_recipe(values=values), tmp_path / "run")
    start = load_file(teacher_folder / "model.safetensors")
    first, last = map(weights, stages(run.path))
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert (first[name] - start[name]).abs().max() > 1e-3
    for key, tensor in last.items():  # the second stage hardly moves, so it is where the first one ended
        torch.testing.assert_close(tensor, first[key], rtol=0, atol=1e-8)

"""Refuse models whose weights or answers are nan or inf, by name, wherever one is used or comes into being."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.saved_runs import history, read_json
from helpers.tiny_recipes import table_task, table_words
from helpers.tiny_tables import sentences, write_csv
from safetensors.torch import load_file, save_file

import limbeck.inference.served
from limbeck.errors import ModelError
from limbeck.inference.logits import logits_in_order

pytestmark = pytest.mark.usefixtures("quick_collection")
needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)
HEAD = "classifier.weight"


def spoil(folder: Path, **values: float) -> Path:
    """Fill tensors of a saved model; ``classifier_weight`` stands for classifier.weight."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, value in values.items():
        found = [key for key in weights if key.replace(".", "_").endswith(name)]
        assert found, name
        for key in found:
            weights[key] = torch.full_like(weights[key], value)
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.fixture()
def spoiled(teacher_folder, tmp_path):
    """Copy the teacher with a head of nan."""
    return spoil(shutil.copytree(teacher_folder, tmp_path / "spoiled"), classifier_weight=float("nan"))


@pytest.fixture()
def overflowing(teacher_folder, tmp_path):
    """Copy the teacher with finite weights that answer everything with inf."""
    folder = shutil.copytree(teacher_folder, tmp_path / "overflowing")
    return spoil(folder, pooler_dense_weight=0.0, pooler_dense_bias=10.0, classifier_weight=3e38)


def pair_words(files, teacher):
    return [*table_words(files), "--teacher", teacher, "--keep", "first:2", "--batch-size", "16"]


def tune_words(files, model, *more):
    return ["finetune", "table", *table_words(files)[2:], "--model", model, "--batch-size", "16", *more]


def refused(outcome: tuple[int, str], *words: str) -> None:
    code, said = outcome
    assert code == 1, said
    for word in words:
        assert word in said, said


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith(".")}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "spoiled", "{table}"],
        ["predict", "spoiled", "new.csv", "--text", "text", "-o", "out.csv"],
        ["export", "spoiled", "{table}", "--to", "hf", "-o", "out"],
        ["bench", "spoiled", "--seconds", "1", "--no-memory", "-o", "bench.json"],
        ["cache", "{pair}", "--method", "kd", "-o", "out"],
        ["distill", "{pair}", "--method", "fcd", "-o", "out"],
        ["finetune", "table", "{options}", "--model", "spoiled", "-o", "out"],
    ],
    ids=lambda words: words[0],
)
def test_weights_are_refused_with_the_name_of_the_tensor(words, value, spoiled, table_files, command, tmp_path):
    spoil(spoiled, classifier_weight=value)
    write_csv(tmp_path / "new.csv", sentences(4))
    options = {"{table}": table_words(table_files), "{pair}": pair_words(table_files, spoiled)}
    options["{options}"] = table_words(table_files)[2:]
    before = files_in(tmp_path)
    refused(command(*[part for word in words for part in options.get(word, [word])]), "spoiled", HEAD, "nan or inf")
    assert files_in(tmp_path) == before


@needs_onnx
@pytest.mark.parametrize("form", ["onnx", "onnx-int8"])
def test_weights_are_refused_by_every_form_of_export(form, spoiled, table_files, command, tmp_path):
    before = files_in(tmp_path)
    refused(command("export", spoiled, *table_words(table_files), "--to", form, "-o", "out"), HEAD)
    assert files_in(tmp_path) == before


def test_a_study_with_such_a_teacher_fails_with_the_name(spoiled, table_files, command, tmp_path):
    task = {key: value for key, value in table_task(table_files).items() if key != "name"}
    study = {"tasks": ["table"], "task": task, "teacher": {"fine_tuned": str(spoiled)}, "methods": ["kd"], "seeds": [0]}
    study["rivals"] = False
    study |= {"student": {"from": "teacher", "keep": "first:2"}, "train": {"max_steps": 2}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    refused(command("study", "study.yaml", "-o", "out"), HEAD)
    assert not list((tmp_path / "out").rglob("metrics.json"))


def test_shrink_refuses_the_model(spoiled, command, tmp_path):
    data = write_csv(tmp_path / "data.csv", sentences(240))
    words = ["--model", spoiled, "--data", data, "--text", "text", "--label", "label", "-o", "out"]
    refused(command("shrink", *words), HEAD)
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_spoiled_language_model_is_refused(language_model, corpus, command, tmp_path):
    folder = spoil(shutil.copytree(language_model, tmp_path / "lm"), transform_dense_weight=float("nan"))
    words = ["--task", "text", f"task.train={corpus}", "task.max_length=16"]
    refused(command("evaluate", folder, *words), "cls.predictions.transform.dense.weight")
    pair = ["--method", "minilmv2", "--teacher", folder, "--keep", "first:2"]
    refused(command("distill", *words, *pair, "-o", "out"), "transform.dense.weight")
    assert not (tmp_path / "out").exists()


def test_a_language_model_that_predicts_nan_is_not_scored(language_model, corpus, command, tmp_path):
    folder = shutil.copytree(language_model, tmp_path / "lm")
    spoil(folder, transform_LayerNorm_weight=3e38, transform_LayerNorm_bias=3e38)
    words = ["--task", "text", f"task.train={corpus}", "task.max_length=16"]
    refused(command("evaluate", folder, *words), "blocks 1 to ", "nan or inf")


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "overflowing", "{table}"],
        ["predict", "overflowing", "new.csv", "--text", "text", "-o", "out.csv"],
        ["export", "overflowing", "{table}", "-o", "out"],
        ["bench", "overflowing", "--seconds", "1", "--no-memory", "-o", "bench.json"],
    ],
    ids=lambda words: words[0],
)
def test_answers_are_refused_with_the_place_of_the_example(words, overflowing, table_files, command, tmp_path):
    write_csv(tmp_path / "new.csv", sentences(4))
    before = files_in(tmp_path)
    places = {"predict": "of new.csv with inf", "bench": "random text 1 with inf"}
    place = places.get(words[0], "the example with id")
    table = table_words(table_files)
    refused(
        command(*[part for word in words for part in (table if word == "{table}" else [word])]), place, "overflowing"
    )
    assert files_in(tmp_path) == before


def test_the_row_of_a_file_is_the_one_that_was_not_answered(teacher_folder, tokenizer, command, monkeypatch, tmp_path):
    """Count rows over the whole file, though some are read at a time."""
    answer, marked = limbeck.inference.served.model_logits, tokenizer.convert_tokens_to_ids("bird")

    def spoiling(model, batch):
        logits = answer(model, batch)
        logits[(batch["input_ids"] == marked).any(1).numpy()] = np.nan
        return logits

    monkeypatch.setattr(limbeck.inference.served, "model_logits", spoiling)
    monkeypatch.setattr("limbeck.inference.predict.CHUNK_TEXTS", 4)
    write_csv(tmp_path / "new.csv", [("a cat", "x")] * 6 + [("a bird and a cat", "x")] + [("a dog", "x")] * 3)
    refused(
        command("predict", teacher_folder, "new.csv", "--text", "text", "-o", "out.csv"), "row 7 of new.csv with nan"
    )
    assert files_in(tmp_path) == {"new.csv"}


def write_small_onnx(folder: Path, value: float) -> None:
    """Write a file as an export does, whose logits are the mean over the rows of a table filled with ``value``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = numpy_helper.from_array(np.full((200, 2), value, dtype=np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axes"], ["logits"], keepdims=0),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
    axes = numpy_helper.from_array(np.array([1], dtype=np.int64), "axes")
    graph = helper.make_graph(nodes, "tiny", [ids], [logits], [table, axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"form": "onnx", "parameters": "400"})
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(model, folder / "onnx" / "model.onnx")


@needs_onnx
@pytest.mark.parametrize("name", ["evaluate", "predict", "bench"])
def test_an_onnx_file_that_answers_nan_is_refused(name, teacher_folder, table_files, command, tmp_path):
    folder = shutil.copytree(teacher_folder, tmp_path / "served")
    (folder / "model.safetensors").unlink()
    write_csv(tmp_path / "new.csv", sentences(4))
    words = {
        "evaluate": table_words(table_files),
        "predict": ["new.csv", "--text", "text", "-o", "answers.csv"],
        "bench": ["--seconds", "1", "--no-memory", "--length", "8", "-o", "bench.json"],
    }
    write_small_onnx(folder, 1.0)
    before = files_in(tmp_path)
    assert command(name, folder, *words[name])[0] == 0  # so that the file is wrong in nothing else
    for file in files_in(tmp_path) - before:
        (tmp_path / file).unlink()
    write_small_onnx(folder, float("nan"))
    refused(command(name, folder, *words[name]), "with nan", "served")
    assert files_in(tmp_path) == before


def test_numbers_that_are_infinite_are_no_predictions(tokenizer):
    """Refuse them also where the answer is a number, and only for tokens that are there."""
    from limbeck.tasks.encode import Collator
    from limbeck.tasks.task import make_split

    ids = [tokenizer(text)["input_ids"] for text in ("a cat", "a big cat sees", "a dog")]
    columns = {"id": [10, 11, 12], "input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
    encoded, collate = make_split("validation", columns), Collator(tokenizer)
    with pytest.raises(ModelError, match="the example with id 12 with -inf"):
        logits_in_order(lambda _: np.array([[0.5], [1.0], [-np.inf]], dtype=np.float32), encoded, collate, 3)

    def nan_in_padding(batch):
        found = np.zeros((*batch["input_ids"].shape, 2), dtype=np.float32)
        found[~batch["attention_mask"].bool().numpy()] = np.nan
        return found

    assert len(logits_in_order(nan_in_padding, encoded, collate, 3)) == 3


@pytest.mark.parametrize("method", ["kd", "fcd"])
def test_nothing_that_is_nan_goes_into_a_cache(method, overflowing, table_files, command, tmp_path):
    if method == "fcd":  # its hidden states, too
        spoil(overflowing, layer_1_output_LayerNorm_weight=3e38, layer_1_output_LayerNorm_bias=3e38)
    outcome = command("cache", *pair_words(table_files, overflowing), "--method", method, "-o", "out")
    refused(outcome, "The teacher", "the example with id")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_teacher_that_answers_nan_is_refused_before_the_training(overflowing, table_files, command, tmp_path):
    """Refuse it also where the method reads its hidden states alone, and the last step was its first question."""
    outcome = command("distill", *pair_words(table_files, overflowing), "--method", "minilm", "-o", "out")
    refused(outcome, "The teacher answers the example with id")
    assert not (tmp_path / "out").exists()


@pytest.fixture()
def spoil_update(monkeypatch):
    """Spoil a weight of the student in the update of a step, whose loss was finite."""

    def after(step, also=lambda: None):
        update, steps = torch.optim.AdamW.step, []

        def spoiling(self, *given, **options):
            found = update(self, *given, **options)
            steps.append(1)
            if len(steps) == step:
                self.param_groups[0]["params"][0].data.view(-1)[0] = float("nan")
                also()
            return found

        monkeypatch.setattr(torch.optim.AdamW, "step", spoiling)

    return after


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_run_whose_last_update_spoils_it_is_not_finished(
    evaluates, spoil_update, table_files, teacher_folder, command, tmp_path
):
    spoil_update(3)
    every = ["train.save_strategy=steps", "train.save_steps=1", "train.save_total_limit=3", "train.logging_steps=1"]
    every += ["train.eval_strategy=steps", "train.eval_steps=1"] if evaluates else ["train.eval_strategy=no"]
    words = tune_words(table_files, teacher_folder, "train.max_steps=3", *every)
    refused(command(*words, "-o", "run"), "After step 3", "'student.", "nan or inf", "learning_rate")
    run = tmp_path / "run"
    assert not (run / "student").exists() and not (run / "metrics.json").exists()
    assert {folder.name for folder in (run / "checkpoints").iterdir()} == {"checkpoint-1", "checkpoint-2"}
    scored = [entry["step"] for entry in history(run) if "eval_accuracy" in entry]
    assert scored == ([1, 2] if evaluates else [])


def test_a_run_without_checkpoints_is_not_finished_either(spoil_update, table_files, teacher_folder, command, tmp_path):
    spoil_update(2)
    quiet = ["train.save_strategy=no", "train.eval_strategy=no", "train.max_steps=2"]
    refused(
        command(*tune_words(table_files, teacher_folder, *quiet), "-o", "run"), "After step 2", "the weights in 'bert."
    )
    assert not (tmp_path / "run" / "student").exists() and not (tmp_path / "run" / "metrics.json").exists()


def test_sigterm_saves_no_checkpoint_of_spoiled_weights(spoil_update, table_files, teacher_folder, command, tmp_path):
    spoil_update(2, also=lambda: os.kill(os.getpid(), signal.SIGTERM))
    quiet = ["train.save_strategy=no", "train.eval_strategy=no", "train.max_steps=9"]
    code, said = command(*tune_words(table_files, teacher_folder, *quiet), "-o", "run")
    assert code == 143 and "a checkpoint is kept" not in said, said
    assert not list((tmp_path / "run").glob("checkpoints/checkpoint-*"))


def test_a_student_that_answers_nan_is_not_saved(table_files, teacher_folder, command, tmp_path):
    """Refuse weights that are finite but too large: here by a step as long as 1e20."""
    huge = ["train.learning_rate=1e20", "train.max_steps=1", "train.warmup_steps=0", "train.eval_strategy=no"]
    refused(
        command(*tune_words(table_files, teacher_folder, *huge), "-o", "run"), "The student answers the example with id"
    )
    assert not (tmp_path / "run" / "student").exists() and not (tmp_path / "run" / "metrics.json").exists()


def test_analyze_refuses_a_spoiled_student(table_files, teacher_folder, command, tmp_path):
    assert command(*tune_words(table_files, teacher_folder, "train.max_steps=2"), "-o", "run")[0] == 0
    spoil(tmp_path / "run" / "student", classifier_weight=float("nan"))
    refused(command("analyze", "run", "-o", "figures"), HEAD)
    refused(command("evaluate", "run"), HEAD)


def test_a_score_that_is_nan_is_said_not_to_be_ranked(table_files, teacher_folder, command, tmp_path):
    assert command(*tune_words(table_files, teacher_folder, "train.max_steps=1"), "-o", "runs/a")[0] == 0
    file = tmp_path / "runs" / "a" / "metrics.json"
    found = read_json(file)
    found["metrics"]["accuracy"] = found["score"] = float("nan")
    file.write_text(json.dumps(found))
    code, said = command("compare", "runs")
    assert code == 0 and "ft: accuracy is no finite number in 1 of 1 runs, so it is not ranked" in said, said


@pytest.mark.parametrize("option", ["method.temperature=.inf", "train.epochs=.inf", "train.learning_rate=.inf"])
def test_options_that_are_no_finite_numbers_are_refused(option, table_files, teacher_folder, command):
    words = [*pair_words(table_files, teacher_folder), "--method", "kd", option]
    refused(command("distill", *words, "-o", "out"), option.partition("=")[0], "1 mistake")

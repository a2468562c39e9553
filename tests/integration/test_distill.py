"""Do the main job through the command line, on tiny models: train, save, reload, resume."""

from __future__ import annotations

import csv
import json
import shutil
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.paths import ROOT
from helpers.saved_runs import history, read_json, results, student_weights
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import distill_words, recipe_values, table_words, tiny_recipe
from helpers.tiny_tables import sentences, write_csv
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import METHODS, execute, load_recipe
from limbeck.errors import ModelError
from limbeck.runs.directory import RunDirectory

LABELS = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


def test_distil_then_reload_with_plain_transformers(limbeck, command, table_files, teacher_folder, tmp_path):
    words = distill_words(table_files, teacher_folder, "--method", "kd", "--epochs", "1", "-o", "run")
    done = limbeck("distill", *words)
    assert "accuracy" in done.stdout and "agreement with teacher" in done.stdout
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    files = {"recipe.yaml", "environment.json", "data.json", "history.jsonl", "metrics.json", "predictions.parquet"}
    assert names == {*files, "start.json", "student"}

    assert command("predict", "run", table_files[1], "-o", "predicted.csv")[0] == 0
    with (tmp_path / "predicted.csv").open() as file:
        rows = list(csv.DictReader(file))
    model = AutoModelForSequenceClassification.from_pretrained(run / "student").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "student")
    assert len(model.bert.encoder.layer) == 2
    texts = [text for text, _ in sentences(40, seed=1)]
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])
    assert [row["prediction"] for row in rows] == [model.config.id2label[i] for i in logits.argmax(-1).tolist()]
    probabilities = [[float(row["p(negative)"]), float(row["p(positive)"])] for row in rows]
    np.testing.assert_allclose(probabilities, logits.softmax(-1).numpy(), atol=1e-6)

    saved = pq.read_table(run / "predictions.parquet").to_pydict()
    assert saved["id"] == list(range(40))
    np.testing.assert_allclose(np.array(saved["logits"]), logits.numpy(), atol=1e-6)
    metrics = read_json(run / "metrics.json")
    correct = np.array(saved["prediction"]) == np.array(saved["label"])
    assert metrics["score"] == pytest.approx(correct.mean())
    assert f"{100 * metrics['score']:.2f}" in command("evaluate", "run")[1]
    assert f"{100 * metrics['score']:.2f}" in command("evaluate", run / "student", *table_words(table_files))[1]


def test_finetune_makes_a_teacher_that_learns(command, tmp_path, tokenizer_folder):
    train = write_csv(tmp_path / "train.csv", sentences(600))
    task = [f"task.train={train}", "task.text=text", "task.label=label"]
    student = f"student={{config: {{model_type: bert, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, \
intermediate_size: 64, max_position_embeddings: 128}}, tokenizer: {tokenizer_folder}}}"
    words = ["finetune", "table", *task, student, "--epochs", "12", "--learning-rate", "5e-3"]
    assert command(*words, "-o", "teacher")[0] == 0
    metrics = read_json(tmp_path / "teacher" / "metrics.json")
    assert metrics["score"] > 0.9
    assert "teacher" not in metrics
    assert sum("term/task" in line for line in history(tmp_path / "teacher")) >= 10


MODULE = (ROOT / "docs" / "your-own-method.md").read_text().partition("```python\n")[2].partition("```")[0]


def test_a_method_of_ones_own(limbeck, command, table_files, teacher_folder, tmp_path, monkeypatch):
    assert sum(bool(line) for line in MODULE.splitlines()) == 10
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_module.py").write_text(MODULE)
    own = ["method.name=my_module:my_method", "method.beta=0.5"]
    words = ["distill", *distill_words(table_files, teacher_folder)]
    code, said = command(*words, *own, "train.max_steps=2", "-o", "run")
    assert code == 0 and "L = 1·task + 0.5·hint" in said
    assert "beta: 0.5" in (tmp_path / "run" / "recipe.yaml").read_text()
    elsewhere = tmp_path / "elsewhere"  # where my_module.py is not, in a process that has not imported it
    elsewhere.mkdir()
    assert "accuracy" in limbeck("evaluate", tmp_path / "run", cwd=elsewhere).stdout
    code, said = command(*words, *own, "method.gamma=1", "-o", "run2")
    assert code == 1 and "method.gamma: Unknown key 'gamma'" in said
    code, said = command(*words, "method.name=my_module:my_metod")
    assert code == 1 and "Did you mean 'my_method'" in said


def test_a_trained_memory_is_checkpointed_and_not_exported(table_files, teacher_folder, tmp_path):
    """Stop FSD after two steps, resume, and compare with a run that was never stopped."""
    method = {"name": "fsd", "memory": 8}
    train = {"max_steps": 4, "batch_size": 16, "save_steps": 2, "save_total_limit": 9}
    recipe = tiny_recipe(table_files, teacher_folder, method, train=train)
    whole = execute(recipe, tmp_path / "whole")
    saved = load_file(whole.path / "checkpoints" / "checkpoint-4" / "model.safetensors")
    memory = saved["objective.terms.memory.student_memory"]
    assert memory.shape[0] == 8 and memory.requires_grad is False
    start = load_file(whole.path / "checkpoints" / "checkpoint-2" / "model.safetensors")
    assert not torch.equal(memory, start["objective.terms.memory.student_memory"])  # it is trained
    assert not any("memory" in name for name in student_weights(whole.path))

    shutil.copytree(whole.path, tmp_path / "broken")
    for name in ("checkpoints/checkpoint-4", "student"):
        shutil.rmtree(tmp_path / "broken" / name)
    (tmp_path / "broken" / "metrics.json").unlink()
    broken = execute(recipe, tmp_path / "broken", resume=True)
    resumed = load_file(broken.path / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in saved.items())


def test_an_incomplete_checkpoint_is_not_used(tmp_path):
    from limbeck._internal.tensors import save_state, save_tensors
    from limbeck.training.checkpoint_folders import inspect_checkpoints, last_checkpoint

    for step, state in ((4, '{"global_step": 4}'), (8, '{"cut')):
        folder = tmp_path / f"checkpoint-{step}"
        save_tensors(folder / "model.safetensors", {"weight": torch.ones(2)})
        save_state(folder / "training.safetensors", {"step": step})
        (folder / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-12").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    found = inspect_checkpoints(tmp_path)
    assert found.newest == tmp_path / "checkpoint-4"
    assert [path.name for path in found.damaged] == ["checkpoint-12", "checkpoint-8"]
    assert len(list(tmp_path.iterdir())) == 3  # looking changes nothing
    found.set_damaged_aside()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "set-aside"]
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_a_student_of_another_family_and_width(table_files, teacher_folder, tmp_path):
    config = {"model_type": "distilbert", "n_layers": 1, "dim": 16, "n_heads": 2, "hidden_dim": 32}
    run = execute(tiny_recipe(table_files, teacher_folder, student={"config": config}), tmp_path / "run")
    assert read_json(run.student / "config.json")["model_type"] == "distilbert"
    assert read_json(run.student / "config.json")["id2label"] == {"0": "negative", "1": "positive"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_a_student_of_another_family_and_width(name, table_files, teacher_folder, tmp_path):
    config = {"model_type": "distilbert", "n_layers": 2, "dim": 16, "n_heads": 2, "hidden_dim": 32}
    options = {"ics": {"projector": True}, "fsd": {"memory": 8}, "fsd_g": {"memory": 8}}
    if name in ("tinybert", "minilm"):  # they compare attention head by head
        config["n_heads"] = 4
    method = {"name": name} | options.get(name, {})
    values = tiny_recipe(table_files, teacher_folder, method, student={"config": config})
    if name in ("theseus", "reptiledistil"):  # they put blocks of one model in the place of the other's
        with pytest.raises(ModelError, match="of one family, width and number of heads"):
            execute(values, tmp_path / "run")
        return
    run = execute(values, tmp_path / "run")
    assert all(key.startswith(("distilbert.", "pre_", "classifier.")) for key in student_weights(run.path))
    assert "loss" in (run.path / "history.jsonl").read_text()


def test_a_run_ends_early_where_it_is_not_worth_finishing(table_files, teacher_folder, tmp_path):
    train = {"epochs": 3, "batch_size": 16, "learning_rate": 1e-3}
    wanted = tiny_recipe(table_files, teacher_folder, train=train)
    asked = []

    def after_two(scores, maximise):
        asked.append((len(scores), maximise))
        return len(scores) == 2

    run = execute(wanted, tmp_path / "run", stop=after_two)
    assert asked == [(1, True), (2, True)] and not run.finished
    names = {path.name for path in run.path.iterdir()}
    assert names == {"recipe.yaml", "environment.json", "data.json", "start.json", "history.jsonl", "pruned.json"}
    assert read_json(run.path / "pruned.json")["steps"] == 2 * 6
    # it can be done in full later, and being asked changes nothing
    execute(wanted, tmp_path / "run", resume=True, stop=lambda scores, maximise: False)
    assert run.finished and not (run.path / "pruned.json").exists()
    execute(wanted, tmp_path / "whole")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_the_majority_baseline_is_the_most_frequent_training_label(table_files, teacher_folder, tmp_path):
    few = write_csv(
        tmp_path / "few.csv", [("a good day", "positive"), ("a bad day", "negative")] * 4 + [("good", "positive")]
    )
    task = {"name": "table", "train": str(few), "validation": str(table_files[1]), "text": "text", "label": "label"}
    run = execute(tiny_recipe(task | {"max_length": 16}, teacher_folder), tmp_path / "run")
    labels = [label for _, label in sentences(40, seed=1)]
    assert run.metrics()["majority"]["accuracy"] == pytest.approx(labels.count("positive") / 40)


def test_gradient_accumulation_equals_the_larger_batch(table_files, teacher_folder, tmp_path):
    """Compare with dropout off and batches of equal content: one epoch's worth of one batch."""
    teacher = tiny_model("bert", depth=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **LABELS)
    teacher.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(teacher_folder).save_pretrained(tmp_path / "teacher")
    weights = []
    for name, train in (
        ("big", {"batch_size": 96, "max_steps": 1}),
        ("small", {"batch_size": 24, "gradient_accumulation_steps": 4, "max_steps": 1}),
    ):
        # plain SGD, so that the step is proportional to the gradient
        train |= {"optim": "sgd", "learning_rate": 0.1, "warmup_steps": 0, "max_grad_norm": 0.0}
        run = execute(tiny_recipe(table_files, tmp_path / "teacher", train=train), tmp_path / name)
        weights.append(student_weights(run.path))
    moved = 0.0
    start = load_file(tmp_path / "teacher" / "model.safetensors")
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-4, atol=1e-6)
        if name in start and start[name].shape == tensor.shape:
            moved += (tensor - start[name]).abs().sum().item()
    assert moved > 0


@pytest.mark.parametrize(("warmup", "epochs"), [(1.5, 2), (5, 1)])
def test_a_warm_up_in_epochs(table_files, teacher_folder, tmp_path, warmup, epochs):
    """Check that in 4 steps an epoch the rate rises evenly, and falls to 0 in what is left, if anything is."""
    train = {"epochs": epochs, "batch_size": 24, "learning_rate": 1.0, "warmup_epochs": warmup, "logging_steps": 1}
    train |= {"max_grad_norm": 1e-9, "eval_strategy": "no"}
    run = execute(tiny_recipe(table_files, teacher_folder, train=train), tmp_path / "run")
    lines = map(json.loads, (run.path / "history.jsonl").read_text().splitlines())
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    rising, every = 4 * warmup, 4 * epochs
    # the rate of a step is that of the steps done before it
    expected = [step / rising if step < rising else (every - step) / (every - rising) for step in range(every)]
    assert rates == pytest.approx(expected)


PREPARED = """
from limbeck import Objective, TaskLoss
class Counting(TaskLoss):
    def prepare(self, teacher, batches, folder=None):
        self.rows = [sum(len(batch["labels"]) for batch in batches) for _ in range(2)]
        assert self.rows == [96, 96] and teacher is not None
        with open("prepared", "a") as file:
            file.write("once ")
def counting(pair):
    return Objective(task=(1.0, Counting(pair)))
"""


def test_prepare_sees_every_batch_once_before_training(table_files, teacher_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prepared_method.py").write_text(PREPARED)
    values = recipe_values(table_files, teacher_folder, method="prepared_method:counting")
    execute(load_recipe(values=values, allow_code=True), tmp_path / "run")
    assert (tmp_path / "prepared").read_text() == "once "


def test_the_same_recipe_gives_the_same_weights(table_files, teacher_folder, tmp_path):
    config = {"num_hidden_layers": 2, "hidden_size": 16}  # new random weights, new order of the data, dropout
    same = [tiny_recipe(table_files, teacher_folder, student={"config": config}) for _ in range(2)]
    other = tiny_recipe(table_files, teacher_folder, student={"config": config}, seed=1)
    runs = [execute(r, tmp_path / str(i)) for i, r in enumerate((*same, other))]
    first, second, third = (student_weights(run.path) for run in runs)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, third[name]) for name, tensor in first.items())


def test_resuming_a_finished_run_changes_nothing(table_files, teacher_folder, tmp_path):
    first = execute(tiny_recipe(table_files, teacher_folder), tmp_path / "run")
    before = first.metrics()
    again = execute(tiny_recipe(table_files, teacher_folder), tmp_path / "run", resume=True)
    assert again == RunDirectory(tmp_path / "run") and again.metrics() == before


def test_regression_and_multi_label_tables(tmp_path, tokenizer, tokenizer_folder):
    for problem, labels, num_labels in (
        ("regression", ["1.5", "0.25", "3.75"], 1),
        ("multi_label", ["a;b", "b", "a"], 2),
    ):
        rows = [(text, labels[i % 3]) for i, (text, _) in enumerate(sentences(48))]
        train = write_csv(tmp_path / f"{problem}.csv", rows)
        teacher = tiny_model("bert", depth=3, num_labels=num_labels)
        teacher.save_pretrained(tmp_path / f"teacher-{problem}")
        tokenizer.save_pretrained(tmp_path / f"teacher-{problem}")
        task = {"name": "table", "train": str(train), "text": "text", "label": "label", "separator": ";"}
        task["problem"] = problem
        run = execute(tiny_recipe(task, tmp_path / f"teacher-{problem}"), tmp_path / f"run-{problem}")
        metrics = run.metrics()
        assert np.isfinite(metrics["score"]) and np.isfinite(metrics["teacher"]["agreement"])


def test_best_checkpoint_can_be_chosen(table_files, teacher_folder, tmp_path):
    train = {
        "epochs": 3,
        "batch_size": 16,
        "load_best_model_at_end": True,
        "save_total_limit": 2,
        "learning_rate": 5e-3,
    }
    run = execute(tiny_recipe(table_files, teacher_folder, train=train), tmp_path / "run")
    scores = [entry["eval_accuracy"] for entry in history(run.path) if "eval_accuracy" in entry]
    assert run.metrics()["score"] == max(scores)

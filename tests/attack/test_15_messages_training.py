"""Try every key of TrainingArguments: it works here, or ``limbeck validate`` says why not; and fill a study's disk."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess

import pytest
import torch
import yaml
from helpers.saved_runs import assert_same_run, history, read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import recipe_values, table_task
from transformers import AutoTokenizer, TrainingArguments

from limbeck import execute, load_recipe
from limbeck.errors import RecipeError
from limbeck.recipes.train_block import _OURS
from limbeck.training.assemble import assemble, load_data

# Keys that work, with a value other than the default's; those of one line are tried together.
WORKS = [
    {"max_steps": 2, "learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5, "warmup_steps": 1},
    {"optim": "sgd", "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6, "torch_empty_cache_steps": 1},
    {"optim": "adafactor", "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
    {
        "precision": "bfloat16",
        "gradient_accumulation_steps": 2,
        "logging_nan_inf_filter": False,
        "full_determinism": True,
    },
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"every_n_layers": 2}, "use_cpu": True},
    {"logging_strategy": "steps", "logging_steps": 1, "logging_first_step": True, "log_level": "error"},
    {"log_level_replica": "error", "log_on_each_node": False, "include_num_input_tokens_seen": "non_padding"},
    {"report_to": "none", "run_name": "mine", "project": "mine", "skip_memory_metrics": False},
    {"eval_strategy": "epoch", "eval_delay": 0.5, "eval_on_start": True},
    {"load_best_model_at_end": True, "metric_for_best_model": "macro_f1", "greater_is_better": True},
    {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "ignore_data_skip": True},
    {"dataloader_drop_last": True, "dataloader_pin_memory": False},
    {
        "ddp_find_unused_parameters": True,
        "ddp_bucket_cap_mb": 5,
        "ddp_broadcast_buffers": True,
        "ddp_static_graph": True,
    },
]
# Those that ask for hardware, for a package or for minutes.
NEED_MORE = {"tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "fsdp", "fsdp_config"}
NEED_MORE |= {"trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"}
PROCESSES = {"dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor"}
PROCESSES |= {"dataloader_multiprocessing_context"}
OPTIMISERS = ("adamw_8bit", "lomo", "adalomo", "galore_adamw", "schedule_free_adamw", "adamw_bnb_8bit", "apollo_adamw")


@pytest.fixture()
def values(table_files, teacher_folder):
    def values(method="kd", **train):
        steps = {"max_steps": 2, "batch_size": 16, "eval_strategy": "no"}
        return recipe_values(table_files, teacher_folder, method, train=steps | train)

    return values


def test_every_key_of_this_transformers_is_known_to_work_or_refused():
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    works = {key for keys in WORKS for key in keys} | NEED_MORE | PROCESSES
    assert fields - works - _OURS.keys() == {"save_only_model"} - _OURS.keys(), "new keys: try them"
    assert not works & _OURS.keys()


@pytest.mark.parametrize("key", sorted(_OURS))
def test_a_key_that_does_not_work_here_is_refused_with_the_reason(key, values):
    with pytest.raises(RecipeError, match=f"train.{key}.*is not yours to set here"):
        load_recipe(values=values(**{key: True}))


def test_validate_says_it_all_at_once(values, command, tmp_path):
    wrong = {"neftune_noise_alpha": 5.0, "optim": "lomo", "use_liger_kernel": True, "optim_args": "a=1"}
    wrong |= {"debug": "underflow_overflow", "parallelism_config": {"tp_size": 2}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values(**wrong)))
    code, said = command("validate", "recipe.yaml")
    assert code == 1 and all(f"train.{key}" in said for key in wrong), said


@pytest.mark.parametrize("optim", OPTIMISERS)
def test_optimisers_that_need_more_than_torch_are_refused_with_those_that_work(optim, values):
    with pytest.raises(RecipeError, match=rf"train.optim.*adamw_torch.*sgd.*seen: '{optim}'"):
        load_recipe(values=values(optim=optim))


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs"),  # which linear has not
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type"),  # which needs one
        ({"lr_scheduler_kwargs": "nowhere.json"}, "lr_scheduler_kwargs"),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "gradient_checkpointing_kwargs"),
        ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers"),
        ({"dataloader_prefetch_factor": 2}, "dataloader_prefetch_factor"),
    ],
)
def test_values_that_would_fail_later_are_refused_now(wrong, key, values):
    with pytest.raises(RecipeError, match=f"train.{key}"):
        load_recipe(values=values(**wrong))


@pytest.mark.parametrize("wrong", [{"metric_for_best_model": "f1"}, {"fsdp_config": "nowhere.json", "fsdp": True}])
def test_what_only_the_task_or_the_machine_can_tell_is_one_message(wrong, values, tmp_path):
    with pytest.raises(RecipeError, match="train"):
        execute(load_recipe(values=values(**wrong)), tmp_path / "run", show_data=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("keys", WORKS, ids=lambda keys: next(reversed(keys)))
def test_keys_that_work(keys, values, tmp_path, quick_collection):
    best = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    more = best if "load_best_model_at_end" in keys else {}
    run = execute(load_recipe(values=values(**more | keys)), tmp_path / "run", show_data=False)
    assert run.finished and run.metrics()["steps"] == 2
    found = history(run.path)
    if "eval_on_start" in keys:
        assert found[0]["step"] == 0 and "eval_accuracy" in found[0]
    if "include_num_input_tokens_seen" in keys:
        assert any(entry.get("num_input_tokens_seen") for entry in found)
    if "logging_first_step" in keys:
        assert [entry["step"] for entry in found if "loss" in entry] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_that_load_data(context, values, tmp_path):
    keys = dict(zip(sorted(PROCESSES), (context, 1, True, 2), strict=True))
    execute(load_recipe(values=values(**keys)), tmp_path / "run", show_data=False)
    execute(load_recipe(values=values()), tmp_path / "whole", show_data=False)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def gradients(recipe, enable):
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    distiller = parts.distiller.train()
    if enable:
        distiller.gradient_checkpointing_enable()
    batch = data.collate([data.splits["train"][row] for row in range(8)])
    torch.manual_seed(1)  # of dropout
    output = distiller(**batch)
    output["loss"].backward()
    weights = {name: weight.grad for name, weight in distiller.named_parameters() if weight.grad is not None}
    return output["terms"], weights


CASES = [("bert", method, None) for method in ("kd", "minilmv2", "tinybert", "rkd", "fcd", "pkd")]
CASES += [("bert", "minilmv2", 4), ("bert", "rkd", 4)]
CASES += [("gpt2", "minilmv2", None), ("deberta-v2", "minilmv2", None), ("modernbert", "fcd", None)]


@pytest.mark.parametrize(("family", "method", "part"), CASES)
def test_gradient_checkpointing_changes_neither_losses_nor_gradients(
    family, method, part, table_files, tokenizer_folder, tmp_path
):
    tiny_model(family, depth=4).save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(tmp_path / "teacher")
    train = {"batch_size": part or 8, "relation_batch": 8 if part else None}
    recipe = load_recipe(values=recipe_values(table_files, tmp_path / "teacher", method, train=train))
    if method == "tinybert":
        recipe = recipe.split()[0]
    torch.manual_seed(0)
    terms, weights = gradients(recipe, enable=False)
    torch.manual_seed(0)
    again, recomputed = gradients(recipe, enable=True)
    assert weights.keys() == recomputed.keys() and len(weights) > 4
    for name, value in terms.items():
        assert math.isclose(value.item(), again[name].item(), rel_tol=1e-6), name
    for name, gradient in weights.items():
        torch.testing.assert_close(
            recomputed[name], gradient, rtol=1e-5, atol=1e-7, msg=lambda text, at=name: f"{at} {text}"
        )


def test_gradient_checkpointing_trains_to_the_same_student(values, tmp_path, quick_collection):
    method = {"name": "fsd", "memory": 8, "passes": 1}
    runs = []
    for on in (False, True):
        recipe = load_recipe(values=values(method, gradient_checkpointing=on, learning_rate=1e-3))
        runs.append(execute(recipe, tmp_path / str(on), show_data=False).path)
    assert_same_run(*runs)


@pytest.mark.parametrize("method", ["metadistil", "reptiledistil", "theseus"])
def test_gradient_checkpointing_is_refused_where_models_change_in_a_pass(method, values, tmp_path):
    with pytest.raises(RecipeError, match=r"Leave train\.gradient_checkpointing out"):
        execute(load_recipe(values=values(method, gradient_checkpointing=True)), tmp_path / "run", show_data=False)


@pytest.fixture()
def study_file(table_files, teacher_folder, tmp_path):
    study = {
        "tasks": ["table"],
        "task": table_task(table_files),
        "teacher": {"fine_tuned": str(teacher_folder)},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 3, "batch_size": 16, "save_seconds": 0},
        "methods": {"ft": None, "kd": {"grid": {"method.temperature": [2, 5]}}},
        "rivals": False,
        "seeds": [1],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))


def full(file, *_):
    raise OSError(28, "No space left on device", str(file))


def logs_nothing(self, record):
    try:
        full(self.baseFilename)
    except OSError:
        self.handleError(record)


@pytest.mark.parametrize(
    ("target", "put"),
    [
        pytest.param("limbeck.study.jobs._LogFile.emit", logs_nothing, marks=pytest.mark.slow),
        ("limbeck.training.checkpoints.save_tensors", full),
        pytest.param("limbeck.study.runner.write_text", full, marks=pytest.mark.slow),
        pytest.param("limbeck.training.results.write_text", full, marks=pytest.mark.slow),
    ],
    ids=["log", "checkpoint", "the study's own files", "results of a run"],
)
def test_a_full_disk_in_a_study_is_one_message_and_the_same_command_continues(
    target, put, study_file, command, tmp_path, monkeypatch
):
    tried = []
    with monkeypatch.context() as patched:
        patched.setattr(target, lambda *given: tried.append(given) or put(*given))
        code, said = command("study", "study.yaml", "-o", "study")
    assert code == 1 and said.count("Error:") == 1 and "No space left on device" in said, said
    assert said.endswith("Make room. The same command continues study.")
    assert len(tried) == 1, "the other jobs, and the same one again, would fare no better"
    assert not (tmp_path / "study" / "results.json").exists()
    code, said = command("study", "study.yaml", "-o", "study")
    assert code == 0, said


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="mounts a small disk: needs root")
@pytest.mark.slow
@pytest.mark.parametrize("size", ["100k", "700k", "1300k"])
def test_a_study_on_a_disk_that_is_really_full_goes_on_when_there_is_room(size, study_file, command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let its root mount a disk")
    try:
        code, said = command("study", "study.yaml", "-o", "disk/study")
        assert code == 1 and "No space left on device" in said and said.count("Error:") == 1, said
        assert (
            said.endswith("Make room. The same command continues disk/study.")
            and not (disk / "study" / "results.json").exists()
        )
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        assert command("study", "study.yaml", "-o", "disk/study")[0] == 0
        assert command("study", "study.yaml", "-o", "study")[0] == 0
        found, whole = (read_json(folder / "study" / "results.json") for folder in (disk, tmp_path))
        assert found == whole
    finally:
        subprocess.run(["umount", disk], check=True)

"""Train from a cache of the teacher's features as with the teacher itself, whatever happens on the way."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers.killing import kill_after
from helpers.saved_runs import assert_same_weights, results
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import distill_words, recipe_values, table_task
from helpers.tiny_tables import sentences, write_csv
from safetensors import safe_open

from limbeck import execute, load_recipe
from limbeck.distillation import feature_cache as cache_module
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.encode import Collator
from limbeck.training import cache_policy as caching
from limbeck.training.trainer import RunTrainer

pytestmark = pytest.mark.usefixtures("quick_collection")
METHODS = ["kd", "cka", "shape", "fsd", "fcd", "ics", "pkd", "minilmv2", "tinybert"]
LARGE = {"initializer_range": 0.2}
LABELS = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
OPTIONS = {"fsd": {"memory": 8}}
IDS = range(96)  # of the training table
TRAIN = {"epochs": 3, "batch_size": 16, "learning_rate": 1e-3, "logging_steps": 1}
TRAIN |= {"eval_strategy": "no", "save_strategy": "no"}


@pytest.fixture()
def values(table_files, teacher_folder):
    """Return a recipe's values, with some of them changed: ``values("kd", cache=folder)``."""

    def make(method="kd", train=None, task=None, **teacher):
        block = {"name": method} | OPTIONS.get(method, {})
        task = table_task(table_files) | (task or {})
        values = recipe_values(task, teacher_folder, block, train=TRAIN | (train or {}))
        values["teacher"] |= {key: str(value) for key, value in teacher.items()}
        return values

    return make


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory, tokenizer):
    """Save a teacher with large weights, so that texts and layers differ in their features as in a trained model."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    save(tiny_model("bert", depth=4, **LARGE, **LABELS), tokenizer, folder)
    return folder


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Passes(list):
    """Hold what live teachers were run for: (ids, wanted) of each call on training data."""

    def count(self):
        """Return how often each tensor of each example was computed."""
        return Counter((name, i) for ids, wanted in self for name in wanted.names() for i in ids)

    def names(self):
        return {name for name, _ in self.count()}


@pytest.fixture()
def passes(monkeypatch, tokenizer):
    calls, real = Passes(), LiveTeacher.__call__
    training = {tuple(tokenizer(text, truncation=True, max_length=16)["input_ids"]) for text, _ in sentences(96)}

    def call(self, batch, wanted):
        rows = [ids[mask] for ids, mask in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)]
        if any(tuple(row.tolist()) in training for row in rows):  # the teacher is also scored on the validation data
            calls.append((batch["ids"].tolist(), wanted))
        return real(self, batch, wanted)

    monkeypatch.setattr(LiveTeacher, "__call__", call)
    return calls


@pytest.fixture()
def small_shards(monkeypatch):
    monkeypatch.setattr(cache_module, "TOKENS_IN_A_SHARD", 100)


@pytest.fixture()
def always(monkeypatch):
    """Let ``auto`` take running a teacher to be very slow, so that a cache pays in every job that may have one."""
    monkeypatch.setattr(caching, "_FLOPS", {"cpu": 1.0, "cuda": 1.0})


def curve(run):
    """Return every logged loss, term by term, of all stages."""
    folders = [*sorted(run.path.glob("stage-*")), run.path]
    lines = [line for folder in folders for line in (folder / "history.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in entry.items() if key.startswith("term/") or key in ("loss", "grad_norm")}
        for entry in map(json.loads, lines)
        if "loss" in entry
    ]


def difference(ours, theirs):
    """Return the largest difference of losses and terms, relative to the loss, of two runs that logged the same."""
    assert [entry.keys() for entry in ours] == [entry.keys() for entry in theirs] and ours
    assert all(math.isfinite(value) for entry in ours for value in entry.values())
    return max(
        abs(entry[key] - other[key]) / other["loss"]
        for entry, other in zip(ours, theirs, strict=True)
        for key in entry.keys() - {"grad_norm"}
    )


def shards(folder, name="*"):
    return sorted(folder.glob(f"{name}-*.safetensors"))


def contents(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "lock" not in path.name
    }


def features(folder):
    """Return every cached tensor; each file must be whole."""
    found = {}
    for file in shards(folder):
        with safe_open(file, "pt") as opened:
            [name] = opened.keys()
            found[file.name] = opened.get_tensor(name).clone()
    return found


def assert_same_features(ours, theirs, exact=True):
    ours, theirs = features(ours), features(theirs)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0 if exact else 1e-5, msg=name)


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and "lock" not in path.name]


# The same training


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_curve_is_that_of_the_live_teacher(method, values, passes, small_shards, tmp_path):
    live = execute(load_recipe(values=values(method, cache="off")), tmp_path / "live")
    assert len(passes) >= 18  # a batch a step
    passes.clear()
    built = execute(load_recipe(values=values(method, cache=tmp_path / "cache")), tmp_path / "built")
    assert set(passes.count().values()) == {1} and {i for _, i in passes.count()} == set(IDS)
    steps = 36 if method == "tinybert" else 18
    assert len(curve(live)) == steps
    assert difference(curve(built), curve(live)) < 1e-5
    assert curve(live)[0]["loss"] != curve(live)[-1]["loss"]
    assert results(built.path)["teacher"]["metrics"] == results(live.path)["teacher"]["metrics"]
    if method in ("fsd", "tinybert"):  # with a pass before training, and with two stages
        passes.clear()
        read = execute(load_recipe(values=values(method, cache=tmp_path / "cache")), tmp_path / "read")
        assert not passes and curve(read) == curve(built) and results(read.path) == results(built.path)
        assert_same_weights(read.path, built.path)


@pytest.mark.parametrize("method", ["kd", "fcd"])
def test_half_precision_stays_close(method, values, tmp_path):
    live = curve(execute(load_recipe(values=values(method, cache="off")), tmp_path / "live"))
    # measured: at most 4e-5 and 1.5e-4 over these steps, at a learning rate that is high
    for dtype, tolerance in (("float16", 2e-4), ("bfloat16", 1e-3)):
        blocks = values(method, cache=tmp_path / f"cache-{dtype}", cache_dtype=dtype)
        assert 1e-6 < difference(curve(execute(load_recipe(values=blocks), tmp_path / dtype)), live) < tolerance


@pytest.mark.parametrize(
    ("problem", "labels", "num_labels", "method"),
    [("regression", ["1.5", "0.25", "3.75"], 1, "ics"), ("multi_label", ["a;b", "b", "a"], 2, "fsd")],
)
def test_regression_and_multi_label(problem, labels, num_labels, method, values, tokenizer, tmp_path):
    """Train without a validation file: a tenth of the rows is held out, so that ids are not row numbers."""
    rows = [(text, labels[i % 3]) for i, (text, _) in enumerate(sentences(48))]
    train = write_csv(tmp_path / "train.csv", rows)
    save(tiny_model("bert", depth=3, num_labels=num_labels, **LARGE), tokenizer, tmp_path / "teacher")
    task = {"train": str(train), "separator": ";", "problem": problem}
    runs = []
    for cache in ("off", tmp_path / "cache"):
        blocks = values(method, task=task, model=tmp_path / "teacher", cache=cache)
        del blocks["task"]["validation"]
        runs.append(execute(load_recipe(values=blocks), tmp_path / f"run-{len(runs)}"))
    assert difference(curve(runs[1]), curve(runs[0])) < 1e-5
    assert shards(tmp_path / "cache")
    teachers = [results(run.path)["teacher"] for run in runs]
    assert teachers[1]["metrics"] == pytest.approx(teachers[0]["metrics"], rel=1e-6)
    # a correlation over five rows, of students that differ as their curves do
    assert teachers[1]["agreement"] == pytest.approx(teachers[0]["agreement"], rel=1e-5)


def test_a_decoder_that_pads_on_the_left(values, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, padding_side="left")
    save(tiny_model("gpt2", depth=4, **LARGE, **LABELS), tokenizer, tmp_path / "teacher")
    blocks = [values("pkd", model=tmp_path / "teacher", cache=cache) for cache in ("off", tmp_path / "cache")]
    live, cached = (execute(load_recipe(values=block), tmp_path / str(i)) for i, block in enumerate(blocks))
    assert difference(curve(cached), curve(live)) < 1e-5


def test_one_cache_serves_other_seeds_and_settings(values, passes, tmp_path):
    cache = tmp_path / "cache"
    few = {"max_steps": 2}
    execute(load_recipe(values=values("fcd", few, cache=cache)), tmp_path / "first")
    assert passes
    passes.clear()
    for number, (changes, train) in enumerate(
        [({"seed": 1}, few), ({"student": {"from": "teacher", "keep": "last:3"}}, few), ({}, {"batch_size": 5} | few)]
    ):
        # the student's depth does not change which of the teacher's layers are needed here
        blocks = values("fcd", train, cache=cache) | {"method": {"name": "fcd", "layers": [[1, 2], [2, 4]]}} | changes
        execute(load_recipe(values=blocks), tmp_path / f"run-{number}")
    assert not passes


def test_a_second_method_adds_only_its_own_tensors(values, passes, tmp_path):
    cache, few = tmp_path / "cache", {"max_steps": 2}
    execute(load_recipe(values=values("kd", few, cache=cache)), tmp_path / "kd")
    assert passes.names() == {"logits"}
    before = contents(cache)
    passes.clear()
    execute(load_recipe(values=values("pkd", few, cache=cache)), tmp_path / "pkd")
    assert passes and "logits" not in passes.names() and set(passes.count().values()) == {1}
    after = contents(cache)
    assert all(after[name] == file for name, file in before.items() if name.suffix == ".safetensors")
    passes.clear()
    execute(load_recipe(values=values("kd", few, cache=cache)), tmp_path / "again")
    assert not passes


def test_one_command_caches_for_all_methods(command, values, passes, table_files, teacher_folder, tmp_path):
    some = ["kd", "fcd", "ics", "minilmv2", "tinybert"]
    several = [word for method in some for word in ("--method", method)]
    code, said = command("cache", *distill_words(table_files, teacher_folder, *several), "-o", "cache")
    assert code == 0 and "teacher.cache=cache" in said
    assert set(passes.count().values()) == {1} and {i for _, i in passes.count()} == set(IDS)
    assert len(passes) == 6  # one pass in batches of 16, whatever the number of methods
    assert {"logits", "hidden.0", "hidden.4", "queries.4", "values.4"} <= passes.names()
    passes.clear()
    for method in some:
        execute(load_recipe(values=values(method, {"max_steps": 2}, cache=tmp_path / "cache")), tmp_path / method)
    assert not passes
    code, _ = command("cache", *distill_words(table_files, teacher_folder, *several), "-o", "cache")
    assert code == 0 and not passes  # again, for nothing


def test_the_command_takes_recipes_and_a_dtype(command, values, passes, tmp_path):
    for name in ("kd", "pkd"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(values(name)))  # JSON is YAML
    assert command("cache", "kd.yaml", "pkd.yaml", "--dtype", "float16", "-o", "cache")[0] == 0
    assert "logits" in passes.names() and len(passes.names()) == 2 and set(passes.count().values()) == {1}
    assert {tensor.dtype for tensor in features(tmp_path / "cache").values()} == {torch.float16}
    passes.clear()
    blocks = values("pkd", {"max_steps": 2}, cache="cache", cache_dtype="float16")
    execute(load_recipe(values=blocks), tmp_path / "run")
    assert not passes
    assert command("cache", "kd.yaml", "--dtype", "float8", "-o", "other")[0] == 1
    code, said = command("cache", "kd.yaml", "pkd.yaml", "task.max_length=12", "-o", "cache")
    assert code == 1 and "max_length" in said
    (tmp_path / "other.yaml").write_text(json.dumps(values("kd", task={"max_length": 12})))
    code, said = command("cache", "kd.yaml", "other.yaml", "-o", "both")
    assert code == 1 and not (tmp_path / "both").exists()


def test_off_in_a_recipe_file_is_no_folder(command, values, passes, tmp_path):
    blocks = values("kd", {"max_steps": 2})
    text = json.dumps(blocks).replace('"teacher": {', '"teacher": {"cache": off, ')  # YAML reads off as false
    (tmp_path / "recipe.yaml").write_text(text)
    assert command("distill", "recipe.yaml", "-o", "file")[0] == 0
    assert command("distill", "recipe.yaml", "teacher.cache=off", "-o", "override")[0] == 0
    assert len(passes) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "file", "override"}
    assert load_recipe(tmp_path / "file" / "recipe.yaml").teacher.cache == "off"
    code, said = command("distill", "recipe.yaml", "teacher.cache_dtype=int8", "-o", "wrong")
    assert code == 1 and "cache_dtype" in said


# Caches that cannot be used


def test_a_damaged_cache_is_repaired_by_the_run(values, passes, small_shards, caplog, tmp_path):
    cache, few = tmp_path / "cache", {"max_steps": 6}
    whole = execute(load_recipe(values=values("fcd", few, cache=cache)), tmp_path / "whole")
    good = features(cache)
    empty, short, exchanged = damaged = shards(cache, "hidden.2")[1:4]
    empty.write_bytes(b"")
    short.write_bytes(short.read_bytes()[:-7])
    exchanged.write_bytes(shards(cache, "hidden.2")[0].read_bytes())
    passes.clear()
    caplog.clear()
    again = execute(load_recipe(values=values("fcd", few, cache=cache)), tmp_path / "again")
    assert all(file.name in caplog.text for file in damaged)
    assert passes.names() == {"hidden.2"} and set(passes.count().values()) == {1} and len(passes.count()) < 60
    assert_same_weights(again.path, whole.path)
    assert all(torch.equal(good[name], tensor) for name, tensor in features(cache).items())


def test_a_cache_of_another_teacher_is_refused(
    command, values, passes, table_files, teacher_folder, tokenizer, tmp_path
):
    save(tiny_model("bert", depth=4, seed=5, **LARGE, **LABELS), tokenizer, tmp_path / "other")
    execute(load_recipe(values=values("kd", {"max_steps": 1}, cache=tmp_path / "cache")), tmp_path / "first")
    before = contents(tmp_path / "cache")
    passes.clear()
    settings = ["--method", "kd", "teacher.cache=cache", "train.max_steps=1"]
    code, said = command("distill", *distill_words(table_files, tmp_path / "other", *settings), "-o", "teacher")
    assert code == 1 and "teacher's weights" in said and "cache" in said
    # with the right teacher but other data, length or type
    shorter = ["task.max_length=12"]
    fewer = [f"task.train={write_csv(tmp_path / 'fewer.csv', sentences(95))}"]
    for changes, named in ((shorter, "max_length"), (fewer, "data"), (["teacher.cache_dtype=float16"], "dtype")):
        code, said = command("distill", *distill_words(table_files, teacher_folder, *settings), *changes, "-o", named)
        assert code == 1 and named in said, said
    code, said = command("cache", *distill_words(table_files, tmp_path / "other", "--method", "kd", "-o", "cache"))
    assert code == 1 and "teacher" in said
    assert contents(tmp_path / "cache") == before and not passes


def test_a_folder_with_other_files_or_a_damaged_manifest(values, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(CacheError, match="mine"):
        execute(load_recipe(values=values(cache=mine)), tmp_path / "run")
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    broken = tmp_path / "broken"
    execute(load_recipe(values=values(train={"max_steps": 1}, cache=broken)), tmp_path / "first")
    (broken / "manifest.json").write_text("{")
    before = contents(broken)
    with pytest.raises(CacheError, match=r"manifest\.json"):
        execute(load_recipe(values=values(cache=broken)), tmp_path / "other")
    assert contents(broken) == before


def test_a_refused_cache_leaves_nothing_in_the_way_of_the_corrected_command(values, monkeypatch, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    execute(load_recipe(values=values(train={"max_steps": 1}, cache=tmp_path / "foreign")), tmp_path / "first")
    refused = [
        values("metadistil", cache=tmp_path / "cache"),
        values(cache=mine),
        values(task={"max_length": 12}, cache=tmp_path / "foreign"),
    ]
    for blocks in refused:
        with pytest.raises(CacheError):
            execute(load_recipe(values=blocks), tmp_path / "run")
        assert not (tmp_path / "run").exists(), blocks


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ({"method": {"name": "metadistil"}}, "learns"),
        ({"method": {"name": "reptiledistil"}}, "learns"),
        ({"method": {"name": "fcd", "mask_padding": False}}, "padding"),
        ({"method": {"name": "cka", "mask_padding": False}}, "padding"),
        ({"method": {"name": "shape", "mask_padding": False}}, "padding"),
        ({"method": {"name": "fsd", "mask_padding": False, "memory": 8}}, "padding"),
        ({"method": {"name": "distilbert"}, "task": {"name": "text", "max_length": 16}}, "text"),
    ],
    ids=lambda value: value["method"]["name"] if isinstance(value, dict) else value,
)
def test_what_cannot_be_cached_is_refused_or_runs_live(blocks, reason, values, always, passes, tokenizer, tmp_path):
    given = values(train={"max_steps": 3}, cache=tmp_path / "cache") | blocks
    if given["task"]["name"] == "text":
        (tmp_path / "corpus.txt").write_text("".join(text + "\n" for text, _ in sentences(100)))
        given["task"] = given["task"] | {"train": str(tmp_path / "corpus.txt")}
        language_model(tmp_path / "lm", tokenizer)
        given["teacher"]["model"] = str(tmp_path / "lm")
    with pytest.raises(CacheError, match=reason) as caught:
        execute(load_recipe(values=given), tmp_path / "run")
    assert "teacher.cache" in str(caught.value)  # what to do
    assert not (tmp_path / "cache").exists()
    if given["method"]["name"] in ("metadistil", "fcd", "distilbert"):  # one of each reason
        given["teacher"]["cache"] = "auto"
        run = execute(load_recipe(values=given), tmp_path / "live")
        assert run.finished and not (run.path / "teacher-cache").exists()


def language_model(folder, tokenizer):
    from transformers import AutoModelForMaskedLM

    save(AutoModelForMaskedLM.from_config(tiny_model("bert", depth=4).config), tokenizer, folder)


def test_a_method_that_asks_nothing_of_its_teacher_needs_no_cache(values, tmp_path):
    few = {"max_steps": 2}
    run = execute(load_recipe(values=values("theseus", few, cache=tmp_path / "cache")), tmp_path / "run")
    assert run.finished and not shards(tmp_path / "cache")
    # and does not spoil the folder for others
    assert execute(load_recipe(values=values("kd", few, cache=tmp_path / "cache")), tmp_path / "kd").finished


def test_the_cache_is_of_the_training_data_alone(values, passes, table_files, tmp_path):
    """Change the validation file, which changes nothing; nothing is lost at the end of the training."""
    few, other = {"max_steps": 2}, write_csv(tmp_path / "other.csv", sentences(30, seed=9))
    cache = tmp_path / "cache"
    execute(load_recipe(values=values("kd", few, cache=cache)), tmp_path / "first")
    passes.clear()
    task = {"validation": str(other)}
    run = execute(load_recipe(values=values("kd", few, task, cache=cache)), tmp_path / "second")
    live = execute(load_recipe(values=values("kd", few, task, cache="off")), tmp_path / "live")
    assert results(run.path)["examples"] == 30 and results(run.path)["teacher"] == results(live.path)["teacher"]
    assert {len(ids) for ids, _ in passes} == {16} and len(passes) == 2  # of the live run


# auto


def test_auto_runs_a_tiny_teacher_live(values, passes, tmp_path):
    run = execute(load_recipe(values=values("kd")), tmp_path / "run")
    assert len(passes) == 18 and not (run.path / "teacher-cache").exists()


def test_auto_caches_where_it_pays_and_cleans_up(values, passes, always, monkeypatch, tmp_path):
    seen = []
    real = RunTrainer.compute_loss

    def look(self, *args, **kwargs):
        found = (tmp_path / "run").glob("**/teacher-cache/*.safetensors")
        seen.append({str(path.relative_to(tmp_path / "run")) for path in found})
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "compute_loss", look)
    run = execute(load_recipe(values=values("tinybert")), tmp_path / "run")
    assert set(passes.count().values()) == {1} and len(seen) == 36
    assert all("stage-1/teacher-cache/hidden.4-00000.safetensors" in names for names in seen[:18])
    assert all(names == {"teacher-cache/logits-00000.safetensors"} for names in seen[18:])
    assert sorted(path.name for path in run.path.iterdir()) == [
        *("data.json", "environment.json", "history.jsonl", "metrics.json", "predictions.parquet", "recipe.yaml"),
        "stage-1",
        "start.json",
        "student",
    ]
    assert not list(run.path.rglob("teacher-cache")) and not list(run.path.rglob("*-0000?.safetensors"))


def test_auto_leaves_room_on_the_disk(values, passes, always, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    run = execute(load_recipe(values=values("kd", {"epochs": 2})), tmp_path / "run")
    assert len(passes) == 12 and run.finished


def test_auto_does_not_cache_for_a_single_pass(values, passes, always, tmp_path):
    execute(load_recipe(values=values("fcd", {"epochs": 1})), tmp_path / "run")
    assert len(passes) == 6 and passes.names() == {"hidden.2", "hidden.4"}  # in the order of the training


class Stopped(Exception):
    pass


@pytest.fixture()
def stopping(monkeypatch):
    """Make the n-th step of the next training fail: ``stopping(n)``."""
    real, left = RunTrainer.compute_loss, [None]

    def step(self, *args, **kwargs):
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                left[0] = None
                raise Stopped
        return real(self, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "compute_loss", step)

    def stop_after(count):
        left[0] = count

    return stop_after


@pytest.mark.parametrize(("where", "stop"), [("auto", 2), ("auto", 9), ("cache", 9)])
def test_stopped_and_resumed_equals_uninterrupted(where, stop, values, always, passes, stopping, monkeypatch, tmp_path):
    cache = "auto" if where == "auto" else tmp_path / "cache"
    recipe = load_recipe(values=values("fsd", {"save_steps": 4, "save_strategy": "steps"}, cache=cache))
    whole = execute(recipe, tmp_path / "whole")
    passes.clear()
    stopping(stop)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "broken")
    assert set(passes.count().values()) == ({1} if where == "auto" else set())
    passes.clear()
    # what the cache took is no longer free, which must not change the decision
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    broken = execute(recipe, tmp_path / "broken", resume=True)
    if stop > 4 or where == "cache":  # otherwise there was no checkpoint, and it starts anew as it can
        assert not passes
        assert_same_weights(broken.path, whole.path)
        assert curve(broken) == curve(whole) and results(broken.path) == results(whole.path)
    assert not (broken.path / "teacher-cache").exists()


def test_a_live_stage_after_a_cached_one_stays_live_when_resumed(values, always, passes, stopping, tmp_path):
    """Resume where stages share the folder of ``auto``; that it is there does not mean that this stage reads it."""
    blocks = values("tinybert", {"save_steps": 2, "save_strategy": "steps"})
    blocks["stages"] = [
        {"method": {"name": "tinybert", "stage": "intermediate"}, "train": {"epochs": 3}},
        {"method": {"name": "tinybert", "stage": "prediction"}, "train": {"epochs": 1}},  # one pass: no cache pays
    ]
    recipe = load_recipe(values=blocks)
    whole = execute(recipe, tmp_path / "whole")
    stopping(18 + 3)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "broken")
    passes.clear()
    broken = execute(recipe, tmp_path / "broken", resume=True)
    assert sorted(len(ids) for ids, _ in passes) == [16] * 4  # the steps after the checkpoint, and no pass of its own
    assert_same_weights(broken.path, whole.path)


# Padding


def test_every_training_batch_is_as_wide_as_max_length(values, monkeypatch, tmp_path):
    batches = {"longest": [], "max_length": []}
    real = Collator.__call__
    now = None

    def collate(self, rows):
        batch = real(self, rows)
        if "labels" in batch and len(rows) == 16:
            batches[now].append((batch["input_ids"].shape[1], batch["attention_mask"].sum(1), batch["ids"].tolist()))
        return batch

    monkeypatch.setattr(Collator, "__call__", collate)
    for now in batches:
        execute(load_recipe(values=values("kd", {"epochs": 2}, task={"padding": now}, cache="off")), tmp_path / now)
    assert {width for width, _, _ in batches["max_length"]} == {16}
    assert len({width for width, _, _ in batches["longest"]}) > 3
    validation = 2  # batches, of which the teacher is asked before
    training = batches["max_length"][validation : validation + 12]
    for epoch in (training[:6], training[6:]):  # each example once an epoch
        assert sorted(i for _, _, ids in epoch for i in ids) == list(IDS)
    assert [ids for *_, ids in training[:6]] != [ids for *_, ids in training[6:]]
    spread = [float(lengths.float().std()) for _, lengths, _ in training]
    grouped = [float(lengths.float().std()) for _, lengths, _ in batches["longest"][validation:][:12]]
    assert min(spread) > 2 * sum(grouped) / len(grouped)  # not grouped by length


@pytest.mark.parametrize("method", ["fsd", "fcd", "minilmv2"])
def test_padding_does_not_change_the_loss(method, values, tokenizer, tmp_path):
    """Hold all in one batch, so that both paddings see the same examples; no dropout, which depends on the width."""
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    save(tiny_model("bert", depth=4, **LARGE, **LABELS, **quiet), tokenizer, tmp_path / "teacher")
    curves = []
    for padding, cache in (("longest", "off"), ("max_length", "off"), ("max_length", tmp_path / "cache")):
        blocks = values(method, {"batch_size": 96}, {"padding": padding}, model=tmp_path / "teacher", cache=cache)
        curves.append(curve(execute(load_recipe(values=blocks), tmp_path / f"run-{len(curves)}")))
    assert len(curves[0]) == 3
    assert difference(curves[1], curves[0]) < 1e-5
    assert difference(curves[2], curves[1]) < 1e-5


def test_a_padded_run_resumes_to_the_same_weights(values, stopping, tmp_path):
    blocks = values("pkd", {"save_steps": 4, "save_strategy": "steps"}, {"padding": "max_length"})
    recipe = load_recipe(values=blocks | {"seed": 3})
    whole = execute(recipe, tmp_path / "whole")
    stopping(10)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "broken")
    assert_same_weights(execute(recipe, tmp_path / "broken", resume=True).path, whole.path)


def test_one_cache_for_both_paddings(values, passes, tmp_path):
    for number, padding in enumerate(("longest", "max_length", "longest")):
        blocks = values("pkd", {"max_steps": 2}, {"padding": padding}, cache=tmp_path / "cache")
        execute(load_recipe(values=blocks), tmp_path / str(number))
        assert bool(passes) == (number == 0)
        passes.clear()


# Disk


def test_too_little_space_is_one_message(command, monkeypatch, table_files, teacher_folder, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2000))
    job = distill_words(table_files, teacher_folder, "--method", "fcd")
    code, said = command("cache", *job, "-o", "cache")
    assert code == 1 and said.count("Error:") == 1 and "free" in said
    assert not shards(tmp_path / "cache")
    code, said = command("distill", *job, "teacher.cache=cache", "train.max_steps=1", "-o", "run")
    assert code == 1 and "free" in said and not shards(tmp_path / "cache")


@pytest.fixture()
def small_disk(tmp_path):
    """Mount a file system with little room; return it with a function that gives it more."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True)

    if os.geteuid() != 0 or shutil.which("mount") is None or mount("size=120k").returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk, lambda: mount("remount,size=20m").check_returncode()
    subprocess.run(["umount", disk], check=True)


@pytest.mark.chaos
@pytest.mark.parametrize("stop", ["cache", "distill"])
def test_a_disk_that_fills_up(
    stop, command, small_disk, values, passes, small_shards, monkeypatch, table_files, teacher_folder, tmp_path
):
    """Fill a disk that had room at the start: other programs write too."""
    disk, enlarge = small_disk
    folder = disk / "cache"
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**9))
        job = distill_words(table_files, teacher_folder, "--method", "fcd")
        if stop == "cache":
            code, said = command("cache", *job, "-o", folder)
        else:
            code, said = command("distill", *job, f"teacher.cache={folder}", "train.max_steps=2", "-o", "run")
    assert code == 1 and said.count("Error:") == 1
    assert "full" in said or "No space left" in said
    there = contents(folder)
    assert len(features(folder)) >= 3 and not leftovers(folder)  # what is left is whole
    enlarge()
    passes.clear()
    execute(load_recipe(values=values("fcd", {"max_steps": 2}, cache=folder)), tmp_path / "after")
    assert 0 < len(passes.count()) < 2 * len(IDS) and set(passes.count().values()) == {1}
    now = contents(folder)
    assert all(now[name] == file for name, file in there.items() if name.suffix == ".safetensors")
    execute(load_recipe(values=values("fcd", {"max_steps": 2}, cache=tmp_path / "cache")), tmp_path / "elsewhere")
    assert_same_features(folder, tmp_path / "cache")


# Killed


# A method whose module makes caching slow and in small shards.
SLOW = """
import time
from pathlib import Path
from limbeck import METHODS
from limbeck.distillation import feature_cache as cache
from limbeck.distillation.teachers import LiveTeacher
cache.TOKENS_IN_A_SHARD = 100
real = LiveTeacher.__call__
def call(self, batch, wanted):
    if Path("cache/hidden.4-00002.safetensors").exists():
        time.sleep(60)  # until it is killed
    return real(self, batch, wanted)
LiveTeacher.__call__ = call
def fcd(pair):
    return METHODS["fcd"](pair)
"""


@pytest.mark.chaos
def test_a_killed_command_continues(command, values, passes, table_files, teacher_folder, small_shards, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    job = distill_words(table_files, teacher_folder, "-o", "cache")
    moment = tmp_path / "cache" / "hidden.4-00002.safetensors"
    assert kill_after(moment, "cache", *job, "method.name=slow:fcd", cwd=tmp_path)
    before = contents(tmp_path / "cache")
    there = features(tmp_path / "cache")  # every file is whole
    assert command("cache", *job, "--method", "fcd")[0] == 0
    after = contents(tmp_path / "cache")
    assert all(after[Path(name)] == before[Path(name)] for name in there)
    assert 0 < len(passes.count()) < 2 * len(IDS) and set(passes.count().values()) == {1}
    assert not leftovers(tmp_path / "cache")
    passes.clear()
    assert command("cache", *job, "--method", "fcd", "-o", "whole")[0] == 0
    assert passes
    # the killed process had one thread, this one may have more
    assert_same_features(tmp_path / "cache", tmp_path / "whole", exact=False)


# What the two programs below begin with. They do the work in forked children, so that torch is loaded once.
FORKS = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from limbeck import execute, load_recipe
from limbeck.distillation import feature_cache as cache_module
from limbeck.training import cache_policy as caching
from limbeck.distillation.teachers import LiveTeacher
values, folder, seed = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
cache_module.TOKENS_IN_A_SHARD = 40
caching._FLOPS = {"cpu": 1.0, "cuda": 1.0}
dice = random.Random(seed)
note = folder / "passes"
def start(job, *args):
    child = os.fork()
    if child:
        return child
    try:
        job(*args)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
def ended(child):  # False if it was killed
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
    return not os.WIFSIGNALED(status)
def noted():
    ids = [int(word) for word in note.read_text().split()] if note.exists() else []
    note.unlink(missing_ok=True)
    return ids
real = LiveTeacher.__call__
def call(self, batch, wanted):
    time.sleep(0.005)
    with note.open("a") as file:
        file.write("".join(f"{i} " for i in batch["ids"].tolist()))
    return real(self, batch, wanted)
LiveTeacher.__call__ = call
"""

BUILD = """
from limbeck.training.assemble import assemble, load_data
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.models.features import Wanted
from limbeck.distillation.fingerprint import fingerprint
from safetensors import safe_open
recipe = load_recipe(values=values)
parts = assemble(recipe)
data = load_data(recipe, parts)
made_for = fingerprint(parts.teacher, parts.tokenizer, data.splits["train"], recipe.task.max_length)
def build(name):
    cache = FeatureCache(folder / name, data.splits["train"], made_for)
    cache.fill(LiveTeacher(parts.teacher), data.collate, 8, Wanted(logits=True, hidden=[2, 4], keys=[3]))
def whole(name):
    found = {}
    for file in (folder / name).glob("[!.]*.safetensors"):
        with safe_open(file, "pt") as opened:
            [key] = opened.keys()
            found[file.name] = (file.stat().st_mtime_ns, file.stat().st_ino, opened.get_tensor(key).clone())
    return found
def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name][2], theirs[name][2]) for name in ours)
build("uninterrupted")
complete = whole("uninterrupted")
assert sorted(noted()) == list(range(96))

known, killed = {}, 0
while killed < 12:
    child = start(build, "broken")
    time.sleep(dice.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    if ended(child):
        break
    killed += 1
    now = whole("broken")
    for name, (written, inode, _) in known.items():
        assert now[name][:2] == (written, inode), name + " was written again"
    known = now
noted()
build("broken")
assert same(whole("broken"), complete)
assert all(whole("broken")[name][:2] == file[:2] for name, file in known.items())
again = len(noted())

both = [start(build, "together") for _ in range(2)]
assert all([ended(child) for child in both])
assert sorted(noted()) == list(range(96)), "one pass between them"
assert same(whole("together"), complete)
hidden = [str(path) for path in folder.rglob(".*") if "lock" not in path.name]
print(json.dumps({"killed": killed, "known": len(known), "files": len(complete), "again": again, "hidden": hidden}))
"""

TRAIN_AND_KILL = """
recipe = load_recipe(values=values)
def train(name):
    execute(recipe, folder / name, resume=True)
assert ended(start(train, "whole"))
assert sorted(noted()) == list(range(96))  # a cache was built, and removed
assert not (folder / "whole" / "teacher-cache").exists()
broken = folder / "broken"
for moment in ("teacher-cache", "checkpoints/checkpoint-4/trainer_state.json", "checkpoints/checkpoint-16"):
    child = start(train, "broken")
    deadline = time.monotonic() + 60
    while not (broken / moment).exists():
        assert time.monotonic() < deadline, moment
        time.sleep(0.001)
    time.sleep(dice.uniform(0.0, 0.04))
    os.kill(child, signal.SIGKILL)
    assert not ended(child)
    assert (broken / "teacher-cache").exists()
noted()
assert ended(start(train, "broken"))
assert not noted() and not (broken / "teacher-cache").exists()
"""


SEED = 0  # of the moments at which processes are killed


def run_forks(program, values, folder):
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FORKS + program, json.dumps(values), str(folder), str(SEED)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.chaos
def test_killed_at_random_moments_and_built_by_two_at_once(values, tmp_path):
    found = json.loads(run_forks(BUILD, values("kd"), tmp_path / "work")[-1])
    assert found["killed"] >= 2 and not found["hidden"], found
    assert found["again"] < len(IDS) or found["known"] < 4, found  # shards that were complete are not computed again


@pytest.mark.slow
@pytest.mark.chaos
def test_a_run_killed_with_auto_equals_the_uninterrupted_one(values, tmp_path):
    train = {"epochs": 5, "save_strategy": "steps", "save_steps": 4}
    run_forks(TRAIN_AND_KILL, values("fcd", train), tmp_path / "work")
    whole, broken = (RunDirectory(tmp_path / "work" / name) for name in ("whole", "broken"))
    assert_same_weights(broken.path, whole.path)
    assert curve(broken) == curve(whole) and results(broken.path) == results(whole.path)

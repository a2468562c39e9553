"""Several teachers: what a run learns from them, what its results say of each, and what does not go together."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.saved_runs import assert_same_run, history, read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import recipe_values
from scipy.special import log_softmax, softmax
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck import execute, load_recipe
from limbeck.analysis.analyze import Settings, analyze
from limbeck.errors import CacheError, ModelError, RecipeError
from limbeck.inference.predict import predict_file
from limbeck.metrics import METRICS
from limbeck.runs.reader import read_run
from limbeck.training.assemble import assemble, load_data
from limbeck.training.cache_building import build_cache
from limbeck.training.teaching import file_teachers, taught

TRAIN = {"max_steps": 4, "batch_size": 16, "learning_rate": 1e-3, "logging_steps": 1, "eval_strategy": "no"}


@pytest.fixture(scope="module")
def second(tmp_path_factory, tokenizer_folder):
    folder = tmp_path_factory.mktemp("second") / "teacher"
    model = tiny_model("bert", depth=3, seed=5, hidden_size=48, intermediate_size=32)
    model.config.id2label, model.config.label2id = {0: "negative", 1: "positive"}, {"negative": 0, "positive": 1}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def values(table_files, teacher_folder, second):
    values = recipe_values(table_files, teacher_folder, "kd", train=TRAIN)
    blocks = [{"model": str(teacher_folder), "weight": 0.7}, {"model": str(second)}]
    return values | {"teacher": [block | {"confirmed": True, "cache": "off"} for block in blocks]}


@pytest.fixture(scope="module")
def run(values, tmp_path_factory):
    return execute(load_recipe(values=values), tmp_path_factory.mktemp("run") / "run", show_data=False)


def distiller_of(values):
    recipe = load_recipe(values=values)
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    return parts, data, taught(parts, file_teachers(parts, data)).eval()


def logits_of(folder, batch):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits.double().numpy()


def test_the_loss_is_that_of_the_averaged_probabilities(values, teacher_folder, second):
    temperature = 4.0
    _, data, distiller = distiller_of(values | {"method": {"name": "kd", "alpha": 0.0, "temperature": temperature}})
    batch = data.collate([data.splits["train"][row] for row in (3, 17, 40)])
    found = distiller(**batch)
    p = sum(
        weight * softmax(logits_of(folder, batch) / temperature, axis=1)
        for weight, folder in ((0.7, teacher_folder), (0.3, second))
    )
    log_q = log_softmax(found["logits"].double().detach().numpy() / temperature, axis=1)
    expected = temperature**2 * (p * (np.log(p) - log_q)).sum(1).mean()
    assert found["terms"]["kd"].item() == pytest.approx(expected, abs=1e-6)


def test_results_are_those_of_all_and_of_each(run, values, second):
    found = read_json(run.path / "metrics.json")
    assert [teacher["weight"] for teacher in found["teachers"]] == pytest.approx([0.7, 0.3])
    assert [Path(teacher["name"]) for teacher in found["teachers"]][1] == second
    assert found["teacher"]["parameters"] == sum(teacher["parameters"] for teacher in found["teachers"])
    for teacher in (found["teacher"], *found["teachers"]):
        assert {"metrics", "agreement"} <= set(teacher)
    parts, data, _ = distiller_of(values)
    ours = read_predictions(run)
    model = AutoModelForSequenceClassification.from_pretrained(second).eval()
    rows = [data.splits["validation"][row] for row in range(40)]
    with torch.no_grad():
        batch = data.collate(rows)
        theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(1).numpy()
    assert found["teachers"][1]["agreement"] == pytest.approx((ours == theirs).mean())
    assert found["teachers"][1]["restoration"] == {"macro_f1": pytest.approx(METRICS["macro_f1"](ours, theirs))}
    assert parts.team.several


def read_predictions(run):
    import pyarrow.parquet as pq

    return np.array(pq.read_table(run.predictions())["prediction"])


def test_a_resumed_run_is_the_same(values, run, tmp_path):
    recipe = load_recipe(values=values, overrides=["train.save_steps=2", "train.save_strategy=steps"])
    execute(recipe, tmp_path / "again", pause_after=0.5, show_data=False)
    execute(recipe, tmp_path / "again", resume=True, show_data=False)
    execute(recipe, tmp_path / "whole", show_data=False)
    assert_same_run(tmp_path / "again", tmp_path / "whole")
    written = yaml.safe_load((run.path / "recipe.yaml").read_text())["teacher"]
    assert [block.get("weight") for block in written] == [0.7, None]
    assert load_recipe(run.path / "recipe.yaml").teacher.weights == pytest.approx((0.7, 0.3))
    assert read_run(run.path).teacher == " + ".join(block["model"] for block in written)


def test_each_has_a_cache_of_its_own(values, run, tmp_path):
    cached = [block | {"cache": str(tmp_path / f"cache-{number}")} for number, block in enumerate(values["teacher"])]
    execute(load_recipe(values=values | {"teacher": cached}), tmp_path / "run", show_data=False)
    ours, theirs = ([line["loss"] for line in history(at) if "loss" in line] for at in (tmp_path / "run", run.path))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert all((tmp_path / f"cache-{number}").is_dir() for number in (0, 1))
    with pytest.raises(CacheError, match="One cache is for one teacher, and this recipe has several"):
        build_cache([load_recipe(values=values)], tmp_path / "cache")


@pytest.mark.parametrize("followed", [0, 1])
def test_hidden_terms_follow_one_of_them(followed, values):
    blocks = [
        block | ({"followed": True} if number == followed else {}) for number, block in enumerate(values["teacher"])
    ]
    method = {"name": "pkd", "layers": [[1, 2]]} if followed == 0 else {"name": "cka", "layers": [[1, 2]]}
    parts, data, distiller = distiller_of(values | {"teacher": blocks, "method": method})
    depth = (4, 3)[followed]
    assert parts.team.place == followed and parts.teacher.config.num_hidden_layers == depth
    batch = data.collate([data.splits["train"][row] for row in range(6)])
    assert distiller(**batch)["loss"].isfinite()


def test_a_model_and_a_file_teach_together(values, second, table_files, tmp_path):
    predict_file(second, table_files[0], tmp_path / "soft.parquet", text=["text"], max_length=16, probabilities=True)
    blocks = [values["teacher"][0], {"probabilities": str(tmp_path / "soft.parquet"), "confirmed": True}]
    found = []
    for teacher in (values["teacher"], blocks):
        _, data, distiller = distiller_of(values | {"teacher": teacher})
        batch = data.collate([data.splits["train"][row] for row in range(6)])
        found.append(distiller(**batch)["terms"]["kd"].item())
    assert found[0] == pytest.approx(found[1], abs=1e-5)  # at one temperature: the file has no other
    execute(load_recipe(values=values | {"teacher": blocks}), tmp_path / "run", show_data=False)
    results = read_json(tmp_path / "run" / "metrics.json")
    assert "metrics" not in results["teacher"] and "metrics" in results["teachers"][0]
    assert "metrics" not in results["teachers"][1]


def test_the_run_says_whether_they_are_better_together(values, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="limbeck"):
        execute(load_recipe(values=values), tmp_path / "run", show_data=False)
    assert "The teachers together: accuracy" in caplog.text and "; alone: " in caplog.text
    same = [values["teacher"][0], {name: value for name, value in values["teacher"][0].items() if name != "weight"}]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="limbeck"):
        execute(load_recipe(values=values | {"teacher": same}), tmp_path / "same", show_data=False)
    assert "Together they are no better than" in caplog.text


def test_analyses_take_such_a_run(run):
    (record,) = analyze([run.path], Settings(examples=20))
    assert record.values["layers"]["teacher"] == 4


def test_rows_in_parts_and_hidden_relations(values, tmp_path):
    train = TRAIN | {"batch_size": 8, "relation_batch": 16}
    in_parts = values | {"method": {"name": "cka"}, "train": train}
    execute(load_recipe(values=in_parts), tmp_path / "run", show_data=False)
    assert read_json(tmp_path / "run" / "metrics.json")["steps"] == 4


def test_what_does_not_go_together(values, teacher_folder, tmp_path):
    first, other = values["teacher"]

    def message(*blocks):
        with pytest.raises(RecipeError) as caught:
            load_recipe(values=values | {"teacher": list(blocks)})
        return str(caught.value)

    assert "must add up to 1; seen: 0.7, 0.7" in message(first, other | {"weight": 0.7})
    assert "must leave some of 1 to those that have none" in message(first | {"weight": 1.0}, other)
    assert "of one teacher only" in message(first | {"followed": True}, other | {"followed": True})
    assert "a list of them" in message()
    assert "give exactly one of model, probabilities or logits" in message(first, {"weight": 0.3})
    for method in ("metadistil", "theseus"):
        with pytest.raises(ModelError, match=rf"{method} .*it needs one model"):
            [assemble(stage) for stage in load_recipe(values=values | {"method": {"name": method}}).split()]


def test_another_tokenizer_is_refused(values, tmp_path, second):
    import shutil

    from limbeck.models.vocabulary import make_wordpiece

    make_wordpiece(["other words than those"], tmp_path / "other", vocab_size=120)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(second / name, tmp_path / "other")
    blocks = [values["teacher"][0], {"model": str(tmp_path / "other")}]
    with pytest.raises(ModelError, match="different tokenizers"):
        assemble(load_recipe(values=values | {"teacher": blocks}))

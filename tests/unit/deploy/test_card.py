"""Check the model card: every number in it was measured, and the hub can read it."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from limbeck import METHODS, __version__
from limbeck._internal.files import readable_size
from limbeck.compare.score_table import readable_count
from limbeck.deploy.card import Latency, _citation, write_card
from limbeck.deploy.parity import ExampleLogits, Parity
from limbeck.deploy.provenance import public_name, read_provenance
from limbeck.errors import RunError
from limbeck.tasks import write_table
from limbeck.tasks.task import Task, make_split

ROWS = 40
LABELS = np.arange(ROWS) % 2
LOGITS = np.stack([1.0 - LABELS, LABELS], axis=1) * 3
SCORES = {0: 0.7316, 1: 0.7581, 2: 0.7129}
LATENCY = Latency(3.217, before=8.641, tokens=23, threads=2, processor="A processor", parameters_before=17_361_234)
SERVED = SimpleNamespace(
    form="onnx",
    parameters=17_361_234,
    disk_bytes=69_444_936,
    config=SimpleNamespace(model_type="bert", num_hidden_layers=6),
    tokenizer=SimpleNamespace(model_max_length=96),
)


@pytest.fixture()
def runs(tmp_path):
    """Write three seeds of a student whose teacher is a run itself, made from a model in some folder."""
    teacher = tmp_path / "home" / "teacher-run"
    make_run(teacher, 9, 0.8, {"student": {"model": str(tmp_path / "home" / "gte-small")}, "method": {"name": "ft"}})
    student = {"student": {"from": "teacher", "keep": "first:6"}, "teacher": {"model": str(teacher)}}
    for seed, score in SCORES.items():
        method = {"name": "kd", "alpha": 0.25, "temperature": 8.0}
        make_run(tmp_path / "runs" / f"s{seed}", seed, score, student | {"method": method})
    return tmp_path / "runs"


def make_run(folder, seed, score, recipe):
    folder.mkdir(parents=True)
    recipe |= {"task": {"name": "glue/rte"}, "train": {"epochs": 4.0, "batch_size": 24, "learning_rate": 7e-5}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"seed": seed}))
    results = {"task": "glue/rte", "method": recipe["method"]["name"], "seed": seed, "metric": "accuracy"}
    results |= {"metrics": {"accuracy": score}, "examples": 277, "parameters": SERVED.parameters}
    results |= {"majority": {"accuracy": 0.5271}}
    if "teacher" in recipe:
        results["teacher"] = {"parameters": 33_360_770, "metrics": {"accuracy": 0.8014}}
    (folder / "metrics.json").write_text(json.dumps(results))
    guesses = np.where(np.arange(ROWS) < ROWS * score, LABELS, 1 - LABELS)
    write_table(folder / "predictions.parquet", {"id": range(ROWS), "label": LABELS, "prediction": guesses})


def parity(form):
    split = make_split("validation", {"id": list(range(ROWS)), "label": LABELS})
    task = Task("glue/rte", "classification", ("a", "b"), ("no", "yes"), ("accuracy",), {"validation": split})
    encoded = make_split("validation", {"labels": LABELS, "input_ids": [[1]] * ROWS})
    return task, Parity.of(
        form, task, "validation", *(ExampleLogits(x, encoded) for x in (LOGITS, LOGITS + 2.3e-6)), 0.01
    )


def card_of(folder, provenance, licence=None, form="onnx"):
    task, found = parity(form)
    write_card(folder, "rte-small", task, provenance, found, SERVED, LATENCY, licence)
    return (folder / "README.md").read_text()


def numbers(text):
    return set(re.findall(r"\d+(?:[.,]\d+)*(?:e-?\d+)?", text))


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_was_measured(runs, tmp_path, seeds):
    provenance = read_provenance(runs / "s0", [runs / f"s{seed}" for seed in range(1, seeds)])
    _, _, body = card_of(tmp_path, provenance).split("---\n", 2)
    known = {
        "277",
        "73.16",
        "80.14",
        "52.71",
        "0",
        "40",
        "23",
        "2",
        "96",
        "6",
        "32",
        "4.0",
        "24",
        "7e-05",
        "0.25",
        "8.0",
    }
    known |= {
        "3.22",
        "8.64",
        readable_count(17_361_234)[:-2],
        readable_count(33_360_770)[:-2],
        readable_size(69_444_936)[:-3],
        "95",
    }
    known |= {__version__, "2.3e-06", "100.00"} | numbers(_citation("kd"))
    # each of 40 examples is right or wrong, so that a draw's score is binomial
    low, high = (100 * value for value in provenance.interval)
    drawn = np.random.default_rng(5).binomial(ROWS, 30 / ROWS, 20_000) / ROWS * 100
    assert (low, high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), abs=2.6)
    known |= {f"{low:.2f}", f"{high:.2f}"}
    if seeds == 3:
        spread = statistics.stdev(SCORES.values())
        known |= {"3", "1", f"{100 * statistics.mean(SCORES.values()):.2f}", f"{100 * spread:.2f}"}
    assert numbers(body) <= known, numbers(body) - known
    for figure in ("73.16", "80.14", "52.71", "3.22", "8.64", "17.4", "33.4", "69.4", "2.3e-06"):
        assert figure in numbers(body), figure
    assert ("One seed (0)" in body) == (seeds == 1) and ("± 2.27" in body) == (seeds == 3)


@pytest.mark.parametrize("licence", [None, "apache-2.0"])
def test_the_hub_reads_the_front_matter(runs, tmp_path, licence):
    data = ModelCard(card_of(tmp_path, read_provenance(runs / "s0"), licence)).data
    assert data.license == licence and data.pipeline_tag == "text-classification" and data.library_name == "onnx"
    assert data.datasets == ["nyu-mll/glue"] and data.base_model is None and data.language == "en"
    [result] = data.eval_results
    assert (result.metric_value, result.metric_type, result.dataset_config) == (0.7316, "accuracy", "rte")


def test_eight_bits_have_a_score_of_their_own(runs, tmp_path):
    text = card_of(tmp_path, read_provenance(runs / "s0"), form="onnx-int8")
    [result] = ModelCard(text).data.eval_results
    assert result.metric_value == 1.0  # what the check has found, not what the run had
    assert "| before quantisation | 73.16 |" in text and "| this model | 73.16 |" not in text


def test_names_without_places(runs, tmp_path):
    text = card_of(tmp_path, read_provenance(runs / "s0"))
    assert "layers `first:6` of gte-small" in text and "a teacher (gte-small, fine-tuned)" in text
    assert str(tmp_path) not in text and "home" not in text and "teacher-run" not in text


def test_a_study_brings_its_seeds(runs):
    entry = {"task": "glue/rte", "label": "kd", "runs": [f"runs/s{seed}" for seed in SCORES]}
    (runs.parent / "results.json").write_text(json.dumps({"study": "mine", "entries": [entry]}))
    assert [run.seed for run in read_provenance(runs / "s1").seeds] == [0, 1, 2]


def test_only_other_seeds_go_with_a_run(runs):
    with pytest.raises(RunError, match="different settings"):
        read_provenance(runs / "s0", [runs.parent / "home" / "teacher-run"])
    with pytest.raises(RunError, match="same seed"):
        read_provenance(runs / "s0", [copy_of(runs / "s0")])


def copy_of(folder):
    return shutil.copytree(folder, folder.with_name("again"))


def test_a_name_is_of_the_hub_only_if_it_was_loaded_from_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, _: "there" if name == "a/b" else None)
    (tmp_path / "local").mkdir()
    assert public_name("a/b") == ("a/b", True)
    assert public_name("runs/teacher-that-is-gone") == ("teacher-that-is-gone", False)
    assert public_name("local") == ("local", False)
    assert public_name(str(Path.home() / "models" / "mine")) == ("mine", False)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_cited(name):
    found = _citation(name)
    assert re.search(r"(19|20)\d\d", found) and found.endswith(".") and "\n" not in found and "Options" not in found

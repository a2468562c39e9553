"""Go from a tiny model and a table to an exported student: figures, resumption, and input that cannot work."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import limbeck.shrink.pipeline
import limbeck.study.jobs
from limbeck.deploy.latency import random_batch
from limbeck.errors import MissingExtra
from limbeck.inference.predict import predict_file
from limbeck.inference.served import TorchServed
from limbeck.shrink import size as shrink_size
from limbeck.shrink.budget import Budget
from limbeck.shrink.pipeline import TRIED_METHODS, shrink
from limbeck.shrink.plan import Request
from limbeck.shrink.summary import summary_page
from limbeck.shrink.teacher import reason_to_fine_tune
from limbeck.tasks import load_task

needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)
SIZE = {"of_layers": 4, "length": 9, "layers": 2, "milliseconds": 1.0, "teacher_milliseconds": 2.0, "met": True}


@pytest.fixture(scope="module", autouse=True)
def hurry():
    """Do less of everything that takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("limbeck.shrink.plan._MOST_EPOCHS", 6.0)
        patch.setattr("limbeck.shrink.size._SECONDS", 0.1)
        patch.setattr("limbeck.shrink.forms._SECONDS", 0.1)
        patch.setattr("limbeck.shrink.scores._RESAMPLES", 500)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return write_csv(folder / "train.csv", sentences(200)), write_csv(folder / "dev.csv", sentences(61, seed=1))


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory, tokenizer_folder):
    """Save a pre-trained encoder without a head."""
    folder = tmp_path_factory.mktemp("models") / "encoder"
    tiny_model("bert", depth=4, initializer_range=0.2).base_model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


def request(base, files, **changes):
    train, dev = map(str, files)
    values = {"model": str(base), "data": train, "dev": dev, "text": ("text",), "label": "label", "budget": "0.5x"}
    return Request(**(values | changes))


@pytest.fixture(scope="module")
def shrunk(base_folder, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shrunk") / "out"
    return folder, shrink(request(base_folder, files), folder)


def reported_rows(labels, file):
    """Return the rows of every second text, sorted by label and then by a hash of the text; here all texts differ."""
    with open(file, newline="") as opened:
        texts = [row["text"] for row in csv.DictReader(opened)]
    assert len(set(texts)) == len(texts)
    hashes = [hashlib.blake2b(b"0:" + text.encode(), digest_size=8).digest() for text in texts]
    order = sorted(range(len(labels)), key=lambda row: (labels[row], hashes[row]))
    return sorted(order[1::2])


def predictions_of(run):
    table = pq.read_table(run / "predictions.parquet").to_pydict()
    return {name: np.array(table[name]) for name in ("label", "prediction", "teacher_prediction")}


def test_the_figures_are_those_of_the_run_directories(shrunk, files):
    folder, summary = shrunk
    assert summary == read_json(folder / "summary.json")
    entries = {entry["method"]: entry for entry in summary["methods"]}
    assert list(entries) == list(TRIED_METHODS)
    found = {name: predictions_of(folder / entry["run"]) for name, entry in entries.items()}
    labels = found["ft"]["label"]
    rows = reported_rows(labels, files[1])
    others = sorted(set(range(len(labels))) - set(rows))
    assert summary["rows"] == {"train": 200, "choosing": 31, "reported": 30}
    for name, entry in entries.items():
        right = found[name]["prediction"] == labels
        assert entry["chosen_by"] == pytest.approx(right[others].mean())
        assert entry["score"]["value"] == pytest.approx(right[rows].mean())
        assert entry["score"]["low"] <= entry["score"]["value"] <= entry["score"]["high"]
        same = found[name]["prediction"] == found[name]["teacher_prediction"]
        assert entry["agreement"] == pytest.approx(same[rows].mean())
    teacher = (found["ft"]["teacher_prediction"] == labels)[rows].mean()
    most = Counter(label for _, label in sentences(200)).most_common(1)[0][0]
    assert summary["majority"] == pytest.approx((labels[rows] == ["negative", "positive"].index(most)).mean())
    assert summary["teacher"]["score"]["value"] == pytest.approx(teacher)
    chosen = summary["student"]["method"]
    assert chosen == max(TRIED_METHODS, key=lambda name: entries[name]["chosen_by"])
    assert summary["against_teacher"]["value"] == pytest.approx(entries[chosen]["score"]["value"] - teacher)
    recipe = yaml.safe_load((folder / entries[chosen]["run"] / "recipe.yaml").read_text())
    kept = f"first:{summary['student']['layers']}"
    assert recipe["student"] == {"from": "teacher", "keep": kept, "head": "fitted"}
    assert recipe["train"]["epochs"] == summary["student"]["epochs"]


@needs_onnx
def test_every_form_is_exported_scored_and_counted(shrunk, files, tmp_path):
    folder, summary = shrunk
    models = {model["name"]: model for model in summary["models"]}
    places = {
        "student": "model",
        "student, onnx": "onnx",
        "student, onnx-int8": "onnx-int8",
        "teacher, onnx-int8": "teacher-onnx-int8",
    }
    assert set(models) == {"teacher", *places} and not summary["not_exported"]
    with open(files[1], newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    rows = reported_rows(labels, files[1])
    for name, place in places.items():
        predict_file(folder / place, files[1], tmp_path / f"{place}.csv", text=["text"])
        with open(tmp_path / f"{place}.csv", newline="") as file:
            predicted = [row["prediction"] for row in csv.DictReader(file)]
        right = [predicted[row] == labels[row] for row in rows]
        assert models[name]["score"]["value"] == pytest.approx(np.mean(right)), name
        file = folder / place / ("model.safetensors" if place == "model" else "model.onnx")
        assert models[name]["disk_bytes"] == file.stat().st_size
        assert models[name]["latency_ratio"] == pytest.approx(models[name]["p50_ms"] / models["teacher"]["p50_ms"])
    student = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert student.config.num_hidden_layers == summary["student"]["layers"]
    assert models["student"]["parameters"] == sum(weight.numel() for weight in student.parameters())
    assert summary["student"]["parameters"] == models["student"]["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "metric"), [("numbers", "pearson"), ("several labels", "micro_f1")])
def test_numbers_and_several_labels(kind, metric, base_folder, files, tmp_path, monkeypatch):
    """Tell the problem from the column, all the way to the page and the forms that are served."""
    monkeypatch.setattr(limbeck.shrink.pipeline, "TRIED_METHODS", ("ft", "kd"))
    made = []
    for file in files:
        rows = list(csv.DictReader(file.read_text().splitlines()))
        for number, row in enumerate(rows):
            words = len(row["text"].split())
            named = [row["label"]] + ["long"] * (words > 6) + ["odd"] * (number % 2)
            row["label"] = words / 3 + number % 2 if kind == "numbers" else named
        made.append(tmp_path / f"{file.stem}.jsonl")
        made[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = shrink(request(base_folder, made), tmp_path / "out")
    assert summary["metric"] == metric
    assert [entry["method"] for entry in summary["methods"]] == ["ft", "kd"]
    assert all(np.isfinite(model["score"]["value"]) for model in summary["models"])
    assert metric in (tmp_path / "out" / "summary.md").read_text()


def test_the_page_is_that_of_the_figures(shrunk):
    folder, summary = shrunk
    assert (folder / "summary.md").read_text() == summary_page(summary)
    assert "encoder (which has no trained head for these labels), fine-tuned for 6 epochs" in summary_page(summary)
    assert not (folder / "study" / "caches").exists()


def test_a_finished_folder_is_left_as_it_is(shrunk, base_folder, files, monkeypatch):
    folder, summary = shrunk
    monkeypatch.setattr(limbeck.shrink.pipeline, "execute", None)
    monkeypatch.setattr(limbeck.shrink.pipeline, "run_study", None)
    assert shrink(request(base_folder, files), folder) == summary


@pytest.mark.slow
def test_it_goes_on_where_it_stopped(base_folder, files, tmp_path, monkeypatch, command):
    """Stop in the second student, then go on with a method that fails, then to the end, as if nothing had happened."""
    monkeypatch.setattr(limbeck.shrink.pipeline, "choose_size", lambda *_: SIZE)
    monkeypatch.setattr(limbeck.shrink.pipeline, "TRIED_METHODS", ("ft", "kd", "cka"))
    monkeypatch.setattr("limbeck.shrink.plan._MOST_EPOCHS", 1.0)
    monkeypatch.setattr("limbeck.shrink.forms.EXPORT_FORMS", ("hf", "onnx-int8"))
    monkeypatch.setattr("limbeck.shrink.forms.export", only_hf)
    original, done = limbeck.study.jobs.execute, []

    def breaking(error, at):
        def execute(recipe, *rest, **options):
            if recipe.method.name == at:
                raise error
            done.append(recipe.method.name)
            return original(recipe, *rest, **options)

        return execute

    train, dev = files
    words = ["shrink", "--model", base_folder, "--data", train, "--dev", dev, "--text", "text", "--label", "label"]
    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(KeyboardInterrupt(), "kd"))
    code, said = command(*words, "-o", "out")
    assert code == 130 and "Interrupted. The same command continues out" in said and done == ["ft"]
    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(RuntimeError("no luck"), "kd"))
    code, said = command(*words, "-o", "out")
    assert code == 0 and "kd failed: RuntimeError: no luck" in said and done == ["ft", "cka"]
    monkeypatch.setattr(limbeck.study.jobs, "execute", breaking(None, "nothing"))
    code, said = command(*words, "-o", "out")
    assert code == 0 and "failed" not in said and done == ["ft", "cka", "kd"]
    code, _ = command(*words, "-o", "again")
    assert code == 0
    results = [read_json(tmp_path / name / "summary.json") for name in ("out", "again")]
    for key in ("rows", "teacher", "student", "against_teacher", "against_ft"):
        ours, theirs = ({**(result[key] or {}), "seconds": None} for result in results)
        assert ours == theirs, key
    assert [entry["score"] for entry in results[0]["methods"]] == [entry["score"] for entry in results[1]["methods"]]


def only_hf(model, to, output, **options):
    from limbeck.deploy.export import export

    if to != "hf":
        raise MissingExtra("This needs onnxruntime: pip install 'limbeck[onnx]'.")
    return export(model, to, output, **options)


def test_without_onnx_and_out_of_time_it_says_so(shrunk, files, tmp_path, monkeypatch):
    """Give a teacher of which one layer is too slow, where no other form can be had."""

    def missing(*_):
        raise MissingExtra("This needs onnxruntime: pip install 'limbeck[onnx]'.")

    monkeypatch.setattr("limbeck.shrink.size.write_onnx", missing)
    monkeypatch.setattr("limbeck.shrink.forms.export", only_hf)
    monkeypatch.setattr(limbeck.shrink.pipeline, "TRIED_METHODS", ("ft",))
    teacher = shrunk[0] / "teacher"
    summary = shrink(request(teacher, files, budget="0.0001ms"), tmp_path / "out")
    assert not (tmp_path / "out" / "teacher").exists()
    assert summary["student"]["layers"] == 1 and not summary["budget"]["met"]
    text = (tmp_path / "out" / "summary.md").read_text()
    assert "The budget of 0.0001ms could not be met. The nearest takes" in text
    assert "Not exported as ONNX: This needs onnxruntime" in text
    assert "The teacher is teacher, as it was given." in text
    assert [model["name"] for model in summary["models"]] == ["teacher", "student"]


@pytest.mark.parametrize(
    ("budget", "layers", "met"), [("0.25x", 1, True), ("0.06x", 2, True), ("0.001x", 1, False), ("3.5ms", 3, True)]
)
def test_int8_helps_where_one_layer_is_too_slow(budget, layers, met, files, teacher_folder, monkeypatch):
    """Make timings up: each layer takes 10 ms, and 1 ms in 8 bits."""

    def timings(teacher, length, make, depths):
        each = 10.0 if make is shrink_size._first_layers else 1.0
        return {depth: 40.0 if depth == 4 else each * depth for depth in depths}

    monkeypatch.setattr(shrink_size, "_time", timings)
    task = load_task("table", train=str(files[0]), text="text", label="label")
    found = shrink_size.choose_size(str(teacher_folder), task, Budget.parse(budget))
    assert (found["layers"], found["met"], found["of_layers"]) == (layers, met, 4)
    lengths = sorted(task.lengths("train", AutoTokenizer.from_pretrained(teacher_folder)))
    share = sum(length <= found["length"] for length in lengths) / len(lengths)
    assert share >= (0.95 if budget.endswith("ms") else 0.5) and found["length"] in lengths


@needs_onnx
def test_students_are_cut_and_quantised_in_memory(teacher_folder, tmp_path):
    teacher = TorchServed(teacher_folder)
    plain, int8 = shrink_size._first_layers(teacher, 1), shrink_size._quantised(tmp_path, teacher, 1)
    assert (plain.model.config.num_hidden_layers, teacher.model.config.num_hidden_layers) == (1, 4)
    assert (plain.form, int8.form) == ("torch", "onnx-int8")
    batch = random_batch(teacher, 3, 7)
    np.testing.assert_allclose(plain.logits(batch), int8.logits(batch), atol=0.05)


def test_who_is_a_teacher(shrunk, base_folder, teacher_folder, files):
    train, dev = map(str, files)
    task = load_task("table", train=train, validation=dev, text="text", label="label")
    assert reason_to_fine_tune(str(base_folder), task) == "which has no trained head for these labels"
    # its head has the right labels and random weights
    assert reason_to_fine_tune(str(teacher_folder), task) == "whose head does not know these labels"
    assert reason_to_fine_tune(str(shrunk[0] / "teacher"), task) == ""


BAD = {
    "column": (["--label", "intent"], "intent"),
    "text": (["--text", "sentence"], "sentence"),
    "file": (["--data", "trian.csv"], "trian.csv does not exist. Did you mean 'train.csv'"),
    "budget": (["--budget", "abc"], "The budget 'abc' is not understood"),
    "fast": (["--budget", "2x"], "write 0.5x"),
    "zero": (["--budget", "0x"], "leaves no time"),
    "one label": (["--data", "same.csv"], "every row has the label 'positive'"),
    "few": (["--data", "few.csv"], "few.csv has 60 rows, of which a tenth, 6, would be held out"),
    "few dev": (["--dev", "tiny.csv"], "tiny.csv has 6 rows, too few to tell one student from another"),
    "model": (["--model", "nowhere"], "Cannot load 'nowhere'"),
    "output": (["-o", "taken"], "taken holds something else"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_with_one_message(case, base_folder, command, tmp_path):
    words, message = BAD[case]
    write_csv(tmp_path / "train.csv", sentences(240))
    write_csv(tmp_path / "few.csv", sentences(60))
    write_csv(tmp_path / "tiny.csv", sentences(6))
    write_csv(tmp_path / "same.csv", [(text, "positive") for text, _ in sentences(240)])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    defaults = {"--model": base_folder, "--data": "train.csv", "--text": "text", "--label": "label", "-o": "out"}
    given = defaults | dict(zip(words[::2], words[1::2], strict=True))
    code, said = command("shrink", *(word for pair in given.items() for word in pair))
    assert code == 1 and said.count("Error:") == 1 and message in said
    assert not (tmp_path / "out").exists() or not (tmp_path / "out" / "teacher").exists()

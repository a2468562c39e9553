"""Measure tiny models through the command line: what can be counted is exact, what is timed is there."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck.deploy.bench import bench
from limbeck.deploy.memory import measure_memory
from limbeck.deploy.onnx import write_onnx
from limbeck.errors import ModelError
from limbeck.inference.served import load_served
from limbeck.models.students import keep_layers

needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)


@pytest.fixture(scope="module")
def student_folder(teacher_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "student"
    teacher = AutoModelForSequenceClassification.from_pretrained(teacher_folder)
    keep_layers(teacher, [1]).save_pretrained(folder)
    AutoTokenizer.from_pretrained(teacher_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def int8_folder(student_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "int8"
    folder.mkdir()
    served = load_served(student_folder)
    for part in (served.config, served.tokenizer):
        part.save_pretrained(folder)
    write_onnx(served.model, served.tokenizer.model_input_names, folder / "onnx/model_quantized.onnx", "onnx-int8")
    return folder


def count(folder: Path) -> int:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


@needs_onnx
def test_bench_measures_every_form_at_every_size(teacher_folder, student_folder, int8_folder, command, tmp_path):
    words = ["bench", teacher_folder, student_folder, int8_folder, "--seconds", "1", "--threads", "1", "--no-memory"]
    words += ["--batch-size", "4", "--batch-size", "1", "--length", "6", "--length", "12"]
    code, said = command(*words, "-o", "bench.json", "--plot", "bench.svg")
    assert code == 0
    found = read_json(tmp_path / "bench.json")
    assert [model["name"] for model in found["models"]] == ["teacher", "student", "int8"]
    assert [model["form"] for model in found["models"]] == ["torch", "torch", "onnx-int8"]
    assert found["threads"] == 1 and "1 thread;" in said and found["processor"].split()[0] in said
    sizes = [count(folder) for folder in (teacher_folder, student_folder, student_folder)]
    assert [model["parameters"] for model in found["models"]] == sizes
    assert [model["smaller"] for model in found["models"]] == [sizes[0] / size for size in sizes]
    weights = [
        teacher_folder / "model.safetensors",
        student_folder / "model.safetensors",
        int8_folder / "onnx/model_quantized.onnx",
    ]
    assert [model["disk_bytes"] for model in found["models"]] == [file.stat().st_size for file in weights]
    first = found["models"][0]["cells"]
    for model in found["models"]:
        assert {(cell["batch_size"], cell["length"]) for cell in model["cells"]} == {(1, 6), (1, 12), (4, 6), (4, 12)}
        for cell, reference in zip(model["cells"], first, strict=True):
            assert 0 < cell["p50_ms"] <= cell["p95_ms"] and cell["examples_per_second"] > 0 and cell["calls"] >= 3
            assert cell["speedup"] == pytest.approx(reference["p50_ms"] / cell["p50_ms"])
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
    assert "speed-up" in said and f"{sizes[1]:,}" in said


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells how much memory was used")
def test_memory_is_that_of_the_model_and_not_of_the_libraries(teacher_folder, tmp_path):
    """See 26 MB of embeddings, and not the hundreds of MB of torch."""
    model = tiny_model("bert", depth=1, vocab_size=200_000)
    model.save_pretrained(tmp_path / "large")
    AutoTokenizer.from_pretrained(teacher_folder).save_pretrained(tmp_path / "large")
    small, large = (measure_memory(str(folder), 1, 4, 1) for folder in (teacher_folder, tmp_path / "large"))
    assert small is not None and large is not None
    assert 0 < small < 100e6 and 20e6 < large - small < 60e6


def test_a_model_whose_memory_cannot_be_measured_is_named(tmp_path):
    if Path("/proc/self/status").is_file():
        with pytest.raises(ModelError, match=r"The memory of .*nothing could not be measured: .*--no-memory"):
            measure_memory(str(tmp_path / "nothing"), 1, 4, 1)


def test_the_number_of_threads_is_as_before_afterwards(teacher_folder):
    before = torch.get_num_threads()
    found = bench([teacher_folder], batch_sizes=[1], lengths=[4], seconds=0.1, threads=before + 1, memory=False)
    assert found.threads == before + 1 and torch.get_num_threads() == before
    assert found.models[0].memory_bytes is None
    assert found.models[0].cell(1, 4).speedup == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "Cannot load 'nowhere'"),
        (["TEACHER", "TEACHER"], "is named twice"),
        (["TEACHER", "--length", "100000"], "teacher reads at most 512 tokens; seen: --length 100000"),
        (["TEACHER", "--plot", "bench.jpg"], "A figure is written as .svg, .png and .pdf; seen: bench.jpg"),
        (["HEADLESS"], "has no trained classification head"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, teacher_folder, tokenizer_folder, command, tmp_path):
    headless = tmp_path / "headless"
    model = AutoModelForSequenceClassification.from_pretrained(teacher_folder)
    model.base_model.save_pretrained(headless)
    shutil.copytree(tokenizer_folder, headless, dirs_exist_ok=True)
    named = {"TEACHER": teacher_folder, "HEADLESS": headless}
    code, said = command("bench", *(named.get(word, word) for word in words), "--seconds", "1", "--no-memory")
    assert code == 1 and message in said

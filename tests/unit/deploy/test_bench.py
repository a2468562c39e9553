"""Check what a benchmark says: names, plain values and the figure."""

from __future__ import annotations

import pytest
import torch

from limbeck.deploy.bench import BenchResult, MeasuredModel, TimedCell, _names, choose_device
from limbeck.errors import RecipeError
from limbeck.inference.latency import Timing
from limbeck.report.timings import check_plot, plot


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "out/b"], ["a", "b"]),
        (["runs/a", "out/a", "c"], ["runs/a", "out/a", "c"]),
    ],
)
def test_models_are_named_by_what_tells_them_apart(paths, names):
    assert _names(paths) == names


@pytest.mark.parametrize(("paths", "message"), [([], "Which models"), (["a", "b", "a"], "a is named twice")])
def test_models_that_cannot_be_compared_are_refused(paths, message):
    with pytest.raises(RecipeError, match=message):
        _names(paths)


def made_up(batch_sizes=(1, 8), lengths=(16, 64), models=("teacher", "student")):
    cells = tuple(
        TimedCell(batch, length, Timing(9, batch * length / 10, batch * length / 5, 100.0), 2.0)
        for batch in batch_sizes
        for length in lengths
    )
    measured = [MeasuredModel(name, f"runs/{name}", "torch", 100, 400, None, 1.0, cells) for name in models]
    return BenchResult("a processor", 2, {"torch": "2"}, tuple(measured))


def test_values_are_plain_and_flat():
    values = made_up().values()
    first = values["models"][0]["cells"][0]
    assert first == {
        "batch_size": 1,
        "length": 16,
        "calls": 9,
        "p50_ms": 1.6,
        "p95_ms": 3.2,
        "examples_per_second": 100.0,
        "speedup": 2.0,
    }
    assert values["threads"] == 2 and values["models"][1]["memory_bytes"] is None


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "SVG"])
@pytest.mark.parametrize("bench", [made_up(), made_up((1,), (8,), ("alone",))])
def test_the_figure_is_written_in_the_format_that_its_name_tells(suffix, bench, tmp_path):
    file = tmp_path / f"bench.{suffix}"
    check_plot(file)
    plot(bench.values(), file)
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix.lower()]
    assert file.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_the_figure_names_every_model_and_length(tmp_path):
    plot(made_up(models=("teacher", "small_one", "$a^b$")).values(), tmp_path / "bench.svg")
    drawn = (tmp_path / "bench.svg").read_text()
    for word in ("teacher", "small_one", "$a^b$", "16 tokens", "64 tokens", "milliseconds", "examples per second"):
        assert word in drawn


@pytest.mark.parametrize("name", ["bench.jpg", "bench"])
def test_another_format_is_refused(name, tmp_path):
    with pytest.raises(RecipeError, match=r"\.svg, \.png and \.pdf; seen: bench"):
        check_plot(tmp_path / name)


def test_all_models_are_measured_on_one_device(monkeypatch):
    gpu = torch.device("meta")  # stands for one
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: gpu)
    assert choose_device("auto", ["torch", "torch"]) == gpu
    assert choose_device("auto", ["torch", "onnx-int8"]) == choose_device("cpu", ["torch"]) == torch.device("cpu")
    with pytest.raises(RecipeError, match="onnx models run on the processor alone"):
        choose_device("meta", ["torch", "onnx"])
    with pytest.raises(RecipeError, match="There is no device 'tpu9' here"):
        choose_device("tpu9", ["torch"])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert choose_device("auto", ["torch"]) == torch.device("cpu")

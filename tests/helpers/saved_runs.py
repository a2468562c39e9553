"""Read what runs left on disk, and compare it between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def history(run: Path) -> list[dict[str, Any]]:
    """Return everything that was logged, a dictionary for each line."""
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def results(run: Path) -> dict[str, Any]:
    """Return metrics.json without the seconds that it took, which no two runs share."""
    found: dict[str, Any] = read_json(run / "metrics.json")
    assert found.pop("train_seconds") >= 0
    return found


def student_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "student" / "model.safetensors")


def assert_same_weights(ours: Path, theirs: Path, atol: float = 0.0) -> None:
    """Check that the students of two runs have the same weights: exactly, unless ``atol`` allows a difference."""
    first, second = student_weights(ours), student_weights(theirs)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(
            tensor, second[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Check that two runs have the same weights, results and predictions to the last bit."""
    assert_same_weights(ours, theirs)
    assert results(ours) == results(theirs)
    assert (ours / "predictions.parquet").read_bytes() == (theirs / "predictions.parquet").read_bytes()

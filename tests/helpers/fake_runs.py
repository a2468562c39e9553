"""Write finished run directories and studies without any training, for tests of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

TEACHER = {"parameters": 109_483_778, "metrics": {"accuracy": 0.75}, "agreement": 0.9}


def make_run(
    folder: Path,
    method: str = "kd",
    seed: int = 1,
    scores: Mapping[str, float] | float = 0.7,
    *,
    task: str = "glue/rte",
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    mismatched: Mapping[str, Any] | None = None,
    **results: Any,
) -> Path:
    """Write a run; ``options`` are the method's, ``settings`` replace recipe blocks, ``results`` replace metrics."""
    scores = scores if isinstance(scores, Mapping) else {"accuracy": scores}
    folder.mkdir(parents=True)
    recipe: dict[str, Any] = {
        "task": {"name": task, "max_length": 128},
        "teacher": {"model": "runs/teacher", "cache": "auto"},
        "student": {"from": "teacher", "keep": "first:6"},
        "method": {"name": method, **(options or {})},
        "train": {"epochs": 3.0, "learning_rate": 5e-05},
        "seed": seed,
    }
    found = {
        "task": task,
        "split": "validation",
        "method": method,
        "seed": seed,
        "metric": next(iter(scores)),
        "score": next(iter(scores.values())),
        "parameters": 66_955_010,
        "examples": 277,
        "metrics": dict(scores),
        "teacher": TEACHER,
        "majority": {"accuracy": 0.5271},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | dict(settings or {}), sort_keys=False))
    (folder / "metrics.json").write_text(json.dumps(found | results))
    for name, columns in (("predictions", answers), ("predictions-validation_mismatched", mismatched)):
        if columns is not None:
            pq.write_table(pa.table(dict(columns)), folder / f"{name}.parquet")
    return folder


def make_runs(folder: Path, method: str, scores: Sequence[float | Mapping[str, float]], **more: Any) -> list[Path]:
    """Write a run for each score, with the seeds 1, 2, ..."""
    return [
        make_run(folder / f"{method}-s{seed}", method, seed, score, **more)
        for seed, score in enumerate(scores, start=1)
    ]


def make_study(folder: Path, entries: Sequence[Mapping[str, Any]], **values: Any) -> Path:
    """Write a study whose entries hold ``label`` and ``scores``, and what else goes into results.json."""
    written = []
    for entry in entries:
        task, label = entry.get("task", "glue/rte"), entry["label"]
        parent = folder / "runs" / task.replace("/", "-")
        runs = make_runs(parent, label, entry["scores"], task=task) if entry["scores"] else []
        rest = {key: value for key, value in entry.items() if key != "scores"}
        written.append({"task": task, "runs": [str(run.relative_to(folder)) for run in runs], **rest})
    study = {
        "study": "rte-small",
        "baselines": ["ft"],
        "test": "welch",
        "sided": "two",
        "level": 0.05,
        "selection": "Nothing was searched.",
        "entries": written,
        "teachers": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(study | values))
    return folder


def classes(labels: Sequence[int], predictions: Sequence[int]) -> dict[str, Any]:
    return {"id": list(range(len(labels))), "label": list(labels), "prediction": list(predictions)}

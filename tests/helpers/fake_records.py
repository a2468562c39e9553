"""Make up measurements and logs of runs without any model, for tests of figures and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.fake_runs import make_run, make_study
from limbeck.analysis.record import TOKEN_NORMS, Record, write_record

RELATIONS = ("inter_euclidean", "inter_cosine", "intra_euclidean", "intra_cosine")
SETTINGS = {"examples": 200, "batch_size": 32, "pool": "mean", "layer": "last", "estimator": "unbiased"}
SESSION = {"id": "0123456789abcdef", "processor": "A <processor>", "threads": 2}
SENTENCE = {"text": "a small sentence", "tokens": ["[CLS]", "a", "small", "sent", "##ence", "[SEP]"]}


def a_record(seed: int = 0, depths: tuple[int, int] = (6, 3), batches: int = 8, better: float = 0.5) -> Record:
    """Make up everything that can be measured; ``better`` moves the numbers towards the teacher's."""
    draw = np.random.default_rng(seed)
    teacher, student = depths
    noise = draw.uniform(0, 0.3, (batches, batches))
    maps = {name: noise + share * np.eye(batches) for name, share in (("before", 0.3), ("after", 0.3 + 0.6 * better))}
    arrays = {f"heat_map.{name}": values for name, values in maps.items()}
    arrays["heat_map.teacher"] = np.eye(batches) * 0.7 + 0.3
    common = np.random.default_rng(99)  # the student before training is the same for all
    arrays["heat_map.before"] = common.uniform(0, 0.3, (batches, batches)) + 0.3 * np.eye(batches)
    arrays["layers.before"] = common.uniform(0, 0.6, (teacher + 1, student + 1))
    arrays["layers.after"] = draw.uniform(0.3, 1, (teacher + 1, student + 1))
    arrays["layers.students"] = draw.uniform(0.3, 1, (student + 1, student + 1))
    size = len(SENTENCE["tokens"])
    for model in ("teacher", "student"):
        for norm in TOKEN_NORMS:
            arrays[f"tokens.0.{model}.{norm}"] = draw.normal(size=(size, size)) * (30 if norm == "none" else 1)
    differences = [
        {"step": step, **{name: (3 - better) / (1 + step / 50) + draw.uniform(0, 0.1) for name in RELATIONS}}
        for step in (0, 50, 100)
    ]
    values = {
        "layers": {"teacher": teacher, "student": student},
        "cka_diagonal": {name: float(np.diag(arrays[f"heat_map.{name}"]).mean()) for name in ("teacher", *maps)},
        "relation_difference": differences,
        "intra_class_similarity": {"teacher": 0.8, "before": 0.3, "after": 0.4 + 0.4 * better},
        "intra_class_similarity_pooled": {"teacher": 0.75, "before": 0.2, "after": 0.3 + 0.4 * better},
        "sentences": [SENTENCE],
        "cost": {
            "parameters": 67_000_000,
            "trained_parameters": 67_500_000,
            "disk_bytes": 268_000_000,
            "teacher_parameters": 109_000_000,
            "teacher_disk_bytes": 438_000_000,
            "step_milliseconds": 210.0,
            "training": 1.1 + 0.1 * better,
            "milliseconds": 6.05,
            "inference": 1.0,
            "teacher_milliseconds": 12.1,
            "speedup": 2.0,
            "batch_size": 1,
            "tokens": 64,
            "session": SESSION,
        },
    }
    return Record(SETTINGS, values, arrays)


def write_history(run: Path, terms: Mapping[str, float], steps: int = 40, score: str = "accuracy") -> None:
    lines: list[dict[str, Any]] = []
    for step in range(5, steps + 1, 5):
        values = {f"term/{name}": size / (1 + step / 10) for name, size in terms.items()}
        lines.append({"loss": sum(values.values()), **values, "learning_rate": 5e-5, "epoch": step / 20, "step": step})
        if step % 20 == 0:
            lines.append({f"eval_{score}": 0.5 + 0.2 * step / steps, "epoch": step / 20, "step": step})
    lines.append({"train_runtime": 1.5, "train_loss": 0.3, "epoch": 2.0, "step": steps})
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def decided(seed: int = 0, examples: int = 60, right: float = 0.7) -> dict[str, Any]:
    """Make up columns of predictions.parquet: two classes, with the teacher's answers beside."""
    draw = np.random.default_rng(seed)
    labels = np.arange(examples) % 2
    columns: dict[str, Any] = {"id": list(range(examples)), "label": labels.tolist()}
    for name, share in (("", right), ("teacher_", 0.8)):
        answers = np.where(draw.uniform(size=examples) < share, labels, 1 - labels)
        sure = draw.uniform(0.1, 3, examples)
        columns[f"{name}prediction"] = answers.tolist()
        columns[f"{name}logits"] = [[s * (1 - a), s * a] for s, a in zip(sure.tolist(), answers.tolist(), strict=True)]
    return columns


def environment(**changes: Any) -> dict[str, Any]:
    return {"limbeck": "0.1.0", "python": "3.12.1", "packages": {"torch": "2.4", "numpy": "2.0"}, **changes}


def measured_run(
    folder: Path, method: str, seed: int = 1, score: float = 0.7, *, history: bool = True, **more: Any
) -> Path:
    """Write a finished run with everything that a report shows."""
    run = make_run(folder, method, seed, score, answers=decided(seed), train_seconds=12.5, **more)
    write_record(run, a_record(seed + len(method), better=score))
    (run / "environment.json").write_text(json.dumps(environment()))
    if history:
        write_history(run, {"task": 0.7, "kd": 2.0} | ({"global": 5.0} if method == "fsd" else {}))
    return run


def measured_study(folder: Path, methods: Sequence[str], tasks: Sequence[str], seeds: int = 2) -> Path:
    make_study(folder, [], baselines=list(methods[:1]))
    entries = []
    for task in tasks:
        for place, method in enumerate(methods):
            runs = []
            for seed in range(1, seeds + 1):
                run = folder / "runs" / f"{task.replace('/', '-')}-{place}-s{seed}"
                measured_run(run, method, seed, 0.6 + 0.01 * place + 0.005 * seed, task=task)
                runs.append(str(run.relative_to(folder)))
            entries.append({"task": task, "label": method, "runs": runs})
    (folder / "study.yaml").write_text(f"name: small\ntasks: {list(tasks)}\n")
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps(results | {"entries": entries}))
    return folder

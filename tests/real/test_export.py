"""Export a model of real data to each form, load it where limbeck cannot be imported, and score it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.real_data import BANKING, ENCODER, GLUE, needs_encoder

from limbeck import execute, load_recipe
from limbeck.compare.answers import read_answers
from limbeck.deploy.export import export
from limbeck.inference.served import EXPORT_FORMS
from limbeck.tasks import load_task

TASKS = {
    "rte": {"name": "glue/rte", "data_dir": str(GLUE), "max_length": 128},
    "banking77": {
        "name": "table",
        "train": str(BANKING / "train.csv"),
        "validation": str(BANKING / "test.csv"),
        "text": "text",
        "label": "category",
        "max_length": 48,
    },
}
STUDENTS = {"rte": "uniform:6", "banking77": "first:3"}
TRAIN = {
    "rte": {"max_steps": 80, "batch_size": 16, "learning_rate": 5e-5},
    "banking77": {"max_steps": 120, "batch_size": 64, "learning_rate": 1e-3},
}
OFF = {"eval_strategy": "no", "save_strategy": "no"}
# of accuracy, over all of the validation data
TOLERANCE = {"hf": 1e-9, "onnx": 1e-9, "onnx-int8": 0.02}

pytestmark = [pytest.mark.real, pytest.mark.slow]


@needs_encoder
@pytest.mark.parametrize("name", TASKS)
def test_round_trip_without_limbeck(name, tmp_path):
    block = TASKS[name]
    if not (GLUE if name == "rte" else BANKING).is_dir():
        pytest.skip(f"the real data of {name} are not in ../shared/data")
    student = {"from": str(ENCODER), "keep": STUDENTS[name]}
    recipe = {
        "task": block,
        "student": student,
        "method": {"name": "ft"},
        "train": TRAIN[name] | OFF,
    }
    run = execute(load_recipe(values=recipe), tmp_path / "run", show_data=False)
    assert len(set(read_answers(run.path / "predictions.parquet").predictions)) > 1  # else every form would agree
    examples = write_examples(block, tmp_path / "examples.json")
    for form in EXPORT_FORMS:
        export(run.path, form, tmp_path / form, max_drop=TOLERANCE[form])
        score = score_without_limbeck(tmp_path / form, examples)
        assert score == pytest.approx(run.metrics()["score"], abs=TOLERANCE[form])


def write_examples(block, file):
    task = load_task(**{key: value for key, value in block.items() if key != "max_length"})
    rows = task.split("validation")
    named = [task.label_names[label] for label in rows["label"]]
    file.write_text(json.dumps(list(zip(*(rows[column][:] for column in task.text_columns), named, strict=True))))
    return file


def score_without_limbeck(folder, examples):
    # isolated: neither PYTHONPATH nor the working directory is looked into
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "tests" / "helpers" / "without_limbeck.py"), str(folder), str(examples)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)

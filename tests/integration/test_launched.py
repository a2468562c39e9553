"""Two processes train to the weights of one with twice the batch, by every method."""

from __future__ import annotations

import json
import shutil

import launched
import pytest
import torch
from method_cases import cases
from safetensors.torch import load_file
from several import in_processes
from tiny import read_json, table_task

SIZE = 4  # examples of a process
OPTIONS = {
    "fsd": {"memory": 5},
    "fsd_g": {"memory": 5},
    "metadistil": {"teacher_rate": 1e-3},
    "reptiledistil": {"mu": 0.05},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, table_files, teacher_folder):
    """The folders of runs by one process and by two, and their names."""
    home = tmp_path_factory.mktemp("launched")
    teacher = shutil.copytree(teacher_folder, home / "teacher")
    config = read_json(teacher / "config.json")
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # which is drawn by the batch
    (teacher / "config.json").write_text(json.dumps(config | dropout))

    def recipes(batch_size):
        train = {"max_steps": 5, "batch_size": batch_size, "learning_rate": 1e-3, "logging_steps": 1}
        train |= {"eval_strategy": "no", "save_strategy": "no", "optim": "sgd", "lr_scheduler_type": "constant"}
        return {
            str(case.id): {
                "task": table_task(table_files),
                "teacher": {"model": str(teacher)},
                "student": {"from": "teacher", "keep": "first:2"},
                "method": {"name": case.values[0]} | case.values[1] | OPTIONS.get(case.values[0], {}),
                "train": train,
            }
            for case in cases()
        }

    launched.train(recipes(2 * SIZE), home / "one")
    in_processes(launched.train, home, recipes(SIZE), home / "two")
    return home


@pytest.mark.distributed
@pytest.mark.parametrize("name", [case.id for case in cases()])
def test_the_weights_are_those_of_one_process(trained, name):
    one, two = (load_file(trained / side / name / "student" / "model.safetensors") for side in ("one", "two"))
    assert one.keys() == two.keys()
    for weight in one:
        torch.testing.assert_close(two[weight], one[weight], rtol=0, atol=1e-5)
    losses = [[line["loss"] for line in history(trained / side / name) if "loss" in line] for side in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5, rel=1e-5) and len(losses[0]) == 5
    assert read_json(trained / "one" / name / "metrics.json")["steps"] == 5


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]

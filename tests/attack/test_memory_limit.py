"""Leave a command too little memory: one message that says what to change, whatever noticed it first."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from helpers.tiny_recipes import recipe_values

from limbeck._internal.machine import disk_full, out_of_memory

pytestmark = pytest.mark.chaos
ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    RuntimeError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
    OSError(12, "Cannot allocate memory"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, table_files, teacher_folder):
    from limbeck import execute, load_recipe

    values = recipe_values(table_files, teacher_folder)
    return execute(load_recipe(values=values), tmp_path_factory.mktemp("runs") / "run", show_data=False).path


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:25] or "MemoryError")
def test_every_command_says_that_memory_ran_out(
    error, run, table_files, teacher_folder, command, monkeypatch, tmp_path
):
    def none_left(*_, **__):
        raise error

    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe_values(table_files, teacher_folder)))
    monkeypatch.setattr("torch.nn.functional.layer_norm", none_left)
    commands = {
        "evaluate": [run],
        "predict": [run, table_files[1], "-o", "out.csv"],
        "export": [run, "-o", "out"],
        "distill": ["recipe.yaml", "-o", "run"],
    }
    for name, words in commands.items():
        code, said = command(name, *words)
        assert code == 1 and "Out of memory" in said and "batch" in said and said.count("Error:") == 1, (name, said)
    assert "train.batch_size" in said and "--resume" in said
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_other_errors_are_not_taken_for_these():
    for error in (ValueError("a column named memory"), OSError(2, "No such file or directory"), KeyError("28")):
        assert not out_of_memory(error) and not disk_full(error)
    assert disk_full(OSError(28, "No space left on device")) and not disk_full(OSError(5, "Input/output error"))


LIMITED = """
import resource, sys
import torch, transformers, datasets, sklearn.metrics, pyarrow.parquet
import limbeck.training.execute, limbeck.inference.predict, limbeck.deploy.export, limbeck.inference.evaluate
from limbeck.cli.main import main
torch.set_num_threads(1)
size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = size * 1024 + int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits memory as Linux does")
@pytest.mark.parametrize("megabytes", [30, 120])
@pytest.mark.parametrize("name", ["distill", "evaluate", "predict"])
def test_under_a_real_limit(name, megabytes, table_files, tokenizer_folder, tmp_path):
    """Give a model of 100 MB room that it does not fit into."""
    from helpers.tiny_models import tiny_model
    from transformers import AutoTokenizer

    wide = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    tiny_model("bert", depth=4, **wide).save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(tmp_path / "teacher")
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe_values(table_files, tmp_path / "teacher")))
    task = [
        f"task.{key}={value}" for key, value in recipe_values(table_files, tmp_path)["task"].items() if key != "name"
    ]
    words = {
        "distill": ["recipe.yaml", "-o", "run"],
        "evaluate": ["teacher", "--task", "table", *task],
        "predict": ["teacher", table_files[1], "--text", "text", "-o", "out.csv"],
    }[name]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(megabytes), name, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        timeout=300,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "Out of memory" in done.stderr, done.stderr[-3000:]

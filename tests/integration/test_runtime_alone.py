"""Install the small distribution in a fresh environment, without torch, and serve an exported folder from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.serving import ServerProcess

from limbeck.deploy.export import export
from limbeck.runtime import load

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="build is not installed: pip install --group dev")
pytest.importorskip("onnxscript")
TEXTS = ["the cat sees a good dog", "never here", "a happy bird " * 9]
PROGRAM = """
import json, sys, time
begin = time.perf_counter()
from limbeck_runtime import load
labels, scores = load(sys.argv[1]).predict(json.loads(sys.argv[2]))
print(json.dumps([labels, scores.tolist(), sorted(name.partition(".")[0] for name in sys.modules)]))
print(time.perf_counter() - begin, file=sys.stderr)
"""


def run(*words, cwd):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Make an environment with the small distribution and what it asks for, from the registry."""
    home = tmp_path_factory.mktemp("alone")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", home, ROOT / "runtime"]
    code, out, err = run(*build, cwd=home)
    assert code == 0, out + err
    (wheel,) = home.glob("*.whl")
    assert run(sys.executable, "-m", "venv", home / "venv", cwd=home)[0] == 0
    python = home / "venv" / "bin" / "python"
    code, out, err = run(python, "-m", "pip", "install", "--quiet", f"{wheel}[serve]", cwd=home)
    if code:
        pytest.skip(f"the registry cannot be reached: {err.strip().splitlines()[-1]}")
    return home / "venv"


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "student"
    export(trained("kd"), "onnx-int8", folder, max_drop=1)
    return folder


def test_it_answers_as_the_toolkit_does(environment, folder, tmp_path):
    code, out, err = run(environment / "bin" / "python", "-c", PROGRAM, folder, json.dumps(TEXTS), cwd=tmp_path)
    assert code == 0, err
    labels, scores, modules = json.loads(out)
    ours = load(folder).predict(TEXTS)
    assert labels == ours.labels
    np.testing.assert_allclose(scores, ours.scores, atol=1e-6)
    assert not {"torch", "transformers", "limbeck", "scipy", "pyarrow"} & set(modules)


def test_nothing_large_was_installed(environment):
    code, out, _ = run(environment / "bin" / "python", "-m", "pip", "list", "--format", "freeze", cwd=environment)
    names = {line.partition("==")[0].lower() for line in out.splitlines()}
    assert code == 0 and "limbeck-runtime" in names
    assert not {"torch", "transformers", "datasets", "pyarrow", "scipy", "scikit-learn", "limbeck"} & names
    libraries = environment / "lib"
    assert sum(file.stat().st_size for file in libraries.rglob("*") if file.is_file()) < 250e6


def test_it_serves_an_exported_folder(environment, folder):
    class Served(ServerProcess):
        executable = str(environment / "bin" / "python")

    server = Served(environment / "bin" / "limbeck-serve", folder, "--port", 0)
    client = server.client
    ours = load(folder).predict(TEXTS, batch_size=1)
    answers = client.predict([[text] for text in TEXTS]).json
    assert [answer[0]["label"] for answer in answers] == ours.labels
    np.testing.assert_allclose([answer[0]["score"] for answer in answers], ours.scores.max(1), atol=1e-6)
    assert b"Try the model" in client.ask("GET", "/").body
    code, out, err = server.stop()
    assert code == 0 and "1 requests were accepted, 1 of them answered" in out and err == ""


def test_a_mistake_is_one_message(environment, tmp_path):
    code, out, err = run(environment / "bin" / "limbeck-serve", tmp_path / "nowhere", cwd=tmp_path)
    assert code == 1 and err.startswith("Error: ") and "no such folder" in err and "Traceback" not in err
    assert Path(environment).is_dir() and not out

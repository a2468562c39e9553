"""Load exported folders by transformers.js, which finds every file where it looks for it."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from limbeck.deploy.export import export
from limbeck.runtime import load

NODE, NPM = shutil.which("node"), shutil.which("npm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (NODE and NPM), reason="node and npm are not installed"),
]
pytest.importorskip("onnxscript")
TEXTS = ["the cat sees a good dog", "never here", "a happy bird with a fish", "bad"]
DTYPES = {"onnx": "fp32", "onnx-int8": "q8"}
PROGRAM = """
import { env, pipeline } from "@huggingface/transformers";
const [home, name, dtype, texts] = process.argv.slice(2);
env.localModelPath = home;
env.allowRemoteModels = false;
const classify = await pipeline("text-classification", name, { dtype, device: "cpu" });
const found = [];
for (const text of JSON.parse(texts)) found.push(await classify(text, { top_k: null }));
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Install transformers.js from the registry."""
    home = tmp_path_factory.mktemp("js")
    (home / "package.json").write_text('{"type": "module", "private": true}')
    # its scripts would fetch libraries for GPUs
    words = [NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts", "@huggingface/transformers"]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=580)
    if done.returncode:
        pytest.skip(f"npm could not install @huggingface/transformers: {done.stderr.strip().splitlines()[-1]}")
    (home / "classify.mjs").write_text(PROGRAM)
    return home


@pytest.mark.parametrize(("form", "vocabulary"), [("onnx", "whole"), ("onnx-int8", "whole"), ("onnx-int8", "compact")])
def test_it_answers_as_the_run_time(form, vocabulary, workplace, trained, tmp_path):
    export(trained("kd"), form, tmp_path / "model", max_drop=1, vocabulary=vocabulary)
    words = [NODE, "classify.mjs", f"{tmp_path}/", "model", DTYPES[form], json.dumps(TEXTS)]
    done = subprocess.run(words, cwd=workplace, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    labels, scores = load(tmp_path / "model").predict(TEXTS, batch_size=1)
    for answer, label, row in zip(found, labels, scores, strict=True):
        assert answer[0]["label"] == label
        theirs = {one["label"]: one["score"] for one in answer}
        np.testing.assert_allclose([theirs["negative"], theirs["positive"]], row, atol=1e-4)

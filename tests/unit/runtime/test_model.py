"""The run time answers as `limbeck predict` does, for every problem, and needs nothing but its own libraries."""

from __future__ import annotations

import csv
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from helpers.tiny_onnx import LABELS, tiny_onnx
from helpers.tiny_tables import sentences

from limbeck.inference.predict import predict_file
from limbeck.runtime import FolderError, InputError, load

pytest.importorskip("onnxruntime")
TEXTS = [text for text, _ in sentences(50)] + ["a cat " * 40, "Naïve — cats, dogs; 3.14!", "dog"]
COLUMNS = {"span": ("question", "context")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer_folder):
    home = tmp_path_factory.mktemp("onnx")

    def make(problem, **reads):
        folder = home / f"{problem}-{len(reads)}"
        return folder if folder.exists() else tiny_onnx(folder, tokenizer_folder, problem, **reads)

    return make


def predicted(folder, texts, tmp_path, **options):
    """Return the rows that `limbeck predict` writes."""
    pairs = [text if isinstance(text, tuple) else (text,) for text in texts]
    names = [f"text{place}" for place in range(len(pairs[0]))]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *pairs])
    predict_file(folder, tmp_path / "texts.csv", tmp_path / "out.jsonl", text=names, **options)
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def questions():
    words = [text for text, _ in sentences(30, seed=2)]
    return [(f" {words[i]} ", " ".join(words[i : i + 4])) for i in range(20)] + [("sees " * 40, "the cat " * 60)]


@pytest.mark.parametrize("problem", ["classification", "multi_label"])
def test_labels_and_their_probabilities(problem, folders, tmp_path):
    labels, scores = load(folders(problem)).predict(TEXTS)
    rows = predicted(folders(problem), TEXTS, tmp_path)
    names = [label if isinstance(label, str) else ",".join(label) for label in labels]
    assert names == [row["prediction"] for row in rows] and len(set(names)) > 1
    theirs = np.array([[row[f"p({name})"] for name in LABELS[problem]] for row in rows])
    np.testing.assert_allclose(scores, theirs, atol=1e-6)


def test_pairs(folders, tmp_path):
    folder = folders("classification", texts=2)
    pairs = [*itertools.pairwise(TEXTS), (TEXTS[0] * 3, TEXTS[1] * 5)]
    labels, scores = load(folder).predict(pairs)
    rows = predicted(folder, pairs, tmp_path)
    assert labels == [row["prediction"] for row in rows]
    np.testing.assert_allclose(scores[:, 0], [row["p(no)"] for row in rows], atol=1e-6)


def test_numbers(folders, tmp_path):
    labels, scores = load(folders("regression")).predict(TEXTS)
    rows = predicted(folders("regression"), TEXTS, tmp_path)
    np.testing.assert_allclose(labels, [row["prediction"] for row in rows], atol=1e-6)
    assert scores == [None] * len(TEXTS)


def test_tags(folders, tmp_path):
    labels, scores = load(folders("tokens")).predict(TEXTS)
    rows = predicted(folders("tokens"), TEXTS, tmp_path)
    assert [" ".join(tags) for tags in labels] == [row["prediction"] for row in rows]
    assert [len(tags) for tags in labels] == [len(text.split()) for text in TEXTS] == [len(one) for one in scores]
    assert all(1 / 3 <= score <= 1 for one in scores[:50] for score in one)
    long = scores[50]
    assert not math.isnan(long[0]) and math.isnan(long[-1]) and labels[50][-1] == "O", "words that were cut off"


@pytest.mark.parametrize("decoding", [{"stride": 4}, {"stride": 6, "threshold": 1.5, "max_answer": 3, "n_best": 2}])
def test_answers(decoding, folders, tmp_path, tokenizer_folder):
    folder = tiny_onnx(tmp_path / "span", tokenizer_folder, "span", decoding=decoding)
    labels, scores = load(folder).predict(questions())
    rows = predicted(folder, questions(), tmp_path)
    assert labels == [row["prediction"] for row in rows] and len(set(labels)) > 5
    assert ("threshold" in decoding) == ("" in labels)
    np.testing.assert_allclose(scores, [row["score"] for row in rows], atol=1e-6)


def test_more_texts_than_are_read_at_a_time(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.runtime.model.CHUNK_TEXTS", 7)
    labels, scores = load(folders("classification")).predict(iter(TEXTS), batch_size=3)
    again, others = load(folders("classification"), threads=1).predict(TEXTS, batch_size=50)
    assert labels == again
    np.testing.assert_allclose(scores, others, atol=1e-6)
    assert load(folders("classification")).predict([]).scores.shape == (0, 3)


@pytest.mark.parametrize(
    ("problem", "text", "said"),
    [
        ("classification", ("a", "b"), "reads one text"),
        ("classification", "  ", "empty"),
        ("classification", "cat \ud800", r"\\ud800 is half of a character"),
        ("span", "where?", "give both"),
        ("tokens", ("a", "b"), "reads one text"),
    ],
)
def test_texts_that_cannot_be_read(problem, text, said, folders):
    with pytest.raises(InputError, match=said):
        load(folders(problem)).predict(["a cat", text] if problem != "span" else [text])


def test_folders_that_hold_no_model(tmp_path, tokenizer_folder):
    with pytest.raises(FolderError, match="there is no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"has no onnx/model\.onnx or .*limbeck export"):
        load(tokenizer_folder)
    folder = tiny_onnx(tmp_path / "tiny", tokenizer_folder)
    whole = {name: (folder / name).read_bytes() for name in ("config.json", "parity.json", "tokenizer.json")}
    for name, content in whole.items():
        for damage in (content[: len(content) // 2], b"\0" * 9, b"[]", b"[" * 10**5):
            (folder / name).write_bytes(damage)
            with pytest.raises(FolderError, match="again"):
                load(folder)
        (folder / name).write_bytes(content)
    (folder / "onnx" / "model.onnx").write_bytes(b"\0" * 100)
    with pytest.raises(FolderError, match="cannot be opened"):
        load(folder)


def test_a_head_that_answers_nothing_is_refused(tmp_path, tokenizer_folder):
    folder = tiny_onnx(tmp_path / "tiny", tokenizer_folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    with pytest.raises(FolderError, match="its head is none, and not of labels, numbers, tags or answers"):
        load(folder)


def test_it_imports_nothing_but_its_own_libraries(folders):
    """torch and all that the toolkit needs are hidden; the names of what was imported are printed."""
    program = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top not in {'limbeck', 'numpy', 'onnxruntime', 'tokenizers', 'lazy_loader', 'coloredlogs',\n"
        "                       'flatbuffers', 'google', 'packaging', 'sympy', 'mpmath', 'humanfriendly'} \\\n"
        "           and top not in sys.stdlib_module_names and not top.startswith('_'):\n"
        "            raise ModuleNotFoundError(f'{name} is hidden', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import limbeck.runtime\n"
        "print(limbeck.runtime.load(sys.argv[1]).predict(['a cat']).labels)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folders("classification")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()[2:-2] in LABELS["classification"]

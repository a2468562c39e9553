"""Serve exports, runs and what shrink proposes, as processes that are asked, stopped and started again."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.saved_runs import read_json
from helpers.serving import ServerProcess, free_port, predict_once, serve_words
from helpers.tiny_onnx import tiny_onnx
from helpers.tiny_runs import recipe_of
from helpers.tiny_tables import sentences, write_csv

from limbeck import load_task
from limbeck.analysis.disagreements import disagreements
from limbeck.deploy.export import export
from limbeck.errors import DataError, ExportError
from limbeck.inference.asked import load_asked
from limbeck.inference.predict import predict_file
from limbeck.recipes.recipe import load_task_block
from limbeck.runtime import load
from limbeck.shrink.layout import find_proposed
from limbeck.tasks.files import read_columns

pytest.importorskip("uvicorn")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("quick_collection")
TEXTS = [text for text, _ in sentences(60, seed=5)]


@pytest.fixture(scope="module")
def int8(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "student"
    export(trained("kd"), "onnx-int8", folder, max_drop=1)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tokenizer_folder):
    return tiny_onnx(tmp_path_factory.mktemp("tiny") / "tiny", tokenizer_folder)


def test_an_int8_export_answers_as_limbeck_predict(int8, tmp_path):
    """The same batches are computed: int8 scales activations by the whole of a batch."""
    write_csv(tmp_path / "texts.csv", [(text, "x") for text in TEXTS])
    for size in (32, 1):
        predict_file(int8, tmp_path / "texts.csv", tmp_path / "out.csv", text=["text"], batch_size=size)
        found = read_columns(tmp_path / "out.csv", ["prediction", "p(negative)", "p(positive)"]).values
        labels, scores = load(int8).predict(TEXTS, batch_size=size)
        assert labels == found["prediction"]
        theirs = np.array([found["p(negative)"], found["p(positive)"]], float).T
        np.testing.assert_allclose(scores, theirs, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "onnx-int8"])
@pytest.mark.parametrize("name", ["gpt2", "regression", "multi_label", "tokens", "span"])
def test_each_export_answers_as_limbeck_predict(name, form, trained, tmp_path):
    try:
        export(trained(name), form, tmp_path / "out", max_drop=1)
    except ExportError:
        assert form == "onnx-int8"  # barely trained models of so few weights may not survive 8 bits
        return
    texts = [("sees the", f"{text} {text}") for text in TEXTS] if name == "span" else TEXTS
    rows = [{"question": text[0], "context": text[1]} if name == "span" else {"text": text} for text in texts]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict_file(tmp_path / "out", tmp_path / "texts.jsonl", tmp_path / "found.jsonl", text=list(rows[0]))
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    labels, scores = load(tmp_path / "out").predict(texts)
    theirs = [row["prediction"] for row in found]
    if name == "regression":
        np.testing.assert_allclose(labels, theirs, atol=1e-6)
    elif name == "span":
        assert labels == theirs
        np.testing.assert_allclose(scores, [row["score"] for row in found], atol=1e-6)
    else:
        joined = {"multi_label": ",".join, "tokens": " ".join}.get(name, str)
        assert [joined(label) for label in labels] == theirs
    if name in ("gpt2", "multi_label"):
        names = [column for column in found[0] if column.startswith("p(")]
        np.testing.assert_allclose(scores, [[row[column] for column in names] for row in found], atol=1e-6)


@pytest.mark.parametrize("name", ["kd", "tokens", "span", "regression", "gpt2"])
def test_a_run_directory_answers_as_limbeck_predict(name, trained, tmp_path):
    texts = [("sees the", f"{text} {text}") for text in TEXTS] if name == "span" else TEXTS
    rows = [{"question": text[0], "context": text[1]} if name == "span" else {"text": text} for text in texts]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict_file(trained(name), tmp_path / "texts.jsonl", tmp_path / "found.jsonl", text=list(rows[0]))
    found = [json.loads(line)["prediction"] for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    labels, _ = load_asked(trained(name)).predict(texts)
    if name == "regression":
        np.testing.assert_allclose(labels, found, atol=1e-6)
    else:
        assert [" ".join(one) if name == "tokens" else one for one in labels] == found


class TestProcess:
    def test_an_export_is_served_without_torch_in_little_memory(self, int8):
        server = ServerProcess(*serve_words(int8))
        client = server.client
        labels, scores = load(int8).predict(TEXTS, batch_size=1)
        answers = client.predict([[text] for text in TEXTS]).json
        assert [answer[0]["label"] for answer in answers] == labels
        np.testing.assert_allclose([answer[0]["score"] for answer in answers], scores.max(1), atol=1e-6)
        assert b"Try the model" in client.ask("GET", "/").body
        assert client.ask("GET", "/card").body == (int8 / "README.md").read_bytes()
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
        code, out, err = server.stop()
        assert code == 0 and "61 requests" not in out and "1 requests were accepted, 1 of them answered" in out, err
        assert "onnxruntime" in libraries and "libtorch" not in libraries
        assert int(re.search(r"VmHWM:\s+(\d+)", status)[1]) < 250 * 1024
        assert err == ""

    def test_ctrl_c_stops_it_too(self, tiny):
        server = ServerProcess(*serve_words(tiny))
        assert server.stop(signal.SIGINT)[0] == 0

    def test_the_small_distributions_command(self, tiny):
        server = ServerProcess("-m", "limbeck.runtime", tiny, "--port", "0", "--teacher", tiny, "--max-texts", "2")
        client = server.client
        assert client.ask("POST", "/ask", {"inputs": "a cat", "model": "teacher"}).status == 200
        assert client.predict([["a cat"]] * 3).status == 413
        assert server.stop()[0] == 0

    def test_the_socket_of_systemd_is_taken(self, tiny):
        program = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); "
            "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
            "os.execv(sys.executable, [sys.executable, '-m', 'limbeck.runtime', sys.argv[2]])"
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            words = [sys.executable, "-c", program, str(listening.fileno()), str(tiny)]
            with subprocess.Popen(words, pass_fds=[listening.fileno()], stdout=subprocess.PIPE, text=True) as process:
                try:
                    # it waits in the queue of the socket until the server is there
                    assert predict_once(listening.getsockname()[1], "a cat").status == 200
                finally:
                    process.terminate()
                    assert process.wait(30) == 0

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("nowhere",), "no such folder"),
            (("{tiny}", "--teacher", "{spans}"), "it is not its teacher"),
            (("{tiny}", "--port", "{taken}"), "Address already in use. Choose another --port"),
            (("{tiny}", "--host", "no.such.host.invalid"), "Nothing can listen at no.such.host.invalid"),
        ],
    )
    def test_a_mistake_is_one_message(self, words, said, command, tiny, tmp_path, tokenizer_folder):
        spans = tiny_onnx(tmp_path / "spans", tokenizer_folder, "span")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            places = {"tiny": tiny, "spans": spans, "taken": taken.getsockname()[1]}
            code, shown = command("serve", *(word.format(**places) for word in words))
        assert code == 1 and said in shown and shown.startswith("Error: ")


def ask_until(stop, port, texts, expected, outcomes):
    """Ask one text after the other; note what is wrong, and each request that was sent and got no answer."""
    connection, turn = None, 0
    while not stop.is_set():
        text = texts[turn % len(texts)]
        try:
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                connection.connect()
        except ConnectionRefusedError:  # between two servers
            connection = None
            time.sleep(0.02)
            continue
        try:
            connection.request("POST", "/predict", json.dumps({"inputs": text}))
            reply = connection.getresponse()
            answer = json.loads(reply.read())
        except (OSError, http.client.HTTPException) as error:
            outcomes.append(("lost", turn, repr(error)))
            connection.close()
            connection = None
            continue
        right = reply.status == 200 and answer[0]["label"] == expected[text]
        outcomes.append(("right" if right else "wrong", turn, ""))
        turn += 1
        if reply.getheader("connection") == "close":
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


def test_a_restart_in_the_middle_loses_nothing(tiny):
    expected = dict(zip(TEXTS, load(tiny).predict(TEXTS).labels, strict=True))
    port, stop, outcomes = free_port(), threading.Event(), []
    words = ["-m", "limbeck.runtime", tiny, "--port", port]
    server = ServerProcess(*words)
    threads = [
        threading.Thread(target=ask_until, args=(stop, port, TEXTS[seed:], expected, outcomes)) for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        time.sleep(1)
        code, out, _ = server.stop()
        counts = re.search(r"([\d,]+) requests were accepted, ([\d,]+) of them answered", out)
        assert code == 0 and counts[1] == counts[2]
        server = ServerProcess(*words)
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    server.stop()
    assert {kind for kind, *_ in outcomes} == {"right"}, [one for one in outcomes if one[0] != "right"][:5]
    assert len(outcomes) > 300


class TestDisagreements:
    @pytest.mark.parametrize("name", ["kd", "regression", "multi_label", "tokens", "span"])
    def test_those_furthest_apart_come_first(self, name, trained):
        found = disagreements(trained(name))
        block = load_task_block(recipe_of(trained(name))["task"])
        task = load_task(block.name, **block.options)
        assert len(found) == len(task.split("validation")) == 40
        texts = [" ".join(one["texts"]) for one in found]
        known = task.inputs(task.split("validation")[:])
        assert sorted(texts) == sorted(" ".join(parts) for parts in zip(*known, strict=True))
        apart = [one["difference"] for one in found]
        assert apart == sorted(apart, reverse=True)
        for one in found:
            same = one["student"][0]["label"] == one["teacher"][0]["label"]
            assert one["difference"] > 0 or same
            assert set(one) == {"texts", "label", "student", "teacher", "difference"}
        json.dumps(found, allow_nan=False)

    def test_the_difference_is_the_probability_that_lies_elsewhere(self, trained):
        import pyarrow.parquet as pq
        from scipy.special import softmax

        table = pq.read_table(trained("kd") / "predictions.parquet").to_pydict()
        ours, theirs = (softmax(np.array(table[name]), axis=1) for name in ("logits", "teacher_logits"))
        expected = sorted(np.abs(ours - theirs).max(1), reverse=True)  # of two labels the same
        np.testing.assert_allclose([one["difference"] for one in disagreements(trained("kd"))], expected, atol=1e-6)

    def test_without_a_teacher_there_are_none(self, trained):
        with pytest.raises(DataError, match="without a teacher"):
            disagreements(trained("alone"))


def test_a_run_with_its_teacher_has_examples(trained):
    teacher = recipe_of(trained("kd"))["teacher"]["model"]
    server = ServerProcess(*serve_words(trained("kd"), "--teacher", teacher))
    client = server.client
    found = client.ask("POST", "/examples", {}).json
    assert found["total"] == 40 and found["rows"] == disagreements(trained("kd"))[:40]
    first = found["rows"][0]
    for who in ("student", "teacher"):
        said = client.ask("POST", "/ask", {"inputs": first["texts"][0], "model": who}).json["answer"]
        assert [one["label"] for one in said] == [one["label"] for one in first[who]]
        np.testing.assert_allclose([one["score"] for one in said], [one["score"] for one in first[who]], atol=1e-5)
    assert server.stop()[0] == 0


def test_a_folder_of_shrink_is_served_as_it_proposes(trained, int8, tmp_path):
    home = tmp_path / "shrunk"
    for place in ("students/2/onnx-int8", "students/teacher/onnx-int8"):
        shutil.copytree(int8, home / place)
    shutil.copytree(trained("kd"), home / "race" / "runs" / "winner")
    summary = {
        "chosen": {"name": "2 layers, int8", "folder": "students/2/onnx-int8"},
        "models": [{"name": "teacher"}, {"name": "2 layers, int8", "depth": 2}],
        "students": {"2": {"run": "race/runs/winner"}},
    }
    (home / "summary.json").write_text(json.dumps(summary))
    assert find_proposed(home) is None, "not yet a folder of shrink"
    (home / "plan.json").write_text("{}")
    found = find_proposed(home)
    assert found.name == "shrunk, 2 layers, int8"
    assert [str(place.relative_to(home)) for place in found[:3]] == [
        *("students/2/onnx-int8", "students/teacher/onnx-int8"),
        "race/runs/winner",
    ]
    server = ServerProcess(*serve_words(home))
    client = server.client
    info = client.ask("GET", "/info").json
    assert info["model_id"] == "shrunk, 2 layers, int8" and info["limbeck"]["examples"] == 40
    assert info["limbeck"]["teacher"]["parameters"] == read_json(int8 / "parity.json")["parameters"]
    assert client.ask("POST", "/ask", {"inputs": "a cat", "model": "teacher"}).status == 200
    assert server.stop()[0] == 0

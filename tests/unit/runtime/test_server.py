"""Ask a server in every way, right and wrong: each request has one answer, and no wrong one is a 500."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
import re
import socket
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest
from helpers.serving import Client, predict_once, serving
from helpers.tiny_onnx import LABELS, tiny_onnx
from helpers.tiny_tables import sentences

from limbeck.runtime import load

pytest.importorskip("onnxruntime")
pytest.importorskip("uvicorn")
TEXTS = [text for text, _ in sentences(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_folder):
    return tiny_onnx(tmp_path_factory.mktemp("served") / "tiny", tokenizer_folder)


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, threads=1)


@pytest.fixture(scope="module")
def expected(model):
    labels, scores = model.predict(TEXTS, batch_size=1)
    return dict(zip(TEXTS, zip(labels, scores, strict=True), strict=True))


@pytest.fixture(scope="module")
def client(model):
    with serving(model, threads=2) as found:
        yield found


@pytest.fixture(scope="module")
def of_problem(tmp_path_factory, tokenizer_folder):
    """Load a model that answers a problem."""
    home = tmp_path_factory.mktemp("problems")
    return lambda problem: load(tiny_onnx(home / problem, tokenizer_folder, problem), threads=1)


class Slow:
    """Stand in for a model's network: wait before each batch, or until told."""

    def __init__(self, model, seconds=0.0, gate=None, fails=()):
        self.run, self.seconds, self.gate, self.fails, self.shapes = model._run, seconds, gate, fails, []
        self.model = type(model)(model.about, model.reader, self)

    def __call__(self, inputs):
        self.shapes.append(inputs["input_ids"].shape)
        if len(self.shapes) > 3:  # the first are how the server begins
            time.sleep(self.seconds)
            if self.gate is not None:
                assert self.gate.wait(30)
        if any(row[: len(ids)].tolist() == ids for row in inputs["input_ids"] for ids in self.fails):
            raise MemoryError(" ".join(["quoting", "the", "text"]))
        return self.run(inputs)


@contextmanager
def connected(client):
    with socket.create_connection(("127.0.0.1", client.port)) as one:
        one.settimeout(10)
        yield one


def check(answer, expected):
    """Compare what a request was answered with what the model says."""
    label, scores = expected
    assert answer[0]["label"] == label
    assert [one["score"] for one in answer] == sorted((one["score"] for one in answer), reverse=True)
    by_name = {one["label"]: one["score"] for one in answer}
    np.testing.assert_allclose([by_name[name] for name in LABELS["classification"]], scores, atol=1e-6)


class TestPredict:
    def test_one_text(self, client, expected):
        reply = client.predict(TEXTS[0])
        assert reply.status == 200 and reply.headers["content-type"] == "application/json"
        check(reply.json, expected[TEXTS[0]])

    def test_a_batch(self, client, expected):
        reply = client.predict([[text] for text in TEXTS])
        for text, answer in zip(TEXTS, reply.json, strict=True):
            check(answer, expected[text])
        assert client.predict([[TEXTS[0]]]).json == [client.predict([TEXTS[0]]).json]

    def test_raw_scores(self, client, model):
        answer = client.predict(TEXTS[0], raw_scores=True).json
        (logits,) = model.logits(model.reader.read([TEXTS[0]]))
        np.testing.assert_allclose([one["score"] for one in answer], sorted(logits, reverse=True), rtol=1e-6)

    def test_a_text_that_is_cut_is_said_to_be(self, client):
        assert "x-cut" not in client.predict("a cat").headers
        reply = client.predict([["a cat " * 50], ["a cat"]])
        assert reply.status == 200 and reply.headers["x-cut"] == "1"
        reply = client.predict("a cat " * 50, truncate=False)
        assert reply.status == 413 and "more than the 24 tokens that the model reads" in reply.json["error"]

    @pytest.mark.parametrize("problem", ["multi_label", "regression", "tokens", "span"])
    def test_other_problems(self, problem, of_problem):
        model = of_problem(problem)
        text = ["which one?", "the cat sees a dog"] if problem == "span" else "the cat sees a dog"
        (label,), (scores,) = model.predict([tuple(text) if problem == "span" else text])
        with serving(model) as client:
            answer = client.predict(text).json
            assert client.predict([text if problem == "span" else [text]]).json == [answer]
        if problem == "multi_label":
            assert {one["label"] for one in answer if one["score"] > 0.5} == set(label)
        elif problem == "regression":
            assert answer[0]["score"] == pytest.approx(label, abs=1e-6) and answer[0]["label"] == "score"
        elif problem == "tokens":
            assert [one["label"] for one in answer] == label and [one["word"] for one in answer] == text.split()
            np.testing.assert_allclose([one["score"] for one in answer], scores, atol=1e-6)
        else:
            assert answer == [{"score": pytest.approx(scores), "label": label}]

    def test_a_pair_where_one_text_is_read_says_how_a_batch_is_written(self, client):
        reply = client.predict(["a cat", "a dog"])
        assert reply.status == 422 and '[["first"], ["second"]]' in reply.json["error"]


WRONG = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe{}",
    b'{"inputs": ' + b"[" * 100_000,
    b'{"inputs": 1' + b"0" * 5000 + b"}",
    b"{}",
    b'{"text": "a cat"}',
    b'{"inputs": null}',
    b'{"inputs": 3}',
    b'{"inputs": []}',
    b'{"inputs": [[]]}',
    b'{"inputs": [["a"], "b"]}',
    b'{"inputs": [["a", "b", "c"]]}',
    b'{"inputs": ["a", 3]}',
    b'{"inputs": {"a": "b"}}',
    b'{"inputs": ""}',
    b'{"inputs": " \\n"}',
    b'{"inputs": "\\ud800"}',
    b'{"inputs": "a cat", "truncate": 1}',
    b'{"inputs": "a cat", "raw_scores": "yes"}',
]


class TestWhatIsWrong:
    @pytest.mark.parametrize("body", WRONG, ids=lambda body: body[:30].decode("latin-1"))
    def test_a_wrong_body_is_one_message(self, client, body):
        reply = client.ask("POST", "/predict", body)
        assert reply.status == 422 and reply.json["error_type"] == "Validation"
        assert 20 < len(reply.json["error"]) < 400

    def test_500_fuzzed_bodies_never_are_a_500(self, client, expected, caplog):
        draw = random.Random(0)
        statuses = set()
        for number in range(500):
            reply = client.ask("POST", draw.choice(["/predict", "/predict", "/ask", "/examples"]), fuzzed(draw))
            assert reply.status in (200, 413, 422, 404), (number, reply)
            assert b"Traceback" not in reply.body and isinstance(reply.json, dict | list)
            statuses.add(reply.status)
        assert statuses >= {200, 422} and not caplog.records
        check(client.predict(TEXTS[0]).json, expected[TEXTS[0]])

    def test_too_much_of_everything(self, model):
        with serving(model, max_body=2000, max_texts=4, max_tokens=60, timeout=3) as client:
            assert client.predict([["a cat"]] * 4).status == 200
            reply = client.predict([["a cat"]] * 5)
            assert reply.status == 413 and "5 texts, more than 4" in reply.json["error"]
            reply = client.predict([["a cat " * 50]] * 4)
            assert reply.status == 413 and "96 tokens, more than the 60" in reply.json["error"]
            for length in (2001, 100_000):
                reply = client.ask("POST", "/predict", b'"' + b"a" * length)
                assert reply.status == 413 and "more than 2,000 bytes" in reply.json["error"]
            assert client.predict("a cat").status == 200, "on the same connection"

    def test_unknown_places_and_methods(self, client):
        assert client.ask("GET", "/nowhere").status == 404
        assert client.ask("GET", "/predict").status == 405
        assert client.ask("POST", "/health").status == 405
        reply = client.ask("POST", "/ask", {"inputs": "a cat", "model": "teacher"})
        assert reply.status == 404 and "teacher" in reply.json["error"]

    def test_a_failing_network_fails_for_its_own_text_alone_and_quotes_nothing(self, model, caplog):
        (row,) = model.reader.read([TEXTS[1]])
        slow = Slow(model, 0.05, fails=[row.ids])
        replies = {}
        with serving(slow.model) as client:

            def ask(text):
                replies[text] = predict_once(client.port, text)

            same_length = [text for text in TEXTS if len(model.reader.read([text])[0].ids) == len(row.ids)][:4]
            threads = [threading.Thread(target=ask, args=(text,)) for text in {TEXTS[1], *same_length, *TEXTS[:8]}]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert replies.pop(TEXTS[1]).status == 500 and {reply.status for reply in replies.values()} == {200}
        said = caplog.text
        assert "MemoryError" in said and "quoting the text" not in said and not any(text in said for text in TEXTS)

    def test_a_network_that_answers_nan_is_a_500(self, model):
        broken = type(model)(model.about, model.reader, lambda inputs: model._run(inputs) * np.float32("nan"))
        with serving(broken) as client:
            assert client.predict("a cat").status == 500
            assert client.ask("GET", "/health").status == 200


def fuzzed(draw):
    """Return a body that is almost right, or not at all."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        whole = bytearray(json.dumps({"inputs": draw.choice(TEXTS)}).encode())
        for _ in range(draw.randrange(1, 4)):
            whole[draw.randrange(len(whole))] = draw.randrange(256)
        return bytes(whole)
    if kind == 2:
        return json.dumps({"inputs": draw.choice(TEXTS)}).encode()[: draw.randrange(60)]
    values = {"inputs": anything(draw, 3), "truncate": draw.choice([True, False, None, 0])}
    if kind == 3:
        values = {"inputs": strange_text(draw)}
    if kind == 4:
        values |= {draw.choice(["model", "search", "first", "raw_scores"]): anything(draw, 2)}
    return json.dumps(values).encode()


def anything(draw, depth):
    plain = [None, True, -1, 1e400, 10**30, "", "a cat", strange_text(draw), float("nan")]
    if not depth or draw.random() < 0.4:
        return draw.choice(plain)
    if draw.random() < 0.3:
        return {str(draw.random()): anything(draw, depth - 1)}
    return [anything(draw, depth - 1) for _ in range(draw.randrange(4))]


def strange_text(draw):
    pieces = [
        "cat",
        " ",
        "\0",
        "\u202e",
        "🐈",
        "e\u0301",
        "\ud83d",
        "[CLS]",
        "\n",
        "ﷺ",
        "<script>",
        "a" * 500,
        "' OR 1",
    ]
    return "".join(draw.choice(pieces) for _ in range(draw.randrange(12)))


class TestQueue:
    def test_a_full_queue_says_when_to_come_again(self, model):
        gate = threading.Event()
        slow = Slow(model, gate=gate)
        replies = []
        with serving(slow.model, queue=4, max_texts=8) as client:
            threads = [
                threading.Thread(target=lambda: replies.append(predict_once(client.port, "a cat"))) for _ in "123456"
            ]
            threads[0].start()
            deadline = time.monotonic() + 20
            while len(slow.shapes) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            for thread in threads[1:]:  # while the first one is computed
                thread.start()
            while not replies and time.monotonic() < deadline:
                time.sleep(0.01)
            assert client.ask("GET", "/health").status == 200, "it is busy, and well"
            gate.set()
            for thread in threads:
                thread.join()
        full = [reply for reply in replies if reply.status == 503]
        assert full and all(int(reply.headers["retry-after"]) >= 1 for reply in full)
        assert all("texts wait already" in reply.json["error"] for reply in full)
        assert {reply.status for reply in replies} == {200, 503}

    def test_texts_that_came_meanwhile_share_a_batch(self, model):
        gate = threading.Event()
        slow = Slow(model, gate=gate)
        with serving(slow.model, batch_ms=1000) as client:
            threads = [threading.Thread(target=predict_once, args=(client.port, text)) for text in TEXTS[:10]]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            gate.set()
            for thread in threads:
                thread.join()
        assert max(rows for rows, _ in slow.shapes) >= 5

    def test_a_batch_is_no_larger_than_what_is_computed_in_time(self, model):
        slow = Slow(model, 0.02)
        with serving(slow.model, batch_ms=0.1) as client:
            assert client.predict([[text] for text in TEXTS[:12]]).status == 200
        assert max(rows for rows, _ in slow.shapes[8:]) == 1

    def test_int8_computes_each_text_by_itself(self, model):
        """See no text's answer change with others that happen to be asked at the same time."""
        from dataclasses import replace

        slow = Slow(model)
        slow.model.about = replace(model.about, form="onnx-int8")
        with serving(slow.model, batch_ms=1000) as client:
            assert client.predict([[text] for text in TEXTS]).status == 200
        assert {rows for rows, _ in slow.shapes} == {1}

    def test_an_answer_that_takes_too_long(self, model):
        slow = Slow(model, 1.0)
        with serving(slow.model, timeout=0.3) as client:
            reply = client.predict("a cat")
            assert reply.status == 504 and "within 0.3 seconds" in reply.json["error"]


class TestConnections:
    def test_slow_and_silent_clients_are_closed(self, model):
        with (
            serving(model, timeout=0.5) as client,
            connected(client) as silent,
            connected(client) as headless,
            connected(client) as bodiless,
        ):
            headless.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            bodiless.sendall(b'POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{"inputs": "')
            headless.sendall(b"a")
            assert predict_once(client.port, "a cat").status == 200, "others are served meanwhile"
            said = bodiless.recv(10_000)
            assert b" 408 " in said and b"did not arrive within 0.5 seconds" in said
            assert silent.recv(10) == b"" and headless.recv(10) == b""

    def test_a_head_without_end_is_closed(self, client):
        with connected(client) as endless, pytest.raises(OSError):
            endless.sendall(b"POST /predict HTTP/1.1\r\n")
            for _ in range(5000):
                endless.sendall(b"X: " + b"a" * 4000 + b"\r\n")

    def test_cut_connections_harm_nobody(self, client, expected):
        body = json.dumps({"inputs": TEXTS[0]}).encode()
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        for cut in range(0, len(head) + len(body) + 1, 7):
            with connected(client) as one:
                one.sendall((head + body)[:cut])
        check(client.predict(TEXTS[0]).json, expected[TEXTS[0]])

    def test_what_is_no_http_is_a_400(self, client):
        with connected(client) as one:
            one.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            assert b" 400 " in one.recv(1000)

    def test_many_clients_at_once_have_their_own_answers(self, client, expected):
        wrong = []

        def ask(seed):
            draw = random.Random(seed)
            with closing(Client(client.port)) as own:
                for _ in range(30):
                    texts = draw.sample(TEXTS, draw.randrange(1, 5))
                    for text, answer in zip(texts, own.predict([[text] for text in texts]).json, strict=True):
                        try:
                            check(answer, expected[text])
                        except AssertionError as error:
                            wrong.append(error)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestWatching:
    def test_figures(self, model):
        with serving(model) as client:
            client.predict("a cat")
            client.predict([["a dog " * 50], ["a bird"]])
            client.ask("POST", "/predict", b"{")
            reply = client.ask("GET", "/metrics")
        text = reply.body.decode()
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        for line in (
            'limbeck_requests_total{model="student",status="200"} 2',
            'limbeck_requests_total{model="student",status="422"} 1',
            'limbeck_texts_total{model="student"} 3',
            'limbeck_cut_total{model="student"} 1',
            'limbeck_waiting_texts{model="student"} 0',
            'limbeck_request_seconds_count{model="student"} 3',
        ):
            assert f"\n{line}\n" in text
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+\{[^}]*\} [\d.e+-]+", line), line
        sizes = [int(count) for count in re.findall(r"limbeck_batch_texts_bucket.* (\d+)", text)]
        assert sizes == sorted(sizes) and sizes[-1] >= 2

    def test_info(self, client):
        info = client.ask("GET", "/info").json
        assert info["model_id"] == "tiny" and info["max_input_length"] == 24 and info["auto_truncate"] is True
        assert info["model_type"]["classifier"]["id2label"] == {"0": "no", "1": "yes", "2": "may be"}
        assert info["limbeck"]["student"]["problem"] == "classification" and "teacher" not in info["limbeck"]

    def test_no_text_is_logged(self, model, caplog):
        caplog.set_level(logging.DEBUG)
        with serving(model) as client:
            client.predict("a very secret cat")
            client.ask("POST", "/predict", b'{"inputs": "a very secret cat')
            client.ask("POST", "/examples", {"search": "secret"})
        assert "secret" not in caplog.text


class TestKey:
    def test_with_a_key_nothing_else_is_answered(self, model, monkeypatch):
        monkeypatch.setenv("LIMBECK_KEY", "open sesame")
        with serving(model) as client:
            posted, got = ("/predict", "/ask", "/examples"), ("/info", "/metrics", "/card")
            for method, path in (*(("POST", path) for path in posted), *(("GET", path) for path in got)):
                for headers in ({}, {"authorization": "Bearer open"}, {"authorization": "Bearer ö"}):
                    reply = client.ask(method, path, {"inputs": "a cat"}, **headers)
                    assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
            assert client.ask("GET", "/").status == client.ask("GET", "/health").status == 200
            key = {"authorization": "Bearer open sesame"}
            assert client.ask("POST", "/predict", {"inputs": "a cat"}, **key).status == 200

    def test_other_addresses_without_a_key_are_warned_of(self, model, caplog):
        with serving(model, host="0.0.0.0"):
            assert "Set a key (LIMBECK_KEY=...)" in caplog.text

    def test_this_machine_has_no_other_name(self, client):
        """A page of another site can let its own name stand for this machine, and read the answers."""
        reply = client.ask("POST", "/predict", {"inputs": "a cat"}, host="evil.example:80")
        assert reply.status == 421
        assert client.ask("POST", "/predict", {"inputs": "a cat"}, host="localhost:1").status == 200


EXAMPLE = {"label": "yes", "student": [{"label": "no", "score": 0.8}], "teacher": [{"label": "yes", "score": 0.9}]}
EXAMPLES = [EXAMPLE | {"texts": [text], "difference": 1 - place / 100} for place, text in enumerate(TEXTS * 2)]


class TestPage:
    def test_the_page_asks_nobody_else(self, client):
        reply = client.ask("GET", "/")
        text, policy = reply.body.decode(), reply.headers["content-security-policy"]
        assert reply.headers["content-type"].startswith("text/html")
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
        for tag in ("script", "style"):
            (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() in policy
        assert "default-src 'none'" in policy and "unsafe" not in policy

    def test_student_and_teacher_side_by_side(self, model, of_problem, tmp_path, tokenizer_folder):
        with serving(model, teacher=model, card="# A card") as client:
            for who in ("student", "teacher"):
                reply = client.ask("POST", "/ask", {"inputs": "a cat", "model": who}).json
                assert reply["answer"] == client.predict("a cat").json
                assert reply["milliseconds"] > 0 and reply["tokens"] == 4 and reply["cut"] is False
            assert client.ask("POST", "/ask", {"inputs": "a cat " * 40}).json["cut"] is True
            assert client.ask("GET", "/card").body == b"# A card"
            assert client.ask("GET", "/info").json["limbeck"]["teacher"]["name"] == "tiny"

    def test_examples_are_searched(self, model):
        with serving(model, examples=EXAMPLES) as client:
            everything = client.ask("POST", "/examples", {}).json
            assert everything["total"] == 80 and everything["rows"] == EXAMPLES[:50]
            assert client.ask("POST", "/examples", {"first": 50}).json["rows"] == EXAMPLES[50:]
            found = client.ask("POST", "/examples", {"search": " CAT yes "}).json
            expected = [one for one in EXAMPLES if "cat" in one["texts"][0]]
            assert found["total"] == len(expected) > 0 and found["rows"] == expected[:50]
            assert client.ask("POST", "/examples", {"search": "nothing at all"}).json == {"total": 0, "rows": []}
            for wrong in ({"search": 3}, {"first": -1}, {"first": True}, {"first": 1.5}):
                assert client.ask("POST", "/examples", wrong).status == 422

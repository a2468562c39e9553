"""Start servers, in this process or in one of their own, and ask them over plain HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from limbeck.runtime import Model
from limbeck.runtime.server.run import serve
from limbeck.runtime.server.settings import Settings


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Ask a server over one connection that is kept; close it in the end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, content, headers)
        found = self.connection.getresponse()
        reply = Reply(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        if reply.headers.get("connection") == "close":
            self.close()
        return reply

    def close(self) -> None:
        self.connection.close()

    def predict(self, inputs: Any, **more: Any) -> Reply:
        return self.ask("POST", "/predict", {"inputs": inputs} | more)


def predict_once(port: int, inputs: Any) -> Reply:
    """Ask over a connection of its own."""
    with closing(Client(port)) as client:
        return client.predict(inputs)


@contextmanager
def serving(
    model: Model, teacher: Model | None = None, examples: Any = (), card: str = "", **settings: Any
) -> Iterator[Client]:
    """Serve a model in a thread of this process, and stop it in the end as a signal would."""
    import uvicorn

    said: list[str] = []
    started, servers = threading.Event(), []

    def hear(text: str) -> None:
        said.append(text)
        started.set()

    begin = uvicorn.Server.__init__

    def noted(self: Any, config: Any) -> None:
        servers.append(self)
        begin(self, config)

    uvicorn.Server.__init__ = noted  # type: ignore[method-assign]
    own = Settings(**{"port": 0, "threads": 1} | settings)
    thread = threading.Thread(
        target=serve, args=(model, own), kwargs={"teacher": teacher, "examples": examples, "card": card, "say": hear}
    )
    thread.start()
    try:
        assert started.wait(30)
        with closing(Client(int(re.search(r":(\d+)/", said[0])[1]))) as client:  # type: ignore[index]
            yield client
    finally:
        uvicorn.Server.__init__ = begin  # type: ignore[method-assign]
        for server in servers:
            server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        counts = re.search(r"([\d,]+) requests were accepted, ([\d,]+) of them answered", said[-1])
        assert counts is not None and counts[1] == counts[2], said


class ServerProcess:
    """Run a server in a process of its own; ``words`` are those behind python."""

    executable = sys.executable

    def __init__(self, *words: Any, **environment: str) -> None:
        self.process = subprocess.Popen(
            [self.executable, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.search(r"https?://[^/]*:(\d+)/", first)
        if found is None:
            raise AssertionError(f"{first}{self.process.communicate(timeout=30)}")
        self.port = int(found[1])
        self.client = Client(self.port)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; return the exit code, and what was said."""
        self.client.close()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def serve_words(folder: Path, *more: Any) -> list[Any]:
    return ["-m", "limbeck", "serve", folder, "--port", 0, *more]

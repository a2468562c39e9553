"""Stand in for the hub: the few addresses that making a repository and committing files to it ask for."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "x" * 34


@dataclass
class StandIn:
    """Hold what was made, and whether to refuse."""

    address: str = ""
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    refuse: tuple[int, str] | None = None


@contextmanager
def hub_stand_in() -> Iterator[StandIn]:
    """Answer on a port of this machine."""
    state = StandIn()

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._send({})

        def do_GET(self) -> None:
            if not any(self.path.startswith(f"/api/models/{name}") for name in state.made):
                return self._send({"error": "Repository not found"}, 404)
            self._send({"sha": "0" * 40, "siblings": [], "id": "you/small", "private": False, "tags": []})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if state.refuse is not None:
                return self._send({"error": state.refuse[1]}, state.refuse[0])
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._send({"error": "Invalid username or password."}, 401)
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
                state.made[name] = asked
                return self._send({"url": f"{state.address}/{name}"})
            if "/preupload/" in self.path:
                asked = json.loads(body)["files"]
                answers = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]
                return self._send({"files": answers})
            if "/commit/" in self.path:
                for line in filter(None, body.decode().splitlines()):
                    part = json.loads(line)
                    if part["key"] == "header":
                        state.messages.append(part["value"]["summary"])
                    if part["key"] == "file":
                        state.files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
                url = f"{state.address}/you/small/commit/{'0' * 40}"
                return self._send({"commitUrl": url, "commitOid": "0" * 40, "success": True})
            return self._send({})

        def _send(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()

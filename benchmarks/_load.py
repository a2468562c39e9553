"""Ask a server from a process of its own: many clients at once, well behaved ones and others.

    python benchmarks/_load.py '{"port": 8080, "clients": 8, "seconds": 5, "texts": "FILE"}'

prints what was found as JSON. Texts are a JSON file of texts and their labels. Each client keeps a connection, and asks
the next text when it has its answer. With ``requests``, it ends after so many in all; with ``chaos``, others cut
connections, send slowly, too much, or nonsense meanwhile; between two servers, clients try again.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LABEL = b'"label":"'
_TOO_LARGE, _SLOW_SECONDS = 3 << 20, 3.0


class Load:
    """Hold what all clients share, and count."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.port, self.clients = settings["port"], settings["clients"]
        self.seconds, self.requests = settings.get("seconds", 1e9), settings.get("requests", 1 << 62)
        pairs = json.loads(Path(settings["texts"]).read_text(encoding="utf-8"))
        self.bodies = [_request(json.dumps({"inputs": text}).encode()) for text, _ in pairs]
        self.labels = [json.dumps(label).encode()[1:] for _, label in pairs]  # to the quote behind it
        self.begun = 0
        self.latencies: list[float] = []
        self.wrong: list[str] = []
        self.lost: list[str] = []  # sent, and neither answered nor refused
        self.waited = 0  # for a server that was not there
        self.others: dict[str, int] = {}

    def next(self) -> int | None:
        """Return the number of the next text; None at the end."""
        if self.begun >= self.requests or time.perf_counter() >= self.end:
            return None
        self.begun += 1
        return self.begun % len(self.bodies)

    async def run(self, chaos: bool) -> dict[str, Any]:
        """Ask until the end, and return what was found."""
        begin = time.perf_counter()
        self.end = begin + self.seconds
        others = [asyncio.create_task(self._misbehave(kind)) for kind in _MISBEHAVIOURS if chaos for _ in range(2)]
        await asyncio.gather(*(Client(self).run() for _ in range(self.clients)))
        seconds = time.perf_counter() - begin
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        times = sorted(self.latencies)
        found = {f"p{share}": 1000 * times[min(len(times) - 1, len(times) * share // 100)] for share in (50, 95, 99)}
        found |= {"requests": len(times), "per_second": len(times) / seconds, "waited": self.waited}
        return found | {"wrong": self.wrong[:5], "lost": self.lost[:5], "others": self.others}

    async def _misbehave(self, kind: str) -> None:
        draw = random.Random(kind)
        while True:
            try:
                status = await asyncio.wait_for(_MISBEHAVIOURS[kind](self, draw), 60)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                status = "closed"
            name = f"{kind}: {status}"
            self.others[name] = self.others.get(name, 0) + 1
            await asyncio.sleep(0.02)


class Client(asyncio.Protocol):
    """Ask one text after the other over a connection that is kept."""

    def __init__(self, load: Load) -> None:
        self.load, self.number, self.begin = load, 0, 0.0
        self.data, self.done = b"", asyncio.get_running_loop().create_future()
        self.closing = False

    async def run(self) -> None:
        """Ask until nothing is left to ask; connect again where the server has closed the connection."""
        number = self.load.next()
        loop = asyncio.get_running_loop()
        while number is not None:
            self.number, self.data, self.closing = number, b"", False
            self.done = loop.create_future()
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", self.load.port)
            except OSError:
                self.load.waited += 1
                await asyncio.sleep(0.02)
                continue
            number = await self.done

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.begin = time.perf_counter()
        self.transport.write(self.load.bodies[self.number])

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer, and ask again once it is whole."""
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.index(b"content-length: ") + 16
        if len(body) < int(lower[at : at + 12].split(b"\r\n", 1)[0]):
            return
        self.load.latencies.append(time.perf_counter() - self.begin)
        self._check(head, body)
        self.data = b""
        number = self.load.next()
        if number is None or b"connection: close" in lower:
            self.closing = True
            self.transport.close()
            self.done.set_result(number)
            return
        self.number = number
        self._ask()

    def _check(self, head: bytes, body: bytes) -> None:
        label = self.load.labels[self.number]
        at = body.find(LABEL) + len(LABEL)
        if not head.startswith(b"HTTP/1.1 200") or body[at : at + len(label)] != label:
            self.load.wrong.append(f"{head[:15]!r} {body[:80]!r} instead of {label!r}")

    def connection_lost(self, error: Exception | None) -> None:
        """Note an answer that will not come, and ask the same again."""
        if not self.closing and not self.done.done():
            self.load.lost.append(repr(error))
            self.done.set_result(self.number)


def _request(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = (
        "POST /predict HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {size}",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + body


async def _answered(load: Load, content: bytes, pause: float = 0.0) -> str:
    """Send this, perhaps with a pause in the middle, and return the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
    try:
        half = len(content) // 2
        writer.write(content[:half])
        await asyncio.sleep(pause)
        writer.write(content[half:])
        line = await reader.readuntil(b"\r\n")
        return line.split()[1].decode()
    finally:
        writer.close()


async def _cut(load: Load, draw: random.Random) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", load.port)
    whole = draw.choice(load.bodies)
    writer.write(whole[: draw.randrange(len(whole) + 1)])
    await asyncio.sleep(draw.choice((0, 0.01)))
    writer.transport.abort()
    return "cut"


async def _slow(load: Load, draw: random.Random) -> str:
    return await _answered(load, draw.choice(load.bodies), _SLOW_SECONDS * draw.random())


async def _oversized(load: Load, draw: random.Random) -> str:
    return await _answered(load, _request(b'{"inputs": "' + b"a" * _TOO_LARGE + b'"}'))


async def _malformed(load: Load, draw: random.Random) -> str:
    return await _answered(load, _request(draw.randbytes(draw.randrange(2, 200))))


async def _no_http(load: Load, draw: random.Random) -> str:
    return await _answered(load, draw.randbytes(50) + b"\r\n\r\n")


Misbehaviour = Callable[[Load, random.Random], Awaitable[str]]
_MISBEHAVIOURS: dict[str, Misbehaviour] = {
    "cut": _cut,
    "slow": _slow,
    "oversized": _oversized,
    "malformed": _malformed,
    "no HTTP": _no_http,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(Load(given).run(given.get("chaos", False)))))

"""Run a service: bind its address, answer until it is told to stop, and then answer what it has accepted."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import ServeError
from ..model import Model
from .settings import KEY_VARIABLE, Settings, own_key, usable_cores

logger = logging.getLogger(__name__)

_LINGER = 1.0  # seconds in which kept connections hear with an answer that they close
_MOST_HEAD = 1 << 16  # bytes of a request before its body
_BACKLOG = 2048
_FIRST_PASSED = 3  # where systemd passes sockets


def serve(
    student: Model,
    settings: Settings,
    *,
    teacher: Model | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    card: str = "",
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C; ``say`` is told the address, and in the end what was done.

    The key that requests must carry is taken from the environment (LIMBECK_KEY).
    """
    try:
        import uvicorn

        from .app import Service, make_app
    except ImportError as error:
        raise ServeError(
            f"{error.name} is not installed: pip install 'limbeck[serve]', or "
            "'limbeck-runtime[serve]' where torch is not wanted."
        ) from error
    from .batcher import Batcher

    with _bound(settings) as listening:
        key = own_key()
        threads = settings.threads or usable_cores()
        how = (settings.queue, settings.batch_ms, settings.max_tokens)
        asked = Batcher(student, "student", threads, *how)
        taught = None if teacher is None else Batcher(teacher, "teacher", 1, *how)
        service = Service(settings, asked, taught, examples, card, key)
        config = uvicorn.Config(
            make_app(service),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=max(1, int(settings.timeout)),
            timeout_graceful_shutdown=int(settings.timeout) + 1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it quotes requests; what matters is said here
        config.load()
        config.http_protocol_class = guarded(config.http_protocol_class, settings.timeout)
        url = _address(settings.host, listening.getsockname())
        if not settings.loopback and key is None:
            logger.warning(
                "Everybody who can reach %s can ask this model and read its page. Set a key (%s=...), or listen at "
                "127.0.0.1 behind a proxy that asks for one.",
                url,
                KEY_VARIABLE,
            )
        ready = partial(say, f"{student.about.name} ({student.about.form}) at {url} (Ctrl-C stops it)")
        _draining_server(uvicorn.Server)(config, service, ready).run(sockets=[listening])
    for batcher in service.batchers:
        batcher.stop()
    say(f"Stopped: {service.accepted:,} requests were accepted, {service.answered:,} of them answered.")


@contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """Listen at the address, or take the socket that systemd passes."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        listening = socket.socket(fileno=_FIRST_PASSED)
    else:
        try:
            listening = _listen(settings.host, settings.port)
        except (OSError, OverflowError) as error:
            raise ServeError(
                f"Nothing can listen at {settings.host}, port {settings.port}: "
                f"{getattr(error, 'strerror', None) or error}. Choose another --port or --host."
            ) from error
    with listening:
        yield listening


def _listen(host: str, port: int) -> socket.socket:
    """Listen at an address. The socket names its protocol: asyncio sends small answers at once over TCP alone."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _address(host: str, bound: Any) -> str:
    if not isinstance(bound, tuple):  # a socket of the file system
        return str(bound)
    return f"http://[{host}]:{bound[1]}/" if ":" in host else f"http://{host}:{bound[1]}/"


def guarded(protocol: Any, seconds: float) -> Any:
    """Return uvicorn's protocol of a connection, but close one that sends no whole request for so long.

    uvicorn itself waits without an end for the first request, and for the rest of its head.
    """

    class Guarded(protocol):
        """Close a connection that keeps the server waiting."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head, self._seen = 0, None
            self._look_later()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head = 0 if self._answering else self._head + len(data)
            if self._head > _MOST_HEAD:
                self.transport.close()

        @property
        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _look_later(self) -> None:
            self._timer = self.loop.call_later(seconds, self._look)

        def _look(self) -> None:
            if not self._answering and self._seen is self.cycle:
                self.transport.close()
                return
            self._seen = self.cycle
            self._look_later()

    return Guarded


def _draining_server(server: Any) -> Any:
    """Return uvicorn's server, but stop it so that no request is lost, and end with exit code 0."""

    class Draining(server):
        """Answer all that was accepted before the end."""

        def __init__(self, config: Any, service: Any, ready: Callable[[], None]) -> None:
            super().__init__(config)
            self.service, self.ready = service, ready

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            self.ready()  # from now on signals stop it in good order

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            loop = asyncio.get_running_loop()
            numbers = (signal.SIGINT, signal.SIGTERM)
            for number in numbers:
                loop.add_signal_handler(number, self.handle_exit, number, None)
            try:
                yield
            finally:
                for number in numbers:
                    loop.remove_signal_handler(number)

        async def shutdown(self, sockets: Any = None) -> None:
            """Accept no more connections; let each kept one end with its next answer; then close what is left."""
            self.service.draining = True
            for one in self.servers:
                one.close()
            for connection in list(self.server_state.connections):
                if connection.cycle is not None:
                    connection.cycle.keep_alive = False
            for _ in range(20):
                if not self.server_state.connections or self.force_exit:
                    break
                await asyncio.sleep(_LINGER / 20)
            await super().shutdown(sockets)

    return Draining

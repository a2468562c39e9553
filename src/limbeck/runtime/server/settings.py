"""Hold the settings of a server, with the words that describe them on the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from ..errors import ServeError

KEY_VARIABLE = "LIMBECK_KEY"  # holds the key: a command line can be read by everybody on the machine


def _setting(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Settings:
    """Hold where a server listens, and how much it takes."""

    host: str = _setting("127.0.0.1", "Address to listen at. Others than this machine's own should have a key.")
    port: int = _setting(8080, "Port to listen at; 0 takes a free one.")
    threads: int = _setting(0, "How many texts are computed at a time. Default: one for each core.")
    batch_ms: float = _setting(20.0, "A batch takes about so many milliseconds to compute, at most.")
    queue: int = _setting(512, "Texts that may wait; more are refused with 503.")
    max_body: int = _setting(1 << 20, "Bytes of a request, at most.")
    max_texts: int = _setting(128, "Texts of a request, at most.")
    max_tokens: int = _setting(16_384, "Tokens of a request, at most, after texts were cut.")
    timeout: float = _setting(30.0, "Seconds for a request to arrive, and for its answer.")

    def __post_init__(self) -> None:
        for name in ("batch_ms", "queue", "max_body", "max_texts", "max_tokens", "timeout"):
            if not getattr(self, name) > 0:
                raise ServeError(f"--{name.replace('_', '-')} must be more than 0; seen: {getattr(self, name)}.")
        if self.threads < 0 or not 0 <= self.port < 1 << 16:
            raise ServeError(f"--threads and --port must be 0 or more; seen: {self.threads}, {self.port}.")

    @property
    def loopback(self) -> bool:
        """Tell whether nobody but this machine can connect."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:  # another name
            return False


def about(name: str) -> str:
    """Describe a setting."""
    return str(next(one.metadata["about"] for one in fields(Settings) if one.name == name))


def default(name: str) -> Any:
    """Return the default of a setting."""
    return next(one.default for one in fields(Settings) if one.name == name)


def own_key() -> str | None:
    """Return the key that requests must carry; None where none was set."""
    return os.environ.get(KEY_VARIABLE) or None


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

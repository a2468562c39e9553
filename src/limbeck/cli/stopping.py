"""Say how a command is continued that was stopped, or found the disk full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from limbeck._internal.machine import disk_full
from limbeck.errors import Interrupted, RunError, Stopped, shorten

AGAIN = "Nothing half-written is left: the same command does it again."


@contextmanager
def continued_by(advice: str) -> Iterator[None]:
    """Let what stops the block carry this advice, with which the message of the command ends."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("Interrupted.", advice) from None
    except Stopped as stop:
        stop.advice = stop.advice or advice
        raise
    except OSError as error:
        if not disk_full(error):
            raise
        where = f": {shorten(str(error.filename), 100)}" if error.filename else ""
        raise RunError(f"{error.strerror}{where}. Nothing finished was lost. Make room. {advice}") from error

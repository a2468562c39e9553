"""Turn SIGTERM and Ctrl-C into exceptions that stop a command, once; or note them where only some moments will do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from limbeck.errors import Interrupted, Stopped, Terminated

_IMPATIENT = 4  # signals after which cleaning up is not waited for


def stop_for(number: int) -> Stopped:
    """Return what a signal makes of a command."""
    return Terminated("Told to stop (SIGTERM).") if number == signal.SIGTERM else Interrupted("Interrupted.")


class Stopper:
    """Raise at the first signal; those that follow let the cleaning up go on, until there are several.

    ``stop`` is what was raised. Not every exception comes through to where it is waited for (one in a destructor does
    not), so it is kept.
    """

    def __init__(self) -> None:
        self.stop: Stopped | None = None
        self._count = 0
        self._process = os.getpid()

    def __call__(self, number: int, _: Any) -> None:
        """Handle a signal."""
        if os.getpid() != self._process:  # a forked child, whose parent stops it by the same signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._count += 1
        if self._count >= _IMPATIENT:
            os._exit(128 + number)
        if self.stop is None:
            self.stop = stop_for(number)
            raise self.stop


@contextmanager
def stopping_on_signals() -> Iterator[Stopper]:
    """Stop what the block does by an exception when SIGTERM or Ctrl-C comes.

    After one came, others are ignored for good: what the process does on its way out is short.
    """
    stopper = Stopper()
    previous = _handle((signal.SIGTERM, signal.SIGINT), stopper)
    try:
        yield stopper
    finally:
        _restore(previous if stopper.stop is None else dict.fromkeys(previous, signal.SIG_IGN))


class Noted:
    """Hold the first signal that came inside :func:`noting`, if any."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, number: int, _: Any) -> None:
        """Handle a signal."""
        self.number = self.number or number

    def raise_if_any(self) -> None:
        """Raise what the signal makes of a command."""
        if self.number is not None:
            raise stop_for(self.number)


@contextmanager
def noting(*numbers: signal.Signals) -> Iterator[Noted]:
    """Note signals inside the block, which looks at them when it can; one that was not heeded stops it at its end."""
    noted = Noted()
    previous = _handle(numbers, noted)
    try:
        yield noted
    except Stopped:
        raise
    except Exception:
        noted.raise_if_any()  # which may be why it failed
        raise
    else:
        noted.raise_if_any()
    finally:
        _restore(previous)


def _handle(numbers: Sequence[signal.Signals], handler: Callable[[int, Any], None]) -> dict[signal.Signals, Any]:
    """Set a handler where a thread may, and return those before it; what a shell's ``&`` has ignored stays so."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


def _restore(previous: dict[signal.Signals, Any]) -> None:
    for number, handler in previous.items():
        signal.signal(number, handler)

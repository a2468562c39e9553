"""Send signals to this very process in the middle of a command, so that the moment is exact."""

from __future__ import annotations

import functools
import os
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


class Unheard(BaseException):
    """Show that nobody handled a signal, which would have ended the process."""


def _unheard(number: int, _: Any) -> None:
    raise Unheard(signal.Signals(number).name)


@contextmanager
def signals_put_back() -> Iterator[None]:
    """Give this process its own handlers back; a signal that nobody handles raises Unheard."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, _unheard)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signal_in(target: str, number: signal.Signals, call: int = 1, after: bool = False) -> Iterator[Callable[[], int]]:
    """Send this process a signal when ``target`` is called for the ``call``-th time; give how often it was.

    ``after``: when the call is done.
    """
    calls = 0
    real = pkgutil.resolve_name(target)

    @functools.wraps(real)
    def sending(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        this = calls
        if this == call and not after:
            os.kill(os.getpid(), number)
        result = real(*given, **options)
        if this == call and after:
            os.kill(os.getpid(), number)
        return result

    with mock.patch(target, sending):
        yield lambda: calls

"""Remember in this process what several runs would each compute, by what it depends on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Keep the last few values that were computed. A key must name all that its value depends on, by content."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, computed where it is not known. Callers must not change it."""
        if key not in self._values:
            self._values[key] = compute()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

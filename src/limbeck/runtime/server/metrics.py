"""Count what a server does, and write it as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32)


class Histogram:
    """Count values in buckets, each of which holds those up to its bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        place = next((place for place, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Write the buckets, their sum and their count."""
        total, lines = 0, []
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self.sum:g}", f"{name}_count{{{labels}}} {total}"]


class Metrics:
    """Hold what was counted of one model, named by ``who``; several threads may add to it."""

    def __init__(self, who: str, waiting: Callable[[], int]) -> None:
        self._labels, self._waiting, self._lock = f'model="{who}"', waiting, Lock()
        self.requests: Counter[int] = Counter()  # by status
        self.counts: Counter[str] = Counter()
        self.seconds, self.computing, self.sizes = Histogram(SECONDS), Histogram(SECONDS), Histogram(SIZES)

    def request(self, status: int, seconds: float) -> None:
        """Count a request that was answered with a status."""
        with self._lock:
            self.requests[status] += 1
            self.seconds.add(seconds)

    def texts(self, texts: int, cut: int, tokens: int) -> None:
        """Count texts that were read."""
        with self._lock:
            self.counts.update(texts=texts, cut=cut, tokens=tokens)

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch that was computed."""
        with self._lock:
            self.sizes.add(size)
            self.computing.add(seconds)

    def lines(self) -> list[tuple[str, str, str, list[str]]]:
        """Return name, kind, meaning and lines of each figure."""
        labels = self._labels
        with self._lock:
            by_status = [
                f'limbeck_requests_total{{{labels},status="{status}"}} {count}'
                for status, count in sorted(self.requests.items())
            ]
            counts = {name: [f"limbeck_{name}_total{{{labels}}} {self.counts[name]}"] for name in _COUNTS}
            found = [("limbeck_requests_total", "counter", "Requests, by the status of the answer.", by_status)]
            found += [(f"limbeck_{name}_total", "counter", _COUNTS[name], lines) for name, lines in counts.items()]
            found += [
                (name, "histogram", meaning, histogram.lines(name, labels))
                for name, meaning, histogram in (
                    ("limbeck_request_seconds", "From the whole request to its answer.", self.seconds),
                    ("limbeck_batch_seconds", "To compute a batch.", self.computing),
                    ("limbeck_batch_texts", "Texts, or windows over them, of a batch.", self.sizes),
                )
            ]
        waiting = [f"limbeck_waiting_texts{{{labels}}} {self._waiting()}"]
        return [*found, ("limbeck_waiting_texts", "gauge", "Texts that wait to be computed.", waiting)]


_COUNTS = {"texts": "Texts that were read.", "cut": "Texts that were cut.", "tokens": "Tokens that were read."}


def exposition(metrics: Sequence[Metrics]) -> str:
    """Write the figures of all models in Prometheus' text format."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for one in metrics:
        for name, kind, meaning, lines in one.lines():
            found.setdefault(name, (kind, meaning, []))[2].extend(lines)
    written = [
        line
        for name, (kind, meaning, lines) in found.items()
        for line in (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines)
    ]
    return "\n".join(written) + "\n"

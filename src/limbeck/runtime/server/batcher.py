"""Answer texts that wait, some at a time: threads take what is there, in its order, and never wait for more.

A batch is as large as what came while the last one was computed, and no larger than what takes ``batch_ms``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

from ..answers import Answer
from ..errors import InputError
from ..model import BATCH_SIZE, Model
from ..reading import Row, Text
from .metrics import Metrics

_LEARNING = 0.2  # how fast the time of a token follows what is measured
_PROBE = "a text to begin with"


class QueueFull(Exception):
    """Report that too many texts wait already; ``seconds`` is when to come again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class TooManyTokens(InputError):
    """Report a request with more tokens than are computed for one."""


@dataclass(frozen=True)
class Answered:
    """Hold the answers to a request, and what they took."""

    answers: list[Answer]
    logits: list[Any]  # of the rows, one for each text but for questions
    milliseconds: float  # of computing, without waiting
    tokens: int
    cut: int  # how many of the texts


class _Job:
    """Hold a request while it is answered."""

    def __init__(self, texts: Sequence[Text], refuse_cut: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.texts, self.refuse_cut = texts, refuse_cut
        self.loop, self.future = loop, loop.create_future()
        self.rows: list[Row] = []
        self.logits: list[Any] = []
        self.left = 0  # rows without logits
        self.seconds = 0.0
        self.gone = False  # nobody waits for the answer any more


class Batcher:
    """Answer texts by a model, in threads of its own; :meth:`accept` is for one event loop."""

    def __init__(self, model: Model, who: str, threads: int, queue: int, batch_ms: float, max_tokens: int) -> None:
        self.model, self.queue, self.max_tokens = model, queue, max_tokens
        self._batch_seconds = batch_ms / 1000
        self._unread: deque[_Job] = deque()
        self._ready: deque[tuple[_Job, int]] = deque()  # rows that can be computed
        self._waiting = 0  # texts of which no row has been taken to be computed
        self._changed, self._stopped = Condition(), False
        self.metrics = Metrics(who, lambda: self._waiting)
        self._token_seconds = self._measure()
        self._threads = [Thread(target=self._work, name=f"{who}-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _measure(self) -> float:
        """Return the seconds of a token, from a text that also loads what the first one would wait for."""
        text: Text = (_PROBE, _PROBE) if self.model.about.texts == 2 else _PROBE
        rows = self.model.reader.read([text])
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            self.model.logits(rows)
            took.append(time.perf_counter() - begin)
        return min(took) / len(rows[0].ids)

    def accept(self, texts: Sequence[Text], *, refuse_cut: bool = False) -> _Job:
        """Let the texts of one request wait for their answers; raise where too many others wait."""
        job = _Job(texts, refuse_cut, asyncio.get_running_loop())
        with self._changed:
            if self._waiting + len(texts) > self.queue:
                raise QueueFull(self._seconds_to_empty())
            self._waiting += len(texts)
            self._unread.append(job)
            self._changed.notify()
        return job

    async def answer(self, job: _Job) -> Answered:
        """Return the answers to a request that was accepted; raise where its texts cannot be read."""
        try:
            found: Answered = await job.future
            return found
        finally:
            job.gone = True

    def _seconds_to_empty(self) -> int:
        """Estimate how long those that wait will take; texts are taken for as long as those before them."""
        texts = self.metrics.counts["texts"]
        tokens = self.metrics.counts["tokens"] / texts if texts else self.model.about.max_length
        return max(1, math.ceil(self._waiting * tokens * self._token_seconds / len(self._threads)))

    def stop(self) -> None:
        """End the threads once nothing waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._unread or self._ready or self._stopped):
                    self._changed.wait()
                if not (self._unread or self._ready):
                    return
                job = self._unread.popleft() if self._unread else None
                batch = [] if job else self._take()
            if job:
                self._read(job)
            elif batch:
                self._compute(batch)

    def _read(self, job: _Job) -> None:
        """Turn a request's texts into rows, and let them wait to be computed."""
        try:
            begin = time.perf_counter()
            rows = [] if job.gone else self.model.reader.read(job.texts)
            job.seconds += time.perf_counter() - begin
            tokens, cut = sum(len(row.ids) for row in rows), sum(row.cut for row in rows)
            self.metrics.texts(len(job.texts), cut, tokens)
            self._check(job, cut, tokens)
        except Exception as error:
            with self._changed:
                self._waiting -= len(job.texts)
            self._tell(job, error)
            return
        job.rows, job.logits, job.left = rows, [None] * len(rows), len(rows)
        with self._changed:
            if not rows:
                self._waiting -= len(job.texts)
            self._ready.extend((job, number) for number in range(len(rows)))
            self._changed.notify(max(0, len(rows) - 1))  # this thread takes one itself

    def _check(self, job: _Job, cut: int, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise TooManyTokens(
                f"The request has {tokens:,} tokens, more than the {self.max_tokens:,} that are computed for one. "
                "Send fewer texts, or shorter ones."
            )
        if cut and job.refuse_cut:
            raise TooManyTokens(
                f"{cut} of {len(job.texts)} texts have more than the {self.model.about.max_length} tokens that the "
                'model reads, and "truncate" is false. Shorten them, or let them be cut.'
            )

    def _take(self) -> list[tuple[_Job, int]]:
        """Take the rows of the next batch: the first ones, as many as may share it and are computed in time."""
        batch: list[tuple[_Job, int]] = []
        longest = 0
        alone = self.model.depends_on_batch
        while self._ready and len(batch) < BATCH_SIZE:
            job, number = self._ready[0]
            length = len(job.rows[number].ids)
            padded = max(longest, length) * (len(batch) + 1)
            if batch and (alone or padded * self._token_seconds > self._batch_seconds):
                break
            self._ready.popleft()
            if number == 0:
                self._waiting -= len(job.texts)
            if job.gone:
                continue
            batch.append((job, number))
            longest = max(longest, length)
        return batch

    def _compute(self, batch: list[tuple[_Job, int]]) -> None:
        begin = time.perf_counter()
        try:
            found: list[Any] = self.model.logits([job.rows[number] for job, number in batch])
        except Exception as error:
            if len(batch) > 1:  # whose fault it is shows when each is computed by itself
                for one in batch:
                    self._compute([one])
                return
            found = [error]
        seconds = time.perf_counter() - begin
        longest = max(len(job.rows[number].ids) for job, number in batch)
        self.metrics.batch(len(batch), seconds)
        self._token_seconds += _LEARNING * (seconds / (len(batch) * longest) - self._token_seconds)
        done = []
        with self._changed:
            for (job, number), logits in zip(batch, found, strict=True):
                job.logits[number] = logits
                job.left -= 1
                if not job.left:
                    done.append(job)
            for job in dict.fromkeys(job for job, number in batch):
                job.seconds += seconds
        for job in done:
            self._finish(job)

    def _finish(self, job: _Job) -> None:
        """Turn a request's logits into answers."""
        try:
            for logits in job.logits:
                if isinstance(logits, Exception):
                    raise logits
            begin = time.perf_counter()
            answers = self.model.answers(job.texts, job.rows, job.logits)
            milliseconds = 1000 * (job.seconds + time.perf_counter() - begin)
            tokens, cut = sum(len(row.ids) for row in job.rows), sum(row.cut for row in job.rows)
            self._tell(job, Answered(answers, job.logits, milliseconds, tokens, cut))
        except Exception as error:
            self._tell(job, error)

    def _tell(self, job: _Job, outcome: Answered | Exception) -> None:
        with suppress(RuntimeError):  # the loop has ended, and who waited with it
            job.loop.call_soon_threadsafe(_settle, job.future, outcome)


def _settle(future: asyncio.Future[Answered], outcome: Answered | Exception) -> None:
    if future.done():  # nobody waits any more
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

"""Say which students are not better than the best trivial rival of their task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from limbeck.compare.answers import has_answers, read_answers
from limbeck.compare.entries import Entry, EntrySet
from limbeck.compare.significance import Column, compare_by_bootstrap, sample_of
from limbeck.errors import DataError
from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.runs.rivals import KeptRival
from limbeck.stats import Comparison

_RESAMPLES = 2_000  # enough for the ends of an interval, and a table may have many students


@dataclass(frozen=True)
class Verdict:
    """Hold that a student is not better than the best rival on a task, as far as the validation data tell."""

    task: str
    label: str
    rival: KeptRival
    metric: str
    ours: float  # the mean over seeds
    low: float | None  # of the difference, student minus rival; None where it cannot be tested
    high: float | None

    def sentence(self, where: str = "") -> str:
        """Say it; ``where`` is what names the task, if there are several."""
        scores = f"{self._readable(self.ours)} against {self._readable(self.rival.scores[self.metric])}"
        interval = "not tested, because the predictions that are kept do not allow it"
        if self.low is not None and self.high is not None:
            ends = f"{self._readable(self.low)} to {self._readable(self.high)}"
            interval = f"95% interval of the difference {ends}"
        return f"{self.label}{where} is not better than {self.rival.in_words} ({scores}, {interval})."

    def _readable(self, value: float) -> str:
        return readable_score(self.metric, value)


def judge(found: EntrySet, columns: Sequence[Column]) -> list[Verdict]:
    """Compare each student with the best rival of its task by the first metric shown; those that are better pass.

    The mean over seeds is compared, by drawing the validation rows anew.
    """
    verdicts = []
    for task, rivals in found.rivals.items():
        metric = next((column.metric for column in columns if column.task == task), "")
        known = [rival for rival in rivals if metric in rival.scores]
        if known:
            sign = -1 if metric in SMALLER_IS_BETTER else 1
            best = max(known, key=lambda rival: sign * rival.scores[metric])
            each = [_judge(entry, best, metric) for entry in found.entries if entry.task == task]
            verdicts += [verdict for verdict in each if verdict is not None]
    return verdicts


def _judge(entry: Entry, rival: KeptRival, metric: str) -> Verdict | None:
    runs = [run for run in entry.runs if metric in run.scores]
    scores = [run.scores[metric] for run in runs]
    if not scores or not all(map(math.isfinite, scores)):
        return None  # the table says so
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    ours = fmean(scores)
    verdict = Verdict(entry.task, entry.label, rival, metric, ours, None, None)
    tested = _tested(entry, rival, metric)
    if tested is None or tested.low is None or tested.high is None:
        return verdict if sign * ours <= sign * rival.scores[metric] else None
    better = tested.low > 0 if sign > 0 else tested.high < 0
    return None if better else replace(verdict, low=tested.low, high=tested.high)


def _tested(entry: Entry, rival: KeptRival, metric: str) -> Comparison | None:
    """Test the difference on the same rows; None where the two do not have them, or do not tell the metric of some."""
    runs = [run for run in entry.runs if has_answers(run)]
    file = rival.predictions.get("validation")
    if len(runs) < len(entry.runs) or file is None or not file.is_file():
        return None
    theirs = replace(read_answers(file), names=rival.labels)
    try:
        ours = [sample_of(run, metric, rival.labels) for run in runs]
        same = read_answers(runs[0].directory.predictions())
        if (same.ids, same.labels) != (theirs.ids, theirs.labels):
            return None
        found = compare_by_bootstrap(metric, ours, [theirs.sample(metric)], "two", _RESAMPLES)
    except DataError:
        return None
    return found if isinstance(found, Comparison) else None

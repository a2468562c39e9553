"""What ``results/`` holds, as lines that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from limbeck.stats import Comparison, Summary, holm, summary, t_test

MAIN, OTHERS = "evidence", "evidence-others"
ABLATIONS = ("evidence-layers", "evidence-structures", "evidence-relations", "evidence-neighbours")
TASKS = ("glue/rte", "glue/mrpc", "glue/cola", "glue/stsb")


@dataclass(frozen=True)
class MethodRuns:
    """One method with its chosen setting on one task, in one run for each seed."""

    task: str
    label: str
    values: Mapping[str, Any]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return list(self.values["runs"])

    @cached_property
    def scores(self) -> list[float]:
        """Of the task's main metric, in hundredths."""
        return [100 * run["score"] for run in self.runs]

    @property
    def summary(self) -> Summary:
        return summary(self.scores)

    def printed(self) -> Mapping[str, Any] | None:
        """What its paper reports, by the same metric."""
        metric = self.runs[0]["metric"]
        return next((score for score in self.values["printed"] if score["metric"] == metric), None)

    def mean(self, name: str) -> float | None:
        """Of a number that every run has."""
        found = [run[name] for run in self.runs]
        return None if None in found else sum(found) / len(found)


@dataclass(frozen=True)
class TaskFile:
    values: Mapping[str, Any]

    @property
    def task(self) -> str:
        return str(self.values["task"])

    @cached_property
    def methods(self) -> dict[str, MethodRuns]:
        """By label, those of which at least one run was finished."""
        found = [MethodRuns(self.task, method["label"], method) for method in self.values["methods"] if method["runs"]]
        return {line.label: line for line in found}


class ResultFiles:
    """Every file of a folder of results, by study and task."""

    def __init__(self, folder: Path) -> None:
        files = [TaskFile(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*/*.json"))]
        self.files = {(file.values["study"], file.task): file for file in files}

    def tasks(self, study: str) -> list[str]:
        return [task for task in TASKS if (study, task) in self.files]

    def method(self, study: str, task: str, label: str) -> MethodRuns | None:
        file = self.files.get((study, task))
        return None if file is None else file.methods.get(label)

    def searched(self, task: str, label: str) -> MethodRuns | None:
        """From the studies that choose each method's setting."""
        return self._first((MAIN, OTHERS), task, label)

    def fixed(self, task: str, label: str) -> MethodRuns | None:
        """From the ablations, whose settings are fixed."""
        return self._first(ABLATIONS, task, label)

    def _first(self, studies: Iterable[str], task: str, label: str) -> MethodRuns | None:
        return next((line for study in studies if (line := self.method(study, task, label))), None)


def testable(ours: MethodRuns | None, theirs: MethodRuns | None) -> bool:
    return ours is not None and theirs is not None and min(len(ours.runs), len(theirs.runs)) > 1


def compared(pairs: Iterable[tuple[MethodRuns, MethodRuns]]) -> list[tuple[Comparison, float]]:
    """Welch's t-test of each pair, with p after Holm's correction for all of them."""
    tests = [t_test(ours.scores, theirs.scores) for ours, theirs in pairs]
    return list(zip(tests, holm([test.p for test in tests]), strict=True))

"""Read the files in ``results/`` and compare the methods in them."""

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
    """Hold one method with its chosen setting on one task, in one run for each seed."""

    task: str
    label: str
    values: Mapping[str, Any]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """List what was kept of each run."""
        return list(self.values["runs"])

    @cached_property
    def scores(self) -> list[float]:
        """List the task's main metric of each run, in hundredths."""
        return [100 * run["score"] for run in self.runs]

    @property
    def summary(self) -> Summary:
        """Summarise the scores over seeds."""
        return summary(self.scores)

    def printed(self) -> Mapping[str, Any] | None:
        """Look up what its paper reports, by the same metric."""
        metric = self.runs[0]["metric"]
        return next((score for score in self.values["printed"] if score["metric"] == metric), None)

    def mean(self, name: str) -> float | None:
        """Average a number over the runs; None where one lacks it."""
        found = [run[name] for run in self.runs]
        return None if None in found else sum(found) / len(found)


@dataclass(frozen=True)
class TaskFile:
    """Hold what one study found on one task."""

    values: Mapping[str, Any]

    @property
    def task(self) -> str:
        """Name the task."""
        return str(self.values["task"])

    @cached_property
    def methods(self) -> dict[str, MethodRuns]:
        """Find the methods of which at least one run was finished, by label."""
        found = [MethodRuns(self.task, method["label"], method) for method in self.values["methods"] if method["runs"]]
        return {line.label: line for line in found}


class ResultFiles:
    """Read every file of a folder of results, by study and task."""

    def __init__(self, folder: Path) -> None:
        files = [TaskFile(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*/*.json"))]
        self.files = {(file.values["study"], file.task): file for file in files}

    def tasks(self, study: str) -> list[str]:
        """List the tasks of a study, in the page's order."""
        return [task for task in TASKS if (study, task) in self.files]

    def method(self, study: str, task: str, label: str) -> MethodRuns | None:
        """Find a method of one study on a task."""
        file = self.files.get((study, task))
        return None if file is None else file.methods.get(label)

    def searched(self, task: str, label: str) -> MethodRuns | None:
        """Find a method in the studies that choose each method's setting."""
        return self._first((MAIN, OTHERS), task, label)

    def fixed(self, task: str, label: str) -> MethodRuns | None:
        """Find a method in the ablations, whose settings are fixed."""
        return self._first(ABLATIONS, task, label)

    def _first(self, studies: Iterable[str], task: str, label: str) -> MethodRuns | None:
        return next((line for study in studies if (line := self.method(study, task, label))), None)


def testable(ours: MethodRuns | None, theirs: MethodRuns | None) -> bool:
    """Tell whether both methods are there with two runs or more."""
    return ours is not None and theirs is not None and min(len(ours.runs), len(theirs.runs)) > 1


def compared(pairs: Iterable[tuple[MethodRuns, MethodRuns]]) -> list[tuple[Comparison, float]]:
    """Make Welch's t-test of each pair, with p after Holm's correction for all of them."""
    tests = [t_test(ours.scores, theirs.scores) for ours, theirs in pairs]
    return list(zip(tests, holm([test.p for test in tests]), strict=True))

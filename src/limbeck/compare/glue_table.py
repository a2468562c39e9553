"""Average finished runs of GLUE tasks: over seeds, and over tasks as GLUE and the papers do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from limbeck.errors import DataError, RecipeError, RunError, unknown
from limbeck.runs.directory import RESULTS, RunDirectory
from limbeck.runs.files import MALFORMED, damaged
from limbeck.runs.reader import check_finished
from limbeck.tasks.glue import GLUE

# GLUE's own score is the plain mean of the nine tasks; a task with several numbers counts once, with their mean.
# Huang et al. 2023 average the eight numbers that their table 1 prints: no WNLI, MNLI matched, and F1 for QQP and MRPC
# and Spearman's correlation for STS-B, as the text has it, although the caption says otherwise. The other papers print
# no average of scores; Jung et al. 2023 average the losses of their ablations in percent.
AVERAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "glue": {name: spec.metrics for name, spec in GLUE.items()} | {"mnli": ("accuracy", "accuracy_mismatched")},
    "fcd": {
        "sst2": ("accuracy",),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "qqp": ("f1",),
        "rte": ("accuracy",),
        "stsb": ("spearman",),
        "mrpc": ("f1",),
        "cola": ("mcc",),
    },
}


def read_glue_scores(runs: Sequence[str | Path]) -> dict[str, list[dict[str, float]]]:
    """Read the metrics of finished runs by GLUE task, in GLUE's order; the runs of a task must be of one method."""
    found: dict[str, list[dict[str, float]]] = {}
    first: dict[str, tuple[Path, str]] = {}
    for run in map(RunDirectory, map(Path, runs)):
        check_finished(run)
        results = run.metrics()
        try:
            task, method, metrics = str(results["task"]), str(results["method"]), dict(results["metrics"])
        except MALFORMED as error:
            raise damaged(run.results, RESULTS, error) from error
        name = task.removeprefix("glue/")
        if name not in GLUE:
            raise RunError(f"{run.path} is a run of {task}, which is no GLUE task. Name runs of GLUE tasks only.")
        other, its_method = first.setdefault(name, (run.path, method))
        if method != its_method:
            raise RunError(
                f"{other} ({its_method}) and {run.path} ({method}) are runs of glue/{name} by different methods, "
                "whose mean says nothing. Name the runs of one method."
            )
        found.setdefault(name, []).append(metrics)
    return {name: found[name] for name in GLUE if name in found}


def mean_scores(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Average the runs of each task, over the metrics that all of them have."""
    return {
        task: {name: fmean(run[name] for run in found) for name in found[0] if all(name in run for run in found)}
        for task, found in runs.items()
    }


def glue_average(scores: Mapping[str, Mapping[str, float]], kind: str) -> float:
    """Compute one of ``AVERAGES`` from the metrics of each task, e.g. ``{"cola": {"mcc": 0.55}, ...}``."""
    if missing := missing_scores(scores, kind):
        raise DataError(f"The average '{kind}' cannot be computed: {', '.join(missing)} missing.")
    return fmean(fmean(scores[task][name] for name in names) for task, names in AVERAGES[kind].items())


def missing_scores(scores: Mapping[str, Mapping[str, float]], kind: str) -> list[str]:
    """List what an average needs: ``cola``, or ``mnli (accuracy_mismatched)`` where only some metrics are missing."""
    if kind not in AVERAGES:
        raise RecipeError(unknown("average", kind, AVERAGES, f"There are {', '.join(AVERAGES)}."))
    missing = []
    for task, names in AVERAGES[kind].items():
        absent = [name for name in names if name not in scores.get(task, {})]
        if absent:
            missing.append(task if task not in scores else f"{task} ({', '.join(absent)})")
    return missing

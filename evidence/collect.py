"""Keep what a finished study found as small files: ``python -m evidence.collect studies/evidence results/evidence``.

One file for each task, with everything that a page about it needs: settings, seeds, commits, scores, times, how the
terms of the loss went, and what ``limbeck analyze`` and ``evidence.dev_terms`` measured where they were called. No
weights and no predictions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence.dev_terms import FILE as DEV_TERMS
from limbeck._internal.files import write_text
from limbeck.analysis.record import read_record
from limbeck.recipes.files import shipped_recipes
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import read_mapping
from limbeck.runs.reader import read_history, read_recipe
from limbeck.study.description import short_task

# the shipped recipe whose printed scores a method is shown beside
_BESIDE = {
    "ft": "alignment/{task}-ft",
    "kd": "fsd/{task}-vkd",
    "cka": "alignment/{task}-cka-kd-ft",
    "shape": "alignment/{task}-shape-kd-ft",
    "fsd": "fsd/{task}-fsd",
    "fcd": "fcd/bert-base-{task}-fcd",
    "ics": "ics/{task}-ics",
    "pkd": "pkd/{task}-pkd",
    "rkd": "rkd/{task}-rkd",
    "minilmv2": "minilmv2/{task}-minilmv2-saadi2023",
    "cka, 1 pair": "alignment/{task}-cka-1-pair",
    "cka, 3 pairs": "alignment/{task}-cka-3-pairs",
    "shape, 1 pair": "alignment/{task}-shape-1-pair",
    "shape, 3 pairs": "alignment/{task}-shape-3-pairs",
    "fsd without L and G": "fsd/{task}-fsd_i",
    "fsd without I and G": "fsd/{task}-fsd_l",
    "fsd without I and L": "fsd/{task}-fsd_g",
    "fsd without G": "fsd/{task}-fsd_il",
    "fcd, MSE": "fcd/bert-base-{task}-fcd-mse",
    "fcd, KL": "fcd/bert-base-{task}-fcd-kl",
}


def main() -> None:
    """Write a file for each task of a study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="the folder of a study, whose results.json says what is finished")
    parser.add_argument("output", type=Path, help="where to write TASK.json")
    words = parser.parse_args()
    study = StudyDirectory(words.study)
    results, asked = read_mapping(study.results), read_mapping(study.description)
    for task in asked["tasks"]:
        file = words.output / f"{short_task(task)}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        found = {"study": words.output.name} | _task(words.study, results, asked, task)
        write_text(file, json.dumps(found, indent=1) + "\n")
        print(file)


def _task(study: Path, results: Mapping[str, Any], asked: Mapping[str, Any], task: str) -> dict[str, Any]:
    entries = [entry for entry in results["entries"] if entry["task"] == task]
    measured = read_mapping(study / DEV_TERMS).get(task, {}) if (study / DEV_TERMS).is_file() else {}
    teacher = _run(study / results["teachers"][task])
    methods = [
        {key: entry[key] for key in ("label", "chosen", "searched", "missing", "why")}
        | {"printed": _printed(entry["label"], task), "dev": measured.get(entry["label"])}
        | {"recipe": _recipe(study, entry["runs"]), "runs": [_run(study / run) for run in entry["runs"]]}
        for entry in entries
    ]
    runs = [teacher, *(run for method in methods for run in method["runs"])]
    environment = read_mapping(RunDirectory(study / results["teachers"][task]).environment)
    return {
        "task": task,
        "commits": sorted({run["commit"] for run in runs}),
        "seeds": asked["seeds"],
        "select_seeds": asked.get("select_seeds", asked["seeds"]),
        "selection": results["selection"],
        "environment": {key: value for key, value in environment.items() if key != "commit"},
        "teacher": teacher | {"recipe": _recipe(study, [results["teachers"][task]])},
        "methods": methods,
    }


def _printed(label: str, task: str) -> list[dict[str, Any]]:
    """Look up what a paper reports of this method on this task, with its own models."""
    name = _BESIDE.get(label, "").format(task=short_task(task))
    recipe = shipped_recipes().get(name)
    return recipe.values.get("reported") or [] if recipe else []


def _recipe(study: Path, runs: list[str]) -> dict[str, Any] | None:
    """Read what all of these runs share; their seeds stand beside it."""
    if not runs:
        return None
    recipe = read_recipe(RunDirectory(study / runs[0]))
    return {key: value for key, value in recipe.items() if key != "seed"}


def _run(folder: Path) -> dict[str, Any]:
    run = RunDirectory(folder)
    metrics = run.metrics()
    found = {key: metrics[key] for key in ("seed", "metric", "score", "metrics", "majority", "parameters", "steps")}
    found |= {
        "commit": read_mapping(run.environment)["commit"],
        "seconds": metrics["train_seconds"],
        "examples": metrics["examples"],
        "agreement": metrics.get("teacher", {}).get("agreement"),
        "terms": _first_and_last(read_history(run)),
    }
    record = read_record(folder)
    return found if record is None else found | {"analysis": record.values}


def _first_and_last(history: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Pick the first and the last value that training logged of each term of the loss, without its weight."""
    logged = [entry for entry in history if "loss" in entry]
    names = [name for name in logged[0] if name.startswith("term/")] if logged else []
    return {name.removeprefix("term/"): [logged[0][name], logged[-1][name]] for name in names}


if __name__ == "__main__":
    main()

"""Measure every loss on validation data while the students are still there: ``python -m evidence.dev_terms STUDY``.

A method that hurts may do so although its loss falls (the method is at fault), or because it does not fall, does not
carry over to other texts, or is drowned by other terms (the code or the weights are at fault). The answers, for the
first reported seed of each method, go into ``STUDY/dev_terms.json``, which ``evidence.collect`` keeps.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evidence.tables import BASELINES
from limbeck._internal.files import write_text
from limbeck.analysis.loaded_run import LoadedRun, load_run
from limbeck.distillation.distiller import Distiller
from limbeck.distillation.objective import Objective, Term
from limbeck.runs.directory import StudyDirectory
from limbeck.runs.files import read_mapping

FILE = "dev_terms.json"
_EXAMPLES = 1000
_PULLS = 4  # batches whose gradients are compared


def main() -> None:
    """Measure the first run of every method of a study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="the folder of a finished study, with its students")
    study = parser.parse_args().study
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for task, runs in first_runs(study).items():
        # what students of these make of a loss that they did not train on
        beside = {label: load_run(runs[label], _EXAMPLES) for label in BASELINES if label in runs}
        for label, run in runs.items():
            loaded = beside.get(label) or load_run(run, _EXAMPLES)
            found[task][label] = measure_terms(loaded, {**beside, label: loaded}, study)
            print(task, label, found[task][label])
    write_text(study / FILE, json.dumps(found, indent=1) + "\n")


def measure_terms(loaded: LoadedRun, students: dict[str, LoadedRun], folder: Path) -> dict[str, Any]:
    """Measure a method's loss terms for its student before training and for trained ones, and how hard each pulls."""
    objective = _without_preparation(loaded.parts.distiller.objective).to(loaded.device)
    teacher = loaded.teacher("validation", objective.needs().teacher, folder) if loaded.parts.teacher else None
    models = {"before": loaded.before} | {label: run.after for label, run in students.items()}
    with torch.no_grad():
        terms = {name: _terms(Distiller(model, objective, teacher), loaded) for name, model in models.items()}
    return {"terms": terms, "pulls": _pulls(Distiller(loaded.before, objective, teacher), loaded)}


def first_runs(study: Path) -> dict[str, dict[str, Path]]:
    """Find the run of the first reported seed, by task and label."""
    runs: dict[str, dict[str, Path]] = defaultdict(dict)
    for entry in read_mapping(StudyDirectory(study).results)["entries"]:
        if entry["runs"]:
            runs[entry["task"]][entry["label"]] = study / entry["runs"][0]
    return runs


def _without_preparation(objective: Objective) -> Objective:
    """Leave out terms that learned from the training data before training, which a run does not keep."""
    kept: dict[str, tuple[float, Term]] = {
        name: (weight, term)
        for (name, weight), term in zip(objective.weights.items(), objective, strict=True)
        if not term.passes
    }
    return Objective(**kept)


def _terms(distiller: Distiller, loaded: LoadedRun) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for batch in loaded.batches():
        for name, value in distiller(**batch)["terms"].items():
            values[name].append(float(value))
    return {name: fmean(found) for name, found in values.items()}


def _pulls(distiller: Distiller, loaded: LoadedRun) -> dict[str, float]:
    """Compute the norm of the gradient of each term with its weight, on the student before training."""
    parameters = [weight for weight in distiller.student.parameters() if weight.requires_grad]
    pulls: dict[str, list[float]] = defaultdict(list)
    for _, batch in zip(range(_PULLS), loaded.batches(), strict=False):
        for name, value in distiller(**batch)["terms"].items():
            weighted = distiller.objective.weights[name] * value
            found = torch.autograd.grad(weighted, parameters, retain_graph=True, allow_unused=True)
            pulls[name].append(_norm([part for part in found if part is not None]))
    return {name: fmean(found) for name, found in pulls.items()}


def _norm(parts: list[Tensor]) -> float:
    return float(torch.stack([part.norm() for part in parts]).norm())


if __name__ == "__main__":
    main()

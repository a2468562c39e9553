"""Train tiny students without dropout on every kind of problem, so that two ways to train them can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from helpers.tiny_models import without_dropout
from helpers.tiny_runs import HALF, TinyRuns, write_data
from limbeck import Recipe, execute, load_recipe

# plain descent, so that a step is proportional to the gradient
SGD = {
    "optim": "sgd",
    "learning_rate": 0.01,
    "max_grad_norm": 0.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "eval_strategy": "no",
    "save_strategy": "no",
}


class StillRuns:
    """Give recipes over one set of data and one teacher of each kind of problem, and what became of them."""

    def __init__(self, home: Path, tokenizer_folder: Path) -> None:
        self.home, self.runs = home, TinyRuns(home, tokenizer_folder)

    def recipe(self, problem: Any, method: dict[str, Any], train: dict[str, Any], **more: Any) -> Recipe:
        """Return a recipe whose teacher has no dropout, and its student neither; ``cache`` is the teacher's."""
        cache, task = more.pop("cache", "off"), more
        block = write_data(problem, self.home / f"data-{problem}")
        teacher = self.home / f"still-{problem}"
        if not teacher.exists():
            without_dropout(Path(self.runs.teacher("bert", problem, block, headless=False)), teacher)
        values = {"task": block | task, "student": HALF, "method": method}
        values |= {"teacher": {"model": str(teacher), "cache": str(cache)}}
        return load_recipe(values=values | {"train": SGD | train})

    def weights_and_log(self, recipe: Recipe, folder: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
        """Train it; return the student's weights and the logged losses of every step, with their terms."""
        run = execute(recipe, folder, show_data=False)
        entries = [json.loads(line) for line in run.history.read_text().splitlines()]
        return load_file(run.student / "model.safetensors"), [entry for entry in entries if "loss" in entry]


def largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return how far two sets of weights are apart, where they are furthest."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)

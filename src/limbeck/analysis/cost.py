"""Measure what a run costs: parameters, disk, and a training step beside one of kd.

The two take turns and the fastest turn of each counts, so that a busy moment hits neither of them alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from limbeck.analysis.loaded_run import LoadedRun
from limbeck.errors import ModelError
from limbeck.models.architecture import architecture_of
from limbeck.models.loading import count_parameters, resolve
from limbeck.recipes.method_block import MethodBlock
from limbeck.recipes.recipe import Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.training.assemble import Data, Parts, assemble, hand_over_held_out
from limbeck.training.teaching import file_teachers, taught
from limbeck.training.vocabulary import run_tokenizer

_REPEATS = 4
_REFERENCE = "kd"
_CANDIDATES = 128  # training examples that a batch is taken from


def cost_of(loaded: LoadedRun, folder: Path) -> dict[str, Any]:
    """Count what a run costs (Jung et al. 2023, table 8), and time its training:

    ``parameters``, ``trained_parameters`` (with what the method trains beside the student), ``disk_bytes`` and
    ``step_milliseconds``; with a teacher also ``teacher_parameters``, ``teacher_disk_bytes``, and relative to kd, which
    needs the teacher's head, ``training`` and ``inference``. What :mod:`limbeck.analysis.latency` times is named by
    ``problem``, ``architecture`` and ``teacher_architecture``. ``inference`` is 1, because a student that kd trains
    has the same architecture; it is left out if it has not.

    Of a run whose method was not imported, what needs the objective is left out: ``trained_parameters``,
    ``step_milliseconds`` and ``training``.

    ``folder`` is for what the teacher computes. Leaves gradients in the student before training, and changes a teacher
    that learns: measure everything else first.
    """
    parts, recipe = loaded.parts, loaded.recipe
    sides = [parts, *_reference(recipe, loaded.run)]
    architecture = architecture_of(loaded.after)
    found: dict[str, Any] = {
        "parameters": count_parameters(loaded.after),
        "disk_bytes": weight_bytes(loaded.run.path),
        "problem": parts.task.problem,
        "architecture": architecture,
    }
    by_kd = [parts] if recipe.method.name == _REFERENCE else sides[1:]
    if any(architecture_of(side.student) == architecture for side in by_kd):
        found["inference"] = 1.0
    if parts.team.followed is not None:
        teacher = parts.require_teacher()
        found |= {
            "teacher_parameters": parts.teacher_parameters(),
            "teacher_disk_bytes": weight_bytes(parts.team.followed.block.source),
            "teacher_architecture": architecture_of(teacher),
        }
    return found | ({} if loaded.foreign_code else _training_cost(loaded, sides, folder))


def _training_cost(loaded: LoadedRun, sides: Sequence[Parts], folder: Path) -> dict[str, Any]:
    """Time a training step of the run beside one of kd, if that is the second side."""
    _prepare(loaded, folder)
    steps = fastest([_step(side, loaded.data, loaded.device) for side in sides])
    found: dict[str, Any] = {
        "trained_parameters": sum(p.numel() for p in sides[0].distiller.parameters() if p.requires_grad),
        "step_milliseconds": 1000 * steps[0],
    }
    if loaded.recipe.method.name == _REFERENCE:
        found["training"] = 1.0
    elif len(sides) > 1:
        found["training"] = steps[0] / steps[1]
    return found


def _reference(recipe: Recipe, run: RunDirectory) -> list[Parts]:
    """Assemble the same run by kd, where it is another method and has a teacher with a head, which kd needs."""
    if recipe.teacher is None or recipe.method.name == _REFERENCE:
        return []
    try:
        by_kd = recipe.model_copy(update={"method": MethodBlock(name=_REFERENCE)})
        return [assemble(by_kd, run_tokenizer(recipe, run.path))]
    except ModelError:  # of a teacher without a head; anything else would have kept the run itself from being loaded
        return []


def fastest(sides: Sequence[Callable[[], object]], repeats: int = _REPEATS) -> list[float]:
    """Return the seconds of the fastest turn of each side, after one that does not count."""
    best = [float("inf")] * len(sides)
    for turn in range(repeats + 1):
        for number, side in enumerate(sides):
            start = time.perf_counter()
            side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                best[number] = min(best[number], time.perf_counter() - start)
    return best


def weight_bytes(model: str | Path) -> int | None:
    """Return the bytes of a model's weights on disk; None of one on the hub."""
    folder = Path(resolve(model))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else None


def _prepare(loaded: LoadedRun, folder: Path) -> None:
    """Do what a method does before training, here with few examples: FSD's memory."""
    objective, parts = loaded.parts.method.objective, loaded.parts
    if any(term.passes for term in objective):
        live = parts.why_not_cached() or parts.teacher is None
        teacher = parts.distiller.teacher if live else loaded.teacher("train", objective.needs().teacher, folder)
        objective.to(loaded.device).prepare(teacher, loaded.data.batches("train"))


def _step(parts: Parts, data: Data, device: torch.device) -> Callable[[], None]:
    """Return forward and backward on a batch of training examples; the teacher counts, the optimiser does not."""
    distiller = taught(parts, file_teachers(parts, data)).to(device).train()
    hand_over_held_out(parts, data)
    batch = data.collate(
        _middle(list(islice(data.splits["train"], max(_CANDIDATES, data.batch_size))), data.batch_size)
    )
    batch = {name: value.to(device) for name, value in batch.items()}

    def step() -> None:
        distiller.zero_grad()
        distiller(**batch)["loss"].backward()

    return step


def _middle(rows: list[Any], count: int) -> list[Any]:
    """Pick those of medium length: batches in training have examples of similar lengths."""
    rows = sorted(rows, key=lambda row: len(row["input_ids"]))
    start = max(0, (len(rows) - count) // 2)
    return rows[start : start + count]

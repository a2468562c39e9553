"""Choose how many of a teacher's layers a student keeps, so that it is fast enough."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from limbeck.deploy.onnx import write_onnx
from limbeck.errors import MissingExtra, ModelError
from limbeck.inference.latency import Timing, random_batch, time_in_turns
from limbeck.inference.served import OnnxServed, Served, TorchServed
from limbeck.models.loading import longest_input
from limbeck.models.students import keep_layers
from limbeck.shrink.budget import Budget, DepthChoice, choose_depth
from limbeck.tasks.task import Task

logger = logging.getLogger("limbeck")

MakeStudent = Callable[[TorchServed, int], Served]  # a student with so many of the teacher's layers
_SECONDS = 6.0  # of one measurement
_TYPICAL, _LONG = 50, 95  # percentiles of the texts' lengths


def choose_size(teacher: str, task: Task, budget: Budget) -> dict[str, Any]:
    """Choose how many layers of the teacher to keep.

    Return ``layers`` of ``of_layers``, the ``length`` in tokens that latency is about, and what was measured.
    A share of the teacher's latency is about a text of median length, milliseconds are about a long one: 95% of the
    texts are no longer. Where one layer is not fast enough, int8 may be, with one or more.
    """
    served = TorchServed(teacher)
    percentile = _TYPICAL if budget.ratio is not None else _LONG
    length = int(np.percentile(task.lengths("train", served.tokenizer), percentile, method="higher"))
    length = min(length, longest_input(served))
    depth = int(served.config.num_hidden_layers)
    chosen = choose_depth(depth, budget, partial(_time, served, length, _first_layers))
    if not chosen.met:
        chosen = _in_int8(served, length, budget) or chosen
    return {"of_layers": depth, "length": length, **asdict(chosen)}


def _in_int8(teacher: TorchServed, length: int, budget: Budget) -> DepthChoice | None:
    """Choose the depth of a student that is fast enough in 8 bits; None where there is none, or no such form."""
    logger.info("One layer of the teacher is not fast enough: measuring int8.")
    try:
        with tempfile.TemporaryDirectory() as folder:
            timer = partial(_time, teacher, length, partial(_quantised, Path(folder)))
            chosen = choose_depth(int(teacher.config.num_hidden_layers), budget, timer)
    except (MissingExtra, ModelError) as error:
        logger.warning("%s", error)
        return None
    return chosen if chosen.met else None


def _time(teacher: TorchServed, length: int, make: MakeStudent, depths: Sequence[int]) -> dict[int, float]:
    """Measure milliseconds on one text: of the teacher, and of students that ``make`` makes of its first layers."""
    whole = teacher.config.num_hidden_layers
    models = [teacher if depth == whole else make(teacher, depth) for depth in depths]
    batch = random_batch(teacher, 1, length)
    found = time_in_turns([partial(model.logits, batch) for model in models], _SECONDS)
    return {depth: Timing.of(times, 1).p50_ms for depth, times in zip(depths, found, strict=True)}


def _first_layers(teacher: TorchServed, depth: int) -> TorchServed:
    student = copy.copy(teacher)
    student.model = keep_layers(teacher.model, range(1, depth + 1)).eval()
    return student


def _quantised(folders: Path, teacher: TorchServed, depth: int) -> OnnxServed:
    model = _first_layers(teacher, depth).model
    folder = folders / str(depth)
    folder.mkdir(exist_ok=True)
    for part in (model.config, teacher.tokenizer):
        part.save_pretrained(folder)
    segments = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    write_onnx(model, inputs, folder, "onnx-int8")
    return OnnxServed(folder, torch.get_num_threads())

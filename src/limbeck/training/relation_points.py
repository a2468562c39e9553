"""Measure the relation difference at some steps of a training, so that no checkpoint has to be kept for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor

from limbeck._internal.files import write_text
from limbeck._internal.progress import progress
from limbeck.errors import RecipeError
from limbeck.inference.relation_difference import Layer, RelationDifference, measured_batch_size, place_of
from limbeck.models.capture import Capture
from limbeck.models.families import blocks_of
from limbeck.models.features import Wanted
from limbeck.runs.directory import RunDirectory
from limbeck.runs.files import read_mapping
from limbeck.training.assemble import Data, Parts

_EXAMPLES = 1000  # of the validation data, at most


class RelationPoints:
    """Compare the student with its teacher on the same validation examples at each of some steps."""

    def __init__(self, parts: Parts, data: Data, run: RunDirectory, points: int) -> None:
        if parts.teacher is None:
            raise RecipeError("train.relation_points compares with the teacher, and there is none: set teacher.model.")
        if parts.task.scored_by_loss:
            raise RecipeError("train.relation_points needs validation examples, which a stream of text does not have.")
        self._data, self._file, self._points = data, run.relation_points, points

    def steps(self, all_steps: int) -> set[int]:
        """Return the steps after which is measured: before the first, after the last, and evenly between."""
        return {round(point * all_steps / self._points) for point in range(self._points + 1)}

    def measure(self, parts: Parts, step: int) -> None:
        """Add the difference of the last and the penultimate layers at this step to the run's file."""
        layers: tuple[Layer, ...] = get_args(Layer)
        models = [parts.student, parts.require_teacher()]
        places = [{layer: place_of(layer, len(blocks_of(model))) for layer in layers} for model in models]
        found = {layer: RelationDifference() for layer in layers}
        training = [model.training for model in models]
        try:
            for batch in self._batches(models[0].device):
                captured = [
                    Capture(model.to(batch["input_ids"].device).eval())(batch, Wanted(hidden=place.values()))[1]
                    for model, place in zip(models, places, strict=True)
                ]
                for layer, relations in found.items():
                    ours, theirs = (
                        side.hidden[place[layer]].float().cpu() for side, place in zip(captured, places, strict=True)
                    )
                    relations.update(ours, theirs, captured[0].mask.cpu())
        finally:
            for model, was in zip(models, training, strict=True):
                model.train(was)
        kept = read_mapping(self._file) if self._file.is_file() else {}
        rows = {layer: {row["step"]: row for row in kept.get(layer, [])} for layer in layers}
        for layer, relations in found.items():
            rows[layer][step] = {"step": step, **relations.values()}
        # in order, and once for each step, whatever was measured before a run was resumed
        ordered = {layer: [rows[layer][at] for at in sorted(rows[layer])] for layer in layers}
        write_text(self._file, json.dumps(ordered, indent=2) + "\n")

    def _batches(self, device: torch.device) -> Iterator[dict[str, Tensor]]:
        """Iterate over examples in a random order that is always the same, so that batches are samples of the data."""
        rows = self._data.splits["validation"]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_EXAMPLES].tolist()
        size = measured_batch_size(len(order))
        with progress("compare relations", len(order)) as steps, torch.no_grad():
            for start in range(0, len(order), size):
                batch = self._data.collate([rows[place] for place in order[start : start + size]])
                yield {name: value.to(device) for name, value in batch.items()}
                steps.advance(len(batch["input_ids"]))


def read_points(run: RunDirectory, layer: Layer) -> list[dict[str, float]]:
    """Return what was measured of a layer over training; nothing where that was not asked for."""
    found: Any = read_mapping(run.relation_points) if run.relation_points.is_file() else {}
    return list(found.get(layer, []))

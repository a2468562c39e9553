"""Measure teacher, student before and student after in one pass over the data, and each checkpoint in one more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from limbeck._internal.progress import progress
from limbeck.analysis.geometry import IntraClassSimilarity, LayerCKA, heat_map
from limbeck.analysis.loaded_run import LoadedRun
from limbeck.inference.relation_difference import Layer, RelationDifference, place_of
from limbeck.models.capture import Capture
from limbeck.models.families import blocks_of
from limbeck.models.features import Features, Wanted
from limbeck.models.pooling import pool as pooled
from limbeck.training.relation_points import read_points

SamplePooling = Literal["mean", "cls", "last", "flat"]
CKAEstimator = Literal["unbiased", "biased"]


@dataclass(frozen=True)
class View:
    """Choose what is looked at in one model: every layer's samples, and one layer's tokens."""

    depth: int
    layer: int
    pool: SamplePooling
    max_length: int = 0  # of texts, to which flat samples are padded

    @classmethod
    def of(cls, model: Any, pool: SamplePooling, layer: Layer, max_length: int = 0) -> View:
        """Choose for a model by the name of a layer."""
        depth = len(blocks_of(model))
        return cls(depth, place_of(layer, depth), pool, max_length)

    @property
    def wanted(self) -> Wanted:
        """Name the features that the model must give."""
        samples: Any = {"hidden" if self.pool == "flat" else self.pool: range(self.depth + 1)}
        return Wanted(hidden=[self.layer]) | Wanted(**samples)

    def layers(self, features: Features) -> list[Tensor]:
        """Return rows that relate as each layer's samples do, from the embeddings up: (B, D), or (B, B) where flat."""
        return [self._rows(features, layer) for layer in range(self.depth + 1)]

    def rows(self, features: Features) -> Tensor:
        """Return rows that relate as the chosen layer's samples do, as wide in every batch of one size."""
        return self._rows(features, self.layer)

    def samples(self, features: Features) -> Tensor:
        """Return the chosen layer's samples (B, D), or (B, max_length * D) where flat."""
        samples = self._pooled(features, self.layer)
        width = self.max_length * features.hidden[self.layer].shape[-1]
        return nn.functional.pad(samples, (0, width - samples.shape[1])) if self.pool == "flat" else samples

    def _rows(self, features: Features, layer: int) -> Tensor:
        samples = self._pooled(features, layer)
        # a rotation, which CKA does not notice, leaves nothing but zeros after column B
        return torch.linalg.qr(samples.double().T, mode="r").R.T if self.pool == "flat" else samples

    def _pooled(self, features: Features, layer: int) -> Tensor:
        if self.pool == "flat":
            return pooled(features.hidden[layer], features.mask, "flat")[0].float().cpu()
        return features[f"{self.pool}.{layer}"].float().cpu()

    def tokens(self, features: Features) -> Tensor:
        """Return the chosen layer's tokens (B, L, D)."""
        return features.hidden[self.layer].float().cpu()


@dataclass
class ModelMeasures:
    """Collect what one model shows in a pass; relations and layers beside the teacher's, where there is one."""

    view: View
    rows: list[Tensor] = field(default_factory=list)  # samples of each batch
    classes: IntraClassSimilarity = field(default_factory=IntraClassSimilarity)
    layers: LayerCKA = field(default_factory=LayerCKA)
    relations: RelationDifference = field(default_factory=RelationDifference)

    def update(self, features: Features, labels: Tensor | None) -> None:
        """Add the features of a batch."""
        self.rows.append(self.view.rows(features))
        if labels is not None:
            self.classes.update(self.view.samples(features), labels.cpu())

    def beside(self, features: Features, teacher: Features, theirs: View) -> None:
        """Add the features of a batch beside the teacher's."""
        self.layers.update(theirs.layers(teacher), self.view.layers(features))
        self.relations.update(self.view.tokens(features), theirs.tokens(teacher), features.mask.cpu())


def geometry(
    loaded: LoadedRun, pool: SamplePooling, layer: Layer, estimator: CKAEstimator, folder: Path
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return values and arrays of a record about hidden features; ``folder`` is for what the teacher computes."""
    models = {"before": loaded.before, "after": loaded.after}
    how = pool, layer, loaded.parts.max_length
    seen = {name: ModelMeasures(View.of(model, *how)) for name, model in models.items()}
    students = LayerCKA()
    teacher = None
    values: dict[str, Any] = {"layers": {"student": seen["after"].view.depth}}
    if loaded.parts.teacher is not None:
        seen["teacher"] = ModelMeasures(View.of(loaded.parts.teacher, *how))
        # all tokens of all layers would be gigabytes: the teacher runs again for every run instead
        teacher = (
            loaded.live_teacher()
            if pool == "flat"
            else loaded.teacher("validation", seen["teacher"].view.wanted, folder)
        )
        values["layers"]["teacher"] = seen["teacher"].view.depth
    of_classes = loaded.parts.task.problem == "classification"
    for batch in _shown(loaded, "compare features"):
        labels = batch["labels"] if of_classes else None
        features = {name: Capture(model)(batch, seen[name].view.wanted)[1] for name, model in models.items()}
        students.update(*(seen[name].view.layers(features[name]) for name in models))
        if teacher is not None:
            features["teacher"] = teacher(batch, seen["teacher"].view.wanted)
            for name in models:
                seen[name].beside(features[name], features["teacher"], seen["teacher"].view)
        for name, found in features.items():
            seen[name].update(found, labels)
    arrays = {"layers.students": students.value()}
    if of_classes:
        values["intra_class_similarity"] = {name: found.classes.per_batch() for name, found in seen.items()}
        values["intra_class_similarity_pooled"] = {name: found.classes.pooled() for name, found in seen.items()}
    if teacher is None:
        return values, arrays
    values["relation_difference"] = read_points(loaded.run, layer) or _over_training(loaded, teacher, seen)
    arrays |= {f"layers.{name}": seen[name].layers.value() for name in models}
    full = {name: [rows for rows in found.rows if len(rows) == loaded.batch_size] for name, found in seen.items()}
    if full["teacher"]:
        maps = {name: heat_map(full["teacher"], rows, estimator) for name, rows in full.items()}
        arrays |= {f"heat_map.{name}": found for name, found in maps.items()}
        values["cka_diagonal"] = {name: float(found.diagonal().mean()) for name, found in maps.items()}
    return values, arrays


def _over_training(loaded: LoadedRun, teacher: Any, seen: Mapping[str, ModelMeasures]) -> list[dict[str, float]]:
    """Return the relation difference before training, at checkpoints that were kept, and after."""
    last, theirs = int(loaded.run.metrics()["steps"]), seen["teacher"].view
    found = {0: seen["before"].relations.values(), last: seen["after"].relations.values()}
    view = seen["after"].view
    for step, model in loaded.checkpoints():
        if step in found:
            continue
        relations = RelationDifference()
        for batch in _shown(loaded, f"compare step {step}"):
            _, features = Capture(model)(batch, Wanted(hidden=[view.layer]))
            target = teacher(batch, Wanted(hidden=[theirs.layer]))
            relations.update(view.tokens(features), theirs.tokens(target), features.mask.cpu())
        found[step] = relations.values()
    return [{"step": step, **found[step]} for step in sorted(found)]


def _shown(loaded: LoadedRun, job: str) -> Any:
    """Yield the batches, with a bar, and without gradients."""
    with progress(job, loaded.examples) as steps, torch.no_grad():
        for batch in loaded.batches():
            yield batch
            steps.advance(len(batch["input_ids"]))

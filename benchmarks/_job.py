"""Set up what step.py and scaling.py measure: a training step on random models and ragged batches, and its floor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from limbeck import METHODS, CachedTeacher, Distiller, FeatureCache, LiveTeacher, Pair
from limbeck.methods import find_method
from limbeck.models.features import Features, Wanted
from limbeck.recipes.stages import stages_of_method

MOVING = ("theseus", "metadistil", "reptiledistil")  # they run or train the teacher's own blocks
LABELS = 3
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """Hold a teacher, a student of half its depth, and batches of texts from half to full length."""

    width: int
    length: int
    batch_size: int = 32
    layers: int = 12

    def __str__(self) -> str:
        sizes = f"{self.layers}x{self.width} -> {self.layers // 2}x{self.width}"
        return f"{sizes}, B={self.batch_size}, L={self.length}"

    @cached_property
    def teacher(self) -> Any:
        return self._model(self.layers).eval().requires_grad_(False)

    @cached_property
    def student(self) -> Any:
        return self._model(self.layers // 2).train()

    @cached_property
    def batches(self) -> list[Batch]:
        """Draw at least 128 examples: FSD's k-means needs more than 100."""
        return [self._batch(number) for number in range(max(4, 128 // self.batch_size))]

    def distiller(self, method: str, **options: Any) -> Distiller:
        objective = find_method(method)(Pair.of(self.student, self.teacher, "classification"), **options)
        distiller = Distiller.of(objective, self.student, self.teacher)
        distiller.objective.prepare(distiller.teacher, self.batches)
        return distiller

    def floor(self) -> None:
        """Run what no distillation can do without: the teacher forward, the student both ways on the labels."""
        batch = self.batches[0]
        self.student.zero_grad()
        with torch.no_grad():
            self.teacher(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        self.student(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
        ).loss.backward()

    def step(self, distiller: Distiller) -> None:
        distiller.zero_grad()
        distiller(**self.batches[0])["loss"].backward()

    def cached(self, distiller: Distiller, folder: Path) -> Distiller:
        """Return the same distiller with a teacher whose features are on disk."""
        rows = [ids[ids != 0].tolist() for batch in self.batches for ids in batch["input_ids"]]
        encoded = Dataset.from_dict({"id": list(range(len(rows))), "input_ids": rows})
        cache = FeatureCache(folder, encoded, {"teacher": str(self)})
        cache.fill(LiveTeacher(self.teacher), self._collate, self.batch_size, distiller.needs.teacher)
        return Distiller(self.student, distiller.objective, CachedTeacher(cache))

    def in_memory(self, distiller: Distiller) -> Distiller:
        """Return the same distiller with a teacher whose features are in memory; it hands out copies of them."""
        known = LiveTeacher(self.teacher)(self.batches[0], distiller.needs.teacher)

        def copies(batch: Any, wanted: Wanted) -> Features:
            return Features.named(known.mask, {name: known[name].clone() for name in wanted.names()})

        return Distiller(self.student, distiller.objective, copies)

    def _model(self, layers: int) -> Any:
        torch.manual_seed(layers)
        config = BertConfig(
            hidden_size=self.width,
            num_hidden_layers=layers,
            num_attention_heads=max(1, self.width // 64) if self.width % 12 else 12,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            num_labels=LABELS,
        )
        return BertForSequenceClassification(config)

    def _batch(self, number: int) -> Batch:
        draw = torch.Generator().manual_seed(number)
        lengths = torch.randint(self.length // 2, self.length + 1, (self.batch_size,), generator=draw)
        lengths[0] = self.length
        rows = [torch.randint(1000, 30_000, (int(length),), generator=draw).tolist() for length in lengths]
        first = number * self.batch_size
        batch = self._collate([{"id": first + i, "input_ids": row} for i, row in enumerate(rows)])
        return batch | {"labels": torch.randint(LABELS, (self.batch_size,), generator=draw)}

    def _collate(self, rows: list[Any]) -> Batch:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
        return {
            "ids": torch.tensor([row["id"] for row in rows]),
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
        }


def static_methods() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield title, name and options of each static method with its defaults, once for each of its stages."""
    for name in METHODS:
        if name in MOVING or name == "ft":
            continue
        for stage in stages_of_method({"name": name}, find_method) or [{"method": {"name": name}}]:
            options = {key: value for key, value in stage["method"].items() if key != "name"}
            yield " ".join([name, *map(str, options.values())]), name, options

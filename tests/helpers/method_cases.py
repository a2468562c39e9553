"""Give every method with features to try it on: random, ragged, and with garbage where there is padding."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from limbeck import METHODS, Features, Method, Pair
from limbeck.distillation.pair import ModelShape
from limbeck.errors import ModelError
from limbeck.models.features import LAYERED, POOLED
from limbeck.models.pooling import pool
from limbeck.options import schema_of
from limbeck.problems import IGNORED

PROBLEMS = {"classification": 3, "regression": 1, "multi_label": 4, "tokens": 5, "span": 2, "language_model": 7}
DECIDES_TOKENS = ("tokens", "span", "language_model")
DEPTH, WIDTH = 4, 16


def cases():
    """Give each method, and each stage of those that have stages."""
    for name, method in METHODS.items():
        stage = schema_of(method).model_fields.get("stage")
        for choice in get_args(stage.annotation) if stage else [None]:
            yield pytest.param(name, {"stage": choice} if choice else {}, id=f"{name}-{choice}" if choice else name)


def objective_for(name, options, problem="classification"):
    """Make a prepared objective of a student and a teacher of one shape, so that they can be equal."""
    torch.manual_seed(0)
    shape = ModelShape("bert", DEPTH, WIDTH, 4)
    pair = Pair(shape, shape, problem, PROBLEMS[problem])
    if name == "ics" and problem == "language_model":
        with pytest.raises(ModelError, match="class of each text"):
            METHODS[name](pair)
        pytest.skip("ics needs classes")
    objective = Method.of(METHODS[name](pair, **options)).objective

    def teacher(batch, wanted):
        return features(wanted, batch["attention_mask"].sum(1).tolist(), seed=9)

    masks = torch.ones(120, 11, dtype=torch.long).tril(5)
    objective.prepare(teacher, [{"attention_mask": masks}])
    return objective


def mask_of(lengths, width=None, left=False):
    width = width or max(lengths)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, slice(width - length, width) if left else slice(0, length)] = True
    return mask


def labels_for(problem, lengths, width=None, left=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    if problem == "span":
        first = mask_of(lengths, width, left).byte().argmax(1)
        ends = torch.stack([torch.randint(0, length, (2,), generator=generator).sort().values for length in lengths])
        return ends + first[:, None]
    if problem in ("tokens", "language_model"):  # every second token is predicted
        labels = torch.full((batch, width or max(lengths)), IGNORED)
        for row, real in zip(labels, mask_of(lengths, width, left), strict=True):
            tokens = torch.randint(0, PROBLEMS[problem], (int(real.sum()),), generator=generator)
            row[real] = torch.where(torch.arange(len(tokens)) % 2 == 1, tokens, IGNORED)
        return labels
    if problem == "classification":
        return torch.randint(0, PROBLEMS[problem], (batch,), generator=generator)
    if problem == "regression":
        return torch.rand(batch, generator=generator) * 5
    return torch.randint(0, 2, (batch, PROBLEMS[problem]), generator=generator).float()


def features(wanted, lengths, problem="classification", *, seed=0, width=None, left=False, grad=False):
    """Draw features of exactly what is wanted; masked positions hold garbage that nobody may read."""
    mask = mask_of(lengths, width, left)

    def tokens(kind, layer, size=WIDTH):
        generator = torch.Generator().manual_seed(seed * 1000 + kind * 100 + layer)
        tensor = torch.full((*mask.shape, size), float("nan") if layer % 2 else 1e3)
        for row, length in enumerate(lengths):
            tensor[row, mask[row]] = torch.randn(length, size, generator=generator)
        return tensor.requires_grad_(grad)

    generator = torch.Generator().manual_seed(seed)
    if problem in DECIDES_TOKENS:
        logits = tokens(9, 1, PROBLEMS[problem])
    else:
        logits = torch.randn(len(lengths), PROBLEMS[problem], generator=generator).requires_grad_(grad)
    captured = {
        kind: {layer: tokens(number, layer) for layer in wanted.layers(kind)}
        for number, kind in enumerate(("hidden", "queries", "keys", "values"))
    }
    for kind in POOLED:
        pooled = {layer: pool(tokens(0, layer), mask, kind)[0] for layer in wanted.layers(kind)}
        captured[kind] = {layer: rows.detach().requires_grad_(grad) for layer, rows in pooled.items()}
    return Features(mask, logits if wanted.logits else None, **captured)


def tensors(side):
    found = [side.logits] if side.logits is not None else []
    return found + [tensor for kind in LAYERED for tensor in getattr(side, kind).values()]

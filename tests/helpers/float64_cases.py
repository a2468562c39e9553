"""Compare methods with plain float64 loops: random features of both models, ragged and padded, and what to compare."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from limbeck import METHODS, Features, Pair
from limbeck.distillation.pair import ModelShape
from limbeck.models.features import LAYERED, POOLED
from limbeck.models.pooling import pool

LENGTHS = (5, 2, 1, 4)  # one sample of a single token
TWO = [(1, 2), (2, 4)]  # pairs of layers: every second one of the teacher
KINDS = ("hidden", "queries", "keys", "values")


class Arrays:
    """Hold float64 values of one model: ``hidden[layer][sample]`` is (tokens, width); they are exact in float32."""

    def __init__(self, seed, depth, width, lengths=LENGTHS, labels=3):
        rng = np.random.default_rng(seed)

        def draw(*size):
            return rng.normal(size=size).astype(np.float32).astype(np.float64)

        for kind in KINDS:
            setattr(self, kind, [[draw(n, width) for n in lengths] for _ in range(depth + 1)])
        self.logits = draw(len(lengths), labels)

    def changed(self, change):
        """Return a copy in which ``change(kind, layer, sample, array)`` has replaced every array."""
        copy = object.__new__(Arrays)
        for kind in KINDS:
            layers = enumerate(getattr(self, kind))
            setattr(copy, kind, [[change(kind, j, i, x) for i, x in enumerate(samples)] for j, samples in layers])
        copy.logits = self.logits
        return copy

    def moved(self, direction, step):
        return self.changed(lambda kind, layer, sample, x: x + step * getattr(direction, kind)[layer][sample])

    def features(self, wanted, *, left=False, extra=2, garbage=math.nan, grad=False):
        """Return what is wanted of these values, padded on one side with garbage."""
        lengths = [len(x) for x in self.hidden[0]]
        length = max(lengths) + extra
        mask = torch.zeros(len(lengths), length, dtype=torch.bool)
        for row, n in enumerate(lengths):
            mask[row, slice(length - n, length) if left else slice(0, n)] = True

        def padded(samples):
            tensor = torch.full((*mask.shape, samples[0].shape[1]), garbage)
            for row, sample in enumerate(samples):
                tensor[row, mask[row]] = torch.from_numpy(sample).float()
            return tensor.requires_grad_(grad)

        captured = {kind: {j: padded(getattr(self, kind)[j]) for j in wanted.layers(kind)} for kind in KINDS}
        for kind in POOLED:
            pooled = {j: pool(padded(self.hidden[j]), mask, kind)[0] for j in wanted.layers(kind)}
            captured[kind] = {j: rows.detach().requires_grad_(grad) for j, rows in pooled.items()}
        logits = torch.from_numpy(self.logits).float().requires_grad_(grad) if wanted.logits else None
        return Features(mask, logits, **captured)


def shape(family, depth, width, heads):
    """Describe a model of that family as ``Shape.of`` does, which the tests on real models check."""
    raw_scores = family not in ("modernbert", "deberta-v2")
    return ModelShape(family, depth, width, heads, causal=family == "gpt2", raw_scores=raw_scores)


@dataclass
class Case:
    """Hold a method, its options, the two models, and what its terms must be: ``reference(s, t, weights)``."""

    name: str
    reference: Any
    options: dict[str, Any] = field(default_factory=dict)
    family: str = "bert"
    depths: tuple[int, int] = (2, 4)
    widths: tuple[int, int] = (6, 6)
    heads: tuple[int, int] = (2, 2)
    problem: str = "classification"

    @property
    def pair(self):
        numbers = zip(self.depths, self.widths, self.heads, strict=True)
        return Pair(*(shape(self.family, *three) for three in numbers), self.problem, 3)

    def objective(self):
        torch.manual_seed(0)  # projectors
        return METHODS[self.name](self.pair, **self.options)

    def arrays(self, lengths=LENGTHS):
        return tuple(Arrays(j, self.depths[j], self.widths[j], lengths) for j in (0, 1))

    def __str__(self):
        return "-".join([self.name, self.family, *(str(value) for value in self.options.values())])


def loss_of(objective, s, t, labels=None, **padding):
    """Return the terms as numbers."""
    needs = objective.needs()
    batch = {"labels": torch.arange(len(s.logits)) % 2 if labels is None else labels}
    with torch.no_grad():
        terms = objective(s.features(needs.student, **padding), t.features(needs.teacher, **padding), batch)
    return {name: value.item() for name, value in terms.items()}


def weights_of(objective):
    """Return float64 copies of the projectors that each term owns."""
    return {
        name: [parameter.detach().double().numpy() for parameter in term.parameters()]
        for name, term in objective.terms.named_children()
    }


def tensors(features):
    return [tensor for kind in LAYERED for tensor in getattr(features, kind).values()]


def check(case, left):
    """Compare value, gradient along a random direction (features and projectors), and where no gradient may be."""
    objective = case.objective()
    s, t = case.arrays()
    weights = weights_of(objective)
    expected = case.reference(s, t, weights)
    needs = objective.needs()
    student = s.features(needs.student, left=left, grad=True)
    teacher = t.features(needs.teacher, left=left, grad=True)
    terms = objective(student, teacher, {"labels": torch.tensor([0, 1, 2, 1])})
    for name, value in expected.items():
        assert value > 1e-6, f"the case does not test {name}"
        assert terms[name].item() == pytest.approx(value, rel=1e-5), name
        assert terms[name].dtype == torch.float32 and terms[name].dim() == 0

    sum(terms[name] for name in expected).backward()
    for tensor in tensors(teacher):
        assert tensor.grad is None or not tensor.grad.any(), "the teacher has a gradient"
    direction = Arrays(9, case.depths[0], case.widths[0])
    towards = direction.features(needs.student, left=left, garbage=0.0)
    products = []
    for tensor, way in zip(tensors(student), tensors(towards), strict=True):
        if tensor.grad is not None:
            assert (tensor.grad[~student.mask] == 0).all()
            products.append((tensor.grad * way).double().flatten())
    rng = np.random.default_rng(8)
    turned = {name: [rng.normal(size=w.shape) for w in weights[name]] for name in expected}
    for name in expected:
        for parameter, way in zip(objective.terms.get_submodule(name).parameters(), turned[name], strict=True):
            products.append((parameter.grad.double() * torch.from_numpy(way)).flatten())
    products = torch.cat(products)

    def at(step):
        moved = {name: [w + step * d for w, d in zip(weights[name], turned[name], strict=True)] for name in expected}
        return sum(case.reference(s.moved(direction, step), t, weights | moved).values())

    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    assert products.sum().item() == pytest.approx(slope, rel=1e-3, abs=1e-4 * products.abs().sum().item())


def finite_on_small_batches(case):
    objective = case.objective()
    needs = objective.needs()
    for lengths in ((1,), (3,), (1, 1), (2, 1)):
        s, t = case.arrays(lengths)
        student = s.features(needs.student, grad=True)
        terms = objective(student, t.features(needs.teacher), {"labels": torch.zeros(len(lengths), dtype=torch.long)})
        total = objective.total(terms)
        total.backward()
        assert total.isfinite()
        assert all(x.grad is None or x.grad.isfinite().all() for x in [*tensors(student), *objective.parameters()])


def far(ours, wrong):
    return abs(ours - wrong) > 0.02 * abs(ours)


def softmax(scores):
    e = [math.exp(x - max(scores)) for x in scores]
    return [x / sum(e) for x in e]


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def padded(samples, length, value):
    """Return what a model really gives: the padding has hidden states too."""
    return [np.concatenate([x, np.full((length - len(x), x.shape[1]), value)]) for x in samples]


METHODS_AND_STAGES = [
    ("pkd", {}),
    ("rkd", {}),
    ("distilbert", {}),
    ("tinybert", {"stage": "intermediate"}),
    ("tinybert", {"stage": "prediction"}),
    ("minilm", {}),
    ("minilmv2", {}),
    ("spkd", {}),
    ("cckd", {}),
    ("fitnets", {"stage": "hint"}),
    ("fitnets", {"stage": "kd"}),
]

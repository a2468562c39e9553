"""Fit the last linear layer of a head to what it receives, so that a model starts with what its features know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck._internal.progress import progress
from limbeck.errors import DataError, ModelError
from limbeck.metrics import METRICS
from limbeck.models.capture import logits_of, model_inputs
from limbeck.models.linear import Scorer, fit_linear, linear_kind
from limbeck.problems import IGNORED, Problem
from limbeck.protocols import Model
from limbeck.tasks.batching import Batches
from limbeck.tasks.held_out import content_hash, contents_of

ROWS = 10_000  # more training rows hardly change a linear model, and each costs a pass
_TOKENS = 30_000  # of the sampled rows, where tokens are decided
_OTHERS = 10  # tokens that are neither start nor end, of each text with an answer
_EACH_CLASS = 5  # rows that a sample has of every class, where there are so many
_SPAN_METRIC = "share of starts and ends found"


@dataclass(frozen=True)
class HeadInputs:
    """Hold what the last linear layer of a head receives, a row for each decision, and what is right there."""

    features: np.ndarray  # (N, D) float32
    labels: np.ndarray  # class indices (N,), numbers (N,), or 0 and 1 (N, labels); of spans (N, 2), start and end
    groups: np.ndarray  # (N,): decisions about equal texts, or about one text, share a number
    owners: np.ndarray  # (N,): the place in the sample of the training row that a decision is about

    @property
    def rows(self) -> int:
        """Count the training rows with a decision."""
        return len(np.unique(self.owners))

    @property
    def spread(self) -> float:
        """Return how much the features differ between rows, as a share of their size."""
        features = self.features.astype(np.float64)
        return float(np.sqrt(features.var(0).sum() / max((features**2).sum(1).mean(), 1e-30)))

    @property
    def texts(self) -> int:
        """Count the different texts."""
        return len(np.unique(self.groups))


@dataclass(frozen=True)
class FittedHead:
    """Say how well a fitted head answers rows that it was not fitted to, and what it was fitted with."""

    metric: str
    score: float  # cross-validated on the training rows; NaN where there are too few texts
    rows: int
    strength: float
    spread: float  # how much the features differ between rows, as a share of their size


def fit_head(
    model: Model,
    encoded: Any,
    collate: Callable[[list[Any]], dict[str, Tensor]],
    problem: Problem,
    *,
    metric: str,
    rows: int = ROWS,
    batch_size: int = 32,
    seed: int = 0,
    class_weights: Sequence[float] | None = None,
) -> FittedHead:
    """Fit the last linear layer of the model's head, in place, to at most ``rows`` encoded training rows.

    Logistic regression, or ridge regression for numbers, on standardised features; its strength is the one with the
    best cross-validated ``metric`` (tags: of single tokens, by accuracy where the metric is about whole entities).
    Raises DataError where the rows do not allow it, and then changes nothing.
    """
    layer = last_linear(model)
    inputs = head_inputs(
        model, encoded, collate, problem, rows=rows, batch_size=batch_size, seed=seed, job="read for the head"
    )
    _check_rows(inputs, problem, layer.out_features)
    name, scorer = _metric(metric, problem, inputs.owners)
    fitted = fit_linear(
        inputs.features,
        inputs.labels,
        linear_kind(problem),
        num_labels=layer.out_features,
        metric=scorer,
        groups=inputs.groups.tolist(),
        seed=seed,
        intercept=layer.bias is not None,
        class_weights=class_weights,
    )
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(fitted.weight))
        if layer.bias is not None:
            layer.bias.copy_(torch.from_numpy(fitted.bias))
    return FittedHead(name, fitted.score, inputs.rows, fitted.strength, inputs.spread)


def last_linear(model: Model) -> nn.Linear:
    """Return the linear layer outside the base model whose outputs are the model's logits."""
    base = set(model.base_model.modules())
    outside = [module for module in _modules(model) if isinstance(module, nn.Linear) and module not in base]
    seen: dict[nn.Linear, Tensor] = {}
    tokens = torch.tensor([[1, 2, 3]], device=model.device)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def watch(module: nn.Module, _: Any, output: Tensor) -> None:
        seen[module] = output  # type: ignore[index]

    hooks = [module.register_forward_hook(watch) for module in outside]
    try:
        with _evaluating(model):
            logits = logits_of(model(**model_inputs(model, batch)))
    except AttributeError:
        raise ModelError(f"{type(model).__name__} has no head: its answer holds no logits.") from None
    finally:
        for hook in hooks:
            hook.remove()
    for layer, output in seen.items():
        if _gives(output, logits):
            return layer
    raise ModelError(
        f"The head of this {type(model).__name__} does not end in a linear layer (linear layers outside its base "
        f"model: {len(outside)}, none of which gives the logits), so it cannot be fitted. Use a model whose head does, "
        "or start from a fresh head: student.head=fresh."
    )


def _modules(model: Any) -> Iterator[nn.Module]:
    modules: Iterator[nn.Module] = model.modules()
    return modules


def _gives(output: Tensor, logits: Tensor) -> bool:
    """Tell whether these outputs are the logits, or the logits are those of one token or the mean of all tokens."""
    if output.shape == logits.shape:
        return torch.equal(output, logits)
    if output.ndim != 3 or logits.ndim != 2 or output.shape[-1] != logits.shape[-1]:
        return False
    of_one = bool((output == logits[:, None]).all(-1).any(-1).all())
    return of_one or torch.allclose(output.mean(1), logits, rtol=1e-4, atol=1e-6)


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Switch dropout and gradients off inside the block."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def head_inputs(
    model: Model,
    encoded: Any,
    collate: Callable[[list[Any]], dict[str, Tensor]],
    problem: Problem,
    *,
    rows: int = ROWS,
    batch_size: int = 32,
    seed: int = 0,
    job: str = "read for the head",
) -> HeadInputs:
    """Return what the last linear layer receives without dropout for a sample of ``encoded``, in its order.

    The sample follows from the rows' tokens and the seed. Of tags every labelled token is a row, of answers their
    start, their end and some other tokens of the text.
    """
    layer = last_linear(model)
    contents = contents_of(encoded)
    chosen = _sample(encoded, contents, problem, rows, seed)
    numbers = {content: number for number, content in enumerate(dict.fromkeys(contents[row] for row in chosen))}
    batches = Batches(encoded.select(chosen), collate, batch_size)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    with _evaluating(model), progress(job, len(chosen)) as steps:
        for indices, batch in zip(batches.indices, batches, strict=True):
            received = _received(model, layer, {name: value.to(model.device) for name, value in batch.items()}, problem)
            for place, features, one in zip(indices.tolist(), received, _each(batch), strict=True):
                key = content_hash(contents[chosen[place]], seed)
                found[place] = _decisions(features.float().cpu().numpy(), one, problem, key)
            steps.advance(len(indices))
    in_order = [found[place] for place in range(len(chosen))]
    features = np.concatenate([features for features, _ in in_order]).astype(np.float32)
    if not np.isfinite(features).all():
        raise ModelError(
            "What the model computes for its head is nan or inf: its weights are damaged or too large. "
            "Load them again from where they came."
        )
    owners = np.repeat(range(len(chosen)), [len(labels) for _, labels in in_order])
    groups = np.array([numbers[contents[row]] for row in chosen])[owners]
    return HeadInputs(features, np.concatenate([labels for _, labels in in_order]), groups, owners)


def _received(model: Model, layer: nn.Linear, batch: Mapping[str, Tensor], problem: Problem) -> Tensor:
    """Return the layer's inputs: of a text (B, D), of its tokens (B, L, D).

    The layer hands its input on in place of logits, so that the model itself picks the token that decides a text.
    """
    kept: list[Tensor] = []

    def hand_on(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept.append(args[0])
        return output if problem == "span" else args[0]  # a model takes start and end out of two numbers

    hook = layer.register_forward_hook(hand_on)
    try:
        answer = model(**model_inputs(model, batch))
    finally:
        hook.remove()
    return kept[0] if problem == "span" else logits_of(answer)


def _each(batch: Mapping[str, Tensor]) -> list[dict[str, np.ndarray]]:
    """Divide what decisions need of a batch into its rows."""
    columns = {name: batch[name].cpu().numpy() for name in ("attention_mask", "labels")}
    return [{name: values[row] for name, values in columns.items()} for row in range(len(batch["labels"]))]


def _decisions(
    features: np.ndarray, row: Mapping[str, np.ndarray], problem: Problem, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features and labels of each decision about one row; ``key`` draws the tokens of a span."""
    labels = row["labels"]
    if problem == "tokens":
        decided = labels != IGNORED
        return features[decided], labels[decided]
    if problem != "span":
        return features[None], labels[None]
    others = np.setdiff1d(np.flatnonzero(row["attention_mask"]), labels)
    drawn = np.random.default_rng(key).permutation(others)[:_OTHERS]
    places = np.unique(np.concatenate([labels, drawn]))
    return features[places], (places[:, None] == labels).astype(np.float64)


def _sample(encoded: Any, contents: Sequence[str], problem: Problem, rows: int, seed: int) -> list[int]:
    """Choose the rows to read: all, or those whose tokens come first in an order of their own."""
    labels = encoded["labels"][:]
    order = sorted(range(len(contents)), key=lambda row: (content_hash(contents[row], seed), row))
    if problem == "classification":  # some of each class first
        seen: dict[int, int] = defaultdict(int)
        late = []
        for row in order:
            late.append(seen[labels[row]] >= _EACH_CLASS)
            seen[labels[row]] += 1
        order = [row for _, row in sorted(zip(late, order, strict=True), key=lambda pair: pair[0])]
    order = order[:rows]
    if problem == "tokens":
        counts = np.cumsum([sum(label != IGNORED for label in labels[row]) for row in order])
        order = order[: int(np.searchsorted(counts, _TOKENS)) + 1]
    if problem == "span":
        order = order[: _TOKENS // (_OTHERS + 2)]
    return sorted(order)


def _metric(metric: str, problem: Problem, owners: np.ndarray) -> tuple[str, str | Scorer]:
    """Name the metric that can be computed of single decisions, with what computes it."""
    if problem == "span":
        return _SPAN_METRIC, lambda logits, labels: _places_found(logits, labels, owners)
    name = metric if metric in METRICS else "accuracy"
    return name, name


def _places_found(logits: np.ndarray, labels: np.ndarray, owners: np.ndarray) -> float:
    """Return how often the true start, or end, has the largest logit among the tokens of its row."""
    hits = []
    for column in range(labels.shape[1]):
        best = np.full(owners.max() + 1, -np.inf)
        np.maximum.at(best, owners, logits[:, column])
        true = labels[:, column] == 1
        hits.append(logits[true, column] >= best[owners[true]])
    return float(np.concatenate(hits).mean())


def _check_rows(inputs: HeadInputs, problem: Problem, num_labels: int) -> None:
    """Raise where the rows cannot tell the answers apart."""
    if inputs.texts < 2:
        raise DataError(
            f"A head cannot be fitted to {inputs.rows:,} training rows that all have the same text. "
            "Check the text column, or start from a fresh head: student.head=fresh."
        )
    if problem in ("classification", "tokens"):
        classes = len(np.unique(inputs.labels))
        if classes < 2 or inputs.rows < num_labels:
            raise DataError(
                f"A head cannot be fitted to {inputs.rows:,} training rows with {classes} of {num_labels} classes. "
                "Give it more rows, or start from a fresh head: student.head=fresh."
            )

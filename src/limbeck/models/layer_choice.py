"""Choose the layers of a student by measuring: sets of layers compared by what a fitted head makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck._internal.progress import hidden_progress, progress
from limbeck.errors import ModelError
from limbeck.metrics import METRICS, SMALLER_IS_BETTER
from limbeck.models.capture import model_inputs
from limbeck.models.cut_model import Blocks, CutModel, can_keep
from limbeck.models.families import blocks_of
from limbeck.models.fitted_heads import HeadInputs, head_inputs, last_linear
from limbeck.models.kept_layers import KEEP
from limbeck.models.linear import LinearProblem, fit_linear, linear_kind, linear_predictions
from limbeck.problems import Problem
from limbeck.protocols import Model
from limbeck.tasks.held_out import choose_rows, contents_of

ROWS = 1000
_STRENGTH = (0.1,)  # of the fit, the same for all: they are compared, not used
_RESAMPLES = 50


@dataclass(frozen=True)
class Candidate:
    """Hold a set of layers, who proposed it, and the cross-validated score of a head fitted to what it computes.

    ``deviation`` is that of the score over samples of the rows; both are NaN where there are too few rows. ``tied``:
    the best score of as many layers is not larger by more than the deviation of the difference.
    """

    layers: list[int]
    proposed_by: list[str]
    score: float
    deviation: float
    tied: bool


def propose_layers(depth: int, count: int, influence: Sequence[float]) -> dict[str, list[int]]:
    """Propose sets of ``count`` layers, the simple ones first, which is also the order in which ties are decided.

    By ``influence`` (of each block, see :func:`block_influence`) go the blocks with the least, or a run of
    neighbouring blocks that has the least together. Names may share a set.
    """
    proposed = {name: KEEP[name](count, depth) for name in ("ends", "spread", "first")}
    proposed["halves"] = _without_run(depth, (count + 1) // 2, depth - count)
    if 4 * count >= 3 * depth:  # a block far above the embeddings does not understand them
        proposed["last"] = KEEP["last"](count, depth)
    strongest = sorted(range(1, depth + 1), key=lambda layer: (-influence[layer - 1], layer))
    proposed["influence"] = sorted(strongest[:count])
    weakest = min(range(count + 1), key=lambda start: (math.fsum(influence[start : start + depth - count]), start))
    proposed["influence of runs"] = _without_run(depth, weakest, depth - count)
    return proposed


def _without_run(depth: int, start: int, length: int) -> list[int]:
    return [*range(1, start + 1), *range(start + length + 1, depth + 1)]


def block_influence(model: Model, batches: Iterable[Mapping[str, Tensor]]) -> list[float]:
    """Measure how much each block changes its input: 1 minus the mean cosine before and after it, over real tokens."""
    blocks = blocks_of(model)
    sums, tokens = [0.0] * len(blocks), 0
    mask = torch.empty(0)

    def measure(number: int) -> Callable[..., None]:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = args[0] if args else kwargs["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            cosine = torch.cosine_similarity(before[mask].float(), after[mask].float(), dim=-1)
            sums[number] += float(cosine.double().sum())

        return hook

    hooks = [block.register_forward_hook(measure(number), with_kwargs=True) for number, block in enumerate(blocks)]
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                batch = {name: value.to(model.device) for name, value in batch.items()}
                mask = batch["attention_mask"].bool()
                tokens += int(mask.sum())
                model.base_model(**model_inputs(model, batch))
    finally:
        model.train(training)
        for one in hooks:
            one.remove()
    return [1 - total / max(tokens, 1) for total in sums]


def choice_sample(encoded: Any, problem: Problem, rows: int = ROWS, seed: int = 0) -> Any:
    """Return about ``rows`` of the encoded rows, which follow from their tokens and the seed, equal ones together."""
    if len(encoded) <= rows:
        return encoded
    classes = encoded["labels"][:] if problem == "classification" else None
    chosen = choose_rows(contents_of(encoded), rows / len(encoded), seed, classes)
    return encoded.select(chosen or range(rows))  # where all are equal, any will do


def metric_of_decisions(metric: str, problem: Problem) -> str:
    """Name the metric that layers are compared by: one of whole entities, or answers, is not of single tokens."""
    return "micro_f1" if problem == "span" else metric if metric in METRICS else "accuracy"


def compare_layers(
    model: Model,
    encoded: Any,
    collate: Callable[[list[Any]], dict[str, Tensor]],
    problem: Problem,
    candidates: Mapping[str, Sequence[int]],
    *,
    metric: str,
    rows: int = ROWS,
    seed: int = 0,
    batch_size: int = 32,
) -> list[Candidate]:
    """Compare sets of layers of a model, by what a linear model makes of what the cut model's own head would receive.

    Sets of different sizes may be compared in one call, which computes their common beginnings once. Returned are
    those that can be built, larger ones first; of each size the choice first, then the others from good to bad. The
    choice is the earliest in ``candidates`` among those that are tied with the best. The score is cross-validated on
    a sample of ``encoded``, which must be training rows; where these are too few, it is NaN and the order decides.
    """
    head = last_linear(model)
    names: dict[Blocks, list[str]] = {}
    for name, layers in candidates.items():
        if can_keep(model, layers):
            names.setdefault(tuple(layers), []).append(name)
    if not names:
        raise ModelError(
            f"None of the {len(candidates)} sets of layers can be made a {model.config.model_type} model, whose blocks "
            "are not alike. Keep block 1 as the first."
        )
    sample = choice_sample(encoded, problem, rows, seed)
    judge = _Judge(problem, metric, head.out_features, head.bias is not None, seed)
    cut, in_order = CutModel(model), sorted(names)
    with progress("sets of layers", len(in_order)) as steps:
        for layers, following in zip_longest(in_order, in_order[1:], fillvalue=()):
            student = cut.keep(layers, following)
            with hidden_progress():
                inputs = head_inputs(
                    student, sample, collate, problem, rows=len(sample), batch_size=batch_size, seed=seed
                )
            judge.answer(layers, inputs)
            steps.advance()
    ranked = []
    for count in sorted({len(layers) for layers in names}, reverse=True):
        ranked += judge.rank({layers: found for layers, found in names.items() if len(layers) == count})
    return ranked


class _Judge:
    """Collect what heads fitted to each set of layers answer to rows that they were not fitted to, and compare."""

    def __init__(self, problem: Problem, metric: str, num_labels: int, intercept: bool, seed: int) -> None:
        self.problem: LinearProblem = linear_kind(problem)
        self.metric = metric_of_decisions(metric, problem)
        self.num_labels, self.intercept, self.seed = num_labels, intercept, seed
        self.predictions: dict[Blocks, np.ndarray] = {}
        self.labels, self.draws = np.empty(0), list[np.ndarray]()

    def answer(self, layers: Blocks, inputs: HeadInputs) -> None:
        """Keep the cross-validated answers; none where there are too few rows for two folds."""
        self.labels = inputs.labels.astype(np.int64) if self.problem != "regression" else inputs.labels

        def keep_answers(logits: np.ndarray, labels: np.ndarray) -> float:
            self.predictions[layers] = linear_predictions(logits, self.problem)
            return 0.0

        fit_linear(
            inputs.features,
            inputs.labels,
            self.problem,
            num_labels=self.num_labels,
            metric=keep_answers,
            groups=inputs.groups.tolist(),
            seed=self.seed,
            strengths=_STRENGTH,
            intercept=self.intercept,
        )
        if not self.draws:
            self.draws = _resample(inputs.groups, self.seed)

    def rank(self, names: Mapping[Blocks, list[str]]) -> list[Candidate]:
        """Return the candidates of these names, the choice first, then from good to bad."""
        sets = list(names)
        scores = np.array([self._score(layers) for layers in sets])
        resampled = np.array([[self._score(layers, rows) for rows in self.draws] for layers in sets])
        sign = -1 if self.metric in SMALLER_IS_BETTER else 1
        top = int(np.nanargmax(sign * scores)) if not np.isnan(scores).all() else 0
        noise = (resampled[top] - resampled).std(1)
        tied = np.isnan(scores) | (sign * (scores[top] - scores) <= noise)
        found = [
            Candidate(list(layers), names[layers], float(score), float(deviation), bool(tie))
            for layers, score, deviation, tie in zip(sets, scores, resampled.std(1), tied, strict=True)
        ]
        choice = next(candidate for candidate in found if candidate.tied)
        others = [candidate for candidate in found if candidate is not choice]
        return [choice, *sorted(others, key=lambda candidate: -sign * candidate.score)]

    def _score(self, layers: Blocks, rows: Any = slice(None)) -> float:
        if layers not in self.predictions:
            return float("nan")
        return METRICS[self.metric](self.predictions[layers][rows], self.labels[rows])


def _resample(groups: np.ndarray, seed: int) -> list[np.ndarray]:
    """Draw texts with replacement, as often as there are texts, and return the decisions about them."""
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(members), (_RESAMPLES, len(members)))
    return [np.concatenate([members[text] for text in texts]) for texts in drawn]

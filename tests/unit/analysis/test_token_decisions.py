"""Check losses of problems whose decisions are tokens (tags) or positions (answers), against float64 loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from limbeck import METHODS, Features, Pair
from limbeck.distillation.pair import ModelShape
from limbeck.methods.tinybert import SoftTargets
from limbeck.problems import IGNORED

LENGTHS = (5, 2, 4)
WIDTH, T = 3, 4.0


def pair(problem, labels):
    shape = ModelShape("bert", 2, WIDTH, 1)
    return Pair(shape, shape, problem, labels)


def side(seed, labels, left):
    """Draw (tokens, labels) logits and (tokens, width) hidden states; as Features with NaN in the padding."""
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(n, labels)) for n in LENGTHS]
    hidden = [rng.normal(size=(n, WIDTH)) for n in LENGTHS]
    mask = torch.zeros(len(LENGTHS), 7, dtype=torch.bool)
    for row, n in enumerate(LENGTHS):
        mask[row, slice(7 - n, 7) if left else slice(0, n)] = True

    def padded(arrays):
        full = torch.full((*mask.shape, arrays[0].shape[1]), float("nan"))
        for row, array in enumerate(arrays):
            full[row, mask[row]] = torch.from_numpy(array).float()
        return full

    return logits, hidden, Features(mask, padded(logits), {2: padded(hidden)})


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def divergence(s, t):
    s, t = log_softmax(s / T), log_softmax(t / T)
    return T**2 * (np.exp(t) * (t - s)).sum()


def soft_entropy(s, t):
    return -(np.exp(log_softmax(t / T)) * log_softmax(s / T)).sum()


TAGS = [[1, IGNORED, 0, 2, IGNORED], [IGNORED, 2], [0, 1, IGNORED, 0]]
SPANS = [(1, 3), (0, 0), (2, 2)]


def tag_batch(left):
    labels = torch.full((3, 7), IGNORED)
    for row, tags in enumerate(TAGS):
        labels[row, slice(7 - len(tags), 7) if left else slice(0, len(tags))] = torch.tensor(tags)
    return {"labels": labels}


def span_batch(left):
    return {
        "labels": torch.tensor([[p + (7 - n) * left for p in span] for span, n in zip(SPANS, LENGTHS, strict=True)])
    }


every_side = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])


def values(objective, student, teacher, batch):
    return {name: value.item() for name, value in objective(student, teacher, batch).items()}


@every_side
def test_tags(left):
    s, _, student = side(0, 3, left)
    t, _, teacher = side(1, 3, left)
    decided = [(row, n, tag) for row, tags in enumerate(TAGS) for n, tag in enumerate(tags) if tag != IGNORED]
    found = values(METHODS["kd"](pair("tokens", 3), temperature=T), student, teacher, tag_batch(left))
    assert found["task"] == pytest.approx(np.mean([-log_softmax(s[r][n])[tag] for r, n, tag in decided]), rel=1e-5)
    assert found["kd"] == pytest.approx(np.mean([divergence(s[r][n], t[r][n]) for r, n, _ in decided]), rel=1e-5)
    soft = SoftTargets("tokens", T)(student, teacher, tag_batch(left))
    assert soft.item() == pytest.approx(np.mean([soft_entropy(s[r][n], t[r][n]) for r, n, _ in decided]), rel=1e-5)


@every_side
def test_spans_average_the_start_and_the_end_over_real_tokens(left):
    s, _, student = side(2, 2, left)
    t, _, teacher = side(3, 2, left)
    ends = [(row, end) for row in range(3) for end in (0, 1)]
    found = values(METHODS["kd"](pair("span", 2), temperature=T), student, teacher, span_batch(left))
    task = np.mean([-log_softmax(s[row][:, end])[SPANS[row][end]] for row, end in ends])
    assert found["task"] == pytest.approx(task, rel=1e-5)
    kd = np.mean([divergence(s[row][:, end], t[row][:, end]) for row, end in ends])
    assert found["kd"] == pytest.approx(kd, rel=1e-5)
    soft = SoftTargets("span", T)(student, teacher, span_batch(left))
    assert soft.item() == pytest.approx(np.mean([soft_entropy(s[r][:, e], t[r][:, e]) for r, e in ends]), rel=1e-5)


def nearest(x, y, classes, k):
    total = 0.0
    for i, vector in enumerate(x):
        distances = sorted(((vector - y[j]) ** 2).mean() for j in range(len(y)) if classes[j] == classes[i])
        total += sum(distances[:k])
    return total


@every_side
@pytest.mark.parametrize("k", [1, 2])
def test_ics_of_tags_compares_tokens_of_one_tag(left, k):
    _, s, student = side(4, 3, left)
    _, t, teacher = side(5, 3, left)
    decided = [(row, n, tag) for row, tags in enumerate(TAGS) for n, tag in enumerate(tags) if tag != IGNORED]
    x, y = ([hidden[row][n] for row, n, _ in decided] for hidden in (s, t))
    expected = nearest(x, y, [tag for *_, tag in decided], k)
    found = values(METHODS["ics"](pair("tokens", 3), k=k), student, teacher, tag_batch(left))
    assert found["hidden"] == pytest.approx(expected, rel=1e-5)
    mean = values(METHODS["ics"](pair("tokens", 3), k=k, reduction="mean"), student, teacher, tag_batch(left))
    assert mean["hidden"] == pytest.approx(expected / len(decided), rel=1e-5)


@every_side
def test_ics_of_spans_compares_starts_ends_and_texts_without_answer(left):
    _, s, student = side(6, 2, left)
    _, t, teacher = side(7, 2, left)
    places = [(row, place) for row in range(3) for place in SPANS[row]]
    x, y = ([hidden[row][place] for row, place in places] for hidden in (s, t))
    expected = nearest(x, y, ["start", "end", "none", "none", "start", "end"], 2)
    found = values(METHODS["ics"](pair("span", 2), k=2), student, teacher, span_batch(left))
    assert found["hidden"] == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_any_tag():
    _, _, student = side(0, 3, False)
    batch = {"labels": torch.full((3, 7), IGNORED)}
    for reduction in ("sum", "mean"):
        found = values(METHODS["ics"](pair("tokens", 3), reduction=reduction), student, student, batch)
        assert found == {"hidden": 0.0, "kd": 0.0, "task": 0.0}

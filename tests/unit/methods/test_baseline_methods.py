"""Test the baselines of the papers' tables, term by term, against float64 loops written from their specification.

Attention (queries, keys and values) has its own file.
"""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from helpers.float64_cases import (
    METHODS_AND_STAGES,
    TWO,
    Arrays,
    Case,
    check,
    divergence,
    far,
    finite_on_small_batches,
    loss_of,
    padded,
    softmax,
    tensors,
)

from limbeck import METHODS, Features, Pair
from limbeck.distillation.pair import ModelShape
from limbeck.errors import LimbeckError, ModelError, RecipeError

# References: nothing below knows tensors, masks or padding.


def unit(vector):
    norm = math.sqrt(sum(x * x for x in vector))
    return vector / norm if norm > 0 else vector


def project(weights, vector):
    return weights[0] @ vector if weights else vector


def row(sample, pool, length=None):
    if pool == "cls":
        return sample[0]
    if pool == "last":
        return sample[-1]
    if pool == "mean":
        return sum(token for token in sample) / len(sample)
    return np.concatenate([*sample, np.zeros((length - len(sample)) * sample.shape[1])])


def rows(samples, pool):
    return [row(sample, pool, max(map(len, samples))) for sample in samples]


def patient(pairs, pool="cls"):
    def reference(s, t, weights):
        squares = []
        for a, b in pairs:
            for x, y in zip(s.hidden[a], t.hidden[b], strict=True):
                u, v = unit(project(weights["patient"], row(x, pool))), unit(row(y, pool))
                squares += [(u[d] - v[d]) ** 2 for d in range(len(v))]
        return {"patient": sum(squares) / len(squares)}

    return reference


def patient_of_all_tokens(pairs):
    """Compare all tokens of a sample as one unit vector, and average over the numbers that it has without padding."""

    def reference(s, t, weights):
        means = []
        for a, b in pairs:
            for x, y in zip(s.hidden[a], t.hidden[b], strict=True):
                u = unit(np.concatenate([project(weights["patient"], token) for token in x]))
                v = unit(np.concatenate([*y]))
                means.append(sum((u[d] - v[d]) ** 2 for d in range(len(v))) / len(v))
        return {"patient": sum(means) / len(means)}

    return reference


def smooth_l1(difference):
    return 0.5 * difference**2 if abs(difference) < 1 else abs(difference) - 0.5


def distances(points):
    n = len(points)
    d = [[math.sqrt(sum((p - q) ** 2)) for q in points] for p in points]
    mean = sum(d[i][j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return np.array(d) / mean


def angles(points):
    n = len(points)
    out = np.zeros((n, n, n))
    for i in range(n):
        for j in range(n):
            for k in range(n):
                e, f = points[j] - points[i], points[k] - points[i]
                out[i, j, k] = unit(e) @ unit(f)
    return out


def relational(pairs, pool="mean", penalty=smooth_l1):
    def reference(s, t, weights=None):
        found = {"distance": [], "angle": []}
        for a, b in pairs:
            x, y = rows(s.hidden[a], pool), rows(t.hidden[b], pool)
            for name, potential in (("distance", distances), ("angle", angles)):
                found[name].append(np.mean([penalty(d) for d in (potential(x) - potential(y)).ravel()]))
        return {name: np.mean(values) for name, values in found.items()}

    return reference


def cosine(student, teacher):
    def reference(s, t, weights):
        terms = []
        for x, y in zip(s.hidden[student], t.hidden[teacher], strict=True):
            for token, other in zip(x, y, strict=True):
                terms.append(1 - unit(project(weights["cosine"], token)) @ unit(other))
        return {"cosine": sum(terms) / len(terms)}

    return reference


def squared_error(weights, x, y):
    """Average over all real tokens of the batch and all dimensions."""
    terms = []
    for sample, other in zip(x, y, strict=True):
        for token, target in zip(sample, other, strict=True):
            terms += list((project(weights, token) - target) ** 2)
    return sum(terms) / len(terms)


def tinybert(pairs):
    def reference(s, t, weights):
        hidden = [squared_error(weights["hidden"], s.hidden[a], t.hidden[b]) for a, b in pairs]
        return {"embeddings": squared_error(weights["embeddings"], s.hidden[0], t.hidden[0]), "hidden": sum(hidden)}

    return reference


def hint(pairs):
    def reference(s, t, weights):
        own = weights["hint"]  # one projector for each pair, in their order
        errors = [
            squared_error(own[j : j + 1] if own else [], s.hidden[a], t.hidden[b]) for j, (a, b) in enumerate(pairs)
        ]
        return {"hint": sum(errors) / len(errors)}

    return reference


def similarity_preserving(pairs, pool="flat"):
    def normed(points):
        return [unit(np.array([p @ q for q in points])) for p in points]

    def reference(s, t, weights=None):
        found = []
        for a, b in pairs:
            g, h = normed(rows(s.hidden[a], pool)), normed(rows(t.hidden[b], pool))
            found.append(sum(((p - q) ** 2).sum() for p, q in zip(g, h, strict=True)) / len(g) ** 2)
        return {"similarity": np.mean(found)}

    return reference


def congruence(pairs, pool="cls", order=2, gamma=0.4):
    def kernel(f, g):
        series = ((2 * gamma) ** p / math.factorial(p) * (unit(f) @ unit(g)) ** p for p in range(order + 1))
        return math.exp(-2 * gamma) * sum(series)

    def reference(s, t, weights=None):
        found = []
        for a, b in pairs:
            x, y = rows(s.hidden[a], pool), rows(t.hidden[b], pool)
            n = len(x)
            found += [(kernel(x[i], x[j]) - kernel(y[i], y[j])) ** 2 for i in range(n) for j in range(n)]
        return {"correlation": np.mean(found)}

    return reference


DEEP = {"depths": (3, 6)}
CASES = [
    Case("pkd", patient(TWO), **DEEP),
    Case("pkd", patient(TWO), **DEEP, widths=(3, 5)),
    Case("pkd", patient([(1, 4), (2, 5)]), {"layers": "last"}, **DEEP, widths=(3, 5)),
    Case("pkd", patient([(0, 0), (3, 5)], "mean"), {"layers": [(0, 0), (3, 5)], "pool": "mean"}, **DEEP),
    Case("pkd", patient([(1, 2), (2, 4), (3, 6)]), {"layers": "uniform"}, **DEEP),
    Case("pkd", patient(TWO, "last"), family="gpt2", **DEEP),
    Case("pkd", patient_of_all_tokens(TWO), {"pool": "flat"}, **DEEP),
    Case("pkd", patient_of_all_tokens(TWO), {"pool": "flat"}, **DEEP, widths=(3, 5)),
    Case("rkd", relational([(2, 4)]), widths=(3, 5)),
    Case("rkd", relational(TWO, "flat"), {"layers": TWO, "pool": "flat"}, widths=(3, 5)),
    Case("rkd", relational([(2, 4)], "cls"), {"pool": "cls"}),
    Case("distilbert", cosine(2, 4)),
    Case("distilbert", cosine(2, 4), widths=(3, 5)),
    Case("tinybert", tinybert(TWO)),
    Case("tinybert", tinybert(TWO), widths=(4, 6)),
    Case("tinybert", tinybert([(2, 3)]), {"layers": [(2, 3)]}, family="gpt2", widths=(4, 6)),
    Case("spkd", similarity_preserving([(2, 4)]), widths=(3, 5)),
    Case("spkd", similarity_preserving(TWO, "cls"), {"layers": "uniform", "pool": "cls"}),
    Case("cckd", congruence([(2, 4)]), widths=(3, 5)),
    Case("cckd", congruence([(2, 4)], order=1), {"order": 1}),
    Case("cckd", congruence(TWO, "mean", gamma=0.9), {"layers": TWO, "pool": "mean", "gamma": 0.9}),
    Case("cckd", congruence([(2, 4)], "last"), family="gpt2"),
    Case("fitnets", hint([(1, 2)])),
    Case("fitnets", hint([(1, 2)]), widths=(3, 5)),
    Case("fitnets", hint([(1, 2), (2, 3)]), {"layers": [(1, 2), (2, 3)]}, widths=(3, 5)),
]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_terms_are_what_was_published(case, left):
    check(case, left)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_batches(case):
    finite_on_small_batches(case)


def test_defaults_and_weights():
    pair = Case("pkd", None, **DEEP).pair
    expected = {
        "pkd": {"kd": 0.5, "task": 0.5, "patient": 100},
        "rkd": {"task": 0.5, "kd": 0.5, "distance": 100, "angle": 200},
        "distilbert": {"kd": 5, "task": 2, "cosine": 1},
        "tinybert": {"embeddings": 1, "hidden": 1, "attention": 1},
        "minilm": {"task": 1, "attention": 1, "value": 1},
        "minilmv2": {"task": 1, "query": 1, "key": 1, "value": 1},
        "spkd": {"task": 1, "similarity": 3000},
        "fitnets": {"hint": 1},
    }
    for name, weights in expected.items():
        assert METHODS[name](pair).weights == weights, name
    assert METHODS["pkd"](pair, alpha=0.7, beta=10).weights == pytest.approx({"kd": 0.7, "task": 0.3, "patient": 10})
    assert METHODS["rkd"](pair, alpha=0.7).weights == pytest.approx(
        {"task": 0.7, "kd": 0.3, "distance": 100, "angle": 200}
    )
    cckd = METHODS["cckd"](pair, alpha=0.7, beta=0.1).weights
    assert cckd == pytest.approx({"task": 0.7, "kd": 0.3, "correlation": 0.1})
    assert METHODS["fitnets"](pair, stage="kd", alpha=0.3).weights == pytest.approx({"task": 0.3, "kd": 0.7})
    assert METHODS["tinybert"](pair, stage="prediction").weights == {"soft": 1}
    assert METHODS["minilm"](pair, task=0.0, kd=0.2, alpha=3.0).weights == {"kd": 0.2, "attention": 3, "value": 3}
    temperatures = {"pkd": 10, "rkd": 5, "distilbert": 2, "tinybert": 1, "minilm": 5, "minilmv2": 5, "fitnets": 5}
    for name, temperature in temperatures.items():
        assert inspect.signature(METHODS[name]).parameters["temperature"].default == temperature, name


def test_text_has_no_labels_to_learn_from():
    pair = Case("minilm", None, problem="language_model").pair
    assert METHODS["minilm"](pair).weights == {"attention": 1, "value": 1}
    assert METHODS["minilmv2"](pair).weights == {"query": 1, "key": 1, "value": 1}
    assert METHODS["minilm"](pair, task=0.5).weights["task"] == 0.5


def test_only_relations_between_samples_are_relational():
    pair = Case("rkd", None, **DEEP).pair
    between = {("rkd", "distance"), ("rkd", "angle"), ("spkd", "similarity"), ("cckd", "correlation")}
    for name in ("pkd", "rkd", "distilbert", "tinybert", "minilm", "minilmv2", "spkd", "cckd", "fitnets"):
        for key, term in METHODS[name](pair).terms.named_children():
            assert term.relational == ((name, key) in between), (name, key)


def test_projectors_exist_only_where_widths_differ_and_are_shared_as_published():
    counts = {"pkd": 1, "distilbert": 1, "tinybert": 2, "fitnets": 3, "rkd": 0, "spkd": 0, "cckd": 0, "minilmv2": 0}
    for name, count in counts.items():
        for widths in ((4, 6), (6, 6)):
            options = {"layers": "uniform"} if name != "distilbert" else {}
            shapes = [tuple(p.shape) for p in Case(name, None, options, **DEEP, widths=widths).objective().parameters()]
            assert shapes == [(6, 4)] * (count if widths == (4, 6) else 0), name


# What the teacher says of the answer


def kd_value(s, t, temperature):
    terms = [
        divergence(softmax(list(y / temperature)), softmax(list(x / temperature))) for x, y in zip(s, t, strict=True)
    ]
    return temperature**2 * sum(terms) / len(terms)


@pytest.mark.parametrize("name", ["pkd", "rkd", "distilbert", "cckd", "minilm", "minilmv2"])
def test_kd_term(name):
    options = {"temperature": 3.0} | ({"kd": 1.0} if name.startswith("minilm") else {})
    case = Case(name, None, options)
    s, t = case.arrays()
    out = loss_of(case.objective(), s, t)
    assert out["kd"] == pytest.approx(kd_value(s.logits, t.logits, 3.0), rel=1e-5)
    labels = [-math.log(softmax(list(x))[i % 2]) for i, x in enumerate(s.logits)]
    assert out["task"] == pytest.approx(np.mean(labels), rel=1e-5)


def soft(s, t, labels=None, problem="classification", temperature=1.0):
    objective = METHODS["tinybert"](
        Case("tinybert", None, problem=problem).pair, stage="prediction", temperature=temperature
    )
    assert not objective.needs().student.layers() and not objective.needs().teacher.layers()
    student, teacher = (torch.from_numpy(x).float().requires_grad_() for x in (s, t))
    mask = torch.ones(len(s), 3, dtype=torch.bool)
    value = objective(Features(mask, student), Features(mask, teacher), {"labels": labels})["soft"]
    value.backward()
    assert student.grad.isfinite().all() and teacher.grad is None
    return value.item(), student.grad


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_tinybert_prediction(temperature):
    s, t = Arrays(0, 1, 1).logits, Arrays(1, 1, 1).logits
    terms = []
    for x, y in zip(s / temperature, t / temperature, strict=True):
        p, q = softmax(list(y)), softmax(list(x))
        terms.append(-sum(a * math.log(b) for a, b in zip(p, q, strict=True)))
    ours, _ = soft(s, t, temperature=temperature)
    assert ours == pytest.approx(np.mean(terms), rel=1e-5)
    if temperature != 1:
        assert far(ours, temperature**2 * np.mean(terms))  # no T² here

    terms = []
    for x, y in zip(s / temperature, t / temperature, strict=True):
        on = [(1 / (1 + math.exp(-b)), 1 / (1 + math.exp(-a))) for a, b in zip(x, y, strict=True)]
        terms.append(-sum(p * math.log(q) + (1 - p) * math.log(1 - q) for p, q in on))
    ours, _ = soft(s, t, problem="multi_label", temperature=temperature)
    assert ours == pytest.approx(np.mean(terms), rel=1e-5)
    assert far(ours, np.mean(terms) / s.shape[1])  # summed over labels, not averaged


def test_tinybert_prediction_of_a_number():
    s, t = Arrays(0, 1, 1).logits[:, :1], Arrays(1, 1, 1).logits[:, :1]
    ours, gradient = soft(s, t, problem="regression")
    assert ours == pytest.approx(np.mean([(x - y) ** 2 for x, y in zip(s, t, strict=True)]), rel=1e-5)
    assert gradient.abs().min() > 0  # a softmax over one logit would be constant


def words(seed):
    return np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(np.float32).astype(np.float64)


def test_predicted_words_are_what_counts_in_text():
    s, t = words(0), words(1)
    s[1, 2], t[1, 2] = math.nan, math.nan  # padding
    labels = torch.tensor([[-100, 2, -100], [1, 0, -100]])
    at = [(0, 1), (1, 0), (1, 1)]
    predictions = [(softmax(list(t[i])), softmax(list(s[i]))) for i in at]
    expected = np.mean([-sum(a * math.log(b) for a, b in zip(p, q, strict=True)) for p, q in predictions])
    ours, gradient = soft(s, t, labels, problem="language_model")
    assert ours == pytest.approx(expected, rel=1e-5)
    assert (gradient[labels == -100] == 0).all()
    ours, _ = soft(s, t, torch.full((2, 3), -100), problem="language_model")
    assert ours == 0


def test_distilbert_learns_predicted_words_only():
    case = Case("distilbert", None, problem="language_model")
    s, t = case.arrays((3, 2))
    s.logits, t.logits = words(0), words(1)
    labels = torch.tensor([[-100, 2, -100], [1, 0, -100]])
    out = loss_of(case.objective(), s, t, labels, extra=0)
    at = (np.array([0, 1, 1]), np.array([1, 0, 1]))
    assert out["kd"] == pytest.approx(kd_value(s.logits[at], t.logits[at], 2.0), rel=1e-5)
    picked = [-math.log(softmax(list(s.logits[i, j]))[labels[i, j]]) for i, j in zip(*at, strict=True)]
    assert out["task"] == pytest.approx(np.mean(picked), rel=1e-5)


# Traps: the version that known implementations compute, and that ours is not it


def test_pkd_is_not_a_sum_over_dimensions_nor_of_raw_vectors():
    case = Case("pkd", patient(TWO), **DEEP)
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)["patient"]
    right = case.reference(s, t, {"patient": []})["patient"]
    assert ours == pytest.approx(right, rel=1e-5)
    raw = np.mean([(x[0] - y[0]) ** 2 for a, b in TWO for x, y in zip(s.hidden[a], t.hidden[b], strict=True)])
    summed_over_pairs = right * len(TWO)
    with_the_top = patient([*TWO, (3, 6)])(s, t, {"patient": []})["patient"]
    for wrong in (right * 6, raw, summed_over_pairs, with_the_top):
        assert far(ours, wrong)


def test_pkd_reads_the_token_that_the_classifier_reads():
    case = Case("pkd", patient(TWO), family="gpt2", **DEEP)
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)["patient"]
    assert far(ours, patient(TWO, "cls")(s, t, {"patient": []})["patient"])
    case = Case("pkd", patient(TWO), **DEEP)
    padded_first = loss_of(case.objective(), s, t, left=True)["patient"]
    assert padded_first == pytest.approx(case.reference(s, t, {"patient": []})["patient"], rel=1e-5)


@pytest.mark.parametrize("name", ["pkd", "cckd", "rkd", "spkd", "distilbert"])
def test_zero_and_equal_vectors_have_finite_gradients(name):
    objective = Case(name, None, **DEEP).objective()
    needs = objective.needs()
    for constant in (0.0, 1.0):
        s, t = (Arrays(0, depth, 6).changed(lambda *place, c=constant: np.full_like(place[-1], c)) for depth in (3, 6))
        for teacher in (t, Arrays(1, 6, 6)):
            student = s.features(needs.student, grad=True)
            terms = objective(student, teacher.features(needs.teacher), {"labels": torch.tensor([0, 1, 0, 1])})
            objective.total(terms).backward()
            assert all(value.isfinite() for value in terms.values())
            assert all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in tensors(student))


def test_pkd_normalises_a_zero_vector_to_zero():
    case = Case("pkd", None, {"layers": [(3, 6)]}, **DEEP)
    s, t = case.arrays()
    s = s.changed(lambda kind, layer, sample, x: np.zeros_like(x))
    assert loss_of(case.objective(), s, t)["patient"] == pytest.approx(1 / 6, rel=1e-5)  # |t/|t||² over 6 dimensions


def test_rkd_is_smooth_l1_relative_to_the_mean_distance():
    case = Case("rkd", None, {"pool": "cls"})
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)
    for penalty in (abs, lambda d: d * d):
        wrong = relational([(2, 4)], "cls", penalty)(s, t)
        assert far(ours["distance"], wrong["distance"]) and far(ours["angle"], wrong["angle"])
    x, y = rows(s.hidden[2], "cls"), rows(t.hidden[4], "cls")
    n = len(x)
    with_diagonal = (distances(x) - distances(y)) * n / (n - 1)  # the mean over n² entries is (n-1)/n of ours
    assert far(ours["distance"], np.mean([smooth_l1(d) for d in with_diagonal.ravel()]))


def test_rkd_of_duplicates_moves_the_others():
    case = Case("rkd", None, {"pool": "cls"})
    objective = case.objective()
    needs = objective.needs()

    def doubled(arrays):  # the second sample repeats the first
        return arrays.changed(
            lambda kind, layer, sample, x: getattr(arrays, kind)[layer][0][: len(x)] if sample == 1 else x
        )

    s, t = case.arrays()
    student = doubled(s).features(needs.student, grad=True)
    terms = objective(student, doubled(t).features(needs.teacher), {"labels": torch.tensor([0, 1, 0, 1])})
    (terms["distance"] + terms["angle"]).backward()
    gradient = student.hidden[2].grad
    assert gradient.isfinite().all() and gradient[3].abs().sum() > 0


def test_distilbert_cosine_is_of_real_tokens_over_the_whole_batch():
    case = Case("distilbert", cosine(2, 4))
    s, t = case.arrays()
    t.hidden[4][2] = s.hidden[2][2]  # the sample of one token is learnt: its share of the batch matters
    ours = loss_of(case.objective(), s, t)["cosine"]
    assert ours == pytest.approx(case.reference(s, t, {"cosine": []})["cosine"], rel=1e-5)
    x, y = padded(s.hidden[2], 7, 0.5), padded(t.hidden[4], 7, 0.5)
    everywhere = np.mean([1 - unit(a) @ unit(b) for p, q in zip(x, y, strict=True) for a, b in zip(p, q, strict=True)])
    by_sample = np.mean(
        [
            np.mean([1 - unit(a) @ unit(b) for a, b in zip(p, q, strict=True)])
            for p, q in zip(s.hidden[2], t.hidden[4], strict=True)
        ]
    )
    assert far(ours, everywhere) and far(ours, by_sample)


def test_tinybert_sums_over_pairs_of_the_right_layers():
    case = Case("tinybert", tinybert(TWO))
    s, t = case.arrays()
    t = t.changed(lambda kind, layer, sample, x: (1 + layer) * x)  # layers that cannot be taken for each other
    objective = case.objective()
    ours = loss_of(objective, s, t)["hidden"]
    none = {"hidden": [], "embeddings": []}
    assert ours == pytest.approx(case.reference(s, t, none)["hidden"], rel=1e-5)
    off_by_one = tinybert([(1, 1), (2, 3)])(s, t, none)["hidden"]
    from_embeddings = tinybert([(0, 0), (1, 2)])(s, t, none)["hidden"]
    x = [padded(s.hidden[a], 7, 0.5) for a in (1, 2)]
    y = [padded(t.hidden[b], 7, -2.0) for b in (2, 4)]
    everywhere = sum(squared_error([], p, q) for p, q in zip(x, y, strict=True))
    for wrong in (ours / 2, off_by_one, from_embeddings, everywhere):
        assert far(ours, wrong)
    assert objective.needs().student.layers("hidden") == {0, 1, 2}
    assert objective.needs().teacher.layers("hidden") == {0, 2, 4}


def test_fitnets_averages_over_pairs():
    pairs = [(1, 2), (2, 3)]
    case = Case("fitnets", hint(pairs), {"layers": pairs})
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)["hint"]
    assert far(ours, 2 * hint(pairs)(s, t, {"hint": []})["hint"])
    assert far(ours, hint([(1, 1)])(s, t, {"hint": []})["hint"])


def test_spkd_normalises_rows_and_cckd_uses_the_series():
    case = Case("spkd", None)
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)["similarity"]
    x, y = (np.stack(rows(a, "flat")) for a in (s.hidden[2], t.hidden[4]))
    g, h = x @ x.T, y @ y.T
    whole = g / np.linalg.norm(g), h / np.linalg.norm(h)
    for p, q in ((g, h), whole):
        assert far(ours, ((p - q) ** 2).mean())
    assert far(ours, similarity_preserving([(2, 4)], "mean")(s, t)["similarity"])

    case = Case("cckd", None)
    ours = loss_of(case.objective(), s, t)["correlation"]
    x, y = ([unit(v) for v in rows(a, "cls")] for a in (s.hidden[2], t.hidden[4]))

    def rbf(points):
        return np.array([[math.exp(-0.4 * ((p - q) ** 2).sum()) for q in points] for p in points])

    assert far(ours, ((rbf(x) - rbf(y)) ** 2).mean())
    assert far(ours, congruence([(2, 4)], order=1)(s, t)["correlation"])
    near = loss_of(Case("cckd", None, {"order": 12}).objective(), s, t)["correlation"]
    assert near == pytest.approx(((rbf(x) - rbf(y)) ** 2).mean(), rel=1e-4)  # what the series tends to


# Properties


def rotated(arrays, width):
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0]
    return arrays.changed(lambda kind, layer, sample, x: x @ turn)


@pytest.mark.parametrize(
    ("name", "pool"), [("spkd", "flat"), ("spkd", "mean"), ("rkd", "mean"), ("rkd", "flat"), ("cckd", "cls")]
)
def test_relations_do_not_depend_on_the_students_axes(name, pool):
    case = Case(name, None, {"pool": pool})
    s, t = case.arrays()
    objective = case.objective()
    assert loss_of(objective, rotated(s, 6), t) == pytest.approx(loss_of(objective, s, t), rel=1e-4)


def test_rkd_and_spkd_do_not_depend_on_scale():
    for name in ("rkd", "spkd"):
        case = Case(name, None)
        s, t = case.arrays()
        larger = s.changed(lambda kind, layer, sample, x: 7.0 * x)
        assert loss_of(case.objective(), larger, t) == pytest.approx(loss_of(case.objective(), s, t), rel=1e-4)


def test_pkd_and_cckd_do_not_depend_on_the_length_of_any_vector():
    for name in ("pkd", "cckd"):
        case = Case(name, None, **DEEP)
        s, t = case.arrays()
        longer = s.changed(lambda kind, layer, sample, x: x * (0.3 + layer + 2 * sample))
        assert loss_of(case.objective(), longer, t) == pytest.approx(loss_of(case.objective(), s, t), rel=1e-4)


# Errors


def test_pkd_of_one_layer_has_nothing_below_the_top():
    case = Case("pkd", None, depths=(1, 4))
    for layers in ("skip", "last"):
        with pytest.raises(LimbeckError, match="layer"):
            METHODS["pkd"](case.pair, layers=layers)
    assert METHODS["pkd"](case.pair, layers=[(1, 4)]).weights["patient"] == 100


@pytest.mark.parametrize("name", ["rkd", "spkd", "cckd"])
def test_relations_between_samples_need_one_row_each(name):
    with pytest.raises(LimbeckError, match="sample"):
        Case(name, None, {"pool": "tokens"}).objective()


@pytest.mark.parametrize("widths", [(6, 6), (4, 6)])
@pytest.mark.parametrize("pool", ["tokens", "flat"])
def test_pkd_of_every_token_is_refused_or_ignores_padding(pool, widths):
    case = Case("pkd", None, {"pool": pool}, **DEEP, widths=widths)
    try:
        objective = case.objective()
    except LimbeckError:
        return
    values = [loss_of(objective, *case.arrays(), extra=extra)["patient"] for extra in (0, 4)]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize("name", ["pkd", "rkd", "tinybert", "minilm", "minilmv2", "spkd", "cckd", "fitnets"])
def test_layers_are_checked(name):
    with pytest.raises(RecipeError, match="out of range"):
        METHODS[name](Case(name, None).pair, layers=[(3, 4)])
    with pytest.raises(RecipeError, match="layer strategy"):
        METHODS[name](Case(name, None).pair, layers="every-other")


@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS_AND_STAGES}))
def test_methods_that_need_a_teacher_say_so(name):
    with pytest.raises(ModelError, match="needs a teacher"):
        METHODS[name](Pair(ModelShape("bert", 2, 8, 1), None, "classification", 2))

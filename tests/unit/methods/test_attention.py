"""Test methods on queries, keys and values against float64 loops, and that what is captured is what models compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.float64_cases import (
    TWO,
    Arrays,
    Case,
    check,
    divergence,
    far,
    finite_on_small_batches,
    loss_of,
    padded,
    shape,
    softmax,
)
from helpers.tiny_models import tiny_batch, tiny_model
from transformers import AutoModelForSequenceClassification

from limbeck import METHODS, Pair
from limbeck.errors import ModelError, RecipeError
from limbeck.models.capture import Capture, model_inputs
from limbeck.models.features import Wanted

RELATIONS = {"query": "queries", "key": "keys", "value": "values"}  # terms of minilmv2, and what they relate

# References: a sample is (tokens, width); nothing here knows tensors, masks or padding.


def split(sample, heads):
    width = sample.shape[1] // heads
    return [sample[:, h * width : (h + 1) * width] for h in range(heads)]


def scores(queries, keys, scale=None):
    """Compute one head of one sample."""
    scale = scale or math.sqrt(queries.shape[1])
    return [[sum(a * b for a, b in zip(q, k, strict=True)) / scale for k in keys] for q in queries]


def score_errors(s_q, s_k, t_q, t_k, heads, causal):
    """List TinyBERT's squared differences of one sample's scores, one for each head and entry that exists."""
    found = []
    for h in range(heads):
        mine = scores(split(s_q, heads)[h], split(s_k, heads)[h])
        theirs = scores(split(t_q, heads)[h], split(t_k, heads)[h])
        for i in range(len(mine)):
            found += [(mine[i][j] - theirs[i][j]) ** 2 for j in range(i + 1 if causal else len(mine))]
    return found


def score_loss(pairs, heads, causal=False):
    def reference(s, t, weights=None):
        total = 0.0
        for a, b in pairs:
            errors = []
            for i in range(len(s.logits)):
                errors += score_errors(s.queries[a][i], s.keys[a][i], t.queries[b][i], t.keys[b][i], heads, causal)
            total += sum(errors) / len(errors)
        return {"attention": total}

    return reference


def relation_loss(kinds, pairs, heads, causal=False, scale=None, reverse=False):
    """Compute the KL of the softmaxed relations, averaged over heads and queries, then samples, then pairs."""

    def of_sample(s, t):
        total = 0.0
        for h in range(heads):
            mine, theirs = (scores(split(x, heads)[h], split(y, heads)[h], scale) for x, y in (s, t))
            for i in range(len(mine)):
                keys = i + 1 if causal else len(mine)
                p, q = softmax(theirs[i][:keys]), softmax(mine[i][:keys])
                total += divergence(q, p) if reverse else divergence(p, q)
        return total / (heads * len(s[0]))

    def reference(s, t, weights=None):
        found = []
        for a, b in pairs:
            (sx, sy), (tx, ty) = ([getattr(m, kind)[layer] for kind in kinds] for m, layer in ((s, a), (t, b)))
            samples = zip(sx, sy, tx, ty, strict=True)
            found.append(np.mean([of_sample((x, y), (u, v)) for x, y, u, v in samples]))
        return np.mean(found)

    return reference


def minilm(pairs, heads, causal=False):
    def reference(s, t, weights=None):
        return {
            "attention": relation_loss(("queries", "keys"), pairs, heads, causal)(s, t),
            "value": relation_loss(("values", "values"), pairs, heads)(s, t),
        }

    return reference


def minilmv2(pairs, heads):
    def reference(s, t, weights=None):
        return {term: relation_loss((kind, kind), pairs, heads)(s, t) for term, kind in RELATIONS.items()}

    return reference


LAST = [(2, 4)]
WIDE = {"widths": (12, 20)}
CASES = [
    Case("tinybert", score_loss(TWO, 2)),
    Case("tinybert", score_loss(TWO, 4), **WIDE, heads=(4, 4)),
    Case("tinybert", score_loss(TWO, 2, causal=True), family="gpt2", widths=(4, 6)),
    Case("tinybert", score_loss([(1, 3)], 2), {"layers": [(1, 3)]}, family="electra"),
    Case("minilm", minilm(LAST, 2)),
    Case("minilm", minilm(LAST, 4), **WIDE, heads=(4, 4)),
    Case("minilm", minilm(LAST, 2, causal=True), family="gpt2", widths=(4, 6)),
    Case("minilm", minilm(TWO, 2), {"layers": "uniform"}),
    Case("minilmv2", minilmv2(LAST, 4), **WIDE, heads=(3, 4)),  # the teacher's heads
    Case("minilmv2", minilmv2(LAST, 2), {"relation_heads": 2}, **WIDE, heads=(3, 5)),
    Case("minilmv2", minilmv2(LAST, 1), {"relation_heads": 1}, family="gpt2", **WIDE, heads=(3, 5)),
    Case("minilmv2", minilmv2(TWO, 3), {"relation_heads": 3, "layers": TWO}, family="modernbert"),
    Case("minilmv2", minilmv2([(2, 3)], 2), {"layers": [(2, 3)]}, family="deberta-v2"),
]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_terms_are_what_was_published(case, left):
    check(case, left)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_batches(case):
    finite_on_small_batches(case)


def test_only_what_is_compared_is_captured():
    needs = Case("tinybert", None, depths=(2, 4)).objective().needs()
    for kind in ("queries", "keys"):
        assert needs.student.layers(kind) == {1, 2} and needs.teacher.layers(kind) == {2, 4}
    assert not needs.student.layers("values")
    needs = Case("minilm", None, depths=(3, 6)).objective().needs()
    for kind in ("queries", "keys", "values"):
        assert needs.student.layers(kind) == {3} and needs.teacher.layers(kind) == {6}
    assert not needs.student.layers("hidden")
    objective = METHODS["minilmv2"](Case("minilmv2", None).pair, alpha_q=0.0, alpha_k=0.0)
    assert not objective.needs().student.layers("queries", "keys", "hidden")
    assert objective.weights == {"task": 1, "value": 1}


# Traps


def dense(arrays, kind, layer, value):
    """Make features as a model gives them: vectors of padding are as large as any other."""
    return padded(getattr(arrays, kind)[layer], 7, value)


def test_tinybert_counts_real_entries_of_the_right_blocks_before_the_softmax():
    case = Case("tinybert", score_loss(TWO, 2))
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)["attention"]
    assert ours == pytest.approx(case.reference(s, t)["attention"], rel=1e-5)

    with_padding, zeroed, after_softmax = [], [], []
    for a, b in TWO:
        errors, real, soft = [], [], []
        for i in range(len(s.logits)):
            x = [
                dense(m, kind, layer, value)[i]
                for m, layer, value in ((s, a, 0.5), (t, b, -2.0))
                for kind in ("queries", "keys")
            ]
            errors += score_errors(*x, 2, False)
            n = len(s.queries[a][i])
            real += score_errors(*(v[:n] for v in x), 2, False) + [0.0] * (2 * (49 - n * n))
            for h in range(2):
                mine, theirs = (scores(split(q[:n], 2)[h], split(k[:n], 2)[h]) for q, k in (x[:2], x[2:]))
                soft += [
                    (p - q) ** 2
                    for u, v in zip(mine, theirs, strict=True)
                    for p, q in zip(softmax(u), softmax(v), strict=True)
                ]
        with_padding.append(np.mean(errors))
        zeroed.append(np.mean(real))
        after_softmax.append(np.mean(soft))
    unscaled = ours * 3  # q·k without 1/sqrt(3) on both sides
    mean_over_pairs = ours / 2
    off_by_one = score_loss([(1, 1), (2, 3)], 2)(s, t)["attention"]
    for wrong in (sum(with_padding), sum(zeroed), sum(after_softmax), unscaled, mean_over_pairs, off_by_one):
        assert far(ours, wrong)


def test_decoders_compare_only_the_scores_that_they_use():
    for name, reference in (("tinybert", score_loss(TWO, 2)), ("minilm", minilm(LAST, 2))):
        case = Case(name, None, family="gpt2")
        s, t = (m.changed(lambda kind, layer, sample, x: x * np.arange(1, len(x) + 1)[:, None]) for m in case.arrays())
        assert far(loss_of(case.objective(), s, t)["attention"], reference(s, t)["attention"])


def test_minilm_averages_over_real_queries_from_teacher_to_student():
    case = Case("minilm", minilm(LAST, 2))
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t)
    for term, kinds in (("attention", ("queries", "keys")), ("value", ("values", "values"))):
        right = relation_loss(kinds, LAST, 2)(s, t)
        assert ours[term] == pytest.approx(right, rel=1e-5)
        per_sample = [relation_loss(kinds, LAST, 2)(*(one(m, i) for m in (s, t))) for i in range(4)]
        lengths = [len(x) for x in s.values[0]]
        over_padded_queries = np.mean([value * n / 7 for value, n in zip(per_sample, lengths, strict=True)])
        flat = np.average(per_sample, weights=lengths)  # over the queries of the batch, not of each sample
        backwards = relation_loss(kinds, LAST, 2, reverse=True)(s, t)
        for wrong in (over_padded_queries, flat, backwards, right * 2, relation_loss(kinds, LAST, 1)(s, t)):
            assert far(ours[term], wrong), term


def one(arrays, sample):
    """Make a batch of one of the samples."""
    copy = object.__new__(Arrays)
    for kind in ("hidden", "queries", "keys", "values"):
        setattr(copy, kind, [[samples[sample]] for samples in getattr(arrays, kind)])
    copy.logits = arrays.logits[sample : sample + 1]
    return copy


def unmasked_keys(kinds, s, t, heads):
    """Make the mistake: real queries, but every key of the padded batch."""
    found = []
    for i, real in enumerate(s.values[2]):
        x, u = dense(s, kinds[0], 2, 0.5)[i], dense(t, kinds[0], 4, -2.0)[i]
        y, v = dense(s, kinds[1], 2, 0.5)[i], dense(t, kinds[1], 4, -2.0)[i]
        total = 0.0
        for h in range(heads):
            mine, theirs = (
                scores(split(x, heads)[h], split(y, heads)[h]),
                scores(split(u, heads)[h], split(v, heads)[h]),
            )
            total += sum(divergence(softmax(theirs[j]), softmax(mine[j])) for j in range(len(real)))
        found.append(total / (heads * len(real)))
    return np.mean(found)


def test_padded_keys_have_no_share_in_any_softmax():
    case = Case("minilm", None)
    s, t = case.arrays()
    ours = loss_of(case.objective(), s, t, garbage=0.5)
    assert far(ours["attention"], unmasked_keys(("queries", "keys"), s, t, 2))
    assert far(ours["value"], unmasked_keys(("values", "values"), s, t, 2))
    case = Case("minilmv2", None, {"relation_heads": 3})
    ours = loss_of(case.objective(), s, t, garbage=0.5)
    for term, kind in RELATIONS.items():
        assert far(ours[term], unmasked_keys((kind, kind), s, t, 3))


def test_minilmv2_scales_by_the_width_of_its_own_relation_heads():
    case = Case("minilmv2", None, {"relation_heads": 2}, widths=(12, 20), heads=(6, 10))
    s, t = case.arrays()
    # of large vectors each is so much its own nearest that the scale hardly matters
    s = s.changed(lambda kind, layer, sample, x: 0.5 * x)
    ours = loss_of(case.objective(), s, t)
    for term, kind in RELATIONS.items():
        for scale in (math.sqrt(2), math.sqrt(6), math.sqrt(10), 1.0):  # of a head; the student's; the teacher's; none
            assert far(ours[term], relation_loss((kind, kind), LAST, 2, scale=scale)(s, t)), (term, scale)
        assert far(ours[term], relation_loss((kind, kind), LAST, 4)(s, t))
        assert far(ours[term], relation_loss((kind, kind), LAST, 2, reverse=True)(s, t))


# Properties


@pytest.mark.parametrize("name", ["minilm", "minilmv2", "tinybert"])
def test_the_order_of_the_samples_does_not_matter(name):
    case = Case(name, None)
    s, t = case.arrays()
    order = [2, 0, 3, 1]

    def shuffled(arrays):
        copy = object.__new__(Arrays)
        for kind in ("hidden", "queries", "keys", "values"):
            setattr(copy, kind, [[samples[i] for i in order] for samples in getattr(arrays, kind)])
        copy.logits = arrays.logits[order]
        return copy

    labels = torch.tensor([0, 1, 1, 0])
    expected = loss_of(case.objective(), s, t, labels)
    assert loss_of(case.objective(), shuffled(s), shuffled(t), labels[order]) == pytest.approx(expected, rel=1e-5)


def test_a_student_that_equals_its_teacher_has_no_loss():
    for name in ("minilm", "minilmv2", "tinybert"):
        case = Case(name, None, depths=(4, 4))
        s, _ = case.arrays()
        out = loss_of(case.objective(), s, s)
        assert all(value == pytest.approx(0, abs=1e-6) for key, value in out.items() if key != "task"), out


def test_large_scores_do_not_overflow():
    for name in ("minilm", "minilmv2"):
        case = Case(name, None)
        s, t = (m.changed(lambda kind, layer, sample, x: 100 * x) for m in case.arrays())
        objective = case.objective()
        student = s.features(objective.needs().student, grad=True)
        teacher = t.features(objective.needs().teacher)
        objective.total(objective(student, teacher, {"labels": torch.tensor([0, 1, 0, 1])})).backward()
        assert all(math.isfinite(value) for value in loss_of(objective, s, t).values())
        assert all(tensor.grad.isfinite().all() for tensor in student.values.values())


# Errors


@pytest.mark.parametrize("name", ["minilm", "tinybert"])
def test_scores_need_equal_heads_and_plain_attention(name):
    with pytest.raises(ModelError, match="minilmv2"):
        Case(name, None, heads=(2, 3)).objective()
    for family in ("modernbert", "deberta-v2"):
        with pytest.raises(ModelError, match="minilmv2"):
            Case(name, None, family=family).objective()
        plain, other = shape("bert", 2, 6, 2), shape(family, 2, 6, 2)
        for pair in (Pair(plain, other, "classification", 2), Pair(other, plain, "classification", 2)):
            with pytest.raises(ModelError, match="minilmv2"):
                METHODS[name](pair)


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_the_prediction_stage_compares_no_attention(family):
    case = Case("tinybert", None, {"stage": "prediction"}, family=family, heads=(2, 3))
    assert case.objective().weights == {"soft": 1}


def test_relation_heads_must_divide_both_widths():
    for heads, relation_heads in (((3, 5), 3), ((3, 5), None), ((3, 5), 5), ((3, 4), 24)):
        with pytest.raises(RecipeError, match=r"1, 2(,| and| or) 4"):
            Case("minilmv2", None, {"relation_heads": relation_heads}, **WIDE, heads=heads).objective()


@pytest.mark.parametrize("name", ["minilm", "minilmv2", "tinybert"])
def test_embeddings_have_no_projections(name):
    for pairs in ([(0, 0)], [(0, 2)], [(1, 0)], [(2, 4), (0, 0)]):
        with pytest.raises(RecipeError):
            Case(name, None, {"layers": pairs}).objective()


# What Capture gives is what the model computes

LAYERS = (1, 2, 3)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "electra", "distilbert", "gpt2"])
def test_captured_queries_and_keys_give_the_models_own_attention(family, left):
    model = tiny_model(family).eval()
    assert model.config._attn_implementation == "sdpa"
    slow = AutoModelForSequenceClassification.from_config(model.config, attn_implementation="eager").eval()
    slow.load_state_dict(model.state_dict())
    model = tiny_model(family).eval()  # building the slow one may have changed the config they share
    assert slow.config._attn_implementation == "eager" and model.config._attn_implementation == "sdpa"
    batch = tiny_batch(width=9, left=left)
    with torch.no_grad():
        _, features = Capture(model)(batch, Wanted(queries=LAYERS, keys=LAYERS))
        attentions = slow(**model_inputs(slow, batch), output_attentions=True).attentions
    assert len(attentions) == 3
    for layer in LAYERS:
        for b in range(3):
            real = batch["attention_mask"][b].nonzero().flatten().tolist()
            q, k = (x[layer][b].double().numpy() for x in (features.queries, features.keys))
            for h in range(4):
                own = attentions[layer - 1][b, h].numpy()
                for i in real:
                    keys = [j for j in real if family != "gpt2" or j <= i]
                    head = slice(8 * h, 8 * h + 8)
                    ours = softmax([q[i, head] @ k[j, head] / math.sqrt(8) for j in keys])
                    np.testing.assert_allclose(own[i, keys], ours, atol=1e-5)
                    assert own[i].sum() == pytest.approx(own[i, keys].sum(), abs=1e-6)  # nothing on other keys


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_from_a_real_model_to_the_loss(family, left):
    """Go the whole way: the pair knows a decoder, padding that the model computed is ignored."""
    student, teacher = tiny_model(family, depth=2).eval(), tiny_model(family, depth=4, seed=1).eval()
    batch = tiny_batch(width=9, left=left)
    references = {
        "tinybert": score_loss(TWO, 4, causal=family == "gpt2"),
        "minilm": minilm(LAST, 4, causal=family == "gpt2"),
        "minilmv2": minilmv2(LAST, 8),
    }
    for name, reference in references.items():
        options = {"relation_heads": 8} if name == "minilmv2" else {}
        objective = METHODS[name](Pair.of(student, teacher, "classification"), **options)
        needs = objective.needs()
        with torch.no_grad():
            captured = [Capture(student)(batch, needs.student)[1], Capture(teacher)(batch, needs.teacher)[1]]
            terms = objective(*captured, batch)
        for term, value in reference(*map(real_tokens, captured)).items():
            assert terms[term].item() == pytest.approx(value, rel=1e-3), (name, term)  # differences of float32 scores


def real_tokens(features):
    arrays = object.__new__(Arrays)
    for kind in ("queries", "keys", "values"):
        layers = {
            layer: [x[real].double().numpy() for x, real in zip(tensor, features.mask, strict=True)]
            for layer, tensor in getattr(features, kind).items()
        }
        setattr(arrays, kind, layers)
    arrays.logits = features.mask
    return arrays


def test_a_decoder_that_scales_its_scores_otherwise_is_refused():
    plain, scaled = tiny_model("gpt2"), tiny_model("gpt2", scale_attn_by_inverse_layer_idx=True)
    for student, teacher in ((plain, scaled), (scaled, plain)):
        for name in ("minilm", "tinybert"):
            with pytest.raises(ModelError, match="minilmv2"):
                METHODS[name](Pair.of(student, teacher, "classification"))

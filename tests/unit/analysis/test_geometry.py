"""Check CKA maps, relation difference and intra-class similarity against plain loops and known answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.float64_cases import LENGTHS, Arrays
from helpers.tiny_models import tiny_batch, tiny_model

from limbeck.analysis.geometry import IntraClassSimilarity, LayerCKA, heat_map
from limbeck.analysis.geometry_pass import View
from limbeck.inference.relation_difference import RELATIONS, RelationDifference
from limbeck.models.capture import Capture
from limbeck.models.features import Wanted

LAYER = Wanted(hidden=[1])
MANY = tuple(1 + number % 7 for number in range(40))  # more than 25 rows, from which torch computes distances otherwise


def rows(seed, *size):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size))


def orthogonal(width, seed=5):
    return torch.linalg.qr(rows(seed, width, width)).Q


# CKA


def song(k, l):  # noqa: E741
    """Compute the unbiased HSIC of two kernel matrices, as Song et al. (2012) write it."""
    n = len(k)
    k, l = k * (1 - np.eye(n)), l * (1 - np.eye(n))  # noqa: E741
    ones = np.ones(n)
    middle = (ones @ k @ ones) * (ones @ l @ ones) / ((n - 1) * (n - 2))
    return (np.trace(k @ l) + middle - 2 / (n - 2) * (ones @ k @ l @ ones)) / (n * (n - 3))


def biased(k, l):  # noqa: E741
    """Compute equation 5 of Jung et al. 2023."""
    n = len(k)
    centring = np.eye(n) - np.ones((n, n)) / n
    return np.trace(k @ centring @ l @ centring) / (n - 1) ** 2


def plain_cka(batches_x, batches_y, hsic=song):
    """Weigh each HSIC of several batches by n (n - 3) (Nguyen et al., 2021)."""
    sums = np.zeros(3)
    for x, y in zip(batches_x, batches_y, strict=True):
        k, l = (side.numpy() @ side.numpy().T for side in (x, y))  # noqa: E741
        sums += len(x) * (len(x) - 3) * np.array([hsic(k, l), hsic(k, k), hsic(l, l)])
    return sums[0] / math.sqrt(sums[1] * sums[2])


def layers_of(seed, batches, depth, width):
    """Draw every layer's samples, batch by batch; neighbouring layers have something in common."""
    made = []
    for number, size in enumerate(batches):
        layers = [rows([seed, number], size, width)]
        for layer in range(depth):
            layers.append(layers[-1] + 0.7 * rows([seed, number, layer + 1], size, width) + layer)
        made.append(layers)
    return made


def layer_cka(ours, theirs):
    total = LayerCKA()
    for pair in zip(ours, theirs, strict=True):
        total.update(*pair)
    return total.value()


@pytest.mark.parametrize("widths", [(6, 6), (5, 9), (40, 3)])
@pytest.mark.parametrize("sizes", [(12,), (8, 8, 8), (9, 16, 5)])
def test_layers_against_the_definition(widths, sizes):
    rows_of, columns_of = (layers_of(seed, sizes, depth, widths[seed]) for seed, depth in ((0, 3), (1, 2)))
    found = layer_cka(rows_of, columns_of)
    assert found.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            expected = plain_cka([batch[i] for batch in rows_of], [batch[j] for batch in columns_of])
            assert found[i, j] == pytest.approx(expected, abs=1e-5)


def test_layers_of_identical_rotated_and_scaled_models():
    ours = layers_of(0, (16, 16, 7), 3, 6)
    turned = [[2.5 * layer @ orthogonal(6) + 3 for layer in batch] for batch in ours]
    assert layer_cka(ours, ours).diagonal() == pytest.approx(np.ones(4), abs=1e-6)
    assert layer_cka(ours, turned).diagonal() == pytest.approx(np.ones(4), abs=1e-5)
    assert layer_cka(ours, turned) == pytest.approx(layer_cka(ours, ours), abs=1e-5)
    assert (layer_cka(ours, ours) - 2 * np.eye(4)).max() < 0.99  # other layers are not the same


def test_a_batch_of_fewer_than_four_adds_nothing():
    ours, theirs = layers_of(0, (16, 3), 2, 6), layers_of(1, (16, 3), 2, 6)
    assert (layer_cka(ours, theirs) == layer_cka(ours[:1], theirs[:1])).all()


@pytest.mark.parametrize(("estimator", "hsic"), [("unbiased", song), ("biased", biased)])
@pytest.mark.parametrize("width", [6, 11])
def test_a_heat_map_against_the_definition(estimator, hsic, width):
    teacher, student = rows(0, 3, 8, 6), rows(1, 3, 8, width)
    found = heat_map(list(teacher), list(student), estimator)
    for i in range(3):
        for j in range(3):
            expected = plain_cka([teacher[i]], [student[j]], hsic)
            assert found[i, j] == pytest.approx(expected, abs=1e-5), "rows are the teacher's batches"
    assert abs(found - found.T).max() > 1e-2


def test_a_heat_map_of_identical_and_rotated_models():
    batches = list(rows(0, 5, 16, 8))
    turned = [0.3 * batch @ orthogonal(8) - 1 for batch in batches]
    for other in (batches, turned):
        found = heat_map(batches, other)
        assert found.shape == (5, 5)
        assert found.diagonal() == pytest.approx(np.ones(5), abs=1e-5)
        assert (found - 2 * np.eye(5)).max() < 0.9  # other samples


def test_noise_is_not_similar_unless_the_estimator_is_biased():
    teacher, student = (list(rows(seed, 10, 16, 200)) for seed in (0, 1))
    assert abs(heat_map(teacher, student).mean()) < 0.02
    assert heat_map(teacher, student, "biased").mean() > 0.85


# Relation difference


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def cosine(a, b):
    lengths = distance(a, [0] * len(a)) * distance(b, [0] * len(b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths


def side_by_side(sample, length):
    return [x for token in sample for x in token] + [0.0] * (length - len(sample)) * sample.shape[1]


def plain_difference(student, teacher):
    """Compute equations 12 and 13 for one batch, of lists of samples (tokens, width)."""
    count, length, found = len(student), max(map(len, student)), {}
    for name, relate in (("euclidean", distance), ("cosine", cosine)):
        s, t = ([side_by_side(sample, length) for sample in side] for side in (student, teacher))
        pairs = [(i, j) for i in range(count) for j in range(count)]
        found[f"inter_{name}"] = sum(abs(relate(t[i], t[j]) - relate(s[i], s[j])) for i, j in pairs) / count**2
        total = 0.0
        for ours, theirs in zip(student, teacher, strict=True):
            words = len(ours)
            pairs = [(j, k) for j in range(words) for k in range(words)]
            total += sum(abs(relate(theirs[j], theirs[k]) - relate(ours[j], ours[k])) for j, k in pairs) / words**2
        found[f"intra_{name}"] = total / count
    return found


def difference(*batches, left=False, garbage=math.nan, extra=2):
    """Measure pairs of Arrays, padded on one side with garbage."""
    relations = RelationDifference()
    for student, teacher in batches:
        ours, theirs = (side.features(LAYER, left=left, garbage=garbage, extra=extra) for side in (student, teacher))
        relations.update(ours.hidden[1], theirs.hidden[1], ours.mask)
    return relations.values()


def pair(seed=0, lengths=LENGTHS, widths=(6, 4)):
    return tuple(Arrays(seed + place, 1, width, lengths) for place, width in enumerate(widths))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, (4,), (1,), (1, 1), (3, 3), MANY], ids=str)
def test_relation_difference_against_loops(lengths, left):
    student, teacher = pair(lengths=lengths)
    found = difference((student, teacher), left=left)
    expected = plain_difference(student.hidden[1], teacher.hidden[1])
    assert tuple(found) == RELATIONS
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("left", [False, True])
def test_padding_does_not_count(left):
    plain = difference(pair(), extra=0, garbage=0.0)
    for garbage in (0.0, 1e6, math.inf, math.nan):
        assert difference(pair(), left=left, garbage=garbage, extra=5) == pytest.approx(plain, rel=1e-9)


def test_batches_count_by_their_samples():
    batches = [pair(0, (5, 2, 1, 4)), pair(2, (3,)), pair(4, (2, 6))]
    each = [plain_difference(s.hidden[1], t.hidden[1]) for s, t in batches]
    expected = {name: (4 * each[0][name] + each[1][name] + 2 * each[2][name]) / 7 for name in RELATIONS}
    assert difference(*batches) == pytest.approx(expected, rel=1e-6)


def changed(arrays, change):
    """Convert both to float32, which is what models compute in."""
    return arrays.changed(lambda *place: change(place[-1]).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("lengths", [LENGTHS, MANY], ids=["few", "many"])
def test_relation_difference_of_identical_rotated_and_scaled_features(lengths):
    teacher = Arrays(0, 1, 6, lengths)
    turn = orthogonal(6).numpy()
    same, turned, scaled = (changed(teacher, change) for change in (lambda x: x, lambda x: x @ turn, lambda x: 3 * x))
    assert difference((same, teacher)) == dict.fromkeys(RELATIONS, 0.0)
    assert difference((turned, teacher)) == pytest.approx(dict.fromkeys(RELATIONS, 0.0), abs=1e-5)
    found = difference((scaled, teacher))
    flat = np.array([side_by_side(sample, max(lengths)) for sample in teacher.hidden[1]])
    own = {
        "inter": np.linalg.norm(flat[:, None] - flat, axis=-1).mean(),
        "intra": np.mean([np.linalg.norm(x[:, None] - x, axis=-1).mean() for x in teacher.hidden[1]]),
    }
    for level, mean_distance in own.items():
        assert found[f"{level}_cosine"] == pytest.approx(0, abs=1e-6)
        assert found[f"{level}_euclidean"] == pytest.approx(2 * mean_distance, rel=1e-5)


# Intra-class similarity


def plain_similarity(features, labels):
    """Compute the double sum of Saadi et al. 2023."""
    total = 0.0
    for i, row in enumerate(features):
        own = [j for j, label in enumerate(labels) if label == labels[i]]
        total += sum(cosine(row, features[j]) / len(own) for j in own)
    return total / len(features)


def similarity(features, labels, *cuts):
    total, places = IntraClassSimilarity(), [0, *cuts, len(labels)]
    for start, stop in itertools.pairwise(places):
        total.update(features[start:stop], labels[start:stop])
    parts = [slice(start, stop) for start, stop in itertools.pairwise(places)]
    by_batch = [(plain_similarity(features[part].double().numpy(), labels[part].tolist()), part) for part in parts]
    expected = sum(value * len(labels[part]) for value, part in by_batch) / len(labels)
    assert total.per_batch() == pytest.approx(expected, rel=1e-9, abs=1e-12)  # as printed, of each batch alone
    return total.pooled()


def test_intra_class_similarity_against_the_double_sum_over_any_batches():
    features, labels = rows(0, 23, 5).float(), torch.from_numpy(np.random.default_rng(1).integers(0, 4, 23))
    expected = plain_similarity(features.double().numpy(), labels.tolist())
    assert 0 < expected < 0.9
    for cuts in ((), (1,), (8, 16), range(1, 23)):
        assert similarity(features, labels, *cuts) == pytest.approx(expected, rel=1e-9)


def test_intra_class_similarity_of_known_cases():
    labels = torch.tensor([0, 1, 0, 1])
    equal = torch.tensor([[1.0, 2.0], [-3.0, 1.0], [2.0, 4.0], [-6.0, 2.0]])
    assert similarity(equal, labels) == pytest.approx(1)
    opposite = torch.tensor([[1.0, 2.0], [-3.0, 1.0], [-5.0, -10.0], [3.0, -1.0]])
    assert similarity(opposite, labels) == pytest.approx(0, abs=1e-12)
    across = torch.tensor(
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    )  # a class at right angles, one that is equal
    assert similarity(across, labels) == pytest.approx((2 * 0.5 + 2 * 1) / 4)
    assert similarity(torch.tensor([[3.0, 4.0]]), torch.tensor([7])) == pytest.approx(1)


def test_intra_class_similarity_falls_with_shuffled_labels_only():
    labels = torch.arange(60) % 3
    features = 4 * torch.eye(8)[labels].double() + rows(0, 60, 8)
    own = similarity(features, labels)
    assert own > 0.6
    assert similarity(features @ orthogonal(8) * 7, labels) == pytest.approx(own, rel=1e-9)
    for seed in range(3):
        assert (
            similarity(features, labels[torch.randperm(60, generator=torch.Generator().manual_seed(seed))]) < 0.6 * own
        )


# What is looked at in a model


@pytest.mark.parametrize(("depth", "layer", "chosen"), [(3, "last", 3), (3, "penultimate", 2), (1, "penultimate", 1)])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("pool", ["mean", "cls", "last"])
def test_a_view_of_a_model(family, pool, depth, layer, chosen):
    model = tiny_model(family, depth=depth).eval()
    batch = tiny_batch((7, 4, 5), width=8)
    view = View.of(model, pool, layer)
    with torch.no_grad():
        features = Capture(model)(batch, view.wanted)[1]
        hidden = model(
            batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
        ).hidden_states
    assert torch.allclose(view.tokens(features), hidden[chosen], atol=1e-6)
    places = {"cls": lambda row, n: row[0], "last": lambda row, n: row[n - 1], "mean": lambda row, n: row[:n].mean(0)}
    for seen, expected in zip(view.layers(features), hidden, strict=True):
        pooled = torch.stack([places[pool](row, n) for row, n in zip(expected, (7, 4, 5), strict=True)])
        assert torch.allclose(seen, pooled, atol=1e-6)
    assert torch.equal(view.samples(features), view.layers(features)[chosen])


def test_rows_of_flat_samples_relate_as_the_samples_do():
    """Keep inner products, in as many columns as there are samples, whatever the length of the texts."""
    model, batch = tiny_model("bert", depth=2).eval(), tiny_batch((7, 4, 5), width=8)
    view = View.of(model, "flat", "penultimate", max_length=12)
    with torch.no_grad():
        features = Capture(model)(batch, view.wanted)[1]
    flat = np.zeros((3, 12, 32))
    for row, (tokens, n) in enumerate(zip(features.hidden[1].numpy(), (7, 4, 5), strict=True)):
        flat[row, :n] = tokens[:n]
    flat = flat.reshape(3, -1)
    assert view.samples(features).numpy() == pytest.approx(flat, abs=1e-6)
    rows = view.rows(features)
    assert rows.shape == (3, 3) and (rows @ rows.T).numpy() == pytest.approx(flat @ flat.T, rel=1e-6)

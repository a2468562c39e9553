"""Test the four papers' methods, term by term, against float64 loops written from the papers' equations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from limbeck import METHODS, Features, Pair, Wanted
from limbeck.distillation.pair import ModelShape
from limbeck.errors import ModelError, RecipeError
from limbeck.methods.fsd_terms import to_centroids

LENGTHS = (4, 2, 3, 4, 3)
LABELS = [0, 1, 0, 1, 0]
B, L, DS, DT = 5, 4, 3, 5


def make_pair(student_width=DS, teacher_width=DT, depths=(2, 4), problem="classification", labels=2):
    return Pair(
        ModelShape("bert", depths[0], student_width, 1),
        ModelShape("bert", depths[1], teacher_width, 1),
        problem,
        labels,
    )


def values(seed, layers, width, labels=2, *, left=False, extra=0):
    """Make float64 features as arrays {layer: [per sample (L_i, width)]} and as Features with garbage padding."""
    rng = np.random.default_rng(seed)
    arrays = {layer: [rng.normal(size=(n, width)) for n in LENGTHS] for layer in layers}
    mask = torch.zeros(B, L + extra, dtype=torch.bool)
    for i, n in enumerate(LENGTHS):
        mask[i, slice(L + extra - n, None) if left else slice(0, n)] = True
    hidden = {}
    for layer, samples in arrays.items():
        tensor = torch.full((B, L + extra, width), float("nan"), dtype=torch.float64)
        for i, sample in enumerate(samples):
            tensor[i, mask[i]] = torch.from_numpy(sample)
        hidden[layer] = tensor
    logits = rng.normal(size=(B, labels))
    return arrays, logits, Features(mask, torch.from_numpy(logits), hidden)


def run(objective, student, teacher, labels=LABELS):
    return {name: value.item() for name, value in objective(student, teacher, {"labels": torch.tensor(labels)}).items()}


def hsic_biased(k, m):
    n = len(k)
    c = np.eye(n) - 1 / n
    return np.trace(k @ c @ m @ c) / (n - 1) ** 2


def hsic_unbiased(k, m):
    n = len(k)
    k, m = k.copy(), m.copy()
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n)
    first, second = np.trace(k @ m), (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (first + second - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def cka_of(x, y, hsic):
    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def shape_of(x, y):
    x, y = x - x.mean(0), y - y.mean(0)
    nuclear = np.linalg.svd(x.T @ y, compute_uv=False).sum()
    return math.acos(min(1, nuclear / (np.linalg.norm(x) * np.linalg.norm(y))))


def flat(samples):
    out = np.zeros((len(samples), L * samples[0].shape[1]))
    for i, sample in enumerate(samples):
        out[i, : sample.size] = sample.ravel()
    return out


def rows(samples, pool):
    if pool == "cls":
        return np.stack([s[0] for s in samples])
    if pool == "last":
        return np.stack([s[-1] for s in samples])
    if pool == "mean":
        return np.stack([s.mean(0) for s in samples])
    return np.concatenate(samples) if pool == "tokens" else flat(samples)


@pytest.mark.parametrize("pool", ["cls", "last", "mean", "tokens", "flat"])
@pytest.mark.parametrize("left", [False, True])
def test_cka_and_shape(pool, left):
    pairs = [(1, 2), (2, 4)]
    s, _, student = values(0, (1, 2), DS, left=left, extra=3)
    t, _, teacher = values(1, (2, 4), DT, left=left, extra=3)
    expected = {"unbiased": [], "biased": [], "shape": []}
    for a, b in pairs:
        x, y = rows(s[a], pool), rows(t[b], pool)
        expected["unbiased"].append(1 - cka_of(x, y, hsic_unbiased))
        expected["biased"].append(1 - cka_of(x, y, hsic_biased))
        expected["shape"].append(shape_of(x, y))
    for estimator in ("unbiased", "biased"):
        objective = METHODS["cka"](make_pair(), layers=pairs, pool=pool, estimator=estimator)
        assert run(objective, student, teacher)["sim"] == pytest.approx(np.mean(expected[estimator]), rel=1e-6)
    objective = METHODS["shape"](make_pair(), layers=pairs, pool=pool)
    assert run(objective, student, teacher)["sim"] == pytest.approx(np.mean(expected["shape"]), rel=1e-6)
    for name, of in (("cka", "unbiased"), ("shape", "shape")):
        summed = METHODS[name](make_pair(), layers=pairs, pool=pool, reduction="sum")
        assert run(summed, student, teacher)["sim"] == pytest.approx(sum(expected[of]), rel=1e-6)


def padded(features, rows):
    """Return the same features with other numbers in their padding, which a method may be told to count."""
    rng, hidden = np.random.default_rng(rows), {}
    for layer, tensor in features.hidden.items():
        noise = torch.from_numpy(rng.normal(size=tensor.shape))
        hidden[layer] = torch.where(features.mask[..., None], tensor, noise)
    return Features(features.mask, features.logits, hidden)


@pytest.mark.parametrize("pool", ["cls", "last", "mean", "tokens", "flat"])
def test_cka_and_shape_that_count_padding(pool):
    student, teacher = padded(values(0, (2,), DS)[2], 10), padded(values(1, (4,), DT)[2], 11)
    x, y = (rows(list(side.hidden[layer].numpy()), pool) for side, layer in ((student, 2), (teacher, 4)))
    expected = {"cka": 1 - cka_of(x, y, hsic_unbiased), "shape": shape_of(x, y)}
    for name, value in expected.items():
        objective = METHODS[name](make_pair(), layers=[(2, 4)], pool=pool, mask_padding=False)
        # the teacher pools nothing where it is captured, because there it pools real tokens only
        assert objective.needs().teacher == Wanted(logits=True, hidden=[4], padding=True)
        assert run(objective, student, teacher)["sim"] == pytest.approx(value, rel=1e-6)


def test_alignment_weights_and_default_layers():
    objective = METHODS["cka"](make_pair(depths=(12, 24)), alpha=0.6, gamma=0)
    assert str(objective) == "L = 0.6·sim + 0.4·kd"
    assert objective.needs().student == Wanted(logits=True, hidden=[6])
    assert objective.needs().teacher == Wanted(logits=True, mean=[12])  # pooled where it is captured
    tokens = METHODS["cka"](make_pair(depths=(12, 24)), pool="tokens").needs()
    assert tokens.teacher == Wanted(logits=True, hidden=[12])
    assert str(METHODS["shape"](make_pair(), alpha=1, gamma=0)) == "L = 1·sim"
    assert str(METHODS["shape"](make_pair(), alpha=0, gamma=0)) == "L = 1·kd"


def cosines(x):
    norms = np.linalg.norm(x, axis=1)
    return np.array([[x[i] @ x[j] / (norms[i] * norms[j]) for j in range(len(x))] for i in range(len(x))])


def layernormed(x):
    z = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    return z @ z.T


def softmaxed(x):
    z = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    return z @ z.T


NORMS = {"l2": cosines, "layernorm": layernormed, "softmax": softmaxed, "none": lambda x: x @ x.T}


def compare(a, b, loss, diagonal=True, standardise=False):
    keep = [(i, j) for i, j in itertools.product(range(len(a)), repeat=2) if diagonal or i != j]
    a, b = np.array([a[i, j] for i, j in keep]), np.array([b[i, j] for i, j in keep])
    if standardise:  # eq. 13: mean 0, sum of squares m - 1
        if len(a) < 2 or a.std() < 1e-12 or b.std() < 1e-12:
            return 0.0
        a, b = ((v - v.mean()) / v.std(ddof=1) for v in (a, b))
    if loss == "mse":
        return ((a - b) ** 2).mean()
    if loss == "kl":
        p, q = (np.exp(v / 10) / np.exp(v / 10).sum() for v in (b, a))
        return 100 * (p * np.log(p / q)).sum()
    if a.std() < 1e-12 or b.std() < 1e-12:
        return 0.0
    return 1 - np.corrcoef(a, b)[0, 1]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["pearson", "mse", "kl"])
@pytest.mark.parametrize("diagonal", [True, False])
def test_fcd(norm, loss, diagonal):
    pairs = [(1, 2), (2, 4)]  # uniform, 2 from 4
    s, _, student = values(2, (1, 2), DS, left=True, extra=2)
    t, _, teacher = values(3, (2, 4), DT, left=True, extra=2)
    tokens, samples = [], []

    def one(x, y):
        return compare(NORMS[norm](x), NORMS[norm](y), loss, diagonal, standardise=norm == "layernorm")

    for a, b in pairs:
        tokens.append(np.mean([one(x, y) for x, y in zip(s[a], t[b], strict=True)]))
        at = []
        for j in range(L):
            here = [i for i, n in enumerate(LENGTHS) if n > j]
            if len(here) >= 2:
                x, y = np.stack([s[a][i][j] for i in here]), np.stack([t[b][i][j] for i in here])
                at.append(one(x, y))
        samples.append(np.mean(at))
    settings = {"norm": norm, "relation_loss": loss, "include_diagonal": diagonal}
    out = run(METHODS["fcd"](make_pair(), **settings), student, teacher)
    assert out["tokens"] == pytest.approx(np.mean(tokens), rel=1e-6, abs=1e-9)
    assert out["samples"] == pytest.approx(np.mean(samples), rel=1e-6, abs=1e-9)
    out = run(METHODS["fcd"](make_pair(), reduction="sum", **settings), student, teacher)
    assert out["tokens"] == pytest.approx(np.sum(tokens), rel=1e-6, abs=1e-9)


def test_fcd_without_a_mask_is_the_papers_listing():
    """L2-normalise the padded tensors, take all relations, correlate all entries."""
    torch.manual_seed(0)
    s, t = torch.randn(B, L, DS, dtype=torch.float64), torch.randn(B, L, DT, dtype=torch.float64)
    mask = torch.tensor([[j < n for j in range(L)] for n in LENGTHS])
    student, teacher = (Features(mask, torch.zeros(B, 2), {1: x}) for x in (s, t))
    objective = METHODS["fcd"](make_pair(depths=(1, 1)), mask_padding=False)
    out = run(objective, student, teacher)
    x, y = (z / z.norm(dim=-1, keepdim=True) for z in (s, t))

    def listing(a, b):
        return np.mean([1 - np.corrcoef(p.ravel(), q.ravel())[0, 1] for p, q in zip(a.numpy(), b.numpy(), strict=True)])

    assert out["tokens"] == pytest.approx(listing(x @ x.mT, y @ y.mT), rel=1e-6)
    x, y = x.transpose(0, 1), y.transpose(0, 1)
    assert out["samples"] == pytest.approx(listing(x @ x.mT, y @ y.mT), rel=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("pool", ["cls", "last", "mean"])
def test_ics(k, pool):
    s, _, student = values(4, (2,), DT, left=True, extra=1)
    t, _, teacher = values(5, (4,), DT, left=True, extra=1)
    x, y = rows(s[2], pool), rows(t[4], pool)
    total = 0.0
    for i in range(B):
        same = [j for j in range(B) if LABELS[j] == LABELS[i]]
        nearest = sorted(same, key=lambda j: np.linalg.norm(x[i] - y[j]))[:k]
        total += sum(((x[i] - y[j]) ** 2).mean() for j in nearest)
    pair = make_pair(DT, DT)
    assert run(METHODS["ics"](pair, k=k, pool=pool), student, teacher)["hidden"] == pytest.approx(total, rel=1e-6)
    mean = run(METHODS["ics"](pair, k=k, pool=pool, reduction="mean"), student, teacher)["hidden"]
    assert mean == pytest.approx(total / B, rel=1e-6)


@pytest.mark.parametrize("pool", ["cls", "mean", "flat"])
def test_ics_that_matches_each_sample_with_its_own_teacher_vector(pool):
    s, _, student = values(4, (2,), DT, left=True, extra=1)
    t, _, teacher = values(5, (4,), DT, left=True, extra=1)
    x, y = rows(s[2], pool), rows(t[4], pool)
    sizes = [n * DT if pool == "flat" else DT for n in LENGTHS]  # however far the batch is padded
    total = sum(((a - b) ** 2).sum() / size for a, b, size in zip(x, y, sizes, strict=True))
    objective = METHODS["ics"](make_pair(DT, DT), match="own", pool=pool)
    assert run(objective, student, teacher)["hidden"] == pytest.approx(total, rel=1e-6)
    assert not objective.terms["hidden"].relational and METHODS["ics"](make_pair(DT, DT)).terms["hidden"].relational
    with pytest.raises(RecipeError, match="k must be 1; seen: 2"):
        METHODS["ics"](make_pair(DT, DT), match="own", k=2)


def test_ics_regression_bins_and_label_sets():
    s, _, student = values(4, (2,), DT, labels=1)
    t, _, teacher = values(5, (4,), DT, labels=1)
    x, y = rows(s[2], "cls"), rows(t[4], "cls")

    def expected(classes):
        best = [min(((x[i] - y[j]) ** 2).mean() for j in range(B) if classes[j] == classes[i]) for i in range(B)]
        return sum(best)

    scores = [0.4, 4.6, 0.2, 5.0, 2.4]
    pair = make_pair(DT, DT, problem="regression", labels=1)
    out = run(METHODS["ics"](pair), student, teacher, scores)
    assert out["hidden"] == pytest.approx(expected([0, 5, 0, 5, 2]), rel=1e-6)
    out = run(METHODS["ics"](pair, bin_width=2.5), student, teacher, scores)
    assert out["hidden"] == pytest.approx(expected([0, 2, 0, 2, 1]), rel=1e-6)
    pair = make_pair(DT, DT, problem="multi_label", labels=2)
    sets = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    _, _, student = values(4, (2,), DT)
    _, _, teacher = values(5, (4,), DT)
    out = run(METHODS["ics"](pair), student, teacher, sets)
    assert out["hidden"] == pytest.approx(expected(["a", "b", "a", "ab", "b"]), rel=1e-6)


def test_ics_widths():
    with pytest.raises(ModelError, match=r"method\.projector=true"):
        METHODS["ics"](make_pair(DS, DT))
    _, _, student = values(4, (2,), DS)
    _, _, teacher = values(5, (4,), DT)
    half = Features(student.mask, student.logits.float(), {2: student.hidden[2].float()})
    objective = METHODS["ics"](make_pair(DS, DT), projector=True)
    assert math.isfinite(run(objective, half, teacher)["hidden"])
    assert [tuple(p.shape) for p in objective.parameters()] == [(DT, DS)]


def prepared(objective, teacher_features, folder=None):
    """Run the memory stage on a teacher that answers with these features."""
    batch = {"attention_mask": teacher_features.mask.long(), "input_ids": teacher_features.mask.long()}
    torch.manual_seed(0)
    objective.prepare(lambda batch, wanted: teacher_features, [batch], folder)
    return objective


@pytest.mark.parametrize("left", [False, True])
def test_fsd(left):
    s, _, student = values(6, (1,), DS, left=left, extra=2)
    t, _, teacher = values(7, (3,), DT, left=left, extra=2)
    objective = prepared(METHODS["fsd"](make_pair(), memory=3, gamma_m=0.3), teacher)
    out = run(objective, student, teacher)
    intra = [-math.log(abs(cka_of(x, y, hsic_biased))) for x, y in zip(s[1], t[3], strict=True)]
    assert out["intra"] == pytest.approx(np.mean(intra), rel=1e-5)
    x, y = flat(s[1]), flat(t[3])
    assert out["local"] == pytest.approx(-math.log(abs(cka_of(x, y, hsic_biased))), rel=1e-5)

    term = objective.terms["memory"]
    ms, mt = (m.detach().double().flatten(1).numpy() for m in (term.student_memory, term.teacher_memory))
    assert ms.shape == (3, L * DS) and mt.shape == (3, L * DT)

    def euclid(a, b):
        return math.sqrt(((a - b) ** 2).sum())

    def cosine(a, b):
        return (a @ b) / (math.sqrt((a**2).sum()) * math.sqrt((b**2).sum()))

    cells = list(itertools.product(range(B), range(3)))
    f_e = np.mean([(euclid(y[i], mt[j]) - euclid(x[i], ms[j])) ** 2 for i, j in cells])
    f_c = np.mean([(cosine(y[i], mt[j]) - cosine(x[i], ms[j])) ** 2 for i, j in cells])
    f_mm = -math.log(abs(cka_of(ms, mt, hsic_biased)))
    assert out["memory"] == pytest.approx(0.3 * f_e + 0.7 * f_c + f_mm, rel=1e-4)
    assert str(objective) == "L = 0.5·task + 0.5·kd + 1·intra + 1·local + 0.0001·memory"


def test_fsd_unbiased_and_penultimate_layer():
    s, _, student = values(6, (5,), DS)
    t, _, teacher = values(7, (11,), DT)
    objective = METHODS["fsd_il"](make_pair(depths=(6, 12)), estimator="unbiased")
    out = run(objective, student, teacher)
    assert out["local"] == pytest.approx(-math.log(abs(cka_of(flat(s[5]), flat(t[11]), hsic_unbiased))), rel=1e-5)


def test_fsd_of_the_last_layer():
    s, _, student = values(6, (6,), DS)
    t, _, teacher = values(7, (12,), DT)
    objective = METHODS["fsd_il"](make_pair(depths=(6, 12)), layer="last")
    assert (objective.needs().student.hidden, objective.needs().teacher.hidden) == ({6}, {12})
    out = run(objective, student, teacher)
    assert out["local"] == pytest.approx(-math.log(abs(cka_of(flat(s[6]), flat(t[12]), hsic_biased))), rel=1e-5)


def test_fsd_weights_the_structures_as_the_paper_does():
    """Take 1 for FSD and FSD (w/o G), and one of 3, 4, 5 and 6 for single structures."""
    pair = make_pair()
    assert [METHODS[name](pair).weights["intra"] for name in ("fsd", "fsd_il", "fsd_i")] == [1, 1, 4]


def test_fsd_ablations_have_their_terms_and_options():
    pair = make_pair()
    terms = {
        "fsd_i": {"task", "kd", "intra"},
        "fsd_l": {"task", "kd", "local"},
        "fsd_g": {"task", "kd", "memory"},
        "fsd_il": {"task", "kd", "intra", "local"},
    }
    for name, expected in terms.items():
        assert set(METHODS[name](pair).weights) == expected
    with pytest.raises(TypeError):
        METHODS["fsd_i"](pair, gamma_l=1.0)


def test_fsd_memory_is_a_real_k_means(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, L * DT)) * 10
    data = centres[rng.integers(0, 4, 200)] + rng.normal(size=(200, L * DT))
    mask = torch.ones(200, L, dtype=torch.bool)
    teacher = Features(mask, None, {3: torch.from_numpy(data).float().view(200, L, DT)})
    objective = prepared(METHODS["fsd_g"](make_pair(), memory=4), teacher)
    memory = objective.terms["memory"].teacher_memory.flatten(1).double().numpy()

    def inertia(points):
        return ((data[:, None] - points) ** 2).sum(-1).min(1).sum()

    best = KMeans(4, n_init=5, random_state=0).fit(data).inertia_
    assert inertia(memory) <= 1.05 * best
    assert inertia(memory) < inertia(data[:4])


def test_fsd_memory_starts_at_random_samples():
    _, _, teacher = values(7, (3,), DT)
    every = prepared(METHODS["fsd_g"](make_pair(), memory=B, memory_start="random"), teacher)
    found = every.terms["memory"].teacher_memory.flatten(1).numpy()
    samples = flat([row[m] for row, m in zip(teacher.hidden[3].numpy(), teacher.mask.numpy(), strict=True)])
    assert np.array(sorted(found.tolist())) == pytest.approx(np.array(sorted(samples.tolist())), abs=1e-5)


def test_fsd_memory_stage_continues_where_it_stopped(tmp_path):
    _, _, teacher = values(7, (3,), DT)
    whole = prepared(METHODS["fsd_g"](make_pair(), memory=2, passes=3), teacher)
    prepared(METHODS["fsd_g"](make_pair(), memory=2, passes=1), teacher, tmp_path)  # as if killed after one pass
    assert (tmp_path / "memory.safetensors").is_file()
    resumed = prepared(METHODS["fsd_g"](make_pair(), memory=2, passes=3), teacher, tmp_path)
    torch.testing.assert_close(resumed.terms["memory"].teacher_memory, whole.terms["memory"].teacher_memory)

    def teacher_must_rest(batch, wanted):
        raise AssertionError("everything was cached")

    again = METHODS["fsd_g"](make_pair(), memory=2, passes=3)
    again.prepare(teacher_must_rest, [{"attention_mask": teacher.mask.long()}], tmp_path)


def test_fsd_memory_round_trips_through_a_state_dict():
    _, _, teacher = values(7, (3,), DT)
    first = prepared(METHODS["fsd"](make_pair(), memory=3), teacher)
    second = METHODS["fsd"](make_pair(), memory=3)
    second.load_state_dict(first.state_dict())
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert [name for name, p in second.named_parameters() if p.requires_grad] == ["terms.memory.student_memory"]


def test_fsd_without_its_memory_stage_says_so():
    _, _, student = values(6, (1,), DS)
    _, _, teacher = values(7, (3,), DT)
    with pytest.raises(ModelError, match="prepare"):
        run(METHODS["fsd"](make_pair()), student, teacher)


def test_a_sample_on_its_centroid_has_a_finite_gradient():
    tokens = torch.zeros(1, 2, 3, requires_grad=True)
    distance, cosine = to_centroids(tokens, torch.zeros(1, 2, 3))
    (distance.sum() + cosine.sum()).backward()
    assert tokens.grad.isfinite().all()


@pytest.mark.parametrize("name", ["cka", "shape", "fcd"])
def test_layers_that_do_not_exist(name):
    with pytest.raises(RecipeError, match="out of range"):
        METHODS[name](make_pair(), layers=[(3, 4)])


@pytest.mark.parametrize("name", ["cka", "shape", "fsd", "fcd", "ics"])
def test_methods_that_need_a_teacher_say_so(name):
    with pytest.raises(ModelError, match="needs a teacher"):
        METHODS[name](Pair(ModelShape("bert", 2, 8, 1), None, "classification", 2))


@pytest.mark.parametrize("name", ["fsd_l", "cka"])
def test_a_cka_of_zero_is_no_missing_cka(name):
    """Compare samples that two models order independently: CKA exists and is 0, and the loss is not at its minimum."""
    signs = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1]])
    sides = [side[:, None, None].requires_grad_() for side in signs]  # B=4, L=1, D=1
    mask = torch.ones(4, 1, dtype=torch.bool)
    shape = ModelShape("bert", 2, 1, 1)
    options = {"estimator": "biased", "layers": [(1, 1)]} if name == "cka" else {}
    objective = METHODS[name](Pair(shape, shape, "classification", 2), **options)
    features = [Features(mask, hidden={1: side}) for side in sides]
    term = objective.terms["sim" if name == "cka" else "local"]
    value = term(*features, {})
    expected = 1.0 if name == "cka" else -math.log(torch.finfo(torch.float32).tiny)
    assert value.item() == pytest.approx(expected, rel=1e-6)
    assert torch.autograd.grad(value, sides[0])[0].isfinite().all()
    # a constant side, of which there is no CKA, is at 0
    constant = Features(mask, hidden={1: torch.ones(4, 1, 1, requires_grad=True)})
    missing = term(constant, features[1], {})
    assert missing == 0 and not torch.autograd.grad(missing, constant.hidden[1])[0].any()

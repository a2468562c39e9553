from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from limbeck.similarity import kmeans

from . import reference

module = sys.modules["limbeck.similarity.kmeans"]  # the package shows the function of this name


def blobs(n=2000, d=8, k=12, spread=0.3, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-5, 5, (k, d))
    return torch.tensor(centres[rng.integers(0, k, n)] + spread * rng.standard_normal((n, d))).float()


def lloyd_step(rows, centroids):
    """Compute labels, means and inertia about the means, in loops."""
    rows, centroids = rows.double().numpy(), centroids.double().numpy()
    labels = [int(np.argmin([((row - c) ** 2).sum() for c in centroids])) for row in rows]
    means = np.array(
        [rows[[i for i, lab in enumerate(labels) if lab == c]].mean(0) if c in labels else centroids[c]
         for c in range(len(centroids))]
    )  # fmt: skip
    return labels, means, sum(float(((row - means[lab]) ** 2).sum()) for row, lab in zip(rows, labels, strict=True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31), st.sampled_from(reference.KINDS), st.integers(1, 40), st.integers(1, 5),
    st.integers(1, 6), st.sampled_from([1e-6, 1.0, 1e6]), st.integers(1, 9),
)  # fmt: skip
def test_converges_to_true_means(seed, kind, n, d, k, scale, batch):
    rows = torch.tensor(reference.features(seed, kind, n, d, scale))
    k = min(k, n)
    result = kmeans(rows.split(batch), k, seed=seed, passes=100)
    assert result.converged
    assert result.centroids.shape == (k, d)
    labels, means, inertia = lloyd_step(rows, result.centroids)
    size = rows.abs().max().item()
    np.testing.assert_allclose(result.centroids.double(), means, atol=2e-6 * size, rtol=0)
    assert result.inertia == pytest.approx(inertia, rel=1e-4, abs=1e-9 * size**2)
    assert len(set(labels)) >= min(k, len({tuple(r) for r in rows.tolist()}))  # no empty cluster


def test_one_pass_is_one_lloyd_step(monkeypatch):
    rows = blobs(300)
    start = rows[:12].clone()
    offset = rows.mean(0)
    monkeypatch.setattr(module, "_plus_plus", lambda drawn, k, generator: start - offset)
    result = kmeans(rows.split(32), 12, seed=0, passes=1, sample=300)
    _, means, inertia = lloyd_step(rows, start)
    np.testing.assert_allclose(result.centroids, means, atol=1e-5)
    assert result.inertia == pytest.approx(inertia, rel=1e-5)
    assert (result.passes, result.converged) == (1, False)


def test_empty_clusters_are_reseeded(monkeypatch):
    rows = blobs(400, k=6, spread=0.05)
    monkeypatch.setattr(module, "_plus_plus", lambda drawn, k, generator: torch.zeros(k, drawn.shape[1]))
    result = kmeans(rows.split(50), 6, seed=0, passes=50)
    labels, _, inertia = lloyd_step(rows, result.centroids)
    assert set(labels) == set(range(6))
    assert result.converged
    assert inertia < 0.5 * (rows - rows.mean(0)).square().sum()
    one = kmeans(rows.split(50), 6, seed=0, passes=1)
    assert len(one.centroids.unique(dim=0)) == 6
    # The partition after re-seeding: five single rows, and the mean of the others
    singles = [(rows - c).abs().sum(1).min() < 1e-5 for c in one.centroids[1:]]
    assert all(singles)
    rest = torch.stack([(rows - c).abs().sum(1) > 1e-5 for c in one.centroids[1:]]).all(0)
    torch.testing.assert_close(one.centroids[0], rows[rest].mean(0), atol=1e-5, rtol=0)
    assert one.inertia == pytest.approx((rows[rest] - rows[rest].mean(0)).square().sum().item(), rel=1e-5)


def test_finds_clusters_as_well_as_scikit_learn():
    rows = blobs(3000, 16, 20)
    best = KMeans(20, n_init=20, random_state=0).fit(rows.numpy()).inertia_
    found = [kmeans(rows.split(64), 20, seed=s).inertia for s in range(5)]
    assert min(found) <= 1.001 * best
    assert np.median(found) <= 1.3 * best


def test_a_random_start_is_rows_of_the_data():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    starts = [module._random_rows(x, 5, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert not torch.equal(*starts)
    for start in starts:
        assert all((x == row).all(1).sum() == 1 for row in start) and len(start.unique(dim=0)) == 5
    lloyd = kmeans([x], 5, seed=0, passes=50, init="random")
    nearest = torch.cdist(x, lloyd.centroids).argmin(1)
    assert lloyd.converged
    torch.testing.assert_close(lloyd.centroids, torch.stack([x[nearest == c].mean(0) for c in range(5)]))
    with pytest.raises(ValueError, match="Unknown init 'zeros'"):
        kmeans([x], 5, seed=0, init="zeros")


def test_same_seed_same_result_and_batches_do_not_matter():
    rows = blobs(500)
    a, b = kmeans(rows.split(37), 12, seed=3), kmeans(list(rows.split(37)), 12, seed=3)
    assert torch.equal(a.centroids, b.centroids)
    assert a[1:] == b[1:]
    before = torch.random.get_rng_state()
    other = kmeans(lambda: iter(rows.split(100)), 12, seed=4, passes=50)
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is left alone
    assert other.inertia == pytest.approx(kmeans([rows], 12, seed=5, passes=50).inertia, rel=0.5)


def test_a_common_offset_does_not_matter():
    rows = blobs(600, spread=0.05)
    plain, moved = kmeans(rows.split(64), 12, seed=0), kmeans((rows + 1000).split(64), 12, seed=0)
    torch.testing.assert_close(moved.centroids - 1000, plain.centroids, atol=1e-3, rtol=0)


def test_memory_is_bounded():
    """Check that only a batch, the sample and the centroids are alive, however many rows pass."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def batches():
        nonlocal most
        for i in range(200):
            batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(i))
            alive.append(weakref.ref(batch))
            most = max(most, sum(r() is not None for r in alive))
            yield batch

    gc.collect()
    result = kmeans(batches, 3, seed=0, passes=3, sample=32)
    assert result.centroids.shape == (3, 4)
    assert most <= 3


def test_half_precision_autocast_and_float64():
    rows = blobs(300).bfloat16()
    plain = kmeans(rows.float().split(50), 5, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        half = kmeans(rows.split(50), 5, seed=0)
    assert half.centroids.dtype == torch.float32
    assert torch.equal(half.centroids, plain.centroids)
    assert kmeans(rows.double().split(50), 5, seed=0).centroids.dtype == torch.float64


def test_bad_arguments():
    rows = blobs(10)
    with pytest.raises(ValueError, match="iterator can be read only once"):
        kmeans(iter([rows]), 2, seed=0)
    with pytest.raises(ValueError, match="11 clusters need at least 11 rows; the batches hold 10"):
        kmeans([rows], 11, seed=0)
    with pytest.raises(ValueError, match="no rows"):
        kmeans([], 2, seed=0)
    with pytest.raises(ValueError, match="got k=0"):
        kmeans([rows], 0, seed=0)
    with pytest.raises(ValueError, match=r"\(b, d\)"):
        kmeans([rows[None]], 2, seed=0)
    assert kmeans([rows, rows[:0]], 2, seed=0).centroids.shape == (2, 8)


def test_one_pass_after_another_equals_several_at_once():
    data = [torch.randn(50, 3, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    whole = kmeans(data, 4, seed=0, passes=3)
    centroids = None
    for _ in range(3):
        result = kmeans(data, 4, seed=0, passes=1, start=centroids)
        centroids = result.centroids
    torch.testing.assert_close(centroids, whole.centroids)
    with pytest.raises(ValueError, match="start must be 4 centroids"):
        kmeans(data, 4, seed=0, start=torch.zeros(3, 3))

"""Run k-means over features that arrive in batches and never fit in memory together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ._moments import check_choice, result_dtype, working_dtype

STARTS = ("k-means++", "random")
Batches = Iterable[Tensor] | Callable[[], Iterable[Tensor]]


class KMeans(NamedTuple):
    """Hold the result of `kmeans`.

    ``centroids`` (k, d) are the means of the last partition, ``inertia`` its sum of squared distances to them,
    ``passes`` how often the data were assigned (one more pass drew the start), ``converged`` whether the last one moved
    nothing.
    """

    centroids: Tensor
    inertia: float
    passes: int
    converged: bool


@torch.no_grad()
def kmeans(
    batches: Batches,
    k: int,
    *,
    seed: int,
    passes: int = 10,
    sample: int | None = None,
    start: Tensor | None = None,
    init: str = "k-means++",
) -> KMeans:
    """Minimise ``sum_x min_c |x - m_c|^2`` by Lloyd's algorithm, every m_c the mean of the rows nearest to it.

    The first pass over the data draws a uniform sample, on which k-means++ chooses the start (the best of a
    few candidates by inertia each time). Every further pass assigns all rows and takes their true means,
    until nothing moves or ``passes`` is reached. A cluster that is left without rows is re-seeded with a row
    that is far from its centroid.

    Everything runs on the device of the features, in float32 (sums in float64; float64 throughout for float64
    features). Memory is O((k + sample + batch) d), whatever the number of rows. The same batches and seed
    give the same result.

    Args:
        batches: (b, d) tensors, any b: an iterable that can be iterated again (a list, a DataLoader), or a
            function without arguments that returns a new iterator each time.
        seed: of the sample, the start and the re-seeding.
        sample: rows drawn for the start, at least k; by default 4 k, but no fewer than 256.
        start: (k, d) centroids to go on from instead, such as those of an earlier call.
        init: how the start is chosen from the sample: ``k-means++``, or ``random`` rows.
    """
    check_choice("init", init, STARTS)
    if k < 1 or passes < 1:
        raise ValueError(f"k and passes must be at least 1; got k={k}, passes={passes}.")
    if isinstance(batches, Iterator):
        raise ValueError(
            "kmeans reads the data several times, but an iterator can be read only once: "
            "pass a list, a DataLoader, or a function that returns a new iterator."
        )
    generator = torch.Generator().manual_seed(seed)
    if start is None:
        rows = max(k, sample if sample is not None else max(4 * k, 256))
        drawn, offset = _reservoir(batches, rows, generator)
        if len(drawn) < k:
            raise ValueError(f"{k} clusters need at least {k} rows; the batches hold {len(drawn)}.")
        centroids = (_plus_plus if init == "k-means++" else _random_rows)(drawn, k, generator)
        del drawn
    else:
        if start.dim() != 2 or len(start) != k:
            raise ValueError(f"start must be {k} centroids as (k, d); got {tuple(start.shape)}.")
        offset = start.mean(0)
        centroids = start - offset
    used, converged = 0, False
    while used < passes and not converged:
        before = centroids
        centroids, inertia = _assign_and_average(batches, before, offset, generator)
        used, converged = used + 1, torch.equal(centroids, before)
    return KMeans(centroids + offset, inertia, used, converged)


def _read(batches: Batches) -> Iterator[Tensor]:
    """Yield the rows as (b, d) of one dtype; empty batches are skipped."""
    for batch in batches() if callable(batches) else batches:
        if batch.dim() != 2:
            raise ValueError(f"Batches must be (b, d); got {tuple(batch.shape)}. Flatten or pool the features first.")
        if len(batch):
            yield batch.to(result_dtype(batch))


def _reservoir(batches: Batches, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a uniform sample of the rows less its mean, and that mean: a common offset then costs no digits."""
    kept: Tensor | None = None
    seen = filled = 0
    for batch in _read(batches):
        if kept is None:
            kept = batch.new_empty(size, batch.shape[1])
        # Row number r replaces a random one of the sample with probability size / (r + 1).
        draws = torch.rand(len(batch), generator=generator, dtype=torch.float64)
        for i, draw in enumerate(draws.tolist()):
            slot = filled if filled < size else int(draw * (seen + 1))
            if slot < size:
                kept[slot] = batch[i]
                filled = min(filled + 1, size)
            seen += 1
    if kept is None:
        raise ValueError("kmeans got no rows: the batches are empty.")
    kept = kept[:filled]
    offset = kept.mean(0)
    return kept - offset, offset


def _plus_plus(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Choose the start by k-means++: the next centre is drawn by its squared distance from those chosen."""
    trials = 2 + int(math.log(k))
    first = int(torch.randint(len(rows), (1,), generator=generator))
    chosen = [first]
    nearest = _squared_distances(rows, rows[first : first + 1])[:, 0]
    for _ in range(1, k):
        cumulative = nearest.cpu().double().cumsum(0)
        draws = torch.rand(trials, generator=generator, dtype=torch.float64) * cumulative[-1]
        candidates = torch.searchsorted(cumulative, draws, right=True).clamp(max=len(rows) - 1).to(rows.device)
        updated = torch.minimum(nearest[:, None], _squared_distances(rows, rows[candidates]))
        best = int(updated.sum(0).argmin())
        chosen.append(int(candidates[best]))
        nearest = updated[:, best]
    return rows[chosen].clone()


def _random_rows(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)[:k].to(rows.device)].clone()


def _squared_distances(rows: Tensor, centres: Tensor) -> Tensor:
    with torch.autocast(device_type=rows.device.type, enabled=False):
        products = rows @ centres.mT
    return (rows.square().sum(1, keepdim=True) + centres.square().sum(1) - 2 * products).clamp(min=0)


def _assign_and_average(
    batches: Batches, centroids: Tensor, offset: Tensor, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Read the data once: return the means of the rows nearest to each centroid, and the inertia about them."""
    wide = working_dtype(centroids, small=True)
    sums = torch.zeros_like(centroids, dtype=wide)
    counts = sums.new_zeros(len(centroids))
    inertia = sums.new_zeros(())
    spare = _Spare(len(centroids), generator)
    for batch in _read(batches):
        x = batch - offset
        labels = _squared_distances(x, centroids).argmin(1)
        gaps = (x - centroids[labels]).square().sum(1)  # from differences: exact where rows lie on their centroid
        member = torch.nn.functional.one_hot(labels, len(centroids)).to(wide)
        sums += member.mT @ x.to(wide)  # unlike index_add_, gives the same sums every time on a GPU
        counts += member.sum(0)
        inertia += gaps.to(wide).sum()
        spare.offer(x, gaps, labels)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    inertia -= spare.reseed(empty, sums, counts)
    means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centroids)
    # sum |x - m|^2 = sum |x - c|^2 - n |m - c|^2, so the inertia about the new means needs no further pass.
    moved = (means - centroids).square().sum(1) * counts
    moved[empty] = 0
    return means.to(centroids.dtype), max(float(inertia - moved.sum()), 0.0)


class _Spare:
    """Collect rows to re-seed empty clusters with, at most one for each cluster.

    They are drawn from a pass with probability proportional to their squared distance from their centroid (weighted
    reservoir sampling). The farthest rows outright would all come from one far group.
    """

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self.size, self.generator = size, generator
        self.kept: tuple[Tensor, ...] = ()  # keys, rows, gaps, labels; the highest key first

    def offer(self, x: Tensor, gaps: Tensor, labels: Tensor) -> None:
        draws = torch.rand(len(x), generator=self.generator, dtype=torch.float64).log().to(gaps)
        keys = torch.where(gaps > 0, draws / gaps, -torch.inf)
        better = keys > (self.kept[0][-1] if self.kept and len(self.kept[0]) == self.size else -torch.inf)
        offered = (keys[better], x[better], gaps[better], labels[better])
        merged = tuple(torch.cat(pair) for pair in zip(self.kept, offered, strict=True)) if self.kept else offered
        order = merged[0].sort(descending=True, stable=True).indices[: self.size]
        self.kept = tuple(part[order] for part in merged)

    def reseed(self, empty: list[int], sums: Tensor, counts: Tensor) -> Tensor:
        """Move one row into each empty cluster, away from the rows moved before; return the inertia that this saves."""
        _, rows, gaps, labels = self.kept
        saved = sums.new_zeros(())
        distance = gaps.clone()
        for cluster in empty:
            distance = torch.where(counts[labels] > 1, distance, 0)  # the donor keeps a row
            if not distance.any():  # fewer distinct rows than clusters: the centroid stays where it is
                break
            best = int(distance.argmax())
            donor = int(labels[best])
            row = rows[best].to(sums.dtype)
            sums[donor] -= row
            counts[donor] -= 1
            sums[cluster], counts[cluster] = row, 1
            saved += gaps[best]
            distance = torch.minimum(distance, (rows - rows[best]).square().sum(1))
        return saved

"""Measure limbeck.similarity in time and memory against the usual formulations and installable peers.

Run: python benchmarks/similarity.py [--quick] [--check] [--json FILE]
Every line is forward and backward to the student, float32, on the CPU. On a busy machine use
--threads 1: threads that wait for each other make every number meaningless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from _table import Row, arguments, fastest, finish, peak_mb, peak_mb_here
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from limbeck import similarity


class Case(NamedTuple):
    name: str
    against: str
    inputs: Callable[[], tuple[Tensor, ...]]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor] | None
    faster: float | None = None  # at least this many times
    leaner: float | None = None  # at least this many times less memory
    below_mb: float | None = None
    repeats: int = 20


def pair(n: int, d: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=g, requires_grad=True), torch.randn(n, d, generator=g)


def tokens() -> tuple[Tensor, ...]:
    """Make B=32, L=128, D=768; lengths are from 1 to 128, so half of the tokens are padding."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.linspace(1, 128, 32).long()
    mask = torch.arange(128) < lengths[:, None]
    return torch.randn(32, 128, 768, generator=g, requires_grad=True), torch.randn(32, 128, 768, generator=g), mask


def shape_by_svd(x: Tensor, y: Tensor) -> Tensor:
    x, y = x - x.mean(0), y - y.mean(0)
    nuclear = torch.linalg.svd(x.T @ y).S.sum()
    return torch.arccos(nuclear / (x.norm() * y.norm()))


def cka_by_centring_matrices(x: Tensor, y: Tensor) -> Tensor:
    n = len(x)
    c = torch.eye(n) - 1 / n
    off = 1 - torch.eye(n)
    k, l = (c @ (a @ a.T) @ c * off for a in (x, y))  # noqa: E741

    def hsic(a: Tensor, b: Tensor) -> Tensor:
        products = (a * b).sum() - 2 / (n - 2) * (a.sum(0) @ b.sum(0))
        return products + a.sum() * b.sum() / ((n - 1) * (n - 2))

    return hsic(k, l) / (hsic(k, k) * hsic(l, l)).sqrt()


def angle_by_differences(x: Tensor, y: Tensor) -> Tensor:
    def angles(a: Tensor) -> Tensor:
        e = F.normalize(a[None] - a[:, None], dim=2)
        return torch.bmm(e, e.mT)

    return F.smooth_l1_loss(angles(x), angles(y))


def fcd_on_padding(s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
    """Correlate all L x L and B x B cosines, padding included, as the listing of Huang et al. 2023 does."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        ra, rb = (r.bmm(r.mT).flatten(1) for r in (a, b))
        ra, rb = (r - r.mean(1, keepdim=True) for r in (ra, rb))
        return 1 - ((ra * rb).sum(1) / (ra.norm(dim=1) * rb.norm(dim=1) + 1e-8)).mean()

    s, t = F.normalize(s, dim=-1), F.normalize(t, dim=-1)
    return loss(s, t) + loss(s.transpose(0, 1), t.transpose(0, 1))


def fcd(s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
    return sum(similarity.relation_losses(s, t, mask))


CASES = [
    Case("Shape, n=64, d=1024", "SVD of the d x d product", lambda: pair(64, 1024),
         similarity.shape_distance, shape_by_svd, faster=50, repeats=12),
    Case("Shape, n=32, d=98304", "-", lambda: pair(32, 98304), similarity.shape_distance, None, below_mb=1000),
    Case("CKA unbiased, n=4096, d=256", "centring matrices", lambda: pair(4096, 256),
         similarity.cka, cka_by_centring_matrices, faster=20, repeats=2),
    Case("RKD angle, B=128, D=768", "differences (B, B, D), bmm", lambda: pair(128, 768),
         similarity.rkd_angle, angle_by_differences, faster=10, leaner=3, repeats=10),
    Case("FCD token + sample, B=32, L=128, D=768, half padding", "the paper's listing", tokens,
         fcd, fcd_on_padding, faster=1, leaner=1, repeats=30),
]  # fmt: skip


def step(loss: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    def run() -> None:
        inputs[0].grad = None
        loss(*inputs).backward()

    return run


def measure(case: Case, quick: bool) -> Row:
    inputs = case.inputs()
    repeats = max(1, case.repeats // 3) if quick else case.repeats
    ours, theirs = fastest(step(case.ours, inputs), case.theirs and step(case.theirs, inputs), repeats)
    row = Row(case.name, case.against, ours, theirs)
    promises = []
    if case.leaner or case.below_mb:
        row.ours_mb = peak_mb(case.name, "ours")
        row.theirs_mb = peak_mb(case.name, "theirs") if case.theirs else None
    if case.faster and row.speedup:
        promises.append((f">= {case.faster:g}x" if case.faster > 1 else "not slower", row.speedup >= case.faster))
    if case.leaner and row.ours_mb is not None and row.theirs_mb is not None:
        text = f"{case.leaner:g}x less memory" if case.leaner > 1 else "not more memory"
        promises.append((text, row.theirs_mb >= case.leaner * row.ours_mb))
    if case.below_mb and row.ours_mb is not None:
        promises.append((f"< {case.below_mb:g} MB", row.ours_mb < case.below_mb))
    row.target, row.met = ", ".join(text for text, _ in promises), all(held for _, held in promises)
    return row


def memory(name: str, side: str) -> float:
    case = next(c for c in CASES if c.name == name)
    loss = case.ours if side == "ours" else case.theirs
    assert loss is not None
    inputs = case.inputs()
    small = [t[:4].detach().requires_grad_(t.requires_grad) for t in inputs]
    step(loss, tuple(small))()  # libraries load and threads start before the measurement
    return peak_mb_here(step(loss, inputs))


def versus_scipy(repeats: int) -> Row:
    x, y = pair(64, 1024)
    a, b = ((t - t.mean(0)).detach().double().numpy() for t in (x, y))
    theirs = np.arccos(scipy.linalg.orthogonal_procrustes(a, b)[1] / (np.linalg.norm(a) * np.linalg.norm(b)))
    ms = fastest(step(similarity.shape_distance, (x, y)), lambda: scipy.linalg.orthogonal_procrustes(a, b), repeats)
    off = abs(similarity.shape_distance(x, y).item() / theirs - 1)
    return Row(
        "Shape, n=64, d=1024", "scipy orthogonal_procrustes (value only)", *ms, note=f"value differs by {off:.0e}"
    )


def versus_ckatorch(repeats: int) -> Row:
    row = Row("CKA unbiased, n=1024, d=256, value only", "ckatorch cka_base, which has no gradient")
    try:
        from ckatorch.core import cka_base
    except ImportError:
        row.note = "not installed: pip install ckatorch"
        return row
    x, y = pair(1024, 256)
    x = x.detach()
    row.ours_ms, row.theirs_ms = fastest(lambda: similarity.cka(x, y), lambda: cka_base(x, y, unbiased=True), repeats)
    row.note = f"value differs by {abs(similarity.cka(x, y) - cka_base(x, y, unbiased=True)):.0e}"
    return row


def versus_torchdistill(repeats: int) -> Row:
    row = Row("RKD distance + angle, B=128, D=768", "torchdistill RKDLoss")
    try:
        from torchdistill.losses.mid_level import RKDLoss
    except ImportError:
        row.note = "not installed: pip install torchdistill"
        return row
    peer = RKDLoss("s", "t", dist_factor=1.0, angle_factor=1.0, reduction="mean")

    def theirs(x: Tensor, y: Tensor) -> Tensor:
        return peer.compute_rkd_distance_loss(y, x) + peer.compute_rkd_angle_loss(y, x)

    def ours(x: Tensor, y: Tensor) -> Tensor:
        return similarity.rkd_distance(x, y) + similarity.rkd_angle(x, y)

    inputs = pair(128, 768)
    row.ours_ms, row.theirs_ms = fastest(step(ours, inputs), step(theirs, inputs), repeats)
    row.note = f"value differs by {abs(ours(*inputs) / theirs(*inputs) - 1):.0e}"
    return row


def versus_sklearn(repeats: int) -> Row:
    from sklearn.cluster import KMeans

    g = torch.Generator().manual_seed(0)
    rows = torch.randn(100, 64, generator=g)[torch.randint(100, (20_000,), generator=g)]
    rows = rows + 0.5 * torch.randn(20_000, 64, generator=g)
    batches, whole = rows.split(512), rows.numpy()
    found = similarity.kmeans(batches, 100, seed=0)
    peer = KMeans(100, n_init=1, max_iter=10, random_state=0)
    ms = fastest(lambda: similarity.kmeans(batches, 100, seed=0), lambda: peer.fit(whole), repeats)
    note = f"inertia {found.inertia / peer.inertia_:.3f} of theirs; ours streams, theirs holds all rows"
    return Row("k-means, N=20000, d=64, k=100, 10 passes", "scikit-learn KMeans, 1 start", *ms, note=note)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    if options.threads:
        torch.set_num_threads(options.threads)
        threadpool_limits(options.threads)  # of the peers' own BLAS
    if options.memory:
        print(memory(*options.memory))
        return
    rows = [measure(case, options.quick) for case in CASES]
    repeats = 3 if options.quick else 8
    rows += [peer(repeats) for peer in (versus_scipy, versus_ckatorch, versus_torchdistill, versus_sklearn)]
    finish("limbeck.similarity, forward + backward, fastest of interleaved runs", rows, options)


if __name__ == "__main__":
    main()

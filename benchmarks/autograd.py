"""Measure each hand-written gradient in time and memory against the same function under autograd.

Run: python benchmarks/autograd.py [--quick] [--check] [--json FILE]
Every line is forward and backward on the CPU with one thread, in float32 unless stated. Both sides take turns in one
run, and the fastest call of each counts, in processor time, so that other work on the machine matters little. A
hand-written gradient stays in the package where autograd takes 10% more time or memory at a usual size (the lines with
that target), or gives no number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from _table import Row, begin, finish, peak_mb, peak_mb_here
from torch import Tensor
from torch.nn import functional as F

from limbeck.models import pooling
from limbeck.similarity import _moments, attention, distances, relations, shape

B, L, D, HEADS = 32, 128, 768, 12  # a usual batch of BERT-base
GAIN = 1.1


class Case(NamedTuple):
    name: str
    against: str
    inputs: Callable[[], list[Tensor]]  # those that require a gradient get one
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    target: bool = True
    memory: bool = False
    correct: Callable[[], tuple[str, bool]] | None = None  # instead of a target of time: what is found, and if it is
    repeats: int = 30

    @property
    def key(self) -> str:
        return f"{self.name} | {self.against}"


def randn(*size: int, seed: int = 0, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=dtype).requires_grad_(grad)


def both(*size: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Make a student, which gets a gradient, and a teacher, which gets none."""
    return [randn(*size, dtype=dtype), randn(*size, seed=1, grad=False, dtype=dtype)]


def real_tokens(rows: int = B, length: int = L) -> Tensor:
    """Make a mask of lengths from 1 to ``length``: about half of the tokens are padding."""
    return torch.arange(length) < torch.linspace(1, length, rows).long()[:, None]


def real_pairs(rows: int = B, length: int = L) -> Tensor:
    mask = real_tokens(rows, length)
    return mask[:, :, None] & mask[:, None, :]


def heads() -> list[Tensor]:
    """Make queries as they are split into heads, which are not in one piece of memory."""
    split = randn(B, L, D, grad=False).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    return [split.requires_grad_(), real_tokens()[:, None, :, None]]


def positions() -> list[Tensor]:
    return [randn(B, L, D, grad=False).transpose(0, 1).requires_grad_()]


def grams(n: int) -> list[Tensor]:
    student, teacher = (x.detach() @ x.detach().mT for x in both(n, D, dtype=torch.float64))
    return [student.requires_grad_(), teacher]


def projections(length: int) -> list[Tensor]:
    return [*(randn(B, length, D, seed=seed, grad=seed < 2) for seed in range(4)), real_tokens(B, length)]


def where(x: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, x, 0)


def where_difference(a: Tensor, b: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, a - b, 0)


def squares(x: Tensor) -> Tensor:
    return x.square().sum(-1)


def squares_by_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).square()


def product(x: Tensor) -> Tensor:
    return x @ x.mT


def attention_by_hand(*inputs: Tensor, loss: str) -> Tensor:
    return attention.attention_loss(*inputs[:4], HEADS, inputs[4], loss=loss)


def attention_plain(*inputs: Tensor, loss: str) -> Tensor:
    *sides, mask = inputs
    q_s, k_s, q_t, k_t = (attention.split_heads(x, HEADS) * mask[:, None, :, None] for x in sides)
    s, t = (q @ k.mT * q.shape[-1] ** -0.5 for q, k in ((q_s, k_s), (q_t, k_t)))
    entries = mask[:, None, :, None] & mask[:, None, None, :]
    if loss == "mse":
        return torch.where(entries, s - t, 0).square().sum() / (HEADS * entries.sum())
    s, t = (x.masked_fill(~entries, torch.finfo(x.dtype).min).log_softmax(-1) for x in (s, t))
    queries = entries.any(-1).sum((1, 2)).clamp(min=1)
    divergence = F.kl_div(s, t, reduction="none", log_target=True).sum((1, 2, 3))
    return (divergence / (HEADS * queries * len(s))).sum()


def shape_by_svd(x: Tensor, y: Tensor) -> Tensor:
    x, y = x - x.mean(0), y - y.mean(0)
    cosine = torch.linalg.svdvals(x.mT @ y).sum() / (x.square().sum() * y.square().sum()).sqrt()
    return torch.arccos(cosine.clamp(max=1 - 1e-6))


def shape_by_roots(x: Tensor, y: Tensor) -> Tensor:
    """Compute the distance from roots of the n x n Gram matrices, in float64, through their eigenvectors."""
    x, y = x.double() - x.double().mean(0), y.double() - y.double().mean(0)

    def root(k: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(k)
        return vectors * values.clamp(min=1e-12).sqrt() @ vectors.mT

    product = root(x @ x.mT) @ root(y @ y.mT)
    nuclear = root(product @ product.mT).trace()
    return torch.arccos((nuclear / (x.square().sum() * y.square().sum()).sqrt()).clamp(max=1 - 1e-12)).float()


def slope(distance: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Compute a gradient that can be differentiated again, as a student's step is when its teacher learns."""
    return torch.autograd.grad(distance(x, y), x, create_graph=True)[0]


def second_derivative_of_orthogonal_samples() -> tuple[str, bool]:
    """Tell how far the second derivatives of both forms are off where singular values repeat."""
    x, (y, step) = torch.eye(8, 20, dtype=torch.float64), (t.detach() for t in both(8, 20, dtype=torch.float64))

    def value(distance: float) -> float:
        return shape.shape_distance(x + distance * step, y).item()

    exact = (value(1e-3) - 2 * value(0) + value(-1e-3)) / 1e-6
    off = []
    for function in (shape.shape_distance, shape_by_roots):
        z = x.clone().requires_grad_()
        again = torch.autograd.grad((slope(function, z, y) * step).sum(), z)[0]
        off.append(abs((again * step).sum().item() / exact - 1))
    return f"orthogonal samples: off by {off[0]:.0e}, autograd {off[1]:.0e}", off[0] < 1e-3 and not off[1] < 1e-3


def moved_by_index(hidden: Tensor, mask: Tensor) -> Tensor:
    first = mask.byte().argmax(1, keepdim=True)
    source = (first + torch.arange(mask.shape[1])) % mask.shape[1]
    rows = source + mask.shape[1] * torch.arange(len(mask))[:, None]
    return hidden.flatten(0, 1).index_select(0, rows.flatten()).view_as(hidden)


CASES = [
    Case("zero_masked, 32 x 128 x 768", "torch.where", lambda: [randn(B, L, D), real_tokens()[..., None]],
         _moments.zero_masked, where),
    Case("zero_masked, split into heads", "torch.where", heads, _moments.zero_masked, where),
    Case("masked_difference, 32 x 128 x 768", "torch.where", lambda: [*both(B, L, D), real_tokens()[..., None]],
         _moments.masked_difference, where_difference),
    Case("masked_difference, 32 x 12 x 128 x 128", "torch.where",
         lambda: [*both(B, HEADS, L, L), real_pairs()[:, None]], _moments.masked_difference, where_difference),
    Case("squared_norm, 32 x 128 x 768", "square, sum", lambda: [randn(B, L, D)],
         _moments.squared_norm, squares, memory=True),
    Case("squared_norm, 100 x 98304", "square, sum", lambda: [randn(100, L * D)],
         _moments.squared_norm, squares, memory=True, repeats=10),
    Case("squared_norm, 100 x 98304", "vector_norm, square", lambda: [randn(100, L * D)],
         _moments.squared_norm, squares_by_norm, memory=True, repeats=10),
    Case("gram, 32 x 128 x 768", "x @ x.mT", lambda: [randn(B, L, D)], _moments.gram, product, memory=True),
    Case("gram, 128 x 32 x 768, transposed", "x @ x.mT", positions, _moments.gram, product, memory=True),
    Case("gram, 32 x 98304", "x @ x.mT", lambda: [randn(B, L * D)], _moments.gram, product, memory=True),
    Case("gram, 64 x 1024", "x @ x.mT", lambda: [randn(64, 1024)], _moments.gram, product, target=False),
    *(Case(f"rkd_angle, B={n}", "all B^3 angles at once", partial(grams, n), distances._AngleLoss.apply,
           distances._plain_angle_loss, memory=n == 128) for n in (32, 128)),
    *(Case(f"attention_loss {loss}, L={n}", "scores, softmax, autograd", partial(projections, n),
           partial(attention_by_hand, loss=loss), partial(attention_plain, loss=loss), target=n == 128,
           memory=n == 128, repeats=10) for loss in ("mse", "kl") for n in (32, 128)),
    *(Case(f"pearson_loss, {n} x {m * m}", "standardise, square", lambda n=n, m=m: [
           *both(n, m * m), real_pairs(n, m).flatten(1)], relations._PearsonLoss.apply,
           relations._plain_pearson_loss) for n, m in ((B, L), (L, B))),
    *(Case(f"shape_distance, {n} x {d}", "singular values of the d x d product", partial(both, n, d),
           shape.shape_distance, shape_by_svd, repeats=4) for n, d in ((B, D), (64, 1024))),
    *(Case(f"shape_distance, {n} x {d}", "roots of Gram matrices", partial(both, n, d), shape.shape_distance,
           shape_by_roots, target=d > 1024, memory=d > 1024, repeats=10) for n, d in ((B, D), (B, L * D))),
    Case("shape_distance, 32 x 768, twice", "roots of Gram matrices", partial(both, B, D),
         partial(slope, shape.shape_distance), partial(slope, shape_by_roots), target=False,
         correct=second_derivative_of_orthogonal_samples),
    Case("moved_left, 32 x 128 x 768", "index_select", lambda: [randn(B, L, D), real_tokens().flip(1)],
         lambda hidden, mask: pooling.moved_left(mask, hidden)[0][0], moved_by_index),
]  # fmt: skip


def step(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    wanted = [x for x in inputs if x.requires_grad]
    upstream = torch.ones_like(function(*inputs)).detach()

    def run() -> None:
        torch.autograd.grad(function(*inputs), wanted, upstream)

    return run


def measure(case: Case, quick: bool) -> Row:
    inputs = case.inputs()
    calls = {"ours": step(case.ours, inputs), "plain": step(case.plain, inputs)}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(1 + (max(3, case.repeats // 3) if quick else case.repeats)):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
    row = Row(case.name, case.against, best["ours"], best["plain"])
    if case.memory:
        row.ours_mb, row.theirs_mb = (peak_mb(case.key, side) for side in calls)
    if case.target:
        leaner = row.ours_mb is not None and row.theirs_mb is not None and row.theirs_mb >= GAIN * row.ours_mb
        row.target, row.met = f"{GAIN:g}x in time or memory", best["plain"] >= GAIN * best["ours"] or leaner
    if case.correct is not None:
        row.target = "right where autograd is not"
        row.note, row.met = case.correct()
    return row


def memory(key: str, side: str) -> float:
    case = next(case for case in CASES if case.key == key)
    run = step(case.ours if side == "ours" else case.plain, case.inputs())  # calls it once: libraries load before
    return peak_mb_here(run)


def main() -> None:
    options = begin(__doc__.splitlines()[0], memory)
    torch.set_num_threads(options.threads or 1)
    rows = [measure(case, options.quick) for case in CASES]
    finish("hand-written gradients against autograd, forward + backward, processor time", rows, options)


if __name__ == "__main__":
    main()

"""Compute what limbeck.similarity must, in plain loops in float64 or wider, and hostile inputs to compare on."""

from __future__ import annotations

import math

import numpy as np

WIDE = np.longdouble  # so that the reference has digits left where the statistic itself cancels

KINDS = (
    "gaussian",
    "constant",
    "constant_rows",
    "duplicates",
    "zeros",
    "zero_column",
    "rank_one",
    "outlier",
    "offset",
    "integers",
)


def features(seed: int, kind: str, n: int, d: int, scale: float = 1.0) -> np.ndarray:
    """Make (n, d) float32 of the given kind."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    if kind == "constant":
        x[:] = x[:1]
    elif kind == "constant_rows":
        x[:] = x[:, :1]
    elif kind == "duplicates":
        x = x[rng.integers(0, max(n // 2, 1), n)]
    elif kind == "zeros":
        x[:] = 0
    elif kind == "zero_column":
        x[:, 0] = 0
    elif kind == "rank_one":
        x = rng.integers(-3, 4, (n, 1)) * x[:1]
    elif kind == "outlier":
        x[1:] = x[:1] * 0.5
    elif kind == "offset":
        x += 300 * rng.standard_normal(d)
    elif kind == "integers":
        x = rng.integers(-2, 3, (n, d)).astype(float)
    return (x * scale).astype(np.float32)


def rows_of(x, mask=None):
    return [[WIDE(v) for v in row] for i, row in enumerate(x) if mask is None or mask[i]]


def dot(a, b):
    return sum((p * q for p, q in zip(a, b, strict=True)), WIDE(0))


def centred(rows):
    if not rows:
        return rows
    means = [sum((row[j] for row in rows), WIDE(0)) / len(rows) for j in range(len(rows[0]))]
    return [[v - m for v, m in zip(row, means, strict=True)] for row in rows]


def squared_distance(a, b):
    return sum(((p - q) ** 2 for p, q in zip(a, b, strict=True)), WIDE(0))


# --- CKA ----------------------------------------------------------------------------------------------------


def kernel_matrix(rows, kernel):
    n = len(rows)
    if kernel == "linear":
        rows = centred(rows)
        return [[dot(a, b) for b in rows] for a in rows]
    squares = [[squared_distance(a, b) for b in rows] for a in rows]
    apart = sorted(squares[i][j] for i in range(n) for j in range(n) if squares[i][j] > 0)
    median = apart[(len(apart) - 1) // 2] if apart else WIDE(1)
    return [[np.exp(-squares[i][j] / (2 * median)) for j in range(n)] for i in range(n)]


def hsic_biased(k, l):  # noqa: E741
    """Compute tr(K C L C), with the centring written out."""
    n = len(k)

    def centre(m):
        row = [sum(r) / n for r in m]
        total = sum(row) / n
        return [[m[i][j] - row[i] - row[j] + total for j in range(n)] for i in range(n)]

    k, l = centre(k), centre(l)  # noqa: E741
    return sum(k[i][j] * l[i][j] for i in range(n) for j in range(n))


def hsic_unbiased(k, l):  # noqa: E741
    """Compute n (n-3) times the estimator of Song et al. 2012, term by term."""
    n = len(k)
    k = [[WIDE(0) if i == j else k[i][j] for j in range(n)] for i in range(n)]
    l = [[WIDE(0) if i == j else l[i][j] for j in range(n)] for i in range(n)]  # noqa: E741
    trace = sum(k[i][j] * l[j][i] for i in range(n) for j in range(n))
    row_k, row_l = [sum(r) for r in k], [sum(r) for r in l]
    return trace + sum(row_k) * sum(row_l) / ((n - 1) * (n - 2)) - WIDE(2) / (n - 2) * dot(row_k, row_l)


def cka(x, y, mask=None, estimator="unbiased", kernel="linear"):
    """Return the value, and the share of the smaller self term in its own kernel: 0 where CKA does not exist."""
    xs, ys = rows_of(x, mask), rows_of(y, mask)
    if len(xs) < (4 if estimator == "unbiased" else 2):
        return 0.0, 0.0
    hsic = hsic_unbiased if estimator == "unbiased" else hsic_biased
    k, l = kernel_matrix(xs, kernel), kernel_matrix(ys, kernel)  # noqa: E741
    xx, yy = hsic(k, k), hsic(l, l)
    size_k, size_l = (sum(v * v for row in m for v in row) for m in (k, l))
    share = float(min(xx / size_k if size_k > 0 else 0, yy / size_l if size_l > 0 else 0))
    value = float(hsic(k, l) / np.sqrt(xx * yy)) if min(xx, yy) > 0 else 0.0
    return value, share


# --- Shape --------------------------------------------------------------------------------------------------


def phi(x, beta):
    """Whiten partially, and tell whether the rank is beyond doubt."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    largest = s.max(initial=0)
    kept = s > 1e-7 * largest
    clear = not np.any((s > 1e-12 * largest) & (s < 1e-5 * largest))
    return (u * np.where(kept, beta * s + (1 - beta), 0)) @ vt, clear


def shape_distance(x, y, mask=None, kind="angular", beta=1.0):
    xs = np.array(centred(rows_of(x, mask)), dtype=np.float64).reshape(-1, x.shape[1])
    ys = np.array(centred(rows_of(y, mask)), dtype=np.float64).reshape(-1, y.shape[1])
    clear = True
    if beta < 1:
        (xs, clear_x), (ys, clear_y) = phi(xs, beta), phi(ys, beta)
        clear = clear_x and clear_y
    nuclear = float(np.linalg.svd(xs.T @ ys, compute_uv=False).sum())
    size_x, size_y = math.sqrt(float((xs**2).sum())), math.sqrt(float((ys**2).sum()))
    if kind == "euclidean":
        return math.sqrt(max(size_x**2 + size_y**2 - 2 * nuclear, 0)), clear
    if size_x == 0 or size_y == 0:
        return 0.0, clear
    return math.acos(min(nuclear / (size_x * size_y), 1.0)), clear


# --- Relations ----------------------------------------------------------------------------------------------


def normalised(v, norm):
    v = [WIDE(a) for a in v]
    if norm == "layernorm":
        mean = sum(v) / len(v)
        v = [a - mean for a in v]
        v = [WIDE(0)] * len(v) if max(abs(a) for a in v) <= 1e-15 * abs(mean) else v
    if norm in ("l2", "layernorm"):
        size = np.sqrt(dot(v, v))
        factor = np.sqrt(WIDE(len(v))) if norm == "layernorm" else 1
        return [a / size * factor if size > 0 else WIDE(0) for a in v]
    if norm == "softmax":
        top = max(v)
        e = [np.exp(a - top) for a in v]
        return [a / sum(e) for a in e]
    return v


def relation(vectors, norm):
    unit = [normalised(v, norm) for v in vectors]
    return [[dot(a, b) for b in unit] for a in unit]


def pearson(a, b):
    """Return the correlation, or None where it does not exist."""
    if not a:
        return None
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    da, db = [v - mean_a for v in a], [v - mean_b for v in b]
    for d, v in ((da, a), (db, b)):
        if max(abs(p) for p in d) <= 1e-13 * max(abs(p) for p in v):
            return None
    return dot(da, db) / np.sqrt(dot(da, da) * dot(db, db))


def compare(a, b, loss, tau=10.0):
    if not a:
        return 0.0
    if loss == "pearson":
        rho = pearson(a, b)
        return 0.0 if rho is None else float(1 - rho)
    if loss == "mse":
        return float(sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / len(a))
    p, q = ([np.exp((v - max(m)) / WIDE(tau)) for v in m] for m in (b, a))
    p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
    return float(tau**2 * sum(u * np.log(u / v) for u, v in zip(p, q, strict=True)))


def standardised(a, b):
    """Return both with mean 0 and sum of squares m - 1 (FCD eq. 13); zeros where either is constant."""
    if pearson(a, b) is None:
        return [WIDE(0)] * len(a), [WIDE(0)] * len(b)
    both = []
    for v in (a, b):
        mean = sum(v) / len(v)
        deviation = np.sqrt(sum((p - mean) ** 2 for p in v) / (len(v) - 1))
        both.append([(p - mean) / deviation for p in v])
    return both


def relation_losses(s, t, mask, norm, loss, diagonal):
    """Compute the token and sample relation losses by loops over samples and positions."""
    batch, length = mask.shape

    def one(rows_s, rows_t):
        rs, rt = relation(rows_s, norm), relation(rows_t, norm)
        n = len(rs)
        where = [(i, j) for i in range(n) for j in range(n) if diagonal or i != j]
        a, b = [rs[i][j] for i, j in where], [rt[i][j] for i, j in where]
        return compare(*(standardised(a, b) if norm == "layernorm" else (a, b)), loss)

    token = 0.0
    for i in range(batch):
        real = [j for j in range(length) if mask[i, j]]
        token += one([s[i, j] for j in real], [t[i, j] for j in real])
    sample = []
    for j in range(length):
        real = [i for i in range(batch) if mask[i, j]]
        if len(real) >= 2:
            sample.append(one([s[i, j] for i in real], [t[i, j] for i in real]))
    return token / batch, sum(sample) / len(sample) if sample else 0.0


# --- RKD ----------------------------------------------------------------------------------------------------


def smooth_l1(a, b):
    d = abs(a - b)
    return d * d / 2 if d < 1 else d - 0.5


def rkd_distance(x, y):
    def relative(rows):
        n = len(rows)
        d = [[np.sqrt(squared_distance(a, b)) for b in rows] for a in rows]
        mean = sum(map(sum, d)) / (n * (n - 1)) if n > 1 else 0
        return None if mean == 0 else [[v / mean for v in row] for row in d]

    dx, dy = relative(rows_of(x)), relative(rows_of(y))
    if dx is None or dy is None:
        return 0.0
    n = len(dx)
    return float(sum(smooth_l1(dx[i][j], dy[i][j]) for i in range(n) for j in range(n)) / n**2)


def rkd_angle(x, y):
    def cosine(rows, i, j, k):
        a = [p - q for p, q in zip(rows[j], rows[i], strict=True)]
        b = [p - q for p, q in zip(rows[k], rows[i], strict=True)]
        size = np.sqrt(dot(a, a) * dot(b, b))
        return dot(a, b) / size if size > 0 else WIDE(0)

    xs, ys = rows_of(x), rows_of(y)
    n = len(xs)
    every = [(i, j, k) for i in range(n) for j in range(n) for k in range(n)]
    return float(sum(smooth_l1(cosine(xs, *at), cosine(ys, *at)) for at in every) / n**3)


# --- Neighbours ---------------------------------------------------------------------------------------------


def nearest_same_class(student, teacher, labels, k):
    out = []
    for i, row in enumerate(student):
        same = [j for j in range(len(labels)) if labels[j] == labels[i]]
        ranked = sorted(same, key=lambda j: (float(squared_distance(rows_of([row])[0], rows_of([teacher[j]])[0])), j))
        out.append(ranked[:k])
    return out

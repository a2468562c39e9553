"""Attention scores, and how far a student's are from its teacher's (TinyBERT, MiniLM, MiniLMv2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from ._moments import check_mask, outside_autocast, result_dtype, teacher_side


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, D) -> (B, heads, L, D / heads)."""
    if x.dim() != 3 or x.shape[-1] % heads:
        raise ValueError(f"Features must be (B, L, D) with D a multiple of {heads} heads; got {tuple(x.shape)}.")
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@outside_autocast
def attention_scores(q: Tensor, k: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """``q_i . k_j / sqrt(d)`` in each head, d = D / heads: what attention softmaxes, (B, L, D) -> (B, heads, L, L).

    With the same projection twice these are the relations of MiniLM: queries-queries, values-values, ...

    Args:
        mask: (B, L) bool, True for real tokens; scores of padding are 0.
    """
    check_mask(mask, q.shape[1])
    dtype = result_dtype(q, k)
    q, k = (x.to(dtype) if mask is None else torch.where(mask[..., None], x, 0).to(dtype) for x in (q, k))
    q, k = split_heads(q, heads), split_heads(k, heads)
    # the queries are scaled, not the scores, of which there are more
    return (q / math.sqrt(q.shape[-1])) @ k.mT


@outside_autocast
def attention_kl(s: Tensor, t: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """``KL(softmax(t) || softmax(s))`` over the keys, averaged over heads and real queries, then over samples.

    A query with one key to attend to contributes 0.

    Args:
        s, t: (B, heads, L, L) scores of student and teacher. The teacher gets no gradient.
        mask: (B, L) bool, True for real tokens: padded keys are out of the softmax, padded queries out of the mean.
        causal: a query sees only the keys at or before it.
    """
    entries = _entries(s, t, mask, causal)
    log_s, log_t = _log_softmax(s, entries), _log_softmax(teacher_side(t), entries)
    divergence = kl_div(log_s, log_t, reduction="none", log_target=True).sum((1, 2, 3))  # B
    queries = entries.any(-1).sum((1, 2)).clamp(min=1)
    return (divergence / (s.shape[1] * queries)).sum() / max(len(s), 1)


@outside_autocast
def attention_mse(s: Tensor, t: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """``mean (s - t)^2`` of the scores, over all heads and real (query, key) entries of the batch.

    Arguments as for :func:`attention_kl`.
    """
    entries = _entries(s, t, mask, causal)
    dtype = result_dtype(s, t)
    difference = torch.where(entries, s.to(dtype) - teacher_side(t).to(dtype), 0)
    return difference.square().sum() / (s.shape[1] * entries.sum()).clamp(min=1)


def _entries(s: Tensor, t: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Which (query, key) entries count: (B, 1, L, L)."""
    if s.dim() != 4 or s.shape != t.shape:
        raise ValueError(f"Student and teacher must be (B, heads, L, L) alike; got {tuple(s.shape)}, {tuple(t.shape)}.")
    check_mask(mask, s.shape[-1])
    real = torch.ones(len(s), s.shape[-1], dtype=torch.bool, device=s.device) if mask is None else mask
    entries = real[:, None, :, None] & real[:, None, None, :]
    return entries.tril() if causal else entries


def _log_softmax(scores: Tensor, entries: Tensor) -> Tensor:
    # A finite fill: with -inf, a masked key would give inf - inf in the KL, and a padded query NaN in the softmax.
    scores = scores.to(result_dtype(scores))
    return scores.masked_fill(~entries, torch.finfo(scores.dtype).min).log_softmax(-1)

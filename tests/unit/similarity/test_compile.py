"""Test that everything that is a loss traces into one graph, forward and backward."""

from __future__ import annotations

import pytest
import torch

from limbeck import similarity

X, Y = (torch.randn(12, d, generator=torch.Generator().manual_seed(d)) for d in (7, 5))
S, T = (torch.randn(3, 5, d, generator=torch.Generator().manual_seed(d)) for d in (6, 4))
ROWS = torch.arange(12) != 3
TOKENS = torch.arange(5) < torch.tensor([5, 3, 2])[:, None]

LOSSES = {
    "cka": (X, lambda a: similarity.cka(a, Y, mask=ROWS)),
    "cka rbf": (X, lambda a: similarity.cka(a, Y, mask=ROWS, estimator="biased", kernel="rbf")),
    "shape": (X, lambda a: similarity.shape_distance(a, Y, mask=ROWS)),
    "shape whitened": (X, lambda a: similarity.shape_distance(a, Y, kind="euclidean", beta=0.3)),
    "rkd distance": (X, lambda a: similarity.rkd_distance(a, Y)),
    "rkd angle": (X, lambda a: similarity.rkd_angle(a, Y)),
    "token relations": (S, lambda a: similarity.token_relation_loss(a, T, TOKENS)),
    "sample relations": (S, lambda a: similarity.sample_relation_loss(a, T, TOKENS, norm="layernorm", loss="kl")),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch's compiler
@pytest.mark.parametrize("name", LOSSES)
def test_compiles_as_one_graph(name):
    x, loss = LOSSES[name]
    x = x.clone().requires_grad_()
    torch._dynamo.reset()
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(x)
    expected = loss(x)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, x)[0])

"""Check the formulas of what a loss costs against torch's own count of operations."""

from __future__ import annotations

import pytest
import torch
from helpers.method_cases import cases
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from limbeck import METHODS, Features, Method, Pair
from limbeck.distillation.pair import ModelShape
from limbeck.errors import ModelError
from limbeck.methods.costs import formula_of, loss_cost

MORE = [
    pytest.param(name, options, id=f"{name}-{'-'.join(map(str, options.values()))}")
    for name, options in (
        ("cka", {"pool": "tokens"}),
        ("cka", {"pool": "flat", "layers": [(1, 2), (2, 4)]}),
        ("shape", {"pool": "tokens"}),
        ("shape", {"pool": "tokens", "beta": 0.5}),
        ("shape", {"pool": "flat"}),
        ("rkd", {"pool": "flat"}),
        ("pkd", {"pool": "flat"}),
        ("ics", {"match": "own", "projector": True}),
        ("fcd", {"alpha": 0}),
        ("fsd_g", {"memory": 7}),
    )
]


def features(wanted, batch, length, width, seed):
    draw = torch.Generator().manual_seed(seed)
    captured = {
        kind: {layer: torch.randn(batch, length, width, generator=draw) for layer in wanted.layers(kind)}
        for kind in ("hidden", "queries", "keys", "values")
    }
    for kind in ("cls", "last", "mean"):
        captured[kind] = {layer: torch.randn(batch, width, generator=draw) for layer in wanted.layers(kind)}
    logits = torch.randn(batch, 3, generator=draw) if wanted.logits else None
    return Features(torch.ones(batch, length, dtype=torch.bool), logits, **captured)


def subtracted(out, a, b, *_, **__):
    return bmm_flop(a, b)


@pytest.mark.parametrize(("name", "options"), [*cases(), *MORE])
@pytest.mark.parametrize("shapes", [(6, 10, 16, 16), (12, 5, 8, 16)])
def test_the_formula_counts_what_is_computed(name, options, shapes):
    batch, length, student, teacher = shapes
    pair = Pair(ModelShape("bert", 2, student, 2), ModelShape("bert", 4, teacher, 2), "classification", 3)
    try:
        objective = Method.of(METHODS[name](pair, **options)).objective
    except ModelError:
        pytest.skip("needs models of one width")
    rows = {"attention_mask": torch.ones(120, length, dtype=torch.long)}
    objective.prepare(lambda batch, wanted: features(wanted, 120, length, teacher, 2), [rows])
    needs = objective.needs()
    sides = features(needs.student, batch, length, student, 0), features(needs.teacher, batch, length, teacher, 1)
    known = {torch.ops.aten.baddbmm_: subtracted}  # which torch does not count
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        objective(*sides, {"labels": torch.arange(batch) % 3})
    cost = loss_cost(name, pair, batch, length, **options)
    assert cost.flops == counter.get_total_flops() and formula_of(name)
    assert cost.bytes == 4 * cost.entries


def test_the_comparison_of_huang_et_al():
    """Evaluate section 3.2: its formula for FCD gives 2.0 GFLOPs; the 3.2 printed are those of MiniLM's formula."""
    pair = Pair(ModelShape("bert", 6, 768, 12), ModelShape("bert", 12, 768, 12), "classification", 2)
    one = loss_cost("fcd", pair, 32, 128, layers=[(6, 12)])
    assert one.flops == 2 * (2 * 32 * 128**2 * 768 + 2 * 32**2 * 128 * 768) == pytest.approx(2.01e9, rel=0.01)
    assert one.entries == 2 * (32 * 128**2 + 32**2 * 128) == pytest.approx(1.31e6, rel=0.01)
    minilm = loss_cost("minilm", pair, 32, 128)
    assert minilm.flops == 2 * 4 * 32 * 128**2 * 768 == pytest.approx(3.2e9, rel=0.01)  # what is printed for FCD
    assert 3 * loss_cost("minilmv2", pair, 32, 128).flops == pytest.approx(14.5e9, rel=0.01)


def test_a_method_of_ones_own_has_no_formula():
    assert loss_cost("somewhere:method", None, 1, 1) is None and formula_of("somewhere:method") == ""

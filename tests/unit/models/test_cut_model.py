from __future__ import annotations

from itertools import product

import pytest
import torch
from helpers.tiny_models import SIZES, mostly_slow, tiny_batch, tiny_model

from limbeck.models import cut_model
from limbeck.models.capture import model_inputs
from limbeck.models.cut_model import CutModel, can_keep
from limbeck.models.families import blocks_of
from limbeck.models.students import keep_layers

SETS = [(1,), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 4), (1, 5), (2, 4), (2, 4, 5), (3,)]
SPECIAL = {
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "deberta-v2": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
}


@pytest.mark.parametrize(("family", "most"), mostly_slow(product(SIZES, (2**30, 0)), often=[2**30]))
def test_a_cut_model_computes_as_the_student_that_is_built(family, most, monkeypatch):
    monkeypatch.setattr(cut_model, "_MOST_BYTES", most)
    model = tiny_model(family, depth=5, **SPECIAL.get(family, {})).eval()
    batches = [model_inputs(model, tiny_batch(seed=seed)) for seed in (0, 1)]
    with torch.inference_mode():
        before = model(**batches[0]).logits
        cut = CutModel(model)
        sets = [layers for layers in SETS if can_keep(model, layers)]
        for layers, following in zip(sets, [*sets[1:], ()], strict=True):
            ours, built = cut.keep(layers, following).eval(), keep_layers(model, layers).eval()
            for batch in batches:
                assert torch.equal(ours(**batch).logits, built(**batch).logits)
        assert torch.equal(model(**batches[0]).logits, before)
    assert len(blocks_of(model)) == model.config.num_hidden_layers == 5


def test_modernbert_needs_its_first_block_first():
    model = tiny_model("modernbert", depth=4)
    assert can_keep(model, [1, 3]) and not can_keep(model, [2, 3])
    assert can_keep(tiny_model("bert", depth=4), [2, 3])


def test_common_beginnings_are_computed_once():
    model = tiny_model("bert", depth=4).eval()
    batch = model_inputs(model, tiny_batch())
    counts = [0] * 4
    cut = CutModel(model)
    for number, block in enumerate(cut._blocks):
        block.attention.register_forward_hook(lambda *_, number=number: counts.__setitem__(number, counts[number] + 1))
    sets = [(1, 2, 3), (1, 2, 4), (1, 3), (2, 3)]
    with torch.inference_mode():
        for layers, following in zip(sets, [*sets[1:], ()], strict=True):
            cut.keep(layers, following)(**batch)
    # (1), (1 2), (1 2 3), (1 2 4), (1 3), (2), (2 3)
    assert counts == [1, 2, 3, 1]

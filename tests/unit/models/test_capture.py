from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers.tiny_models import DECODERS, SIZES, WIDTHS, tiny_batch, tiny_model

from limbeck.errors import ModelError
from limbeck.models.capture import Capture, model_inputs
from limbeck.models.families import blocks_of, family_of
from limbeck.models.features import POOLED, Wanted
from limbeck.tasks.encode import Collator


@pytest.mark.parametrize("family", SIZES)
def test_hidden_states_equal_the_models_own(family):
    model = tiny_model(family).eval()
    batch = tiny_batch()
    everything = Wanted(logits=True, hidden=frozenset(range(4)))
    with torch.no_grad():
        output, features = Capture(model)(batch, everything)
        expected = model(**model_inputs(model, batch), output_hidden_states=True)
    for layer, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(features.hidden[layer], hidden, rtol=0, atol=0)
    torch.testing.assert_close(features.logits, expected.logits, rtol=0, atol=0)
    assert features.mask.dtype == torch.bool and features.mask.sum() == 16
    assert output.logits is features.logits


@pytest.mark.parametrize("family", SIZES)
def test_projections_are_what_the_block_computed(family):
    model = tiny_model(family).eval()
    layers = frozenset({1, 3})
    with torch.no_grad():
        _, features = Capture(model)(tiny_batch(), Wanted(queries=layers, keys=layers, values=layers))
    widths = WIDTHS.get(family, (32, 32, 32))
    for kind, width in zip((features.queries, features.keys, features.values), widths, strict=True):
        assert set(kind) == layers
        assert all(tensor.shape == (3, 7, width) for tensor in kind.values())
    assert not torch.equal(features.queries[1], features.keys[1])
    assert not torch.equal(features.keys[1], features.values[1])


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("how", POOLED)
def test_pooled_states_are_those_of_the_real_tokens(family, how):
    model = tiny_model(family).eval()
    batch = tiny_batch(lengths=(7, 1, 5), width=9)
    with torch.no_grad():
        _, features = Capture(model)(batch, Wanted(hidden=range(4), **{how: [0, 2, 3]}))
    assert set(getattr(features, how)) == {0, 2, 3}
    for layer, rows in getattr(features, how).items():
        for row, tokens, length in zip(rows, features.hidden[layer], (7, 1, 5), strict=True):
            expected = {"cls": tokens[0], "last": tokens[length - 1], "mean": tokens[:length].mean(0)}[how]
            torch.testing.assert_close(row, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoders_features_do_not_depend_on_the_side_and_the_amount_of_padding(family):
    model = tiny_model(family).eval()
    rows = [{"input_ids": [5, 9, 7, 30], "attention_mask": [1] * 4}, {"input_ids": [8, 6], "attention_mask": [1] * 2}]
    found = []
    for side, width in (("right", 4), ("left", 4), ("left", 9)):
        tokenizer = SimpleNamespace(padding_side=side, pad_token_id=0, pad_token_type_id=0)
        batch = Collator(tokenizer, pad_to=width)(rows)
        with torch.no_grad():
            _, features = Capture(model)(batch, Wanted(logits=True, hidden=[0, 2]))
        found.append([features.logits, *(features.hidden[layer][features.mask] for layer in (0, 2))])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)


# as DeBERTa-v3's configs say, and those of the larger v2, which have a convolution after their first block
V3 = {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0}
LARGE_V2 = V3 | {"conv_kernel_size": 3, "conv_act": "gelu"}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("changes", [V3, LARGE_V2], ids=["v3", "large v2"])
def test_states_of_the_debertas_that_people_use(changes, depth):
    model = tiny_model("deberta-v2", depth=depth, initializer_range=0.3, **changes).eval()
    batch = tiny_batch()
    with torch.no_grad():
        _, features = Capture(model)(batch, Wanted(hidden=range(depth + 1), queries=[1], values=[depth]))
        expected = model(**model_inputs(model, batch), output_hidden_states=True)
    assert len(features.hidden) == len(expected.hidden_states) == depth + 1
    for layer, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(features.hidden[layer], hidden, rtol=0, atol=0)
    assert features.queries[1].shape == features.values[depth].shape == (3, 7, 32)


def test_only_what_is_asked_for_is_captured_and_no_hook_stays():
    model = tiny_model("bert")
    _, features = Capture(model)(tiny_batch(), Wanted(hidden=[2]))
    assert set(features.hidden) == {2}
    assert features.logits is None and not features.queries and not features.keys and not features.values
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_gradients_flow_through_captured_features():
    model = tiny_model("gpt2")
    _, features = Capture(model)(tiny_batch(), Wanted(hidden=[2], values=[1]))
    (features.hidden[2].sum() + features.values[1].sum()).backward()
    assert blocks_of(model)[0].attn.c_attn.weight.grad.abs().sum() > 0


def test_hooks_are_removed_when_the_model_fails():
    model = tiny_model("bert")
    batch = tiny_batch()
    batch["input_ids"] = batch["input_ids"] + 1000
    with pytest.raises(IndexError):
        Capture(model)(batch, Wanted(hidden=[1]))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_does_not_exist_is_a_clear_error():
    with pytest.raises(ModelError, match="Layer 4 was asked of a bert model with 3 blocks"):
        Capture(tiny_model("bert"))(tiny_batch(), Wanted(hidden=frozenset({4})))
    with pytest.raises(ModelError, match="projections for 1 to 3"):
        Capture(tiny_model("bert"))(tiny_batch(), Wanted(keys=frozenset({0})))


def test_unsupported_family_names_the_supported_ones():
    with pytest.raises(ModelError, match=r"register_family.*--import MODULE.*bert, camembert, deberta-v2"):
        family_of(type("Config", (), {"model_type": "mamba"})())


def test_segment_ids_reach_only_models_that_have_segments():
    batch = tiny_batch() | {"token_type_ids": torch.ones(3, 7, dtype=torch.long)}
    assert "token_type_ids" in model_inputs(tiny_model("bert"), batch)
    for model in (tiny_model("roberta", type_vocab_size=1), tiny_model("distilbert"), tiny_model("gpt2")):
        assert "token_type_ids" not in model_inputs(model, batch)


def test_wanted_joins():
    both = Wanted(hidden=[1]) | Wanted(logits=True, hidden=[2], keys=frozenset({3}))
    assert both == Wanted(True, frozenset({1, 2}), keys=frozenset({3}))
    assert not Wanted() and both

"""Check captured queries, keys and values against each family's weights and attention, read by hand from its code."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny_models import SIZES, tiny_batch, tiny_model
from torch import nn
from torch.nn.functional import linear

from limbeck.models.capture import Capture, model_inputs
from limbeck.models.families import FAMILIES, has_raw_scores
from limbeck.models.features import Wanted

LAYERS = (1, 2, 3)
HEADS = 4  # of the tiny models
KINDS = ("queries", "keys", "values")


def separate(*names):
    """Read three linear modules."""

    def read(attention, x):
        modules = (attention.get_submodule(name) for name in names)
        return [linear(x, module.weight, module.bias) for module in modules]

    return read


def in_thirds(name):
    """Read one linear module with all queries first, then all keys, then all values."""

    def read(attention, x):
        module = attention.get_submodule(name)
        return [linear(x, module.weight[part * 32 : part * 32 + 32]) for part in range(3)]

    return read


def as_gpt2(attention, x):
    """Read a module that multiplies with its weight as it is, not transposed."""
    weight, bias = attention.c_attn.weight, attention.c_attn.bias
    return [x @ weight[:, at : at + 32] + bias[at : at + 32] for at in (0, 32, 64)]


def as_gpt_neox(attention, x):
    """Read one module with the query, key and value of the first head, then of the second, and so on."""
    weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
    found = []
    for part in range(3):
        rows = [head * 24 + part * 8 + place for head in range(HEADS) for place in range(8)]
        found.append(linear(x, weight[rows], bias[rows]))
    return found


# where a block's attention is, how its weights are read, and its output projection
READ = {
    **dict.fromkeys(
        ("bert", "electra", "roberta", "camembert", "xlm-roberta", "xlm-roberta-xl"),
        ("attention.self", separate("query", "key", "value"), "attention.output.dense"),
    ),
    "distilbert": ("attention", separate("q_lin", "k_lin", "v_lin"), "attention.out_lin"),
    "mpnet": ("attention.attn", separate("q", "k", "v"), "attention.attn.o"),
    "deberta-v2": (
        "attention.self",
        separate("query_proj", "key_proj", "value_proj"),
        "attention.output.dense",
    ),
    "modernbert": ("attn", in_thirds("Wqkv"), "attn.Wo"),
    "modernbert-decoder": ("attn", separate("q_proj", "k_proj", "v_proj"), "attn.Wo"),
    "gpt2": ("attn", as_gpt2, "attn.c_proj"),
    "gpt_neox": ("attention", as_gpt_neox, "attention.dense"),
    **dict.fromkeys(
        ("eurobert", "nomic_bert", "gte", "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2"),
        ("self_attn", separate("q_proj", "k_proj", "v_proj"), "self_attn.o_proj"),
    ),
    "gemma3_text": ("self_attn", separate("q_proj", "k_proj", "v_proj"), "self_attn.o_proj"),
}
BLOCKS = {"distilbert": "transformer.layer", "gpt2": "h"}
BLOCKS |= {name: "layers" for name, (place, *_) in READ.items() if place in ("self_attn", "attn") and name != "gpt2"}
BLOCKS |= {"gpt_neox": "layers"}
# rotated by their positions and nothing else: neither normalised nor divided by another number
ROTARY = ("modernbert", "modernbert-decoder", "eurobert", "nomic_bert", "gte", "gpt_neox", "llama", "mistral", "qwen2")
ROTARY += ("smollm3", "gemma")


def blocks(model):
    path = BLOCKS.get(model.config.model_type, "encoder.layer")
    return model.base_model.get_submodule(path)


def inputs_of(module):
    """Note what a module is given first, in a hook that the caller removes."""
    seen = []

    def note(_, args, kwargs):
        seen.append((args[0] if args else kwargs["hidden_states"]).detach().clone())

    return seen, module.register_forward_pre_hook(note, with_kwargs=True)


def captured(model, batch, layers=LAYERS):
    with torch.no_grad():
        return Capture(model)(batch, Wanted(queries=layers, keys=layers, values=layers))[1]


def by_heads(features, layer):
    """Divide queries, keys and values into heads, (B, H, L, d); heads that share keys and values get a copy each."""
    size = features.queries[layer].shape[-1] // HEADS
    split = [getattr(features, kind)[layer].unflatten(-1, (-1, size)).transpose(1, 2) for kind in KINDS]
    return [part.repeat_interleave(HEADS // part.shape[1], dim=1) for part in split]


def softmaxed(q, k, mask, causal):
    """Return what the attention would be if q·k/√d_head were all there is to it."""
    allowed = mask.bool()[:, None, None, :]
    if causal:
        allowed = allowed & torch.ones(mask.shape[1], mask.shape[1]).tril().bool()
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def attended(model, inputs):
    """Return the model's own attention of each block, which only its plainest implementation tells."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True).attentions


def test_every_family_is_read():
    assert set(READ) == set(SIZES) == set(FAMILIES)


@pytest.mark.parametrize("family", SIZES)
def test_projections_are_those_of_the_weights(family):
    model = tiny_model(family).eval()
    place, read, _ = READ[family]
    batch = tiny_batch(width=9)
    for layer in LAYERS:
        attention: nn.Module = blocks(model)[layer - 1].get_submodule(place)
        seen, hook = inputs_of(attention)
        features = captured(model, batch)
        hook.remove()
        with torch.no_grad():
            for kind, expected in zip(KINDS, read(attention, seen[0]), strict=True):
                torch.testing.assert_close(getattr(features, kind)[layer], expected)


@pytest.mark.parametrize("family", SIZES)
def test_what_the_attention_adds_up_are_the_values(family):
    model = tiny_model(family, initializer_range=0.3).eval()
    batch = tiny_batch(width=9)
    features = captured(model, batch)
    modules = [block.get_submodule(READ[family][2]) for block in blocks(model)]
    seen, hooks = zip(*map(inputs_of, modules), strict=True)
    attentions = attended(model, model_inputs(model, batch))
    real = batch["attention_mask"].bool()
    for layer in LAYERS:
        hooks[layer - 1].remove()
        values = by_heads(features, layer)[2]
        expected = (attentions[layer - 1] @ values).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(seen[layer - 1][0][real], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", SIZES)
def test_only_families_that_say_so_have_raw_scores(family):
    """Compare with weights so large that no two kinds of scores look alike."""
    model = tiny_model(family, initializer_range=0.5).eval()
    batch = tiny_batch(width=9)
    features, causal = captured(model, batch), FAMILIES[family].causal
    attentions = attended(model, model_inputs(model, batch))
    real = batch["attention_mask"].bool()[:, None, :, None]  # rows of padded queries are nobody's business
    differ = []
    for layer in LAYERS:
        q, k, _ = by_heads(features, layer)
        expected = softmaxed(q, k, batch["attention_mask"], causal)
        differ.append(((attentions[layer - 1] - expected) * real).abs().max().item())
    assert max(differ) < 1e-4 if has_raw_scores(model) else max(differ) > 1e-2


@pytest.mark.parametrize("family", ROTARY)
def test_scores_of_tokens_in_one_place_are_those_of_queries_and_keys(family):
    """Put every token at position 0, where nothing is rotated."""
    wide = {"local_attention": 64} if family.startswith("modernbert") else {}
    model = tiny_model(family, initializer_range=0.5, **wide).eval()
    batch = tiny_batch(width=9)
    features, causal = captured(model, batch, [1]), FAMILIES[family].causal
    places = {"position_ids": torch.zeros_like(batch["input_ids"])}
    attention = attended(model, model_inputs(model, batch) | places)[0]
    q, k, _ = by_heads(features, 1)
    expected = softmaxed(q, k, batch["attention_mask"], causal)
    real = batch["attention_mask"].bool()[:, None, :, None]
    torch.testing.assert_close(attention * real, expected * real, rtol=1e-4, atol=1e-5)

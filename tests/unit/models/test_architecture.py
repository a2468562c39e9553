"""Check which models count as equally fast."""

from __future__ import annotations

import pytest
from helpers.tiny_models import SIZES, families_for, tiny_model, with_heads

from limbeck.models.architecture import architecture_of, build_like

HEADS = ("classification", "tokens", "span", "language_model")


@pytest.mark.parametrize("family", SIZES)
def test_weights_words_and_labels_do_not_count_in_any_family(family):
    name = architecture_of(tiny_model(family))
    assert architecture_of(tiny_model(family, seed=1)) == name
    assert architecture_of(tiny_model(family, vocab_size=77, num_labels=5, initializer_range=0.5)) == name


@pytest.mark.parametrize("family", SIZES)
def test_every_part_of_the_shape_counts_in_every_family(family):
    width = tiny_model(family).config.hidden_size
    models = [
        tiny_model(family),
        tiny_model(family, depth=2),
        tiny_model(family, num_attention_heads=1, num_key_value_heads=1),
        tiny_model(family, hidden_size=2 * width),
        *(tiny_model(family, problem=problem) for problem in HEADS[1:] if family in families_for(problem)),
    ]
    inner = {"gpt2": "n_inner", "distilbert": "hidden_dim"}.get(family, "intermediate_size")
    models.append(tiny_model(family, **{inner: 5 * width}))
    assert len({architecture_of(model) for model in models}) == len(models)


def test_the_words_of_a_language_model_count():
    small, large = (tiny_model("bert", problem="language_model", vocab_size=size) for size in (60, 90))
    assert architecture_of(small) != architecture_of(large)


@pytest.mark.parametrize(("family", "problem"), with_heads(HEADS))
def test_a_model_made_from_the_config_alone_has_the_same_architecture(family, problem, tmp_path):
    model = tiny_model(family, problem=problem)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert architecture_of(build_like(tmp_path, problem)) == architecture_of(model)

"""Test the baselines on tiny models of each family, with the attention that transformers chooses by itself."""

from __future__ import annotations

import functools

import pytest
from helpers.float64_cases import METHODS_AND_STAGES
from helpers.tiny_models import tiny_batch, tiny_model

from limbeck import METHODS, Distiller, LiveTeacher, Pair
from limbeck.errors import ModelError

FAMILIES = ["bert", "roberta", "electra", "distilbert", "gpt2", "modernbert", "deberta-v2"]
WIDTH = {"distilbert": "dim", "gpt2": "n_embd"}
HEADS = {"distilbert": "n_heads", "gpt2": "n_head"}


@functools.cache
def model_of(family, depth, width, heads, seed):
    changes = {WIDTH.get(family, "hidden_size"): width, HEADS.get(family, "num_attention_heads"): heads}
    model = tiny_model(family, depth=depth, seed=seed, **changes)
    # transformers has no fused attention for DeBERTa; nowhere else may anything ask for the slow one
    assert model.config._attn_implementation == ("eager" if family == "deberta-v2" else "sdpa")
    return model


@pytest.mark.parametrize("width", [32, 16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "options"),
    METHODS_AND_STAGES,
    ids=lambda value: "".join(value.values()) if isinstance(value, dict) else value,
)
def test_on_a_real_model(name, options, family, width):
    student, teacher = model_of(family, 2, width, 4, 0), model_of(family, 4, 32, 4, 1)
    student.zero_grad()
    pair = Pair.of(student, teacher, "classification")
    scores = name == "minilm" or options.get("stage") == "intermediate"
    if scores and family in ("modernbert", "deberta-v2"):
        with pytest.raises(ModelError, match="minilmv2"):
            METHODS[name](pair, **options)
        return
    learns(student, teacher, METHODS[name](pair, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_minilmv2_on_models_of_any_heads(family):
    student, teacher = model_of(family, 2, 16, 2, 0), model_of(family, 4, 32, 4, 1)
    student.zero_grad()
    learns(student, teacher, METHODS["minilmv2"](Pair.of(student, teacher, "classification"), relation_heads=8))


def learns(student, teacher, objective):
    implementation = student.config._attn_implementation
    out = Distiller(student, objective, LiveTeacher(teacher))(**tiny_batch((6, 3, 1, 5)))
    assert out["loss"].isfinite() and all(value.isfinite() for value in out["terms"].values())
    out["loss"].backward()
    gradients = [p.grad for p in [*student.parameters(), *objective.parameters()] if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(p.grad is not None and p.grad.any() for p in student.parameters())
    assert all(p.grad is not None and p.grad.any() for p in objective.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert student.config._attn_implementation == implementation

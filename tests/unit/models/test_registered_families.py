"""Families that are not limbeck's own: registered in Python, by installed packages, refused with what is missing."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from helpers.tiny_models import NO_HEAD, tiny_batch, tiny_model
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, Gemma3Config

import limbeck
from limbeck import Capture, Family, Wanted, keep_layers, register_family
from limbeck.errors import ModelError, RecipeError
from limbeck.models import families
from limbeck.models.capture import model_inputs
from limbeck.models.families import all_families, blocks_of, family_of, register_installed
from limbeck.models.heads import model_class
from limbeck.models.loading import load_config, load_for_training
from limbeck.models.students import from_config
from limbeck.tasks.task import Task

PHI = Family("layers", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", causal=True)
SIZES = {"vocab_size": 120, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(families, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    register_installed.cache_clear()
    yield
    register_installed.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("plugged"):
            del sys.modules[name]


def phi(depth=3):
    config = AutoConfig.for_model("phi", num_hidden_layers=depth, **SIZES)
    return AutoModelForSequenceClassification.from_config(config).eval()


def test_a_registered_family_is_captured_and_cut():
    model, batch = phi(), tiny_batch()
    with pytest.raises(ModelError, match=r"type 'phi' are not known here.*register_family.*Known: bert, camembert"):
        Capture(model)
    register_family("phi", PHI)
    register_family("phi", PHI)  # as a notebook does that is run again
    with torch.no_grad():
        _, features = Capture(model)(batch, Wanted(hidden=range(4), keys=[2]))
        expected = model(**model_inputs(model, batch), output_hidden_states=True).hidden_states
    assert all(torch.equal(features.hidden[layer], expected[layer]) for layer in range(4))
    assert features.keys[2].shape == (3, 7, 32)
    assert len(blocks_of(keep_layers(model, "first:2"))) == 2
    assert from_config({"num_hidden_layers": 1}, model.config).config.model_type == "phi"
    assert set(all_families()) - set(families.FAMILIES) == {"phi"}


def test_limbecks_own_families_are_not_replaced():
    with pytest.raises(ModelError, match="'bert' is one of limbeck's own, and cannot be replaced"):
        register_family("bert", PHI)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (Family("lairs", "q", "k", "v"), r"The blocks of phi models should be at 'lairs', but: .*lairs"),
        (Family("embed_tokens", "q", "k", "v"), r"should be at 'embed_tokens', but that is a Embedding"),
        (Family("layers", "q", "k", "v"), r"The keys of a PhiDecoderLayer should be at 'k', but: .*Correct the family"),
    ],
)
def test_an_entry_that_is_wrong_says_where(family, message):
    register_family("phi", family)
    with pytest.raises(ModelError, match=message):
        Capture(phi())(tiny_batch(), Wanted(keys=[1]))


def install(folder, entries, code="from limbeck import Family\nNEW = Family('layers', 'q', 'k', 'v')\n"):
    """Lay a package where Python finds it, with these entry points."""
    about = folder / "plugged-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[limbeck.families]\n" + "".join(f"{line}\n" for line in entries))
    (folder / "plugged.py").write_text(code)
    sys.path.append(str(folder))


def test_installed_packages_add_families(tmp_path, caplog):
    install(tmp_path, ["new-bert = plugged:NEW", "bert = plugged:NEW", "other = plugged:Family", "gone = plugged:GONE"])
    assert family_of(AutoConfig.for_model("bert")).blocks == "encoder.layer"
    assert all_families()["new-bert"].blocks == "layers"
    assert not {"other", "gone"} & set(all_families())
    for name in ("bert", "other", "gone"):
        assert f"The family '{name}' of the installed package plugged is left out" in caplog.text


def test_a_folder_where_a_command_runs_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("", ".", str(tmp_path)):
        sys.path.insert(0, place)
    install(tmp_path, ["new-bert = plugged:NEW"], f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    assert "new-bert" not in all_families() and not (tmp_path / "imported").exists()


def saved(folder, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "unheard-of"}, r"no classes for models of the type 'unheard-of'.*no code is run.*--import"),
        (
            {"model_type": "new", "auto_map": {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"}},
            r"type 'new' cannot be used: its classes come with the model.*as the family gte.*gte-multilingual-base",
        ),
        ({"hidden_size": 3}, r"Should have a `model_type` key"),
    ],
    ids=["unheard of", "gte with its own code", "no type"],
)
def test_families_that_transformers_does_not_ship(config, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        load_config(saved(tmp_path / "model", **config))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("albert", "its blocks share one set of weights"),
        ("gemma3", r"it reads images too.*language_model\.save_pretrained"),
        ("t5", "they have an encoder and a decoder"),
        ("mamba", r"are not known here.*docs/families\.md.*--import MODULE"),
    ],
)
def test_families_that_cannot_be_used(kind, message):
    with pytest.raises(ModelError, match=message):
        family_of(AutoConfig.for_model(kind))


def test_the_text_model_in_gemma3_can_be_saved_and_used(tmp_path):
    """Do what the message about gemma3 says."""
    text = tiny_model("gemma3_text").config.to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text, vision_config=vision | {"image_size": 28, "patch_size": 14})
    whole = AutoModel.from_config(config)
    whole.language_model.save_pretrained(tmp_path)
    task = Task("a task", "regression", ("text",), (), (), {})
    tokenizer = type("Padding", (), {"pad_token": "<pad>", "pad_token_id": 0})()
    model, _ = load_for_training(tmp_path, task, tokenizer)
    assert torch.equal(blocks_of(model)[2].mlp.up_proj.weight, whole.language_model.layers[2].mlp.up_proj.weight)


def test_a_gemma3_that_sees_later_tokens_is_refused():
    with pytest.raises(ModelError, match=r"use_bidirectional_attention=True.*use_bidirectional_attention=False"):
        family_of(tiny_model("gemma3_text").config.__class__(use_bidirectional_attention=True))


@pytest.mark.parametrize(("family", "problem"), [(name, problem) for name in NO_HEAD for problem in NO_HEAD[name]])
def test_a_head_that_transformers_has_not_got(family, problem):
    kind = {"tokens": "token classification", "span": "question answering"}[problem]
    with pytest.raises(ModelError, match=rf"no {kind} head for {family} models \(it has: classification, .*language"):
        model_class(problem, tiny_model(family).config)


def test_students_of_unknown_families_are_guessed():
    with pytest.raises(RecipeError, match=r"Did you mean 'eurobert'"):
        from_config({"model_type": "euroberd"}, None)


def test_the_public_names_are_those_of_the_module():
    assert limbeck.Family is Family and limbeck.register_family is families.register_family

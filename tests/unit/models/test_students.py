from __future__ import annotations

import pytest
import torch
from helpers.tiny_models import SIZES, tiny_batch, tiny_model
from safetensors.torch import load_file

from limbeck.errors import ModelError, RecipeError
from limbeck.models.capture import Capture, model_inputs
from limbeck.models.families import blocks_of
from limbeck.models.features import Wanted
from limbeck.models.students import check_not_deeper, from_config, keep_layers


@pytest.mark.parametrize("family", SIZES)
def test_kept_layers_are_the_teachers(family):
    teacher = tiny_model(family, depth=4).eval()
    student = keep_layers(teacher, [1, 2]).eval()
    assert len(blocks_of(student)) == student.config.num_hidden_layers == 2
    wanted = Wanted(hidden=[0, 1])
    with torch.no_grad():
        ours, theirs = (Capture(model)(tiny_batch(), wanted)[1] for model in (student, teacher))
    for layer in (0, 1):
        torch.testing.assert_close(ours.hidden[layer], theirs.hidden[layer], rtol=0, atol=0)
    # a copy: training the student leaves the teacher alone
    next(student.parameters()).data.add_(1)
    assert not torch.equal(next(student.parameters()), next(teacher.parameters()))


def test_blocks_from_the_middle_keep_their_weights():
    teacher = tiny_model("bert", depth=4)
    student = keep_layers(teacher, [2, 4])
    for ours, theirs in ((0, 1), (1, 3)):
        for name, weight in blocks_of(student)[ours].state_dict().items():
            assert torch.equal(weight, blocks_of(teacher)[theirs].state_dict()[name])


def test_keeping_every_layer_gives_the_same_model():
    teacher = tiny_model("gpt2", depth=3).eval()
    student = keep_layers(teacher, [1, 2, 3]).eval()
    batch = {k: v for k, v in tiny_batch().items() if k != "labels"}
    assert torch.equal(student(**batch).logits, teacher(**batch).logits)


@pytest.mark.parametrize("family", ["modernbert", "modernbert-decoder"])
def test_modernbert_needs_its_first_block_first(family):
    with pytest.raises(ModelError, match="Keep block 1 as the first"):
        keep_layers(tiny_model(family, depth=4), [2, 3])


def test_a_blocks_kind_of_attention_comes_along(tmp_path):
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}
    teacher = tiny_model("qwen2", depth=4, **windows).eval()
    assert teacher.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    student = keep_layers(teacher, [2, 4]).eval()
    assert student.config.layer_types == ["full_attention", "sliding_attention"]
    student.save_pretrained(tmp_path)
    again = type(student).from_pretrained(tmp_path).eval()
    batch = {k: v for k, v in tiny_batch(lengths=(9, 7)).items() if k != "labels"}
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, student(**batch).logits)
    # as many layers, the second of which sees every token
    student.config.layer_types[1] = "full_attention"
    with torch.no_grad():
        assert not torch.equal(again(**batch).logits, student(**batch).logits)


def test_a_block_that_rotates_nothing_goes_on_so(tmp_path):
    """Compare a student of SmolLM3's blocks 2 and 3, of which every other one rotates, with those blocks themselves."""
    teacher = tiny_model("smollm3", depth=4, initializer_range=0.3).eval()
    assert teacher.config.no_rope_layers == [1, 0, 1, 0]
    student = keep_layers(teacher, [2, 3]).eval()
    assert student.config.no_rope_layers == [0, 1]
    student.save_pretrained(tmp_path)
    student = type(student).from_pretrained(tmp_path).eval()
    batch, base = model_inputs(teacher, tiny_batch()), teacher.model
    base.layers = torch.nn.ModuleList([base.layers[1], base.layers[2]])
    base.config.num_hidden_layers = 2
    with torch.no_grad():
        torch.testing.assert_close(student(**batch).logits, teacher(**batch).logits, rtol=0, atol=0)
        student.model.layers[0].self_attn.use_rope = True
        assert not torch.equal(student(**batch).logits, teacher(**batch).logits)
    assert from_config({"num_hidden_layers": 3}, student.config).config.no_rope_layers == [1, 0, 1]


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_language_models_head_stays_tied_to_its_embeddings(family, tmp_path):
    teacher = tiny_model(family, problem="language_model")
    student = keep_layers(teacher, [1, 2])
    for model in (teacher, student):
        assert model.lm_head.weight is model.get_input_embeddings().weight
    student.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    again = type(student).from_pretrained(tmp_path)
    assert again.lm_head.weight is again.get_input_embeddings().weight
    assert torch.equal(again.lm_head.weight, teacher.lm_head.weight)


@pytest.mark.parametrize("family", SIZES)
def test_a_smaller_config_of_the_same_family(family):
    teacher = tiny_model(family, depth=4)
    student = from_config({"num_hidden_layers": 2, "hidden_size": 16}, teacher.config)
    assert len(blocks_of(student)) == 2 and student.config.hidden_size == 16
    assert student.config.vocab_size == teacher.config.vocab_size
    assert teacher.config.num_hidden_layers == 4
    batch = {k: v for k, v in tiny_batch().items() if k != "labels"}
    assert student(**batch).logits.shape == (3, 2)


def test_sizes_that_follow_from_others_follow_their_changes():
    teacher = tiny_model("llama", num_key_value_heads=4)  # 4 heads of 8
    config = from_config({"hidden_size": 48, "num_attention_heads": 3}, teacher.config).config
    assert (config.head_dim, config.num_key_value_heads) == (16, 3)
    config = from_config({"hidden_size": 48, "head_dim": 8, "num_key_value_heads": 2}, teacher.config).config
    assert (config.head_dim, config.num_key_value_heads) == (8, 2)
    own = tiny_model("qwen3").config  # 4 heads of 16, 2 of keys, in a width of 32
    config = from_config({"hidden_size": 48, "num_attention_heads": 6}, own).config
    assert (config.head_dim, config.num_key_value_heads) == (16, 2)
    config = from_config({"pooler_hidden_size": 20, "hidden_size": 16}, tiny_model("deberta-v2").config).config
    assert config.pooler_hidden_size == 20


def test_a_config_of_another_family_takes_the_vocabulary():
    teacher = tiny_model("bert")
    student = from_config(
        {"model_type": "distilbert", "n_layers": 1, "dim": 16, "n_heads": 2}, teacher.config, vocab_size=120
    )
    assert student.config.model_type == "distilbert" and student.config.vocab_size == 120


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hiden_layers": 2}, "Did you mean 'num_hidden_layers'"),
        ({"hidden_size": 30}, "do not make a bert model"),
        ({"model_type": "brt"}, "Did you mean 'bert'"),
    ],
)
def test_configs_that_cannot_be_built(changes, message):
    with pytest.raises(RecipeError, match=message):
        from_config(changes, tiny_model("bert").config)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"hidden_size": 30}, r"do not make a llama model: hidden_size \(30\)"),
        ("mistral", {"hidden_size": 30}, r"do not make a mistral model: hidden_size \(30\)"),
        ("qwen2", {"num_attention_heads": 5, "hidden_size": 40}, r"5\) is not a multiple of num_key_value_heads \(2\)"),
        ("qwen3", {"num_attention_heads": 0}, "do not make a qwen3 model"),
        ("llama", {"hidden_size": "wide"}, "do not make a llama model: .*hidden_size"),
        ("bert", {"hidden_size": "wide"}, "do not make a bert model: .*hidden_size"),
    ],
)
def test_sizes_that_do_not_fit_each_other(family, changes, message):
    with pytest.raises(RecipeError, match=message):
        from_config(changes, tiny_model(family).config)


def test_a_config_without_teacher_needs_a_family():
    with pytest.raises(RecipeError, match="model_type"):
        from_config({"num_hidden_layers": 2}, None)


def test_student_deeper_than_teacher():
    with pytest.raises(ModelError, match="4 layers and its teacher 3"):
        check_not_deeper(tiny_model("bert", depth=4), tiny_model("bert", depth=3))

"""Test what differs from family to family: names of weights, widths of projections, padding, heads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers.tiny_models import DECODERS, NO_HEAD, SIZES, WIDTHS, mostly_slow, tiny_batch, tiny_model, with_heads
from helpers.tiny_tokenizers import STYLES, make_bpe
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from limbeck import METHODS, Capture, Distiller, LiveTeacher, Pair, Wanted
from limbeck.distillation.feature_cache import count_numbers
from limbeck.distillation.method import Method
from limbeck.errors import ModelError, RecipeError
from limbeck.inference.logits import predict_logits
from limbeck.models.capture import logits_of, model_inputs
from limbeck.models.families import FAMILIES, blocks_of, decides_tokens, width_of
from limbeck.models.heads import model_class, problem_of
from limbeck.models.loading import load_fine_tuned, load_for_training, load_teacher, load_tokenizer
from limbeck.models.students import keep_layers
from limbeck.tasks.encode import Collator
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.task import Task

PROBLEMS = ("classification", "regression", "multi_label", "tokens", "span", "language_model")
HEADS = ("classification", "tokens", "span", "language_model")
NO_PADDING = [family for family in DECODERS if family != "modernbert-decoder"]  # whose config must name a token for it
THE_SEVEN = ("kd", "cka", "shape", "fsd", "fcd", "ics", "minilmv2")


def task_of(problem, names=("a", "b", "c")):
    names = () if problem in ("regression", "span", "language_model") else names
    kind = SpanTask if problem == "span" else Task
    return kind("a task", problem, ("text",), names, (), {})


def test_there_is_a_tiny_model_of_every_family():
    assert set(SIZES) == set(FAMILIES)
    assert set(DECODERS) == {name for name, family in FAMILIES.items() if family.causal}


@pytest.mark.parametrize(("family", "problem"), with_heads(HEADS))
def test_features_of_every_head(family, problem):
    model = tiny_model(family, problem=problem).eval()
    batch, layers = tiny_batch(), range(1, 4)
    with torch.no_grad():
        wanted = Wanted(True, range(4), queries=layers, keys=layers, values=layers)
        output, features = Capture(model)(batch, wanted)
        expected = model(**model_inputs(model, batch), output_hidden_states=True)
    torch.testing.assert_close(dict(enumerate(expected.hidden_states)), dict(features.hidden), rtol=0, atol=0)
    torch.testing.assert_close(logits_of(output), logits_of(expected), rtol=0, atol=0)
    assert len(features.logits) == 3 and decides_tokens(model) == (problem in ("tokens", "span"))
    widths = [width_of(model, kind) for kind in ("queries", "keys", "values")]
    assert widths == list(WIDTHS.get(family, (32, 32, 32)))
    for captured, width in zip((features.queries, features.keys, features.values), widths, strict=True):
        assert {tensor.shape for tensor in captured.values()} == {(3, 7, width)}
    assert {width_of(model, kind) for kind in ("hidden", "cls", "last", "mean")} == {32}


@pytest.mark.parametrize(
    ("family", "source"),
    mostly_slow(with_heads(["base", "language_model", "classification", "span"]), often=["base"]),
)
def test_every_head_goes_on_from_any_checkpoint(family, source, tokenizer, tmp_path):
    """Take all weights of the base model from the file, and load a saved model again as it is."""
    if source == "base":
        saved = AutoModel.from_config(tiny_model(family, num_labels=5).config).eval()
    else:
        # not 2 labels, where that is possible: a head for answers has a start and an end whatever the file had
        saved = tiny_model(family, num_labels=2 if source == "span" else 5, problem=source).eval()
    saved.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    batch = tiny_batch()
    inputs = model_inputs(saved, batch)
    with torch.no_grad():
        expected = saved.base_model(**inputs).last_hidden_state
    for problem in [problem for problem in HEADS if problem not in NO_HEAD.get(family, ())]:
        model = load_for_training(tmp_path / "saved", task_of(problem), tokenizer)[0].eval()
        assert isinstance(model, type(model_class(problem, model.config).from_config(model.config)))
        with torch.no_grad():
            torch.testing.assert_close(model.base_model(**inputs).last_hidden_state, expected, rtol=0, atol=0)
            logits = logits_of(model(**inputs))
        assert logits.shape[-1] == {"span": 2, "language_model": 120}.get(problem, 3)
        model.save_pretrained(tmp_path / problem)
        again, info = type(model).from_pretrained(tmp_path / problem, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        with torch.no_grad():
            torch.testing.assert_close(logits_of(again.eval()(**inputs)), logits, rtol=0, atol=0)


@pytest.mark.parametrize("family", SIZES)
def test_a_teacher_without_the_head_that_is_asked_for(family, tokenizer, tmp_path):
    tiny_model(family, problem="language_model").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for problem, kind in (("tokens", "token classification"), ("span", "question answering")):
        no_head = problem in NO_HEAD.get(family, ())
        why = f"transformers has no {kind} head for" if no_head else f"has no trained {kind} head .*limbeck finetune"
        with pytest.raises(ModelError, match=why):
            load_fine_tuned(tmp_path, task_of(problem))
    teacher, no_head = load_teacher(tmp_path, task_of("language_model"))
    assert no_head is None and len(blocks_of(teacher)) == 3


@pytest.mark.parametrize(("family", "problem"), with_heads(["classification", "tokens", "span"]))
def test_a_saved_head_says_what_it_answers(family, problem, tokenizer, tmp_path):
    model, trained = load_for_training(saved_base(family, tokenizer, tmp_path), task_of(problem), tokenizer)
    assert not trained
    model.save_pretrained(tmp_path / "head")
    tokenizer.save_pretrained(tmp_path / "head")
    again = load_fine_tuned(tmp_path / "head")
    assert type(again) is type(model) and problem_of(again.config) == problem


def saved_base(family, tokenizer, folder):
    AutoModel.from_config(tiny_model(family).config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder / "base"


def test_a_tokenizer_without_padding_pads_with_its_end(tmp_path):
    tokenizer = load_tokenizer(make_bpe(tmp_path / "gpt2", "gpt2"))
    assert tokenizer.pad_token == tokenizer.eos_token == "<|endoftext|>"
    assert load_tokenizer(make_bpe(tmp_path / "roberta", "roberta")).pad_token == "<pad>"


def test_a_tokenizer_with_neither_padding_nor_end(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(make_bpe(tmp_path / "gpt2", "gpt2"))
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "without")
    with pytest.raises(ModelError, match=r"without has neither a padding token nor an end token.*resize_token"):
        load_tokenizer(tmp_path / "without")


@pytest.mark.parametrize("family", NO_PADDING)
def test_padding_that_the_model_has_no_embedding_for(family, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(make_bpe(tmp_path / "words", "gpt2"))
    tiny_model(family, vocab_size=len(tokenizer), pad_token_id=None).save_pretrained(tmp_path / "model")
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path / "model")
    for load in (load_fine_tuned, lambda folder: load_for_training(folder, task_of("regression"), tokenizer)[0]):
        with pytest.raises(ModelError, match=f"'<pad>' has the id {len(tokenizer) - 1}.*resize_token_embeddings"):
            load(tmp_path / "model")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", NO_PADDING)
def test_a_classifier_reads_the_last_token_that_is_no_padding(family, side, tmp_path):
    """Start from a config that says nothing of padding, as those of most decoders."""
    folder = make_bpe(tmp_path / "model", STYLES[family])
    size, end = len(AutoTokenizer.from_pretrained(folder)), STYLES[family] == "llama"
    tiny_model(family, vocab_size=size, pad_token_id=None, eos_token_id=int(end)).save_pretrained(folder)
    tokenizer, model = load_tokenizer(folder), load_fine_tuned(folder)
    tokenizer.padding_side = side
    texts = ["cat", "the red dog never sees a small bird today", "good fish"]
    rows = [dict(tokenizer(text)) for text in texts]
    assert model.config.pad_token_id == tokenizer.pad_token_id == end
    with torch.no_grad():
        alone = [model(torch.tensor([row["input_ids"]])).logits[0] for row in rows]
        together = model(**model_inputs(model, Collator(tokenizer)(rows))).logits
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-5, atol=1e-6)
    # a student that keeps some of its layers reads the same token
    assert keep_layers(model, [1, 2]).config.pad_token_id == end


@pytest.mark.parametrize(
    ("family", "problem"),
    mostly_slow([pair for pair in with_heads(PROBLEMS) if pair[0] in DECODERS], often=["classification"]),
)
def test_the_side_of_the_padding_changes_neither_losses_nor_predictions(family, problem):
    teacher = tiny_model(family, problem=problem, num_labels=1 if problem == "regression" else 2).eval()
    student = keep_layers(teacher, [1, 3]).eval()
    rows = [row | {"id": number} for number, row in enumerate(rows_of(problem))]
    pair = Pair.of(student, teacher, problem)
    sides = {
        side: Collator(SimpleNamespace(padding_side=side, pad_token_id=0, pad_token_type_id=0), 8, problem)
        for side in ("right", "left")
    }
    for name in THE_SEVEN:
        if name == "ics" and problem == "language_model":
            continue  # no classes there
        losses = []
        for collate in sides.values():
            torch.manual_seed(0)
            method = Method.of(METHODS[name](pair, **({"memory": 2} if name == "fsd" else {})))
            method.objective.prepare(LiveTeacher(teacher), [collate(rows)])
            with torch.no_grad():
                losses.append(Distiller.of(method, student, teacher)(**collate(rows))["terms"])
        right, left = ({term: value.item() for term, value in terms.items()} for terms in losses)
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6), name
    if problem != "language_model":
        right, left = (predict_logits(student, Rows(rows), collate, 2) for collate in sides.values())
        for ours, theirs in zip(right, left, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), rtol=1e-4, atol=1e-6)


class Rows(list):
    """Stand in for a data set: a row by number, a column by name."""

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def rows_of(problem):
    generator = torch.Generator().manual_seed(0)
    for number, length in enumerate((6, 3, 5, 2)):
        tags = [number % 2] + [1] * (length - 2) + [-100]
        labels = {
            "classification": number % 2,
            "regression": 0.5 + number,
            "multi_label": [1.0, float(number % 2)],
            "tokens": tags,
            "language_model": tags,
            "span": [1, length - 1] if number else [0, 0],
        }
        ids = torch.randint(5, 120, (length,), generator=generator).tolist()
        yield {"input_ids": ids, "attention_mask": [1] * length, "labels": labels[problem]}


@pytest.mark.parametrize("name", ["minilm", "tinybert"])
@pytest.mark.parametrize("family", [name for name in SIZES if not FAMILIES[name].raw_scores])
def test_methods_that_need_attention_scores_say_so(family, name):
    teacher = tiny_model(family)
    pair = Pair.of(keep_layers(teacher, [1, 2]), teacher, "classification")
    with pytest.raises(ModelError, match=f"attention of this {family} model .*minilmv2"):
        METHODS[name](pair)


def test_a_checkpoint_of_half_the_size_is_trained_in_full(tokenizer, tmp_path):
    tiny_model("llama", problem="language_model").to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    model, _ = load_for_training(tmp_path, task_of("span"), tokenizer)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_relations_of_keys_and_values_that_heads_share(family):
    """Let 6 heads of 8 share 2 heads of keys, whose 16 numbers do not divide by 6."""
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
    teacher = tiny_model(family, **sizes).eval()
    student = keep_layers(teacher, [1, 2]).eval()
    pair = Pair.of(student, teacher, "classification")
    assert (pair.student.width_of("queries"), pair.student.width_of("values")) == (48, 16)
    with torch.no_grad():
        terms, ones, twos = (
            Distiller.of(METHODS["minilmv2"](pair, **options), student, teacher)(**tiny_batch())["terms"]
            for options in ({}, {"relation_heads": 1}, {"relation_heads": 2})
        )
    for name in ("key", "value"):
        assert terms[name].item() == twos[name].item() != ones[name].item()
    assert terms["query"].item() not in (0.0, ones["query"].item(), twos["query"].item())
    with pytest.raises(RecipeError, match=r"6 relation heads.*keys are 16 wide, the teacher's 16.*1, 2, 4, 8, 16\."):
        METHODS["minilmv2"](pair, relation_heads=6)


@pytest.mark.parametrize("family", SIZES)
def test_the_numbers_of_a_cache_are_counted_as_they_are(family):
    model, batch = tiny_model(family).eval(), tiny_batch()
    wanted = Wanted(True, [0, 2], queries=[1], keys=[2], values=[3], mean=[2])
    features = LiveTeacher(model)(batch, wanted)
    real = int(features.mask.sum())
    expected = sum(
        features[name].shape[-1] * (real if features[name].dim() == 3 else len(features.mask))
        for name in wanted.names()
    )
    assert count_numbers(model, wanted.names(), len(features.mask), real) == expected

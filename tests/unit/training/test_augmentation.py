"""Copies of texts: words by the masked model and by vectors, the paper's chances, the same for a text and a seed."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoModelForMaskedLM, AutoTokenizer

from limbeck import load_recipe
from limbeck.errors import DataError, ModelError, RecipeError
from limbeck.recipes.recipe import AugmentBlock
from limbeck.tasks import load_task
from limbeck.training import augmentation
from limbeck.training.assemble import assemble, load_data
from limbeck.training.augmentation import Word, WordVectors, augment, make_copies


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(augmentation.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "augmented"


@pytest.fixture
def task(tmp_path):
    train = write_csv(tmp_path / "train.csv", sentences(12))
    dev = write_csv(tmp_path / "dev.csv", sentences(4, seed=1))
    return load_task("table", train=str(train), validation=str(dev), text="text", label="label")


def block(model, **settings):
    return AugmentBlock(model=str(model), **settings)


def test_words_of_one_piece_become_the_most_probable_ones(language_model, task):
    """Compute the proposals again, one place at a time."""
    text = task.split("train")["text"][0]
    proposer = augmentation._Proposer(block(language_model, candidates=3))
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    model = AutoModelForMaskedLM.from_pretrained(language_model).eval()
    vocabulary = {number: word for word, number in tokenizer.get_vocab().items()}
    found = proposer.words(text)
    assert [text[word.start : word.end] for word in found] == text.replace(".", "").split()
    for word in found:
        ids = tokenizer(text[: word.start] + "[MASK]" + text[word.end :], return_tensors="pt")
        with torch.no_grad():
            scores = model(**ids).logits[0, ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)]
        order = [vocabulary.get(number, "") for number in scores.argsort(descending=True).tolist()]
        expected = [
            piece
            for piece in order
            if piece.isalnum() and not piece.startswith("##") and piece != text[word.start : word.end].lower()
        ]
        assert list(word.proposals) == expected[:3]


def test_other_words_become_those_with_the_nearest_vectors(language_model, tmp_path):
    lines = ["unheardof 1 0 0", "strange 0.9 0.1 0", "odd 0.8 0.6 0", "plain 0 0 1"]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    vectors = WordVectors.read(tmp_path / "vectors.txt")
    assert vectors.nearest("Unheardof", 2) == ("strange", "odd")
    assert vectors.nearest("nowhere", 2) == ()
    settings = block(language_model, vectors=str(tmp_path / "vectors.txt"), candidates=2)
    (word,) = augmentation._Proposer(settings).words("unheardof")
    assert word.proposals == ("strange", "odd")
    (word,) = augmentation._Proposer(block(language_model)).words("unheardof")
    assert word.proposals == ()


def test_each_word_is_replaced_with_its_chance():
    words, text = [Word(2 * place, 2 * place + 1, ("x", "y")) for place in range(200)], "a " * 200
    copies = make_copies(text, words, AugmentBlock(model="m", copies=50, share=0.4), seed=3)
    assert len(copies) == 50
    shares = [1 - copy.split().count("a") / 200 for copy in copies]
    assert np.mean(shares) == pytest.approx(0.4, abs=0.02)
    chosen = "".join(copies)
    assert chosen.count("x") / (chosen.count("x") + chosen.count("y")) == pytest.approx(0.5, abs=0.02)
    assert make_copies(text, words, AugmentBlock(model="m", copies=50, share=0.4), seed=3) == copies
    assert make_copies(text, words, AugmentBlock(model="m", copies=50, share=0.4), seed=4) != copies


def test_copies_have_their_rows_labels_and_are_made_once(language_model, task, own_cache, monkeypatch):
    settings = block(language_model, copies=3)
    grown = augment(task, settings, seed=0)
    before, after = task.split("train"), grown.split("train")
    assert after["text"][: len(before)] == before["text"][:] and len(after) > 2 * len(before)
    (file,) = own_cache.iterdir()
    labels = dict(zip(before["text"][:], before["label"][:], strict=True))
    made = [(labels[text], copy) for text, copies in json.loads(file.read_text()).items() for copy in copies]
    assert sorted(made) == sorted(zip(after["label"][len(before) :], after["text"][len(before) :], strict=True))
    assert grown.split("validation")["text"][:] == task.split("validation")["text"][:]
    monkeypatch.setattr(augmentation._Proposer, "words", lambda self, text: pytest.fail("they were made before"))
    assert augment(task, settings, seed=0).split("train")["text"][:] == after["text"][:]


def test_sides_of_pairs_are_replaced_one_at_a_time(language_model, tmp_path):
    rows = [(one, other, label) for (one, label), (other, _) in zip(sentences(6), sentences(6, seed=5), strict=True)]
    file = tmp_path / "pairs.csv"
    file.write_text("first,second,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    options = {"train": str(file), "validation": str(file), "text": ["first", "second"], "label": "label"}
    task = load_task("table", **options)
    train = augment(task, block(language_model, copies=2), seed=0).split("train")
    known = {(a, b) for a, b, _ in rows}
    firsts, seconds = {a for a, _ in known}, {b for _, b in known}
    added = list(zip(train["first"], train["second"], strict=True))[len(rows) :]
    assert added and all((a in firsts) != (b in seconds) for a, b in added)


def test_a_recipe_trains_on_copies(language_model, teacher_folder, tmp_path):
    files = [str(write_csv(tmp_path / name, sentences(12, seed=seed))) for seed, name in enumerate(("a.csv", "b.csv"))]
    settings = {"model": str(language_model), "copies": 2}
    values = {
        "task": {"name": "table", "train": files[0], "validation": files[1], "text": "text", "label": "label"},
        "student": {"model": str(teacher_folder)},
        "method": {"name": "ft"},
    }
    plain = load_recipe(values=values)
    grown = load_recipe(values={**values, "task": values["task"] | {"augment": settings}})
    rows = [len(load_data(recipe, assemble(recipe)).splits["train"]) for recipe in (plain, grown)]
    assert rows[0] == 12 and rows[1] > 24
    assert "copies: 2" in grown.to_yaml() and "share: 0.4" in grown.to_yaml()


@pytest.mark.parametrize(
    ("content", "message"), [("a 1 2\nb 1\n", "line 2: 1 numbers"), ("a x y\n", "line 1: a word and"), ("", "is empty")]
)
def test_bad_vectors_are_an_error_with_the_line(tmp_path, content, message):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        WordVectors.read(tmp_path / "v.txt")


def test_what_cannot_be_augmented_is_refused(language_model, task, tmp_path, teacher_folder):
    with pytest.raises(RecipeError, match="replaces words of whole texts"):
        augment(dataclasses.replace(task, problem="tokens"), block(language_model), 0)
    with pytest.raises(DataError, match="there is no file"):
        augment(task, block(language_model, vectors=str(tmp_path / "none.txt")), 0)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "maskless")
    AutoModelForMaskedLM.from_pretrained(language_model).save_pretrained(tmp_path / "maskless")
    with pytest.raises(ModelError, match="no mask token"):
        augment(task, block(tmp_path / "maskless"), 0)

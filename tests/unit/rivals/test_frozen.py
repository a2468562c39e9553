"""Compare the linear models on frozen features with scikit-learn on what transformers itself returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_models import tiny_model
from helpers.tiny_runs import write_data
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from limbeck import load_task
from limbeck.errors import DataError
from limbeck.rivals.frozen import frozen_rival, frozen_rivals


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    home = tmp_path_factory.mktemp("data")

    def of(problem):
        block = write_data(problem, home / problem)
        return load_task(**{key: value for key, value in block.items() if key != "max_length"})

    return of


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model("bert", depth=3, vocab_size=len(tokenizer), initializer_range=0.2).eval()


def hidden(model, tokenizer, texts, layer, pooling):
    """Return one row for each text, each run alone."""
    rows = []
    for text in texts:
        batch = tokenizer([text], return_tensors="pt", truncation=True, max_length=16)
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states[layer][0]
        rows.append((states[0] if pooling == "cls" else states.mean(0)).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("layer", [1, 3])
def test_answers_are_those_of_a_plain_regression_on_the_hidden_states(load, model, tokenizer, layer):
    task = load("classification")
    found = frozen_rival(task, model, tokenizer, layer, name="frozen tiny", max_length=16)
    train, dev = (task.split(split)[:] for split in ("train", "validation"))
    pooling = found.details["pooling"]
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=found.details["strength"], max_iter=5000, tol=1e-8))
    plain.fit(hidden(model, tokenizer, train["text"], layer, pooling), train["label"])
    expected = plain.predict(hidden(model, tokenizer, dev["text"], layer, pooling))
    assert (found.answers["validation"]["prediction"] == expected).mean() >= 0.95  # fits end at another digit
    assert found.metrics["accuracy"] == pytest.approx(
        accuracy_score(dev["label"], found.answers["validation"]["prediction"])
    )
    assert found.predict(dev["text"]).tolist() == found.answers["validation"]["prediction"].tolist()
    assert found.name == f"linear on frozen tiny, {layer} layer{'s' * (layer > 1)}"


def test_the_pooling_is_the_better_one_of_a_cross_validation(load, model, tokenizer):
    from limbeck.models.linear import fit_linear

    task = load("regression")
    train = task.split("train")[:]
    groups = np.unique(train["text"], return_inverse=True)[1].tolist()
    scores = {}
    for pooling in ("cls", "mean"):
        features = hidden(model, tokenizer, train["text"], 2, pooling)
        how = {"num_labels": 1, "metric": task.metrics[0], "groups": groups}
        scores[pooling] = fit_linear(features, train["label"], "regression", **how).score
    found = frozen_rival(task, model, tokenizer, 2, max_length=16)
    assert found.details["pooling"] == max(scores, key=lambda one: scores[one])
    features = {split: hidden(model, tokenizer, task.split(split)["text"], 2, found.details["pooling"])
                for split in ("train", "validation")}  # fmt: skip
    plain = make_pipeline(StandardScaler(), Ridge(alpha=1 / found.details["strength"]))
    plain.fit(features["train"], train["label"])
    assert found.answers["validation"]["prediction"] == pytest.approx(plain.predict(features["validation"]), abs=1e-3)


@pytest.mark.parametrize("problem", ["multi_label", "tokens"])
def test_other_problems_are_scored_as_students_are(load, model, tokenizer, problem):
    task = load(problem)
    one, two = frozen_rivals(task, model, tokenizer, [0, 3], max_length=48)
    assert set(one.metrics) == set(task.metrics) == set(two.metrics)
    assert one.parameters < two.parameters
    if problem == "tokens":
        sizes = [len(words) for words in task.split("validation")["words"]]
        assert [len(tags) for tags in one.answers["validation"]["prediction"]] == sizes
        assert [task.label_names[tag] for tag in one.predict([["the", "cat"]])[0]] == ["B-A", "O"]


def at_words(model, tokenizer, sentences, layer):
    """Return one row for each word: its first token, each sentence run alone."""
    rows = []
    for words in sentences:
        batch = tokenizer([" ".join(words)], return_tensors="pt")
        owners = batch.word_ids()
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states[layer][0]
        rows += [states[owners.index(word)].numpy() for word in range(len(words))]
    return np.stack(rows)


def test_tags_are_those_of_a_plain_regression_on_the_first_token_of_each_word(load, model, tokenizer):
    task = load("tokens")
    found = frozen_rival(task, model, tokenizer, 2, max_length=48)
    train, dev = (task.split(split)[:] for split in ("train", "validation"))
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=found.details["strength"], max_iter=5000, tol=1e-8))
    plain.fit(at_words(model, tokenizer, train["words"], 2), np.concatenate(train["label"]))
    expected = plain.predict(at_words(model, tokenizer, dev["words"], 2))
    assert (np.concatenate(found.answers["validation"]["prediction"]) == expected).mean() > 0.99
    assert found.metrics["token_accuracy"] > 0.9


def test_a_decoder_is_read_at_its_last_token(load, tmp_path):
    from helpers.tiny_tokenizers import make_bpe

    from limbeck.models.loading import load_tokenizer

    tokenizer = load_tokenizer(make_bpe(tmp_path / "words", "gpt2"))
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    decoder = tiny_model("gpt2", depth=2, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **special)
    found = frozen_rival(load("classification"), decoder, tokenizer, 2, max_length=32)
    assert found.details["pooling"] in ("last", "mean")


@pytest.mark.parametrize(("problem", "why"), [("span", "starts and ends"), ("language_model", "has no labels")])
def test_spans_and_plain_text_have_no_rivals(load, model, tokenizer, problem, why):
    from limbeck.rivals.tfidf import tfidf_rival

    task = load(problem)
    with pytest.raises(DataError, match=why):
        frozen_rival(task, model, tokenizer, 1)
    with pytest.raises(DataError, match=why):
        tfidf_rival(task)

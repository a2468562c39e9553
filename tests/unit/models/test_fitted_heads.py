"""Compare fitted heads with scikit-learn's own pipelines, on features captured row by row without padding."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.tiny_models import DECODERS, SIZES, VOCAB, families_for, mostly_slow, tiny_model
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from limbeck.errors import DataError, ModelError
from limbeck.inference.logits import predict_logits
from limbeck.models.fitted_heads import fit_head, head_inputs, last_linear
from limbeck.problems import IGNORED
from limbeck.tasks.encode import Collator

ROWS = 90
METRIC = {"regression": "pearson", "multi_label": "micro_f1", "tokens": "entity_f1", "span": "f1"}
NO_BIAS = DECODERS  # their heads of texts


def model_of(family, problem="classification", seed=0):
    labels = {"regression": 1, "span": 2}.get(problem, 3)
    return tiny_model(family, 2, labels, seed, problem, initializer_range=0.3)


def drawn(problem="classification", rows=ROWS, seed=0):
    """Draw rows of different lengths; labels follow from the tokens, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(5, VOCAB, rng.integers(6, 14)).tolist() for _ in range(rows)]
    labels = {
        "classification": lambda row: int(row[0] % 3),
        "regression": lambda row: float(np.mean(row) / 10),
        "multi_label": lambda row: [float(row[0] > 60), float(row[-1] > 60), float(row[1] > 60)],
        "tokens": lambda row: [IGNORED, *(int(token % 3) for token in row[1:])],
        "span": lambda row: [int(np.argmax(row)), int(np.argmin(row))],
    }[problem]
    masks = [[1] * len(row) for row in ids]
    columns = {"id": range(rows), "input_ids": ids, "attention_mask": masks, "labels": [labels(row) for row in ids]}
    return Dataset.from_dict({name: list(values) for name, values in columns.items()})


def collator(problem="classification", side="right"):
    tokenizer = SimpleNamespace(pad_token_id=0, pad_token_type_id=0, padding_side=side, name_or_path="tiny")
    return Collator(tokenizer, None, problem)


def own_features(model, data, problem):
    """Run each row alone and note what the last layer of the head was given."""
    names = dict(model.named_modules())
    layer = next(names[name] for name in ("classifier.out_proj", "classifier", "score", "qa_outputs") if name in names)
    seen = []
    hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].detach().double().numpy()))
    model.eval()
    with torch.no_grad():
        for ids in data["input_ids"]:
            model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    hook.remove()
    if problem not in ("tokens", "span"):
        # EuroBERT averages what it says of each token, a decoder decides at its last one
        of_tokens = {"eurobert": lambda row: row.mean(0)}.get(model.config.model_type, lambda row: row[-1])
        return [row if row.ndim == 1 else of_tokens(row) for row in seen]
    return seen


def pipeline(problem, strength, bias):
    scaler = StandardScaler(with_mean=bias)
    logistic = LogisticRegression(C=strength, max_iter=5000, tol=1e-9, fit_intercept=bias)
    if problem == "regression":
        return make_pipeline(scaler, Ridge(alpha=1 / strength, fit_intercept=bias))
    return make_pipeline(scaler, OneVsRestClassifier(logistic) if problem in ("multi_label", "span") else logistic)


@pytest.mark.parametrize(
    ("family", "problem"),
    mostly_slow(product(SIZES, ("classification", "regression", "multi_label")), often=["classification"]),
)
def test_a_texts_head_answers_as_scikit_learn_does(family, problem):
    model, data = model_of(family, problem), drawn(problem)
    features = np.stack(own_features(model, data, problem))
    side = "left" if family == "llama" else "right"
    fitted = fit_head(model, data, collator(problem, side), problem, metric=METRIC.get(problem, "accuracy"))
    own = pipeline(problem, fitted.strength, family not in NO_BIAS).fit(features, np.array(data["labels"]))
    logits = predict_logits(model, data, collator(problem, side))
    if problem == "regression":
        assert logits[:, 0] == pytest.approx(own.predict(features), abs=5e-3)
    else:
        chances = expit(logits) if problem == "multi_label" else softmax(logits, axis=-1)
        assert chances == pytest.approx(own.predict_proba(features), abs=1e-2)
    assert fitted.rows == ROWS and np.isfinite(fitted.score)


@pytest.mark.parametrize("family", families_for("tokens"))
def test_a_heads_tags_are_those_of_scikit_learn(family):
    model, data = model_of(family, "tokens"), drawn("tokens", 40)
    features = np.concatenate([row[1:] for row in own_features(model, data, "tokens")])
    labels = np.concatenate([row[1:] for row in data["labels"]])
    fitted = fit_head(model, data, collator("tokens"), "tokens", metric="entity_f1")
    own = pipeline("tokens", fitted.strength, last_linear(model).bias is not None).fit(features, labels)
    logits = np.concatenate([row[1:] for row in predict_logits(model, data, collator("tokens"))])
    assert softmax(logits, axis=-1) == pytest.approx(own.predict_proba(features), abs=1e-2)
    assert fitted.metric == "accuracy"


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", families_for("span"))
def test_starts_and_ends_are_those_of_scikit_learn(family, side):
    """Rows have at most 12 tokens here, so that all of them are used: start, end and ten others."""
    if side == "left" and family not in DECODERS:
        pytest.skip("encoders count positions from the left edge")
    model = model_of(family, "span")
    data = drawn("span", 60).map(lambda row: {name: row[name][:8] for name in ("input_ids", "attention_mask")})
    data = data.map(lambda row: {"labels": [int(np.argmax(row["input_ids"])), int(np.argmin(row["input_ids"]))]})
    features = np.concatenate(own_features(model, data, "span"))
    labels = np.concatenate([np.eye(len(ids))[at].T for ids, at in zip(data["input_ids"], data["labels"], strict=True)])
    fitted = fit_head(model, data, collator("span", side), "span", metric="f1")
    own = pipeline("span", fitted.strength, last_linear(model).bias is not None).fit(features, labels)
    logits = np.concatenate(predict_logits(model, data, collator("span", side)))
    assert expit(logits) == pytest.approx(own.predict_proba(features), abs=1e-2)


def test_the_sample_follows_from_the_tokens_and_has_some_of_each_class():
    model, data = model_of("bert"), drawn()
    rare = data.map(lambda row, at: {"labels": 2 if at == 17 else row["labels"] % 2}, with_indices=True)
    inputs = head_inputs(model, rare, collator(), "classification", rows=30)
    assert inputs.features.shape == (30, 32) and inputs.features.dtype == np.float32
    assert set(inputs.labels) == {0, 1, 2} and inputs.rows == 30
    turned = head_inputs(model, rare.select(range(ROWS - 1, -1, -1)), collator(), "classification", rows=30)
    assert turned.features[::-1] == pytest.approx(inputs.features, abs=1e-4)
    other = head_inputs(model, rare, collator(), "classification", rows=30, seed=1)
    assert not np.array_equal(other.labels, inputs.labels)


def test_features_are_in_the_order_of_the_rows_and_equal_texts_share_a_group():
    model, data = model_of("bert"), drawn()
    twice = data.select([3, 1, 3, 2])
    inputs = head_inputs(model, twice, collator(), "classification", batch_size=2)
    assert inputs.features == pytest.approx(np.stack(own_features(model, twice, "classification")), abs=1e-4)
    assert inputs.labels.tolist() == [data[row]["labels"] for row in (3, 1, 3, 2)]
    assert inputs.groups[0] == inputs.groups[2] and inputs.texts == 3
    tokens = head_inputs(model_of("bert", "tokens"), drawn("tokens", 5), collator("tokens"), "tokens")
    assert np.bincount(tokens.groups).tolist() == [len(ids) - 1 for ids in drawn("tokens", 5)["input_ids"]]


def test_windows_over_one_text_share_a_group():
    data = drawn("span", 6).add_column("example", [0, 0, 1, 1, 2, 2])
    inputs = head_inputs(model_of("bert", "span"), data, collator("span"), "span")
    assert inputs.texts == 3 and inputs.rows == 6


def test_the_same_seed_gives_the_same_weights_and_dropout_stays_as_it_was():
    weights = []
    for _ in range(2):
        model = model_of("bert").train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        fit_head(model, drawn(), collator(), "classification", metric="accuracy", seed=3)
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert model.training and changed == ["classifier.weight", "classifier.bias"]
        assert all(parameter.requires_grad and not parameter.is_inference() for parameter in model.parameters())
        weights.append(model.classifier.weight)
    assert torch.equal(*weights)


def test_class_weights_are_those_of_scikit_learn():
    model, data = model_of("bert"), drawn()
    features = np.stack(own_features(model, data, "classification"))
    weights = (1.0, 5.0, 0.2)
    fitted = fit_head(model, data, collator(), "classification", metric="accuracy", class_weights=weights)
    own = pipeline("classification", fitted.strength, True)
    own[-1].set_params(class_weight=dict(enumerate(weights)))
    own.fit(features, data["labels"])
    logits = predict_logits(model, data, collator())
    assert softmax(logits, axis=-1) == pytest.approx(own.predict_proba(features), abs=1e-2)


def test_a_head_that_is_no_linear_layer_is_refused():
    model = model_of("bert")
    model.classifier = nn.Sequential(nn.Linear(32, 3), nn.Tanh())
    with pytest.raises(ModelError, match=r"does not end in a linear layer.*student\.head=fresh"):
        last_linear(model)
    with pytest.raises(ModelError, match="has no head"):
        last_linear(model.base_model)


@pytest.mark.parametrize("case", ["one text", "one class", "fewer rows than classes"])
def test_rows_that_tell_nothing_apart_are_refused_and_change_nothing(case):
    model, data = model_of("bert"), drawn()
    data = {
        "one text": data.select([4] * 10),
        "one class": data.map(lambda _: {"labels": 1}),
        "fewer rows than classes": data.select([0, 1]),
    }[case]
    before = model.classifier.weight.clone()
    with pytest.raises(DataError, match="cannot be fitted"):
        fit_head(model, data, collator(), "classification", metric="accuracy")
    assert torch.equal(model.classifier.weight, before)


def test_a_class_with_one_row_is_fitted():
    model, data = model_of("bert"), drawn()
    data = data.map(lambda row, at: {"labels": 2 if at == 17 else row["labels"] % 2}, with_indices=True)
    assert np.isfinite(fit_head(model, data, collator(), "classification", metric="accuracy").score)

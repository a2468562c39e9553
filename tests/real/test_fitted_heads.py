"""Fit the head of a real encoder to real intents, before any training."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from helpers.real_data import BANKING, ENCODER, needs_encoder, real_tokenizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForSequenceClassification

import limbeck
from limbeck import keep_layers
from limbeck.inference.logits import predict_logits
from limbeck.models.fitted_heads import head_inputs
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.task import make_split

pytestmark = [pytest.mark.real, needs_encoder, pytest.mark.skipif(not BANKING.is_dir(), reason="no ../shared/data")]
INTENTS, EACH = 30, {"train": 10, "test": 5}  # rows of each intent


def rows_of(split):
    names = json.loads((BANKING / "categories.json").read_text())[:INTENTS]
    found = {name: [] for name in names}
    with (BANKING / f"{split}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.get(row["category"], []).append(row["text"])
    return [(text, number) for number, texts in enumerate(found.values()) for text in texts[: EACH[split]]]


def test_a_fitted_head_of_a_real_encoder_answers_many_intents_before_training():
    tokenizer = real_tokenizer("gte-small")
    whole = AutoModelForSequenceClassification.from_pretrained(ENCODER, num_labels=INTENTS)
    model = keep_layers(whole, [1, 2, 3, 12])
    data = {}
    for split in EACH:
        texts, labels = zip(*rows_of(split), strict=True)
        made = make_split(split, {"id": range(len(texts)), "text": texts, "label": labels})
        data[split] = encode(("text",), made, tokenizer, 64)
    collate = Collator(tokenizer)

    def accuracy():
        return float((predict_logits(model, data["test"], collate).argmax(-1) == data["test"]["labels"]).mean())

    fresh = accuracy()
    features = {split: head_inputs(model, data[split], collate, "classification") for split in EACH}
    texts, labels = zip(*rows_of("train"), strict=True)
    fitted = limbeck.fit_head(model, tokenizer, texts, labels)
    own = make_pipeline(StandardScaler(), LogisticRegression(C=fitted.strength, max_iter=1000, tol=1e-6))
    own.fit(features["train"].features, features["train"].labels)
    theirs = own.score(features["test"].features, features["test"].labels)
    reached = accuracy()
    assert fresh < 0.15 and reached > 0.5 and reached == pytest.approx(theirs, abs=0.02)
    assert fitted.score > 0.5 and np.isfinite(fitted.strength)

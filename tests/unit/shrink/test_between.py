"""Weights between two models are the plain average; the point is chosen by the loss among scores within noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences, write_csv
from safetensors.torch import load_file
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score
from transformers import AutoModelForSequenceClassification

from limbeck.shrink.between import SHARES, Between, Point, best_point
from limbeck.tasks import load_task


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tokenizer):
    """Save two models of one shape, and a task with rows that choose."""
    home = tmp_path_factory.mktemp("pair")
    for number, name in enumerate(("start", "end")):
        torch.manual_seed(number)
        model = tiny_model("bert", depth=2)
        model.config.id2label, model.config.label2id = {0: "negative", 1: "positive"}, {"negative": 0, "positive": 1}
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
    files = write_csv(home / "train.csv", sentences(40)), write_csv(home / "dev.csv", sentences(30, seed=1))
    train, dev = map(str, files)
    return home / "start", home / "end", load_task("table", train=train, validation=dev, text="text", label="label")


def test_points_are_scored_as_the_averaged_model_answers(pair, tokenizer, tmp_path):
    start, end, task = pair
    between = Between(start, end, task)
    points = between.compare()
    assert [point.share for point in points] == list(SHARES)
    first, last = (load_file(folder / "model.safetensors") for folder in (start, end))
    rows = task.split("validation")
    for point in points:
        model = AutoModelForSequenceClassification.from_pretrained(end)
        mixed = {
            name: ((1 - point.share) * first[name].double() + point.share * last[name].double()).float()
            for name in last
        }
        model.load_state_dict(mixed, strict=False)
        given = tokenizer(rows["text"][:], padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model.eval()(**given).logits.double().numpy()
        labels = np.array(rows["label"][:])
        assert point.score == pytest.approx(accuracy_score(labels, logits.argmax(-1)))
        assert point.loss == pytest.approx(-log_softmax(logits, -1)[np.arange(len(labels)), labels].mean(), rel=1e-4)
    between.save(0.25, tmp_path / "quarter")
    saved = load_file(tmp_path / "quarter" / "model.safetensors")
    for name, value in saved.items():
        torch.testing.assert_close(value, 0.75 * first[name] + 0.25 * last[name])


@pytest.mark.parametrize(
    ("metric", "points", "share"),
    [
        ("accuracy", [(0.0, 0.80, 0.1), (0.5, 0.89, 0.5), (1.0, 0.90, 0.6)], 0.5),  # within noise: the least loss
        ("accuracy", [(0.0, 0.80, 0.1), (0.5, 0.85, 0.5), (1.0, 0.90, 0.6)], 1.0),  # clearly better
        ("mse", [(0.0, 0.80, 0.8), (0.5, 0.85, 0.5), (1.0, 0.90, 0.6)], 0.0),  # less is better
    ],
)
def test_the_point_with_the_least_loss_of_those_within_noise_is_chosen(metric, points, share):
    found = best_point([Point(place, score, loss, noise=0.02) for place, score, loss in points], metric)
    assert found.share == share

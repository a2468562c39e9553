from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.tiny_models import SIZES, tiny_batch, tiny_model
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import matthews_corrcoef
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from limbeck.errors import ModelError
from limbeck.models.capture import model_inputs
from limbeck.models.families import blocks_of
from limbeck.models.layer_choice import (
    block_influence,
    choice_sample,
    compare_layers,
    metric_of_decisions,
    propose_layers,
)
from limbeck.models.linear import fold_numbers
from limbeck.models.students import keep_layers


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[number, : len(row["input_ids"])] = 1
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def rows_of(count, kind="classes", seed=0):
    """Draw rows of few different tokens, whose label follows from the first one: the token that BERT's head reads."""
    generator = np.random.default_rng(seed)
    ids = [generator.integers(5, 30, generator.integers(4, 9)).tolist() for _ in range(count)]
    labels = [float(row[0]) / 10 if kind == "numbers" else int(row[0] % 3 == 0) for row in ids]
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


def test_proposals_by_hand():
    influence = [0.9, 0.1, 0.2, 0.3, 0.05, 0.05, 0.05, 0.6, 0.5, 0.4, 0.7, 0.8]
    assert propose_layers(12, 6, influence) == {
        "ends": [1, 2, 3, 4, 5, 12],
        "spread": [2, 4, 6, 8, 10, 12],
        "first": [1, 2, 3, 4, 5, 6],
        "halves": [1, 2, 3, 10, 11, 12],
        "influence": [1, 8, 9, 10, 11, 12],
        "influence of runs": [1, 8, 9, 10, 11, 12],
    }
    assert propose_layers(12, 3, influence) == {
        "ends": [1, 2, 12],
        "spread": [4, 8, 12],
        "first": [1, 2, 3],
        "halves": [1, 2, 12],
        "influence": [1, 11, 12],
        "influence of runs": [1, 11, 12],
    }
    assert propose_layers(4, 3, [0.2, 0.1, 0.3, 0.1])["last"] == [2, 3, 4]
    assert propose_layers(4, 3, [0.2, 0.1, 0.3, 0.1])["influence"] == [1, 2, 3]
    # single blocks go, or neighbours
    uneven = propose_layers(5, 3, [0.5, 0.1, 0.9, 0.1, 0.2])
    assert uneven["influence"] == [1, 3, 5] and uneven["influence of runs"] == [1, 2, 3]


@pytest.mark.parametrize("depth", [1, 2, 6, 24])
def test_every_proposal_has_as_many_layers_as_were_asked_for(depth):
    influence = np.random.default_rng(depth).random(depth).tolist()
    for count in range(1, depth + 1):
        for layers in propose_layers(depth, count, influence).values():
            assert len(layers) == count and layers == sorted(set(layers)) and 1 <= layers[0] <= layers[-1] <= depth


@pytest.mark.parametrize("family", SIZES)
def test_influence_against_a_plain_loop_in_float64(family):
    model = tiny_model(family, depth=3).double().train()  # dropout must not count
    batches = [tiny_batch(), tiny_batch(lengths=(3, 9), seed=1)]
    inputs, outputs = [], []
    blocks = blocks_of(model)
    expected = np.zeros(3)

    def note(_, args, kwargs, output):
        inputs.append(args[0] if args else kwargs["hidden_states"])
        outputs.append(output[0] if isinstance(output, tuple) else output)

    model.eval()
    tokens = 0
    for batch in batches:
        hooks = [block.register_forward_hook(note, with_kwargs=True) for block in blocks]
        with torch.no_grad():
            model(**model_inputs(model, batch))
        for hook in hooks:
            hook.remove()
        for number, (before, after) in enumerate(zip(inputs[-3:], outputs[-3:], strict=True)):
            for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
                for place in range(length):
                    x, y = before[row, place].numpy(), after[row, place].numpy()
                    expected[number] += 1 - x @ y / math.sqrt(x @ x) / math.sqrt(y @ y)
        tokens += int(batch["attention_mask"].sum())
    model.train()
    np.testing.assert_allclose(block_influence(model, batches), expected / tokens, atol=1e-6)
    assert model.training
    assert all(not block._forward_hooks for block in blocks)


@pytest.mark.parametrize(
    ("family", "kind", "metric"),
    [("bert", "classes", "mcc"), ("gpt2", "classes", "accuracy"), ("bert", "numbers", "mse")],
)
def test_scores_are_those_of_scikit_learn_on_the_built_students(family, kind, metric):
    model = tiny_model(family, depth=4, num_labels=1 if kind == "numbers" else 2, pad_token_id=0).eval()
    data = rows_of(90, kind)
    problem = "regression" if kind == "numbers" else "classification"
    candidates = {"ends": [1, 4], "first": [1, 2], "also": [1, 2], "three": [1, 2, 3]}
    table = compare_layers(model, data, collate, problem, candidates, metric=metric, seed=3)
    assert [len(candidate.layers) for candidate in table] == [3, 2, 2]
    assert {tuple(candidate.layers): candidate.proposed_by for candidate in table} == {
        (1, 2, 3): ["three"],
        (1, 4): ["ends"],
        (1, 2): ["first", "also"],
    }
    labels = np.array(data["labels"][:])
    folds = fold_numbers(90, list(range(90)), 3)
    for candidate in table:
        features = captured(keep_layers(model, candidate.layers).eval(), data)
        predictions = np.empty(90)
        for fold in range(3):
            held = folds == fold
            bias = family != "gpt2"  # whose head has none, so that nothing could undo a move of its features
            logistic = LogisticRegression(C=0.1, max_iter=1000, fit_intercept=bias)
            estimator = Ridge(alpha=10) if kind == "numbers" else logistic
            fitted = make_pipeline(StandardScaler(with_mean=bias), estimator).fit(features[~held], labels[~held])
            predictions[held] = fitted.predict(features[held])
        scores = {
            "mcc": lambda p: matthews_corrcoef(labels, p),
            "accuracy": lambda p: (labels == p).mean(),
            "mse": lambda p: ((labels - p) ** 2).mean(),
        }
        assert candidate.score == pytest.approx(scores[metric](predictions), abs=1e-3)
        assert 0 < candidate.deviation < 0.3


def captured(model, data):
    """Return what the model's last linear layer receives for the token that decides, one row at a time."""
    found = []
    layer = model.score if hasattr(model, "score") else model.classifier
    with torch.no_grad():
        for row in data:
            received = []
            hook = layer.register_forward_hook(lambda _, args, out, kept=received: kept.append(args[0]))
            model(**model_inputs(model, collate([row])))
            hook.remove()
            found.append(received[0].reshape(-1, received[0].shape[-1])[-1].numpy())  # GPT-2: the last token
    return np.stack(found)


def test_the_best_set_leaves_out_blocks_that_destroy_what_is_known():
    model = tiny_model("bert", depth=6).eval()
    for number in (2, 4, 6):  # whatever comes in, the same goes out
        norm = blocks_of(model)[number - 1].output.LayerNorm
        torch.nn.init.zeros_(norm.weight)
        torch.nn.init.ones_(norm.bias)
    data = rows_of(300)
    influence = block_influence(model, [collate(list(data.select(range(32))))])
    proposed = propose_layers(6, 3, influence) | {"odd": [1, 3, 5]}
    table = compare_layers(model, data, collate, "classification", proposed, metric="accuracy")
    assert table[0].layers == [1, 3, 5] and table[0].score > table[1].score + 0.1 and table[0].tied
    assert not any(candidate.tied for candidate in table[1:])
    majority = max(np.bincount(data["labels"][:])) / 300
    assert all(candidate.score == pytest.approx(majority, abs=0.02) for candidate in table[1:])


def test_ties_go_to_the_earlier_name():
    model = tiny_model("bert", depth=4).eval()
    for block in blocks_of(model)[1:]:  # each of the others passes on what it gets, but for its norm
        for linear in (block.attention.output.dense, block.output.dense):
            torch.nn.init.zeros_(linear.weight)
    sets = {"b": [1, 3], "a": [1, 2], "c": [1, 4]}
    for order in (["a", "b", "c"], ["c", "a", "b"]):
        candidates = {name: sets[name] for name in order}
        table = compare_layers(model, rows_of(60), collate, "classification", candidates, metric="accuracy")
        assert [candidate.proposed_by for candidate in table] == [[name] for name in order]
        assert all(candidate.tied for candidate in table)


def test_sets_that_cannot_be_built_are_left_out():
    model = tiny_model("modernbert", depth=4).eval()
    candidates = {"spread": [2, 4], "ends": [1, 4], "first": [1, 2]}
    table = compare_layers(model, rows_of(40), collate, "classification", candidates, metric="accuracy")
    assert sorted(candidate.layers for candidate in table) == [[1, 2], [1, 4]]
    with pytest.raises(ModelError, match=r"None of the 1 sets .* Keep block 1 as the first"):
        compare_layers(model, rows_of(40), collate, "classification", {"spread": [2, 4]}, metric="accuracy")


def test_too_few_rows_leave_the_order():
    model = tiny_model("bert", depth=4).eval()
    equal = Dataset.from_dict({"input_ids": [[5, 6, 7]] * 4, "labels": [0, 1, 0, 1]})
    table = compare_layers(model, equal, collate, "classification", propose_layers(4, 2, [1.0] * 4), metric="accuracy")
    assert table[0].proposed_by[0] == "ends" and all(math.isnan(candidate.score) for candidate in table)


def test_the_sample_follows_from_the_rows_and_not_from_their_order():
    data = rows_of(300)
    chosen = choice_sample(data, "classification", 100, seed=1)
    turned = choice_sample(data.select(range(299, -1, -1)), "classification", 100, seed=1)
    assert len(chosen) == 100 and sorted(chosen["input_ids"]) == sorted(turned["input_ids"])
    assert np.mean(chosen["labels"]) == pytest.approx(np.mean(data["labels"]), abs=0.01)
    other = choice_sample(data, "classification", 100, seed=2)
    assert sorted(chosen["input_ids"]) != sorted(other["input_ids"])
    assert choice_sample(data, "classification", 300) is data


def test_the_metric_of_single_decisions():
    assert metric_of_decisions("mcc", "classification") == "mcc"
    assert metric_of_decisions("entity_f1", "tokens") == "accuracy"
    assert metric_of_decisions("exact_match", "span") == "micro_f1"

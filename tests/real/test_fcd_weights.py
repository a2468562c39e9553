"""Check the weights that Huang et al.'s rows search: with one of them, a term counts as much as the task."""

from __future__ import annotations

import pytest
import torch
from helpers.real_data import ENCODER, GLUE, needs_encoder, needs_glue, real_tokenizer
from transformers import AutoModelForSequenceClassification

from limbeck import METHODS, Capture, Pair, keep_layers, load_recipe

pytestmark = pytest.mark.real
ROWS = ("fcd", "fcd-kl", "fcd-mse", "fcd-layernorm-kl", "fcd-layernorm-mse", "fcd-no-norm", "fcd-softmax")


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    teacher = AutoModelForSequenceClassification.from_pretrained(ENCODER, num_labels=2).eval()
    return keep_layers(teacher, range(1, 7)).eval(), teacher


@pytest.fixture(scope="module")
def batch():
    lines = (GLUE / "RTE" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:33]
    fields = [line.split("\t") for line in lines]
    texts = real_tokenizer("gte-small")(
        [row[1] for row in fields], [row[2] for row in fields],
        padding=True, truncation=True, max_length=48, return_tensors="pt",
    )  # fmt: skip
    return {**texts, "labels": torch.tensor([int(row[3] == "not_entailment") for row in fields])}


def gradient(value, parameters):
    grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return torch.stack([g.square().sum() for g in grads if g is not None]).sum().sqrt().item()


@needs_encoder
@needs_glue
def test_with_a_weight_of_its_grid_a_relation_counts_as_much_as_the_task(models, batch):
    student, teacher = models
    pair = Pair.of(student, teacher, "classification")
    wanted = METHODS["fcd"](pair).needs()
    _, ours = Capture(student)(batch, wanted.student)
    with torch.no_grad():
        _, theirs = Capture(teacher)(batch, wanted.teacher)
    parameters = list(student.parameters())
    for row in ROWS:
        task = "rte" if row in ("fcd", "fcd-kl", "fcd-mse") else "mnli"
        recipe = load_recipe(f"fcd/bert-base-{task}-{row}")
        options = {name: value for name, value in recipe.method.options.items() if name not in ("alpha", "beta")}
        terms = METHODS["fcd"](pair, **options)(ours, theirs, batch)
        of_task = gradient(terms["task"], parameters)
        for term, weight in (("tokens", "alpha"), ("samples", "beta")):
            share = gradient(terms[term], parameters) / of_task
            counts = [value * share for value in recipe.grid[0][f"method.{weight}"]]
            assert any(0.2 < count < 5 for count in counts), (row, term, counts)

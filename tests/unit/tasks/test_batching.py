from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.distillation.objective import Term
from limbeck.tasks.batching import Batches, LengthGroupedOrder
from limbeck.training.trainer import RunTrainer


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 9), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_every_example_once_whatever_the_sizes(lengths, batch_size, epoch):
    order = LengthGroupedOrder(lengths, batch_size, seed=3)
    order.set_epoch(epoch)
    assert sorted(order) == list(range(len(lengths)))
    assert len(order) == len(lengths)


def test_order_depends_on_seed_and_epoch_alone():
    lengths = torch.randint(1, 50, (200,)).tolist()
    first, same, other = (LengthGroupedOrder(lengths, 8, seed) for seed in (0, 0, 1))
    assert list(first) == list(first) == list(same)
    assert list(first) != list(other)
    torch.manual_seed(99)
    first.set_epoch(1)
    assert list(first) != list(same)
    same.set_epoch(1)
    assert list(first) == list(same)


def test_batches_waste_little_padding():
    lengths = torch.randint(5, 128, (1000,), generator=torch.Generator().manual_seed(0))

    def padded(indices):
        return sum(int(lengths[chunk].max()) * len(chunk) for chunk in torch.tensor(indices).split(16))

    grouped = list(LengthGroupedOrder(lengths.tolist(), 16, seed=0))
    assert padded(grouped) < 1.1 * int(lengths.sum())
    assert padded(list(range(1000))) > 1.6 * int(lengths.sum())
    # but the batches themselves come in random order: short ones are not all at the end
    means = [lengths[chunk].float().mean() for chunk in torch.tensor(grouped).split(16)]
    assert abs(sum(means[:31]) / 31 - sum(means[31:62]) / 31) < 20


def test_batches_are_mixed_where_a_term_relates_samples():
    lengths = torch.randint(5, 128, (2000,), generator=torch.Generator().manual_seed(0))

    def spread(**collator: int | None) -> dict[bool, float]:
        """Return the mean deviation of lengths within a batch, for terms that relate samples and others."""
        found = {}
        for relational in (True, False):
            arguments = SimpleNamespace(train_batch_size=16, gradient_accumulation_steps=1, seed=0)
            trainer = SimpleNamespace(
                data_collator=SimpleNamespace(**collator),
                train_dataset=Dataset.from_dict({"input_ids": [[0] * int(length) for length in lengths]}),
                args=arguments,
                _distiller=SimpleNamespace(objective=[Term(), SimpleNamespace(relational=relational)]),
            )
            order = torch.tensor(list(RunTrainer._order(trainer)))
            found[relational] = float(lengths[order].float().view(-1, 16).std(dim=1).mean())
        return found

    alone = float(lengths.float().std())
    assert spread(pad_to=None)[True] == pytest.approx(alone, rel=0.05)  # as in a random sample of so many
    assert spread(pad_to=None)[False] < 0.1 * alone
    assert spread(pad_to=128)[False] == pytest.approx(alone, rel=0.05)


def test_batches_can_be_iterated_again():
    encoded = {"input_ids": [[1] * n for n in (3, 1, 5, 2)]}

    class Rows(dict):
        def __getitem__(self, key):
            return encoded["input_ids"] if key == "input_ids" else {"input_ids": encoded["input_ids"][key]}

    batches = Batches(Rows(), lambda rows: [len(row["input_ids"]) for row in rows], 3)
    assert list(batches) == list(batches) == [[5, 3, 2], [1]]
    assert len(batches) == 2

"""The order in which labelled rows and rows without a label are read, and the file in which the latter are kept."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import RecipeError
from limbeck.tasks.mixing import MixedOrder
from limbeck.tasks.row_store import RowStore


def order(labelled, unlabelled, share=0.5, step=8, seed=0, lengths=None):
    lengths = np.ones(labelled + unlabelled, np.int64) if lengths is None else lengths
    return MixedOrder(lengths, labelled, share, step, seed)


@given(st.integers(1, 200), st.integers(1, 200), st.floats(0.05, 0.95), st.integers(2, 17), st.integers(0, 3))
@settings(deadline=None, max_examples=80)
def test_every_row_comes_and_each_step_has_its_share(labelled, unlabelled, share, step, epoch):
    drawn = order(labelled, unlabelled, share, step)
    drawn.set_epoch(epoch)
    rows = np.array(list(drawn))
    assert len(rows) == len(drawn) == drawn.steps * step
    assert set(rows) == set(range(labelled + unlabelled))
    steps = rows.reshape(-1, step)
    expected = min(max(round(share * step), 1), step - 1)
    assert ((steps >= labelled).sum(1) == expected).all()
    counts = Counter(rows.tolist())
    for kind in (range(labelled), range(labelled, labelled + unlabelled)):
        seen = [counts[row] for row in kind]
        assert max(seen) - min(seen) <= 1  # all come before any comes again
    # no step more than one of the kinds needs
    assert drawn.steps == max(-(-labelled // (step - expected)), -(-unlabelled // expected))


def test_the_order_follows_from_seed_and_epoch_alone():
    first, same, other = order(30, 50), order(30, 50), order(30, 50, seed=1)
    assert list(first) == list(first) == list(same) != list(other)
    np.random.seed(5)
    first.set_epoch(2)
    assert list(first) != list(same)
    same.set_epoch(2)
    assert list(first) == list(same)


def test_parts_of_a_step_have_both_kinds():
    for rows in np.array(list(order(60, 60, 0.5, 16))).reshape(-1, 4):
        assert 0 < (rows >= 60).sum() < 4
    for rows in np.array(list(order(60, 60, 0.25, 16))).reshape(-1, 4):
        assert (rows >= 60).sum() == 1


def test_rows_of_similar_lengths_share_a_step():
    lengths = np.random.default_rng(0).integers(5, 128, 1_000)
    steps = np.array(list(order(200, 800, 0.5, 32, lengths=lengths))).reshape(-1, 32)
    padded = lengths[steps].max(1).sum() * 32
    assert padded < 1.1 * lengths[steps].sum()


def test_a_step_of_one_row_is_refused():
    with pytest.raises(RecipeError, match="cannot mix rows with and without a label"):
        order(3, 3, step=1)


def test_a_store_gives_back_what_it_took():
    generator = np.random.default_rng(0)
    store, kept = RowStore(), []
    for size in (3, 1, 40):
        rows = [generator.integers(0, 50_000, generator.integers(1, 9)).tolist() for _ in range(size)]
        columns = {"input_ids": rows, "labels": [[-number for number in row] for row in rows]}
        store.append(columns)
        kept += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    store.close_writing()
    assert len(store) == len(kept) == 44
    assert list(store) == kept
    assert [store[row] for row in (43, 0, 7)] == [kept[row] for row in (43, 0, 7)]
    assert store.lengths.tolist() == [len(row["input_ids"]) for row in kept]


def test_the_digest_of_a_store_tells_rows_apart():
    digests = set()
    for rows in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [4]]):
        store = RowStore()
        store.append({"input_ids": rows})
        store.close_writing()
        digests.add(store.digest)
    assert len(digests) == 3


def test_a_store_does_not_go_to_another_process():
    with pytest.raises(RecipeError, match="dataloader_num_workers=0"):
        pickle.dumps(RowStore())

"""Compact embeddings: what is stored, against plain references, and what an ONNX file reads back."""

from __future__ import annotations

import importlib.util
from itertools import pairwise

import numpy as np
import pytest

from limbeck.deploy import compact
from limbeck.deploy.compact import (
    ByteRows,
    CodedRows,
    CompactEmbeddings,
    NibbleRows,
    count_uses,
    lookup_of,
    replace_lookup,
)

needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sizes(monkeypatch, *counts):
    for name, count in zip(("BYTES", "NIBBLES", "SEEN"), counts, strict=True):
        monkeypatch.setattr(compact, name, count)


def test_rows_of_bytes_are_rounded():
    rows = normal(5, 30)
    rows[2] = 0
    read = ByteRows.of(rows).rows()
    for row, ours in zip(rows.astype(np.float64), read, strict=True):
        scale = max(abs(row)) / 127
        assert ours == pytest.approx([round(value / scale) * scale if scale else 0 for value in row], abs=1e-6)


@pytest.mark.parametrize("width", [7, 128, 300])
def test_rows_of_nibbles_have_the_best_of_some_scales(width):
    """Try the scales of each block one by one, in float64."""
    rows = normal(5, width)
    rows[2] = 0
    rows[3, 1] = 30  # with which all others would be rounded to nothing
    read = NibbleRows.of(rows).rows()
    for row, ours in zip(rows.astype(np.float64), read, strict=True):
        for start in range(0, width, 128):
            block = row[start : start + 128]
            errors = []
            for share in np.linspace(0.6, 1, 9):
                scale = share * max(abs(block)) / 7
                steps = [min(7, max(-7, round(value / scale))) if scale else 0 for value in block]
                errors.append(sum((step * scale - value) ** 2 for step, value in zip(steps, block, strict=True)))
            assert np.square(ours[start : start + 128] - block).sum() == pytest.approx(min(errors), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("width", "most", "size"), [(384, 16, 16), (384, 4, 4), (40, 16, 10), (7, 4, 1)])
def test_coded_rows_are_the_nearest_centres(width, most, size):
    rows = normal(600, width)
    coded = CodedRows.of(rows, most)
    assert coded.codes.shape == (600, width // size) and coded.centres.shape == (width // size, 256, size)
    centres = coded.centres.astype(np.float64) * coded.scales[:, None]
    for number in range(0, 600, 97):
        for part in range(width // size):
            own = rows[number, part * size : (part + 1) * size]
            far = np.square(centres[part] - own).sum(1)
            assert far[coded.codes[number, part]] == pytest.approx(far.min(), abs=1e-6)
    kept = 1 - np.square(rows - coded.rows()).sum() / np.square(rows).sum()
    assert kept > 0.35 + 0.6 / size  # independent numbers, which nothing compresses well


def test_few_rows_are_kept_nearly_exactly():
    rows = normal(30, 12)
    assert CodedRows.of(rows, 16).rows() == pytest.approx(rows, abs=float(np.abs(rows).max()) / 253)


def test_rows_that_are_used_most_are_most_precise(monkeypatch):
    sizes(monkeypatch, 40, 100, 900)
    table, uses = normal(5_000, 24), np.random.default_rng(1).permutation(5_000)
    own = CompactEmbeddings.of(table, uses).table()
    assert own.shape == table.shape
    errors = np.square(own - table).mean(1)
    tiers = [errors[(uses >= low) & (uses < high)] for high, low in pairwise((5000, 4960, 4860, 3960, 0))]
    assert [len(tier) for tier in tiers] == [40, 100, 900, 3960]
    means = [tier.mean() for tier in tiers]
    assert means == sorted(means) and means[0] < 1e-4 < means[1] < 0.02 < means[2] < means[3] < 0.9


def test_uses_are_counted(tokenizer):
    uses = count_uses(tokenizer, ["the cat sees the dog", "the bird"], len(tokenizer) + 3)
    own = tokenizer.get_vocab()
    assert len(uses) == len(tokenizer) + 3
    assert [uses[own[word]] for word in ("the", "cat", "dog", "bird")] == [3, 1, 1, 1]
    assert {uses[index] for index in tokenizer.all_special_ids} == {4}
    assert uses.sum() == 7 + 4 * len(set(tokenizer.all_special_ids)) - uses[tokenizer.unk_token_id] + 4


def graph_that_looks_up(table, twice=False):
    from onnx import TensorProto, helper, numpy_helper

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "length"])
    found = helper.make_tensor_value_info("found", TensorProto.FLOAT, ["rows", "length", table.shape[1]])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["found"], name="lookup")]
    if twice:
        nodes.append(helper.make_node("Gather", ["table", "ids"], ["again"], name="other"))
    graph = helper.make_graph(nodes, "lookup", [ids], [found], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@needs_onnx
@pytest.mark.parametrize(
    ("pieces", "width", "counts"),
    [
        (2_000, 24, (20, 40, 300)),
        (900, 7, (9, 39, 300)),
        (900, 300, (17, 17, 300)),
        (20, 24, (40, 40, 40)),
        (70, 24, (40, 40, 40)),
        (66_000, 4, (100, 100, 1_000)),
    ],
    ids=["all tiers", "odd", "wide", "bytes alone", "two tiers", "more than 16 bits"],
)
def test_a_file_reads_what_is_stored(pieces, width, counts, monkeypatch):
    import onnxruntime

    sizes(monkeypatch, *counts)
    table, draw = normal(pieces, width), np.random.default_rng(2)
    own = CompactEmbeddings.of(table, draw.permutation(pieces))
    model = graph_that_looks_up(table)
    replace_lookup(model, lookup_of(model.graph, table), own)
    assert not any(one.name == "table" for one in model.graph.initializer)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for ids in (draw.integers(0, pieces, (1, 1)), draw.integers(0, pieces, (3, 50)), np.arange(pieces)[None]):
        assert session.run(None, {"ids": ids})[0] == pytest.approx(own.table()[ids], abs=1e-6)
    if pieces == 2_000:
        centres = 2 * 256 * width * 2
        stored = 20 * (width + 4) + 40 * (width // 2 + 4) + 300 * (width // 4) + 1_640 * (width // 12) + centres
        assert len(model.SerializeToString()) < stored + 2 * pieces + 6_000 < table.nbytes


@needs_onnx
def test_only_a_single_lookup_is_found():
    table = normal(50, 8)
    assert lookup_of(graph_that_looks_up(table).graph, table).name == "lookup"
    assert lookup_of(graph_that_looks_up(table, twice=True).graph, table) is None
    assert lookup_of(graph_that_looks_up(table).graph, table + 1) is None

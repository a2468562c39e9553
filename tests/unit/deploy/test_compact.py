"""Compact embeddings: what is stored, against plain references, and what an ONNX file reads back."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest

from limbeck.deploy import compact
from limbeck.deploy.compact import CoarseRows, CompactEmbeddings, FineRows, count_uses, lookup_of, replace_lookup

needs_onnx = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed: pip install 'limbeck[onnx]'"
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("width", [7, 128, 300])
def test_fine_rows_are_rounded_by_blocks(width):
    rows = normal(5, width)
    rows[2] = 0
    read = FineRows.of(rows).rows()
    for row, ours in zip(rows.astype(np.float64), read, strict=True):
        for start in range(0, width, 128):
            block = row[start : start + 128]
            scale = max(abs(block)) / 7
            steps = [round(value / scale) if scale else 0 for value in block]
            assert ours[start : start + 128] == pytest.approx([step * scale for step in steps], abs=1e-6)
    assert abs(rows - read).max() <= abs(rows).max() / 14 * 1.001


@pytest.mark.parametrize(("width", "size"), [(384, 12), (40, 8), (20, 10), (7, 1)])
def test_coarse_rows_are_the_nearest_centres(width, size):
    rows = normal(600, width)
    coarse = CoarseRows.of(rows)
    assert coarse.codes.shape == (600, width // size) and coarse.centres.shape == (width // size, 256, size)
    centres = coarse.centres.astype(np.float64)
    for number in range(0, 600, 97):
        for part in range(width // size):
            own = rows[number, part * size : (part + 1) * size]
            far = np.square(centres[part] - own).sum(1)
            assert far[coarse.codes[number, part]] == pytest.approx(far.min(), abs=1e-6)
    kept = 1 - np.square(rows - coarse.rows()).sum() / np.square(rows).sum()
    assert kept > 0.35 + 0.6 / size  # independent numbers, which nothing compresses well


def test_few_rows_are_kept_nearly_exactly():
    rows = normal(30, 12)
    assert CoarseRows.of(rows).rows() == pytest.approx(rows, abs=2e-3)


def test_rows_that_are_used_most_are_fine(monkeypatch):
    monkeypatch.setattr(compact, "FINE_PIECES", 40)
    table, uses = normal(3_000, 24), np.random.default_rng(1).permutation(3_000)
    own = CompactEmbeddings.of(table, uses)
    fine = uses >= 2_960
    assert own.table().shape == table.shape
    assert own.table()[fine] == pytest.approx(FineRows.of(table[fine]).rows())
    errors = np.square(own.table() - table).mean(1)
    assert errors[fine].max() < errors[~fine].mean()


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
    ("pieces", "width", "fine"),
    [(300, 24, 40), (300, 7, 39), (300, 300, 17), (20, 24, 40), (66_000, 4, 100)],
    ids=["both", "odd", "wide", "all fine", "more than 16 bits"],
)
def test_a_file_reads_what_is_stored(pieces, width, fine, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(compact, "FINE_PIECES", fine)
    table, draw = normal(pieces, width), np.random.default_rng(2)
    own = CompactEmbeddings.of(table, draw.permutation(pieces))
    model = graph_that_looks_up(table)
    replace_lookup(model, lookup_of(model.graph, table), own)
    assert not any(one.name == "table" for one in model.graph.initializer)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 1), (3, 50)):
        ids = draw.integers(0, pieces, shape)
        assert session.run(None, {"ids": ids})[0] == pytest.approx(own.table()[ids], abs=1e-6)
    largest = np.array([[pieces - 1, 0]])
    assert session.run(None, {"ids": largest})[0] == pytest.approx(own.table()[largest], abs=1e-6)
    bytes_ = fine * math.ceil(width / 2) + 4 * fine * math.ceil(width / 128)
    if pieces > fine:
        parts = own.coarse.centres.shape[0]
        bytes_ += (pieces - fine) * parts + 256 * width * 2 + pieces * (2 if pieces < 65_536 else 4)
        assert len(model.SerializeToString()) < bytes_ + 4_000 < table.nbytes + 6_000 or width < 24


@needs_onnx
def test_only_a_single_lookup_is_found():
    table = normal(50, 8)
    assert lookup_of(graph_that_looks_up(table).graph, table).name == "lookup"
    assert lookup_of(graph_that_looks_up(table, twice=True).graph, table) is None
    assert lookup_of(graph_that_looks_up(table).graph, table + 1) is None

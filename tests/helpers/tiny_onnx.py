"""Write exported folders whose ONNX graph is a table of scores for each word piece: all that a run time must handle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

LABELS = {
    "classification": ["no", "yes", "may be"],
    "multi_label": ["cats", "dogs", "birds"],
    "regression": ["score"],
    "tokens": ["O", "B-A", "I-A"],
    "span": ["start", "end"],
}
HEADS = {"tokens": "TokenClassification", "span": "QuestionAnswering"}
KINDS = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
PIECES = 400


def tiny_onnx(folder: Path, tokenizer: Path, problem: str = "classification", **reads: Any) -> Path:
    """Write a folder as ``limbeck export`` does; a text's logits are the means of its pieces' rows of a table.

    ``reads`` is what parity.json says of how texts are read.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shutil.copytree(tokenizer, folder)
    names = LABELS[problem]
    config = {
        "model_type": "bert",
        "architectures": [f"BertFor{HEADS.get(problem, 'SequenceClassification')}"],
        "problem_type": KINDS.get(problem),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "pad_token_id": 0,
        "vocab_size": PIECES,
    }
    (folder / "config.json").write_text(json.dumps(config))
    reads = {"columns": [], "max_length": 24, "decoding": {}, "texts": 2 if problem == "span" else 1} | reads
    about = {"form": "onnx", "reads": reads, "parameters": PIECES * len(names)}
    (folder / "parity.json").write_text(json.dumps(about))
    (folder / "README.md").write_text("# tiny\n\nA table of scores.\n\n| a | b |\n|---|---:|\n| 1 | 2 |\n")
    table = np.random.default_rng(0).normal(size=(PIECES, len(names))).astype(np.float32)
    weights = [numpy_helper.from_array(3 * table, "table")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    if problem == "tokens":
        nodes.append(helper.make_node("Identity", ["rows"], ["logits"]))
        outputs = [("logits", ["batch", "length", len(names)])]
    elif problem == "span":
        weights += [numpy_helper.from_array(np.array(place, np.int64), f"at{place}") for place in (0, 1)]
        outputs = [(f"{name}_logits", ["batch", "length"]) for name in names]
        nodes += [
            helper.make_node("Gather", ["rows", f"at{place}"], [name], axis=2)
            for place, (name, _) in enumerate(outputs)
        ]
    else:
        weights += [numpy_helper.from_array(np.array([axis], np.int64), f"axis{axis}") for axis in (1, 2)]
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "axis2"], ["wide"]),
            helper.make_node("Mul", ["rows", "wide"], ["real"]),
            helper.make_node("ReduceSum", ["real", "axis1"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "axis1"], ["count"], keepdims=1),
            helper.make_node("Div", ["sum", "count"], ["logits"]),
        ]
        outputs = [("logits", ["batch", len(names)])]
    used = ["input_ids"] if problem in ("tokens", "span") else ["input_ids", "attention_mask"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in used]
    found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs]
    graph = helper.make_graph(nodes, "tiny", inputs, found, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"form": "onnx", "parameters": str(PIECES * len(names))})
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    return folder

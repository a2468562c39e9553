"""Write a model as one ONNX file, with 32-bit weights or with weights of 8 bits; batch and length stay open."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.deploy.compact import CompactEmbeddings, lookup_of, replace_lookup
from limbeck.errors import MissingExtra, ModelError
from limbeck.inference.served import ONNX_HINT
from limbeck.models.families import family_of
from limbeck.models.loading import count_parameters

logger = logging.getLogger("limbeck")

_NO_ROOM = 1 << 16  # bytes that a full disk may still have
_ROWS, _LENGTH = 2, 8  # of the batch that is traced; both are open in the file


class _ExportedModel(nn.Module):
    """Compute logits from token ids, as the file will, with the positions that a decoder's padding asks for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.causal = family_of(model).causal

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if self.causal:
            inputs |= {"position_ids": (attention_mask.cumsum(1) - 1).clamp(min=0), "use_cache": False}
        output = self.model(**inputs)
        return (output.start_logits, output.end_logits) if hasattr(output, "start_logits") else output.logits


def write_onnx(model: Any, inputs: Sequence[str], file: Path, form: str, uses: np.ndarray | None = None) -> None:
    """Write an ONNX file; ``inputs`` are the names of what a tokenizer gives to the model.

    ``uses`` says how often each piece of the vocabulary is used: an int8 file then stores embeddings compactly.
    """
    file.parent.mkdir(exist_ok=True)
    if form == "onnx":
        _write_float32(model, inputs, file, form)
        return
    with tempfile.TemporaryDirectory(dir=file.parent) as between:
        whole = Path(between) / file.name
        _write_float32(model, inputs, whole, form)
        with _full_disk_noticed(file.parent):
            _write_int8(whole, file, None if uses is None else _Compact(_embeddings(model), uses))


def _write_float32(model: Any, inputs: Sequence[str], file: Path, form: str) -> None:
    try:
        import onnxscript  # noqa: F401  torch's exporter needs it, and would say so less clearly
    except ImportError as error:
        raise MissingExtra(f"An ONNX file is to be written. {ONNX_HINT}") from error
    mask = torch.ones(_ROWS, _LENGTH, dtype=torch.long)
    mask[0, _LENGTH // 2 :] = 0  # some padding, so that the trace reads the mask
    # in the order of _ExportedModel.forward, by which the exporter names them; a tensor given twice would be one input
    traced = {"input_ids": mask.clone(), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    traced = {name: value for name, value in traced.items() if name in inputs}
    with _silenced_exporter():
        try:
            program: Any = torch.onnx.export(
                _ExportedModel(model).eval(),
                kwargs=traced,
                input_names=list(traced),
                output_names=_output_names(model),
                dynamic_shapes={name: {0: "batch", 1: "length"} for name in traced},
                dynamo=True,
                verbose=False,
            )
        # the tracer, the converter and the optimiser have errors of their own
        except Exception as error:
            raise ModelError(
                f"This {model.config.model_type} model could not be turned into ONNX: {_first_line(error)} "
                "Other versions of torch and onnxscript may be able to; '--to hf' always works."
            ) from error
        _strip_source_paths(program.model.graph)
        program.model.metadata_props.update({"form": form, "parameters": str(count_parameters(model))})
        program.save(file)


def _output_names(model: Any) -> list[str]:
    return ["start_logits", "end_logits"] if type(model).__name__.endswith("QuestionAnswering") else ["logits"]


def _strip_source_paths(graph: Any) -> None:
    """Remove what the exporter notes at each node: which line of which file it comes from, with its path."""
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in graph.initializers.values():
        value.metadata_props.clear()


class _Compact(NamedTuple):
    """Hold a table of embeddings that is to be stored compactly, and how often each of its rows is used."""

    table: np.ndarray
    uses: np.ndarray


def _embeddings(model: Any) -> np.ndarray:
    table: np.ndarray = model.get_input_embeddings().weight.detach().float().cpu().numpy()
    return table


def _write_int8(source: Path, target: Path, compact: _Compact | None) -> None:
    """Write weights of linear layers and embeddings in 8 bits, with a scale for each output; quantise activations live.

    Seven of the bits are used: older processors add up products of eight in 16 bits, where they overflow, and a file
    that was checked on one machine must answer the same on another.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = source.with_name(f"{source.name}.data").exists()
    prepared = source.with_name("prepared.onnx")
    graph = onnx.load(source, load_external_data=False)
    del graph.graph.value_info[:]  # also the shapes of weights, some of which will be turned round
    onnx.save(graph, source)
    with _silenced_exporter():
        quant_pre_process(source, prepared, skip_symbolic_shape=True, save_as_external_data=large)
        lookup = None if compact is None else lookup_of(onnx.load(prepared).graph, compact.table)
        quantize_dynamic(
            prepared,
            target,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[lookup.name] if lookup else [],
            use_external_data_format=large,
        )
    if compact is not None and lookup is None:
        logger.warning("The embeddings are not looked up in a single place, so they take 8 bits like all else.")
    if compact is not None and lookup is not None:
        quantised = onnx.load(target)
        node = next(node for node in quantised.graph.node if node.name == lookup.name)
        replace_lookup(quantised, node, CompactEmbeddings.of(compact.table, compact.uses))
        _remove(target)
        onnx.save(quantised, target, save_as_external_data=large, location=f"{target.name}.data")


def _remove(file: Path) -> None:
    """Remove an ONNX file, with the weights beside it if there are any."""
    for part in (file, file.with_name(f"{file.name}.data")):
        part.unlink(missing_ok=True)


@contextmanager
def _full_disk_noticed(folder: Path) -> Iterator[None]:
    """Raise the system's error for a full disk: onnxruntime cuts a file off without a word, and fails to read it."""
    try:
        yield
    except Exception as error:
        if shutil.disk_usage(folder).free < _NO_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


@contextmanager
def _silenced_exporter() -> Iterator[None]:
    """Hide what the exporter and its libraries say inside: deprecations, missing optional packages, axis names."""
    exporter, root = logging.getLogger("torch.onnx"), logging.getLogger()
    level, handlers = exporter.level, list(root.handlers)
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
        root.handlers[:] = handlers  # quantisation adds one, which would say everything twice from now on


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

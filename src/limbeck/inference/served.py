"""Load a trained model in any of its forms, and ask it for logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from limbeck._internal.files import restore_folder
from limbeck.errors import MissingExtra, ModelError
from limbeck.inference.logits import model_logits
from limbeck.models.heads import check_head
from limbeck.models.loading import count_parameters, load_config, load_fine_tuned, load_tokenizer, resolve
from limbeck.runtime.errors import FolderError
from limbeck.runtime.folder import ONNX_FILES, find_onnx
from limbeck.runtime.model import open_session
from limbeck.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

EXPORT_FORMS = ("hf", *ONNX_FILES)
ONNX_HINT = "This needs onnxruntime: pip install 'limbeck[onnx]'"


class Served(Protocol):
    """Answer batches by a trained model, whatever runs it."""

    name: str  # the last part of its path
    form: str  # "torch", "onnx" or "onnx-int8"
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    parameters: int
    disk_bytes: int  # of its weights

    def logits(self, batch: Mapping[str, Tensor]) -> np.ndarray:
        """Return (B, labels) for a padded batch, or (B, L, labels) where each token is decided (of answers, 2)."""
        ...


def load_served(path: str | Path, *, task: Task | None = None, threads: int | None = None) -> Served:
    """Load a run directory, a model folder, an exported folder or a name on the hub; for ``task``, where one is given.

    ``threads`` is how many compute together; None leaves it to torch, and ONNX models take the same number.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    restore_folder(Path(path))
    found = find_onnx(path)
    if found is not None:
        served = OnnxServed(path, found[1], threads or torch.get_num_threads())
        if task is not None:
            check_head(path, served.config, task)
        return served
    return TorchServed(path, task)


class TorchServed:
    """Answer batches by PyTorch."""

    form = "torch"

    def __init__(self, path: str | Path, task: Task | None = None) -> None:
        self.name = Path(path).name
        self.use(load_fine_tuned(path, task), load_tokenizer(path))
        self.disk_bytes = _total_bytes(_local_folder(resolve(path)), "*.safetensors")

    def use(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Answer by this model from now on."""
        self.model, self.tokenizer = model.eval(), tokenizer
        self.config, self.parameters = model.config, count_parameters(model)

    def logits(self, batch: Mapping[str, Tensor]) -> np.ndarray:
        return model_logits(self.model, batch)


class OnnxServed:
    """Answer batches by onnxruntime."""

    def __init__(self, path: str | Path, file: Path, threads: int) -> None:
        self.name = Path(path).name
        self._session = _session(file, threads)
        about = self._session.get_modelmeta().custom_metadata_map
        if not {"form", "parameters"} <= set(about):
            raise ModelError(f"{file} was not written by 'limbeck export', so its form is not known.")
        self.form, self.parameters = about["form"], int(about["parameters"])
        self.config = load_config(path)
        self.tokenizer = load_tokenizer(path)
        self.disk_bytes = _total_bytes(file.parent, f"{file.name}*")
        self._inputs = [node.name for node in self._session.get_inputs()]

    def logits(self, batch: Mapping[str, Tensor]) -> np.ndarray:
        outputs = self._session.run(None, {name: batch[name].numpy() for name in self._inputs})
        return np.stack(outputs, axis=-1) if len(outputs) > 1 else outputs[0]


def _session(file: Path, threads: int) -> Any:
    try:
        return open_session(file, threads)
    except ImportError as error:
        raise MissingExtra(f"{file} is an ONNX model. {ONNX_HINT}") from error
    except FolderError as error:
        raise ModelError(str(error)) from error


def _local_folder(source: str) -> Path:
    """Return the folder with the files of a model that has been loaded."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, local_files_only=True))


def _total_bytes(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))

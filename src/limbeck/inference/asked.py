"""Load any form of a model as the run time asks it: exports by onnxruntime alone, others by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.files import restore_folder
from limbeck.errors import MissingExtra, ModelError
from limbeck.runtime.errors import FolderError
from limbeck.runtime.folder import About, find_onnx
from limbeck.runtime.model import Model, load
from limbeck.runtime.reading import Reader


def load_asked(path: str | Path) -> Model:
    """Load a run directory, a model folder, an exported folder or a name on the hub; each batch has one thread.

    An exported ONNX folder is opened without torch.
    """
    restore_folder(Path(path))
    if find_onnx(path) is None:
        return _torch_model(path)
    try:
        return load(path, threads=1)
    except FolderError as error:
        raise ModelError(str(error)) from error
    except ImportError as error:
        raise MissingExtra(f"{path} is an ONNX model. This needs onnxruntime: pip install 'limbeck[serve]'") from error


def _torch_model(path: str | Path) -> Model:
    import torch

    from limbeck.inference.predict import input_spec
    from limbeck.inference.served import TorchServed
    from limbeck.models.heads import names_of_labels, problem_of
    from limbeck.models.loading import longest_input

    torch.set_num_threads(1)  # several batches are computed at a time
    served, spec = TorchServed(path), input_spec(path)
    tokenizer: Any = served.tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelError(f"The tokenizer of {path} has no tokenizer.json (a slow tokenizer), which serving needs.")
    problem = problem_of(served.config)
    about = About(
        name=served.name,
        problem=problem,  # type: ignore[arg-type]  # a language model has no head that is loaded
        labels=() if problem in ("regression", "span") else names_of_labels(path, served.config),
        form=served.form,
        max_length=min(spec.max_length, longest_input(served)),
        texts=spec.texts or {"span": 2, "tokens": 1}.get(problem, 0),
        columns=spec.columns,
        decoding=spec.decoding,
        pad=tokenizer.pad_token_id,
        segments=tokenizer.pad_token_type_id,
        cut_left=tokenizer.truncation_side == "left",
        parameters=served.parameters,
    )
    names = tokenizer.model_input_names

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return served.logits({name: torch.from_numpy(inputs[name]) for name in names if name in inputs})

    return Model(about, Reader(tokenizer.backend_tokenizer.to_str(), about), run)

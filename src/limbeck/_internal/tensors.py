"""Save nested states (of optimisers, schedulers, random numbers) as safetensors files that notice damage. No pickle.

Tensors are stored under their place in the state, the rest as JSON in the file's metadata, with a checksum of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from limbeck._internal.files import replacing
from limbeck.errors import RunError

_TENSOR, _TUPLE, _ARRAY, _PAIRS = "__tensor__", "__tuple__", "__array__", "__pairs__"


def save_state(file: Path, state: Any) -> None:
    """Write nested mappings, lists, tuples, arrays, tensors and plain values to a file."""
    tensors: dict[str, Tensor] = {}
    save_tensors(file, tensors, json.dumps(_plain(state, tensors)))


def load_state(file: Path) -> Any:
    """Read what ``save_state`` wrote; damage is an error."""
    tensors, rest = load_tensors(file)
    return _restored(json.loads(rest), tensors)


def save_tensors(file: Path, tensors: Mapping[str, Tensor], rest: str = "") -> None:
    """Write tensors and a text; a file that cannot be written whole does not appear."""
    kept = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    about = {"format": "pt", "rest": rest, "sha256": _checksum(kept, rest)}
    with replacing(file) as temporary:
        temporary.write_bytes(safetensors.torch.save(kept, metadata=about))


def load_tensors(file: Path) -> tuple[dict[str, Tensor], str]:
    """Read the tensors and the text that ``save_tensors`` wrote; damage is an error."""
    try:
        with safetensors.safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"{file} cannot be read: {' '.join(str(error).split())}.") from error
    if about.get("sha256") != _checksum(tensors, about.get("rest", "")):
        raise RunError(f"{file} is damaged: its checksum is wrong.")
    return tensors, about.get("rest", "")


def _checksum(tensors: Mapping[str, Tensor], rest: str) -> str:
    digest = hashlib.sha256(rest.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensor_bytes(tensors[name]))
    return digest.hexdigest()


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Convert a state to what JSON can hold; tensors are put aside under a number."""
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value
        return {_TENSOR: str(len(tensors) - 1)}
    if isinstance(value, np.ndarray):
        return {_ARRAY: _plain(torch.from_numpy(value.copy()), tensors)}
    if isinstance(value, Mapping):
        return {_PAIRS: [[_plain(key, tensors), _plain(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_plain(item, tensors) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A state holds a {type(value).__name__}, which cannot be saved.")


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == _TENSOR:
        return tensors[content]
    if kind == _ARRAY:
        return _restored(content, tensors).numpy()
    if kind == _TUPLE:
        return tuple(_restored(item, tensors) for item in content)
    return {_restored(key, tensors): _restored(item, tensors) for key, item in content}


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the values of a tensor as bytes, whatever their type."""
    return memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]

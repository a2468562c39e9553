"""Sum up what features depend on in short texts, which differ where it differs: teacher, tokenizer, data, length."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from limbeck._internal.tensors import tensor_bytes
from limbeck.protocols import EncodedData, Model, Tokenizer
from limbeck.tasks.mixing import MixedRows

_ROWS = 10_000  # read at a time
# of a config: where the model lies and how it was written, not what it computes
_ABOUT_THE_FILE = {"_name_or_path", "transformers_version", "architectures", "dtype"}


def fingerprint(model: Model, tokenizer: Tokenizer, encoded: EncodedData, max_length: int) -> dict[str, str]:
    """Return a short text for the teacher, the tokenizer, the encoded data with their ids, and the length."""
    return {
        "teacher": model_digest(model),
        "tokenizer": _tokenizer_digest(tokenizer),
        "data": _data_digest(encoded),
        "max_length": str(max_length),
    }


def model_digest(model: Model) -> str:
    """Return a short text for the weights and the config of a model, wherever its files lie."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _ABOUT_THE_FILE}
    digest = hashlib.sha256(_text(config))
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def _tokenizer_digest(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        parts: dict[str, Any] = {"vocabulary": tokenizer.get_vocab()}
    else:
        parts = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # left behind by the last call
            parts.pop(state, None)
    return hashlib.sha256(_text(parts)).hexdigest()


def _data_digest(encoded: Any) -> str:
    if isinstance(encoded, MixedRows):
        parts = [_data_digest(encoded.labelled), encoded.unlabelled.first_id, encoded.unlabelled.store.digest]
        return hashlib.sha256(_text(parts)).hexdigest()
    # every row in order, without labels, which do not matter to a teacher
    names = [name for name in ("id", "input_ids", "attention_mask", "token_type_ids") if name in encoded.column_names]
    digest = hashlib.sha256(_text(names))
    for table in encoded.select_columns(names).with_format("arrow").iter(batch_size=_ROWS):
        for name in names:
            column = table.column(name).combine_chunks()
            if name != "id":
                digest.update(column.value_lengths().to_numpy().tobytes())
                column = column.flatten()
            digest.update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).tobytes())
    return digest.hexdigest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()

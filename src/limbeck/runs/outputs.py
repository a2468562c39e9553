"""Keep what a command writes apart from what it, or a later one, reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from limbeck._internal.files import expand_home, is_same_file
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory, StudyDirectory

# of a model folder, by the names that Hugging Face and 'limbeck export' give them
_MODEL_FILES = re.compile(
    r"((generation_)?config|special_tokens_map|added_tokens|tokenizer.*|vocab.*|parity)\.json"
    r"|(merges|vocab)\.txt|.*\.(safetensors|onnx|onnx\.data|bin|model)"
)


def check_not_read(output: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise where a file to be written is one of ``inputs``, or a part of a run, a study or a model."""
    file = expand_home(output)
    for one in inputs:
        if is_same_file(file, expand_home(one)):
            raise RunError(f"{output} is {one} itself, which is read here and would be lost. Choose another file.")
    file = file.resolve()
    if not file.is_file():
        return
    for folder in file.parents:
        if RunDirectory(folder).holds(file) or StudyDirectory(folder).holds(file):
            raise RunError(f"{output} is a part of {folder}, which would be lost. Choose another file.")
    folders = (file.parent, *([file.parent.parent] if file.parent.name == "onnx" else []))
    if _MODEL_FILES.fullmatch(file.name) and any((folder / "config.json").is_file() for folder in folders):
        raise RunError(f"{output} is a part of the model in {folders[-1]}, which would be lost. Choose another file.")

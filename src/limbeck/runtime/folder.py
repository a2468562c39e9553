"""Read from an exported folder what its model is: which problem it answers, its labels, and how it reads texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import FolderError

Problem = Literal["classification", "regression", "multi_label", "tokens", "span"]

# where transformers.js and others look for them
ONNX_FILES = {"onnx": Path("onnx/model.onnx"), "onnx-int8": Path("onnx/model_quantized.onnx")}
PARITY_FILE = "parity.json"  # only an export has it
CARD_FILE = "README.md"
LONGEST = 512  # tokens that are read where nothing else is known
_TOKENIZER, _TOKENIZER_SETTINGS, _CONFIG = "tokenizer.json", "tokenizer_config.json", "config.json"
_NO_LIMIT = 1_000_000  # above it, transformers means that there is no limit
_HEADS: dict[str, Problem] = {"TokenClassification": "tokens", "QuestionAnswering": "span"}
_PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "classification",
    "regression": "regression",
    "multi_label_classification": "multi_label",
}


@dataclass(frozen=True)
class About:
    """Say what a model answers, and how it reads texts."""

    name: str
    problem: Problem
    labels: tuple[str, ...]  # of its outputs, in order; of regression and answers none
    form: str  # "onnx", "onnx-int8" or "torch"
    max_length: int  # in tokens; longer texts are cut, or read in windows
    texts: int = 0  # that it reads together: 1, a pair, or 0 where that is not known
    columns: tuple[str, ...] = ()  # what these texts were called in training
    decoding: Mapping[str, Any] = field(default_factory=dict)  # of answers: stride, max_answer, ...
    pad: int = 0
    segments: int = 0  # of padding
    cut_left: bool = False  # whether texts that are too long lose their beginning
    parameters: int | None = None


def find_onnx(folder: str | Path) -> tuple[str, Path] | None:
    """Return the form and the file of a folder's ONNX model; None where it has none."""
    found = ((form, Path(folder) / place) for form, place in ONNX_FILES.items())
    return next(((form, file) for form, file in found if file.is_file()), None)


def read_about(folder: str | Path, form: str) -> About:
    """Read what the model of an exported folder is."""
    path = Path(folder)
    config, settings = _read(path / _CONFIG), _read(path / _TOKENIZER_SETTINGS)
    parity = _read(path / PARITY_FILE) if (path / PARITY_FILE).is_file() else {}
    try:
        problem, names = _problem(config), _labels(config)
        reads = parity.get("reads", {})
        alone = {"span": 2, "tokens": 1}.get(problem, 0)
        return About(
            name=path.resolve().name,
            problem=problem,
            labels=() if problem in ("regression", "span") else names,
            form=str(parity.get("form", form)),
            max_length=int(reads.get("max_length") or _longest(config, settings)),
            texts=int(reads.get("texts") or len(reads.get("columns", ())) or alone),
            columns=tuple(map(str, reads.get("columns", ()))),
            decoding=dict(reads.get("decoding", {})),
            pad=_pad(path, config, settings),
            segments=int(settings.get("pad_token_type_id") or 0),
            cut_left=settings.get("truncation_side") == "left",
            parameters=parity.get("parameters"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FolderError(
            f"The files of {folder} do not say what its model answers ({type(error).__name__}: {error}). Export it "
            "again: limbeck export RUN --to onnx-int8"
        ) from error


def read_tokenizer(folder: str | Path) -> str:
    """Return the content of a folder's ``tokenizer.json``."""
    try:
        return (Path(folder) / _TOKENIZER).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"{Path(folder) / _TOKENIZER} cannot be read ({error}). Export the model again.") from error


def no_model(folder: str | Path) -> FolderError:
    """Make the error to raise where a folder has no ONNX model."""
    path = Path(folder)
    there = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) if path.is_dir() else ""
    seen = f"it holds: {there or 'nothing'}" if path.is_dir() else "there is no such folder"
    return FolderError(
        f"{folder} has no {' or '.join(map(str, ONNX_FILES.values()))} ({seen}). "
        "Write one: limbeck export RUN --to onnx-int8 -o FOLDER"
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no names and values")
        return values
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{file} cannot be read ({error}). Copy it again, or export the model again.") from error


def _problem(config: Mapping[str, Any]) -> Problem:
    head = str((config.get("architectures") or [""])[0]).partition("For")[2]
    if head in _HEADS:
        return _HEADS[head]
    if head != "SequenceClassification":
        raise ValueError(f"its head is {head or 'none'}, and not of labels, numbers, tags or answers")
    alone = "regression" if len(_labels(config)) == 1 else "classification"
    return _PROBLEMS.get(str(config.get("problem_type")), alone)  # type: ignore[arg-type]


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # two without names are not written
    labels = tuple(str(names[str(index)]) for index in range(len(names)))
    if len(set(labels)) < len(labels):
        raise ValueError(f"two labels have the same name: {', '.join(labels[:8])}")
    return labels


def _longest(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    limits = (settings.get("model_max_length"), config.get("max_position_embeddings"))
    return min([int(limit) for limit in limits if limit and limit < _NO_LIMIT], default=LONGEST)


def _pad(path: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Return the id of the token that pads; a mask hides it from the model."""
    if config.get("pad_token_id") is not None:
        return int(config["pad_token_id"])
    token = settings.get("pad_token")
    name = token.get("content") if isinstance(token, dict) else token
    added = json.loads(read_tokenizer(path)).get("added_tokens", [])
    return next((int(one["id"]) for one in added if one["content"] == name), 0)


def read_card(folder: str | Path) -> str:
    """Return the model card of a folder; nothing where it has none."""
    try:
        return (Path(folder) / CARD_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

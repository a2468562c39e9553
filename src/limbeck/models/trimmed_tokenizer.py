"""Cut a tokenizer down to some of its pieces, so that texts of these pieces are split exactly as before.

WordPiece takes the longest piece at each place, Unigram the pieces with the best score: fewer pieces never change a
choice whose outcome is kept. BPE merges pieces in a fixed order: there, what a kept piece is merged from is kept too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from limbeck.errors import ModelError
from limbeck.protocols import Tokenizer

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how a piece stands for a byte of a character without a piece


def pieces_to_keep(tokenizer: Tokenizer, seen: Iterable[int]) -> set[int]:
    """Return the ids in ``seen`` and those without which something could not be written any more.

    These are special and added tokens, single characters and bytes (where a character has no piece of its own, all
    pieces that hold it), and what BPE merges to make a piece.
    """
    state = _state_of(tokenizer)
    model = state["model"]
    ids = _ids(model)
    kept = set(seen) | set(tokenizer.all_special_ids) | {token["id"] for token in state["added_tokens"]}
    spell = _SPELLING[model["type"]](model)
    for piece, index in ids.items():
        letters = spell(piece)
        if len(letters) == 1 or any(letter not in ids for letter in letters) or _BYTE.fullmatch(piece):
            kept.add(index)
    if model["type"] == "Unigram":
        kept.add(min(range(len(ids)), key=lambda index: model["vocab"][index][1]))  # the score of unknown depends on it
        kept |= {model["unk_id"]} - {None}
    else:
        kept |= {ids[token] for token in (model["unk_token"],) if token in ids}
    if model["type"] == "BPE":
        names = {index: piece for piece, index in ids.items()}
        ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        for index in sorted(kept & set(names)):
            kept |= {ids[part] for part in _merged_from(names[index], ranks)}
    return kept


def trim_tokenizer(tokenizer: Tokenizer, kept: Sequence[int]) -> Tokenizer:
    """Make a tokenizer of the same kind with only these pieces, numbered in this order.

    It is written to files and read again, so that it is what anybody loads later.
    """
    vocabulary = {index: piece for piece, index in tokenizer.get_vocab().items()}
    expected = {vocabulary[old]: new for new, old in enumerate(kept)}
    new_ids = {old: new for new, old in enumerate(kept)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save_pretrained(folder)
        state = _trimmed_state(_state_of(tokenizer), new_ids)
        (folder / _FILE).write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        _renumber_settings(folder / _SETTINGS, new_ids)
        kind: Any = type(tokenizer)
        trimmed: Any = kind.from_pretrained(folder, trust_remote_code=False)
    for setting in ("padding_side", "truncation_side", "model_max_length", "model_input_names", "name_or_path"):
        setattr(trimmed, setting, getattr(tokenizer, setting))
    if trimmed.get_vocab() != expected:
        raise _cannot(tokenizer, "its added tokens do not follow the other pieces")
    return trimmed


def kept_by(trimmed: Tokenizer, whole: Tokenizer) -> tuple[int, ...] | None:
    """Return which ids of ``whole`` a tokenizer was trimmed to; None where it is no trimmed form of it."""
    ours, theirs = trimmed.get_vocab(), whole.get_vocab()
    if len(ours) >= len(theirs) or not ours.keys() <= theirs.keys():
        return None
    kept = [theirs[piece] for piece in sorted(ours, key=ours.__getitem__)]
    in_order = kept == sorted(kept) and sorted(ours.values()) == list(range(len(kept)))
    return tuple(kept) if in_order else None


def _state_of(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _cannot(tokenizer, "it has no tokenizer.json (a slow tokenizer)")
    state: dict[str, Any] = json.loads(backend.to_str())
    model = state["model"]
    if model["type"] not in _SPELLING:
        raise _cannot(tokenizer, f"its kind is {model['type']}")
    if model["type"] == "BPE":
        for setting in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
            if model[setting]:
                raise _cannot(tokenizer, f"its BPE has {setting}={model[setting]!r}")
    return state


def _cannot(tokenizer: Any, reason: str) -> ModelError:
    return ModelError(
        f"The vocabulary of this {type(tokenizer).__name__} cannot be trimmed: {reason}. Trimmed are fast tokenizers "
        "of the kinds WordPiece, BPE and Unigram. Leave the vocabulary whole."
    )


def _ids(model: Mapping[str, Any]) -> dict[str, int]:
    if model["type"] == "Unigram":
        return {piece: index for index, (piece, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _wordpiece_spelling(model: Mapping[str, Any]) -> Callable[[str], list[str]]:
    prefix: str = model["continuing_subword_prefix"]

    def spell(piece: str) -> list[str]:
        if piece.startswith(prefix) and len(piece) > len(prefix):
            return [prefix + character for character in piece.removeprefix(prefix)]
        return [piece[:1], *(prefix + character for character in piece[1:])]

    return spell


# how the characters of a piece are written, where the piece itself is missing
_SPELLING: dict[str, Callable[[Mapping[str, Any]], Callable[[str], list[str]]]] = {
    "WordPiece": _wordpiece_spelling,
    "BPE": lambda _: list,
    "Unigram": lambda _: list,
}


def _merged_from(piece: str, ranks: Mapping[tuple[str, str], int]) -> Iterable[str]:
    """Yield what BPE makes on its way to a piece, the piece itself among it.

    Inside any text that holds the piece it is made in the same way: a merge over its border would have been used.
    """
    parts = list(piece)
    last = len(ranks)
    while len(parts) > 1:
        rank, place = min((ranks.get(pair, last), place) for place, pair in enumerate(pairwise(parts)))
        if rank == last:
            return
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        yield parts[place]


def _trimmed_state(state: dict[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    model = state["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for index, entry in enumerate(model["vocab"]) if index in new_ids]
        model["unk_id"] = None if model["unk_id"] is None else new_ids[model["unk_id"]]
    else:
        pieces = sorted(model["vocab"].items(), key=lambda item: int(item[1]))
        model["vocab"] = {piece: new_ids[index] for piece, index in pieces if index in new_ids}
    if model["type"] == "BPE":
        known = model["vocab"]
        model["merges"] = [
            (left, right) for left, right in model["merges"] if {left, right, left + right} <= known.keys()
        ]
    for token in state["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    if state["padding"] is not None:
        state["padding"]["pad_id"] = new_ids[state["padding"]["pad_id"]]
    _renumber_processor(state["post_processor"], new_ids)
    return state


def _renumber_processor(processor: dict[str, Any] | None, new_ids: Mapping[int, int]) -> None:
    """Change the ids of the tokens that are put around texts."""
    if processor is None:
        return
    if processor["type"] == "Sequence":
        for part in processor["processors"]:
            _renumber_processor(part, new_ids)
    elif processor["type"] == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            token["ids"] = [new_ids[index] for index in token["ids"]]
    elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
        for name in ("sep", "cls"):
            token, index = processor[name]
            processor[name] = [token, new_ids[index]]


def _renumber_settings(file: Path, new_ids: Mapping[int, int]) -> None:
    """Change the ids of added tokens, which older settings list a second time."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    added = settings.get("added_tokens_decoder")
    if added:
        settings["added_tokens_decoder"] = {str(new_ids[int(index)]): token for index, token in added.items()}
        file.write_text(json.dumps(settings, ensure_ascii=False, indent=2), encoding="utf-8")

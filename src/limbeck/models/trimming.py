"""Make a model and its tokenizer smaller: only the pieces that some texts use, and those that spell everything else."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch

from limbeck.errors import ModelError
from limbeck.models.families import positions_follow_padding
from limbeck.models.trimmed_tokenizer import pieces_to_keep, trim_tokenizer
from limbeck.protocols import Model, Tokenizer

_CHUNK = 2_000  # texts for each call of a tokenizer
_CHECKED = 2_000  # texts that are split a second time, to see that it is as before


@dataclass(frozen=True)
class Unseen:
    """Hold which shares of the pieces of some texts are no longer there, and which were never known."""

    lost: float  # they are written with shorter pieces
    unknown: float


@dataclass(frozen=True)
class TrimmedVocabulary:
    """Hold a model and a tokenizer with fewer pieces; ``kept`` has the old id of each new one, in order."""

    model: Model
    tokenizer: Tokenizer
    kept: tuple[int, ...]
    whole: Tokenizer  # with all pieces, as it was given

    def unseen(self, texts: Iterable[str]) -> Unseen:
        """Return the shares of the pieces of these texts that are not kept, and that were unknown before."""
        return unseen_pieces(self.whole, self.kept, texts)


def trim_vocabulary(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str], further: Iterable[str] = ()
) -> TrimmedVocabulary:
    """Return copies of a model and its tokenizer that keep the pieces of these texts, and all characters and bytes.

    Texts that need no other pieces have the same token ids (renumbered, in the same order) and the same logits as
    before; others are written with shorter pieces. ``further`` are texts whose pieces are kept too. What is given
    stays as it is. A tokenizer that is no WordPiece, BPE or Unigram is a ``ModelError``.
    """
    texts = iter(texts)
    checked = list(islice(texts, _CHECKED))
    kept = choose_pieces(tokenizer, chain(checked, texts, further), [model])
    trimmed = trim_checked(tokenizer, kept, checked)
    return TrimmedVocabulary(trim_model(model, kept), trimmed, kept, tokenizer)


def choose_pieces(tokenizer: Tokenizer, texts: Iterable[str], models: Sequence[Model]) -> tuple[int, ...]:
    """Return the ids to keep for these texts, in order, of a tokenizer that all of these models read by."""
    seen: set[int] = set()
    for ids in token_ids(tokenizer, texts):
        seen.update(ids)
    for model in models:
        seen |= _ids_of_config(model.config)
        if (padding := _embeddings(model).padding_idx) is not None:
            seen.add(padding)
        if positions_follow_padding(model.config):
            seen.update(range(model.config.pad_token_id + 1))  # so that padding keeps its id, and positions their place
    return tuple(sorted(pieces_to_keep(tokenizer, seen)))


def trim_checked(tokenizer: Tokenizer, kept: Sequence[int], texts: Sequence[str]) -> Tokenizer:
    """Trim a tokenizer; raise where it would split texts of kept pieces otherwise than before."""
    trimmed = trim_tokenizer(tokenizer, kept)
    known = set(kept)
    pairs = zip(token_ids(tokenizer, texts), token_ids(trimmed, texts), strict=True)
    for text, (before, after) in zip(texts, pairs, strict=True):
        if known.issuperset(before) and before != [kept[index] for index in after]:
            raise ModelError(
                f"The vocabulary of this {type(tokenizer).__name__} cannot be trimmed: with fewer pieces it would "
                f"split {text[:40]!r} otherwise. Leave the vocabulary whole."
            )
    return trimmed


def trim_model(model: Model, kept: Sequence[int]) -> Model:
    """Make a model of the same class whose embeddings, and whose head over the vocabulary, have only these rows."""
    rows = _embeddings(model).num_embeddings
    if rows != model.config.vocab_size:
        raise ModelError(
            f"This {model.config.model_type} model has {rows:,} embeddings, but its config says "
            f"{model.config.vocab_size:,}, so they cannot be trimmed. Leave the vocabulary whole."
        )
    if kept[-1] >= rows:
        raise ModelError(
            f"The tokenizer has a token with the id {kept[-1]}, but the model has embeddings for {rows:,} tokens only, "
            "so they cannot be trimmed. Make room with model.resize_token_embeddings, and save the model again."
        )
    new_ids = {old: new for new, old in enumerate(kept)}
    trimmed = _empty_copy(model, len(kept), new_ids)
    places = trimmed.state_dict()
    index = torch.tensor(kept, device=model.device)
    state = {name: _rows_for(name, value, places.get(name), index, rows) for name, value in model.state_dict().items()}
    return _fill(trimmed, state, model, new_ids)


def restore_vocabulary(model: Model, kept: Sequence[int], whole: Model) -> Model:
    """Return a copy of a trimmed model with all pieces again: those that were not kept are as in the model ``whole``.

    ``kept`` has the id in ``whole`` of each piece of the model. Texts of kept pieces have the same logits as before.
    """
    ours, theirs = _embeddings(model), _embeddings(whole)
    if ours.num_embeddings != len(kept) or kept[-1] >= theirs.num_embeddings:
        raise ModelError(
            f"The model has {ours.num_embeddings:,} embeddings, which are not {len(kept):,} of the "
            f"{theirs.num_embeddings:,} of the other one, so its vocabulary cannot be restored."
        )
    if ours.embedding_dim != theirs.embedding_dim:
        raise ModelError(
            f"The embeddings have width {ours.embedding_dim}, those of the other model {theirs.embedding_dim}, so the "
            "vocabulary cannot be restored. Name the model that this one was made from."
        )
    new_ids = dict(enumerate(kept))
    restored = _empty_copy(model, theirs.num_embeddings, new_ids)
    table = theirs.weight.detach().to(ours.weight, copy=True)
    table[torch.tensor(kept, device=table.device)] = ours.weight.detach()
    places = restored.state_dict()
    shared = {name for name, place in places.items() if place.data_ptr() == _embeddings(restored).weight.data_ptr()}
    state = {name: table if name in shared else value for name, value in model.state_dict().items()}
    for name, value in state.items():
        if places[name].shape != value.shape:
            raise ModelError(
                f"The weights '{name}' belong to the vocabulary as well, and what they are for other pieces is not "
                "known, so the vocabulary cannot be restored."
            )
    return _fill(restored, state, model, new_ids)


def _empty_copy(model: Any, pieces: int, new_ids: dict[int, int]) -> Any:
    """Make a model of the same class, with random weights and another number of pieces."""
    config = copy.deepcopy(model.config)
    config.vocab_size = pieces
    _renumber(config, new_ids)
    with torch.random.fork_rng():  # so that what is drawn afterwards is as without it
        return type(model)(config).to(model.device, getattr(model, "dtype", None))


def _fill(copied: Any, state: dict[str, Any], model: Any, new_ids: dict[int, int]) -> Any:
    """Give a copy of a model its weights, and whatever else names pieces."""
    copied.load_state_dict(state)
    padding = _embeddings(model).padding_idx
    _embeddings(copied).padding_idx = None if padding is None else new_ids[padding]
    if (generation := getattr(model, "generation_config", None)) is not None:
        copied.generation_config = copy.deepcopy(generation)
        _renumber(copied.generation_config, new_ids)
    return copied.train(model.training)


def unseen_pieces(whole: Tokenizer, kept: Iterable[int], texts: Iterable[str]) -> Unseen:
    """Count which share of the pieces of these texts is not kept, and which share the tokenizer does not know."""
    known, unknown_id = set(kept), getattr(whole, "unk_token_id", None)
    total = lost = unknown = 0
    for ids in token_ids(whole, texts):
        total += len(ids)
        lost += sum(index not in known for index in ids)
        unknown += sum(index == unknown_id for index in ids)
    return Unseen(lost / max(1, total), unknown / max(1, total))


def token_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yield the ids of each text's pieces, uncut and without what is put around texts."""
    texts = iter(texts)
    while chunk := list(islice(texts, _CHUNK)):
        yield from tokenizer(chunk, add_special_tokens=False, padding=False, truncation=False, verbose=False)[
            "input_ids"
        ]


def _embeddings(model: Any) -> torch.nn.Embedding:
    found = model.get_input_embeddings()
    if not isinstance(found, torch.nn.Embedding):
        raise ModelError(
            f"The embeddings of this {model.config.model_type} model are a {type(found).__name__}, which cannot be "
            "trimmed. Leave the vocabulary whole."
        )
    return found


def _rows_for(name: str, value: Any, place: Any, index: Any, rows: int) -> Any:
    if place is not None and place.shape == value.shape:
        return value
    if place is not None and value.shape[:1] == (rows,) and place.shape == (len(index), *value.shape[1:]):
        return value[index]
    raise ModelError(
        f"The weights '{name}' ({', '.join(map(str, value.shape))}) share the vocabulary in a way that is not known "
        "here, so it cannot be trimmed. Leave the vocabulary whole."
    )


def _token_settings(config: Any) -> list[str]:
    return [name for name in config.to_dict() if name.endswith("_token_id")]


def _ids_of_config(config: Any) -> set[int]:
    """Return the tokens that a config names; numbers beyond the vocabulary are a default that nobody set."""
    values = [getattr(config, name, None) for name in _token_settings(config)]
    ids = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
    return {index for index in ids if index is not None and 0 <= index < config.vocab_size}


def _renumber(config: Any, new_ids: dict[int, int]) -> None:
    for name in _token_settings(config):
        value = getattr(config, name, None)
        if isinstance(value, list):
            setattr(config, name, [new_ids.get(index, index) for index in value])
        elif value is not None:
            setattr(config, name, new_ids.get(value, value))

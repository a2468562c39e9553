"""Add copies of training texts with some words replaced, as TinyBERT did (Jiao et al. 2020, algorithm 1).

A word that is one piece of a masked language model's vocabulary is replaced by one of the words that the model finds
most probable in its place; any other by one of the words with the nearest vectors. The copies of a text follow from the
text, the seed and the settings alone, and are kept in a folder, because proposing words takes a pass for each of them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from limbeck._internal.files import expand_home, file_digest, make_folder, write_text
from limbeck._internal.progress import progress
from limbeck.distillation.fingerprint import model_digest
from limbeck.errors import DataError, ModelError, RecipeError
from limbeck.models.loading import load_tokenizer, resolve
from limbeck.recipes.recipe import AugmentBlock
from limbeck.runs.files import read_mapping
from limbeck.tasks.held_out import content_hash
from limbeck.tasks.task import Task, make_split

logger = logging.getLogger("limbeck")

_PROBLEMS = ("classification", "regression", "multi_label")
_BATCH = 64  # masked texts at a time
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
CACHE_VARIABLE = "LIMBECK_CACHE"


@dataclass(frozen=True)
class Word:
    """Hold a word of a text: where it stands, and what may stand there instead."""

    start: int
    end: int
    proposals: tuple[str, ...]


def augment(task: Task, block: AugmentBlock, seed: int) -> Task:
    """Return the task with copies of its training texts behind the texts themselves, with the same labels.

    Of pairs of texts each side is replaced in copies of its own, beside the other side as it is.
    """
    if task.problem not in _PROBLEMS:
        raise RecipeError(
            f"task.augment replaces words of whole texts, and {task.name} is a {task.problem} problem. Leave it out."
        )
    train = task.split("train")
    columns: dict[str, list[Any]] = {name: list(train[name][:]) for name in train.column_names}
    texts = list(dict.fromkeys(text for name in task.text_columns for text in columns[name]))
    copies = _known_copies(texts, block, seed)
    grown = {name: list(values) for name, values in columns.items()}
    for column in task.text_columns:
        for row, text in enumerate(columns[column]):
            for copy in copies[text]:
                for name in columns:
                    grown[name].append(copy if name == column else columns[name][row])
    added = len(grown["label"]) - len(columns["label"])
    logger.info("task.augment: %s copies of %s training rows.", f"{added:,}", f"{len(train):,}")
    grown["id"] = list(range(len(grown["label"])))
    return dataclasses.replace(task, splits={**task.splits, "train": make_split("train", grown)})


def _known_copies(texts: Sequence[str], block: AugmentBlock, seed: int) -> dict[str, list[str]]:
    """Return the copies of each text, from the folder where they were made before."""
    proposer = _Proposer(block)
    key = json.dumps([proposer.digest, block.candidates, block.copies, block.share, seed, sorted(texts)])
    folder = Path(os.environ.get(CACHE_VARIABLE) or expand_home("~/.cache/limbeck")) / "augmented"
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    if file.is_file():
        return dict(read_mapping(file, "copies of texts"))
    with progress("propose words", len(texts)) as steps:
        found = {}
        for text in texts:
            found[text] = make_copies(text, proposer.words(text), block, seed)
            steps.advance(1)
    make_folder(folder)
    write_text(file, json.dumps(found))
    return found


def make_copies(text: str, words: Sequence[Word], block: AugmentBlock, seed: int) -> list[str]:
    """Return so many different copies, in each of which every word is replaced with the chance ``share``.

    Fewer where a text is so short that the same copies come again.
    """
    generator = np.random.default_rng(content_hash(text, seed))
    copies: dict[str, None] = {}
    for _ in range(block.copies):
        copy = text
        for word in reversed(words):  # from the end, so that places stay
            if word.proposals and generator.random() <= block.share:
                chosen = word.proposals[generator.integers(len(word.proposals))]
                copy = copy[: word.start] + chosen + copy[word.end :]
        copies.setdefault(copy)
    copies.pop(text, None)
    return list(copies)


class _Proposer:
    """Propose words: by a masked language model where a word is one of its pieces, else by nearest vectors."""

    def __init__(self, block: AugmentBlock) -> None:
        from transformers import AutoModelForMaskedLM

        self._count = block.candidates
        tokenizer: Any = load_tokenizer(block.model)
        self._tokenizer = tokenizer
        if tokenizer.mask_token is None:
            raise ModelError(f"task.augment.model: {block.model} is no masked language model: it has no mask token.")
        self._model: Any = AutoModelForMaskedLM.from_pretrained(resolve(block.model), dtype=torch.float32).eval()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model.to(self._device)
        self._words = self._whole_words()
        self._file = None if block.vectors is None else Path(block.vectors)
        if self._file is not None and not self._file.is_file():
            raise DataError(f"task.augment.vectors: there is no file {self._file}.")
        self.digest = f"{model_digest(self._model)} {file_digest(self._file) if self._file else ''}"

    @functools.cached_property
    def _vectors(self) -> WordVectors | None:
        """Return the vectors, which are large: what was made before does not need them."""
        return None if self._file is None else WordVectors.read(self._file)

    def _whole_words(self) -> dict[int, str]:
        """Return the pieces that are words of their own, by their numbers."""
        special = set(self._tokenizer.all_special_ids)
        pieces = self._tokenizer.get_vocab()
        begin = next((mark for mark in ("Ġ", "▁") if any(piece.startswith(mark) for piece in pieces)), "")
        found = {}
        for piece, number in pieces.items():
            word = piece.removeprefix(begin)
            if piece.startswith(begin) and number not in special and _WORD.fullmatch(word):
                found[number] = word
        return found

    def words(self, text: str) -> list[Word]:
        """Return the words of a text with what may stand in their places."""
        places = [match.span() for match in _WORD.finditer(text)]
        single = [place for place in places if len(self._tokenizer.tokenize(f" {text[slice(*place)]}".strip())) == 1]
        by_model = dict(zip(single, self._by_model(text, single), strict=True))
        return [
            Word(*place, by_model[place] if place in by_model else self._by_vectors(text[slice(*place)]))
            for place in places
        ]

    def _by_model(self, text: str, places: Sequence[tuple[int, int]]) -> Iterable[tuple[str, ...]]:
        """Return the most probable words in each place, the word itself not among them."""
        mask, found = self._tokenizer.mask_token, list[tuple[str, ...]]()
        allowed = torch.full((self._model.config.vocab_size,), float("-inf"), device=self._device)
        allowed[list(self._words)] = 0.0
        for first in range(0, len(places), _BATCH):
            some = places[first : first + _BATCH]
            masked = [text[:start] + mask + text[end:] for start, end in some]
            batch = self._tokenizer(masked, padding=True, truncation=True, return_tensors="pt").to(self._device)
            with torch.inference_mode():
                logits = self._model(**batch).logits
            for (start, end), ids, scores in zip(some, batch["input_ids"], logits, strict=True):
                where = (ids == self._tokenizer.mask_token_id).nonzero()
                if not len(where):  # cut off
                    found.append(())
                    continue
                ranked = (scores[where[0, 0]].float() + allowed).topk(min(self._count + 1, len(self._words)))
                words = [self._words[number] for number in ranked.indices.tolist()]
                others = [word for word in words if word.lower() != text[start:end].lower()]
                found.append(tuple(others[: self._count]))
        return found

    def _by_vectors(self, word: str) -> tuple[str, ...]:
        return () if self._vectors is None else self._vectors.nearest(word, self._count)


class WordVectors:
    """Hold vectors of words, as files in the form of GloVe have them: a word and its numbers on each line."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray) -> None:
        self._words, self._places = list(words), {word: place for place, word in enumerate(words)}
        self._vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        self._nearest: dict[str, tuple[str, ...]] = {}

    @classmethod
    def read(cls, file: Path) -> WordVectors:
        """Read a file; a line that is no word with as many numbers as the first is an error."""
        words, rows = [], []
        with file.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                word, *values = line.rstrip().split(" ")
                try:
                    rows.append(np.array(values, dtype=np.float32))
                except ValueError:
                    raise DataError(
                        f"{file}, line {number}: a word and numbers are needed; seen: {line[:40]!r}."
                    ) from None
                if not values or len(values) != len(rows[0]):
                    raise DataError(f"{file}, line {number}: {len(values)} numbers, the first line has {len(rows[0])}.")
                words.append(word)
        if not rows:
            raise DataError(f"{file} is empty.")
        return cls(words, np.stack(rows))

    def nearest(self, word: str, count: int) -> tuple[str, ...]:
        """Return the words with the most similar vectors, by the cosine; nothing for a word that has none."""
        key = word.lower()
        if key not in self._places:
            return ()
        if key not in self._nearest:
            place = self._places[key]
            scores = self._vectors @ self._vectors[place]
            scores[place] = -np.inf
            order = np.argsort(-scores, kind="stable")[: min(count, len(self._words) - 1)]
            self._nearest[key] = tuple(self._words[other] for other in order)
        return self._nearest[key]

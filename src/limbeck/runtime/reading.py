"""Turn texts into the token ids that a model was trained to read, with the library ``tokenizers`` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import FolderError, InputError
from .folder import About

Text = str | tuple[str, str]  # one text, or a pair

OUTSIDE = -1  # a token that begins no word, or is not of the text with the answer
MAX_QUESTION = 64  # tokens of a question that are read
STRIDE = 128  # tokens that two windows over a long text share


@dataclass(slots=True)
class Row:
    """Hold what the model reads at once: a text, or a window over it."""

    text: int  # its number among those that were read together
    ids: list[int]
    segments: list[int]
    cut: bool = False  # whether the text goes on behind it, unread
    begins: Any = None  # of each token: the characters of the text that holds the answer
    ends: Any = None
    words: Any = None  # of each token: the number of the word that begins there


class Reader:
    """Read texts as a model's own tokenizer does."""

    def __init__(self, tokenizer: str, about: About) -> None:
        from tokenizers import Tokenizer

        try:
            self._whole, self._cutting = Tokenizer.from_str(tokenizer), Tokenizer.from_str(tokenizer)
        except Exception as error:  # the library raises no more special one
            raise FolderError(f"The tokenizer of {about.name} cannot be read ({error}). Export it again.") from error
        self._about = about
        length = about.max_length
        span = about.problem == "span"
        for one in (self._whole, self._cutting):
            one.no_padding()
            one.no_truncation()
        self._cutting.enable_truncation(
            length,
            stride=min(about.decoding.get("stride", STRIDE), length // 3) if span else 0,
            strategy="only_second" if span else "longest_first",
            direction="left" if about.cut_left else "right",
        )
        self._longest_question = longest_question(length)
        self._read = {"span": self._windows, "tokens": self._tagged}.get(about.problem, self._plain)

    def read(self, texts: Sequence[Text]) -> list[Row]:
        """Return the rows of these texts, in their order; of a long text with a question there may be several."""
        for text in texts:
            self.check(text)
        return self._read(texts)

    def check(self, text: Text) -> None:
        """Raise where the model cannot read a text, or reads a pair where there is one text, or the reverse."""
        parts = (text,) if isinstance(text, str) else text
        if self._about.texts and len(parts) != self._about.texts:
            raise InputError(self._expected(len(parts)))
        for part in parts:
            if not part.strip():
                raise InputError("A text is empty. Leave it out, or fill it in.")
            if not part.isascii():
                _check_encodable(part)

    def _expected(self, seen: int) -> str:
        if self._about.problem == "span":
            return "This model answers a question from a text: give both, as a pair."
        names = f" ({', '.join(self._about.columns)})" if self._about.columns else ""
        if self._about.texts == 2:
            return f"This model reads a pair of texts{names}, but there is one. Give both."
        return f"This model reads one text{names}, but there are {seen}. Give each text of its own."

    def _plain(self, texts: Sequence[Text]) -> list[Row]:
        encoded = self._cutting.encode_batch_fast(list(texts))
        return [Row(number, one.ids, one.type_ids, bool(one.overflowing)) for number, one in enumerate(encoded)]

    def _tagged(self, texts: Sequence[Text]) -> list[Row]:
        words = [str(text).split() for text in texts]
        encoded = self._cutting.encode_batch([" ".join(some) for some in words])
        rows = []
        for number, (some, one) in enumerate(zip(words, encoded, strict=True)):
            starts = first_tokens(some, one.offsets)
            rows.append(Row(number, one.ids, one.type_ids, bool(one.overflowing), words=np.array(starts)))
        return rows

    def _windows(self, texts: Sequence[Text]) -> list[Row]:
        asked, contexts = [text[0].strip() for text in texts], [text[1] for text in texts]
        encoded = self._whole.encode_batch(asked, add_special_tokens=False)
        short = [
            shorten_question(question, one.offsets, self._count, self._longest_question)
            for question, one in zip(asked, encoded, strict=True)
        ]
        pairs = list(zip(short, contexts, strict=True))
        rows = []
        for number, first in enumerate(self._cutting.encode_batch(pairs)):
            for one in (first, *first.overflowing):
                inside = np.array([part == 1 for part in one.sequence_ids])
                places = np.where(inside[:, None], np.array(one.offsets), OUTSIDE)
                rows.append(Row(number, one.ids, one.type_ids, begins=places[:, 0], ends=places[:, 1]))
        return rows

    def _count(self, text: str) -> int:
        return len(self._whole.encode(text, add_special_tokens=False).ids)


def longest_question(max_length: int) -> int:
    """Return how many tokens of a question are read."""
    return min(MAX_QUESTION, max_length // 3)


def shorten_question(
    question: str, offsets: Sequence[tuple[int, int]], count: Callable[[str], int], at_most: int
) -> str:
    """Keep the longest beginning of ``at_most`` tokens: a character may be several, and a part may split otherwise.

    ``offsets`` are the characters of the whole question's tokens, ``count`` tells how many tokens a text has.
    """
    if len(offsets) <= at_most:
        return question
    for _, end in reversed(offsets[:at_most]):
        if count(question[:end]) <= at_most:
            return question[:end]
    return ""


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each token the number of the word that starts with it, or -1; single blanks join the words.

    Found by characters, because a blank before a word is part of its first token to some tokenizers.
    """
    owner = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]
    inside = [place for word in words for place in (*([True] * len(word)), False)]
    starts, before = [], OUTSIDE
    for start, end in offsets:
        word = owner[end - 1] if end > start and inside[end - 1] else OUTSIDE
        starts.append(word if word > before else OUTSIDE)
        before = max(before, word)
    return starts


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(
            f"{code} is half of a character (a lone surrogate), which no text can hold. Write the whole character."
        ) from None

"""Load tags of words (entities, chunks, parts of speech), from CoNLL files or from lists in JSONL and Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck._internal.files import expand_home
from limbeck.errors import DataError, RecipeError
from limbeck.metrics import METRICS, entity_scores
from limbeck.options import Share
from limbeck.problems import IGNORED, UNKNOWN
from limbeck.runtime.answers import NO_TAG
from limbeck.runtime.reading import OUTSIDE, first_tokens
from limbeck.tasks.chunks import read_chunks
from limbeck.tasks.encode import encode_rows
from limbeck.tasks.files import Columns, check_exists, cut_off, lines, read_columns
from limbeck.tasks.held_out import text_key
from limbeck.tasks.labels import in_order, name_index
from limbeck.tasks.table import LabelList, hold_out
from limbeck.tasks.task import Task, make_split
from limbeck.tasks.unlabelled import ROWS, Rows, Unlabelled, is_plain, plain_chunks

if TYPE_CHECKING:
    from datasets import Dataset

_LISTS = (".jsonl", ".json", ".parquet")
_TABLES = (*_LISTS, ".csv", ".tsv")
_PREFIXES = ("B", "I", "E", "L", "S", "U")


def tokens(
    *,
    train: str,
    validation: str | None = None,
    test: str | None = None,
    words: str = "tokens",
    tags: str = "tags",
    labels: LabelList | None = None,
    unlabelled: str | list[str] | None = None,
    unlabelled_share: Share | None = None,
    seed: int = 0,
) -> Task:
    """Load tags of words (NER and the like): CoNLL files, or JSONL and Parquet with lists of words and tags.

    Args:
        train: the training file. CoNLL: a line per word, the word first, its tag last; a blank line ends a sentence.
        validation: the validation file; None holds out a tenth of the training sentences, by their words and the seed.
        test: the test file, with or without tags.
        words: in JSONL and Parquet, the column with each sentence's list of words.
        tags: in JSONL and Parquet, the column with the list of their tags.
        labels: all tags, in the order in which a model without names for them numbers them;
            None takes 'O' first, then by type.
        unlabelled: a file of sentences without tags, or several: CoNLL files whose tags are not read, JSONL and Parquet
            with lists of words, or texts whose words are what blanks separate: a column of that name, or lines (.txt).
        unlabelled_share: of the rows of each step, those without a label (None: 0.5).
        seed: of the held-out tenth.
    """
    given = {"train": train, "validation": validation, "test": test}
    files = {
        split: _read(expand_home(path), words, tags, needed=split != "test")
        for split, path in given.items()
        if path is not None
    }
    names = in_order(_tag_names(files["train"]), labels, files["train"])
    columns = {split: _columns(file, names) for split, file in files.items()}
    if validation is None:
        keys = [text_key(" ".join(sentence)) for sentence in columns["train"]["words"]]
        columns["train"], columns["validation"] = hold_out(columns["train"], keys, None, train, seed)
    more = Unlabelled.of(unlabelled, unlabelled_share, partial(word_rows, words=words), ("words",), columns)
    of_entities = NO_TAG in names and all(name == NO_TAG or _is_part(name) for name in names)
    return TokenTask(
        name="tokens",
        problem="tokens",
        text_columns=("words",),
        label_names=names,
        metrics=("entity_f1", "entity_precision", "entity_recall", "token_accuracy")
        if of_entities
        else ("token_accuracy", "macro_f1"),
        splits={name: make_split(name, columns[name]) for name in ("train", "validation", "test") if name in columns},
        label_order="learned" if labels is None else "stated",
        unlabelled=more,
    )


def word_rows(path: str, words: str) -> Iterator[Rows]:
    """Read sentences without tags as lists of words, some at a time."""
    suffix = Path(path).suffix.lower()
    if is_plain(path) or suffix in _TABLES:
        chunks = plain_chunks(path, words) if is_plain(path) else read_chunks(path, [words], ROWS)
        for chunk in chunks:
            yield {"words": [_words(chunk, words, row) for row in range(len(chunk.numbers))]}
        return
    sentences = _conll_sentences(expand_home(path), needed=False)
    while part := list(islice(sentences, ROWS)):
        yield {"words": [[cells[0] for cells in sentence] for _, sentence in part]}


def _words(file: Columns, column: str, row: int) -> list[str]:
    """Return the words of one row: those of its list, or of its text what blanks separate."""
    cell = file.values[column][row]
    found = cell.split() if isinstance(cell, str) else cell
    if not isinstance(found, (list, tuple)) or not found:
        raise DataError(f"{file.where(row)}: '{column}' must hold a list of words, or a text; seen: {cell!r:.40}.")
    if any(item == "" or item != item or item is None for item in found):
        raise DataError(f"{file.where(row)}: a word is empty. Fill it in or remove the row.")
    return [str(item) for item in found]


@dataclass(frozen=True)
class TokenTask(Task):
    """Tag words: each at its first token. Words that were cut off count as outside of any entity.

    Splits have ``words`` and, where they are known, ``label``: a list of class indices, one for each word.
    """

    @classmethod
    def of_texts(cls, texts: Dataset, columns: Sequence[str], names: tuple[str, ...]) -> TokenTask:
        """Make a task for prediction; the words of a text are what blanks separate."""
        if len(columns) != 1:
            raise RecipeError(f"This model tags the words of one text, but {len(columns)} columns were named.")
        words = [text.split() for text in texts[columns[0]]]
        split = make_split("predict", {"id": texts["id"][:], "words": words})
        return cls("predict", "tokens", ("words",), names, (), {"predict": split})

    def encode(
        self, split: str, tokenizer: Any, max_length: int, too_long: Literal["cut", "refuse"] = "cut"
    ) -> Dataset:
        """Encode a split; ``word`` is the number of the word that starts at a token, ``size`` the number of words."""
        data = self.split(split)

        def extra(rows: Mapping[str, Any], encoded: Mapping[str, Any]) -> dict[str, list[Any]]:
            starts = [
                first_tokens(words, offsets)
                for words, offsets in zip(rows["words"], encoded["offset_mapping"], strict=True)
            ]
            columns: dict[str, list[Any]] = {"word": starts, "size": [len(words) for words in rows["words"]]}
            if "label" in rows:
                columns["labels"] = [
                    [IGNORED if word == OUTSIDE else tags[word] for word in row]
                    for row, tags in zip(starts, rows["label"], strict=True)
                ]
                columns["tags"] = list(rows["label"])
            return columns

        where = f"{self.name} {split}"
        return encode_rows(
            where, data, tokenizer, max_length, too_long, self.inputs, extra, return_offsets_mapping=True
        )

    def unknown_labels(self, encoded: Dataset) -> list[list[int]]:
        """Return for each token what its label is where nobody knows it: there is one at the start of each word."""
        return [[IGNORED if word == OUTSIDE else UNKNOWN for word in row] for row in encoded["word"][:]]

    def inputs(self, rows: Mapping[str, Any]) -> list[list[str]]:
        """Join the words of each row with blanks."""
        return [[" ".join(words) for words in rows["words"]]]

    def tags(self, logits: Sequence[np.ndarray], encoded: Any) -> list[np.ndarray]:
        """Return the class of each word of each example."""
        outside = self.label_names.index(NO_TAG) if NO_TAG in self.label_names else 0
        found = []
        for row, word, size in zip(logits, encoded["word"], encoded["size"], strict=True):
            tags = np.full(size, outside)
            word = np.asarray(word)
            tags[word[word != OUTSIDE]] = row.argmax(-1)[word != OUTSIDE]
            found.append(tags)
        return found

    def score(self, logits: Any, encoded: Any) -> dict[str, float]:
        """Score whole entities, or where the tags are not of entities each word."""
        ours, theirs = self.tags(logits, encoded), [np.asarray(tags) for tags in encoded["tags"]]
        flat = np.concatenate(ours), np.concatenate(theirs)
        scores = {"token_accuracy": METRICS["accuracy"](*flat), "macro_f1": METRICS["macro_f1"](*flat)}
        if "entity_f1" in self.metrics:
            scores |= entity_scores(self._named(ours), self._named(theirs))
        return {name: scores[name] for name in self.metrics}

    def majority(self, train: Any, encoded: Any) -> dict[str, float]:
        """Score the training data's most frequent tag, given to every word."""
        decided = np.concatenate([np.asarray(row, dtype=np.int64) for row in train["labels"][:]])
        counts = np.bincount(decided[decided != IGNORED], minlength=self.num_labels)
        return self.score([np.tile(counts, (len(word), 1)) for word in encoded["word"]], encoded)

    def answers(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return the known and the predicted tags of each example, as columns."""
        predicted = [tags.tolist() for tags in self.tags(logits, encoded)]
        return {"id": encoded["id"][:], "label": encoded["tags"][:], "prediction": predicted}

    def agreement(self, logits: Any, others: Any, encoded: Any, others_encoded: Any = None) -> float:
        """Return the share of words that two models tag the same."""
        ours, theirs = (
            np.concatenate(self.tags(*side))
            for side in ((logits, encoded), (others, encoded if others_encoded is None else others_encoded))
        )
        return float((ours == theirs).mean())

    def readable(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return the tags of each text's words, in their order, with blanks between them."""
        return {"prediction": [" ".join(tags) for tags in self._named(self.tags(logits, encoded))]}

    def _named(self, rows: Sequence[np.ndarray]) -> list[list[str]]:
        return [[self.label_names[tag] for tag in row] for row in rows]


def _is_part(name: str) -> bool:
    prefix, dash, kind = name.partition("-")
    return prefix in _PREFIXES and bool(dash and kind)


def _tag_names(file: Columns) -> tuple[str, ...]:
    """Order the tags: outside first, then by type. A model's outputs are in this order."""
    names = {tag for tags in file.values["tags"] for tag in tags}
    if len(names) < 2:
        raise DataError(f"{file.path}: every word has the tag '{next(iter(names), '')}', so there is nothing to learn.")
    return tuple(sorted(names, key=lambda name: (name != NO_TAG, *name.partition("-")[::-1])))


def _columns(file: Columns, names: tuple[str, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"id": list(range(len(file.numbers))), "words": file.values["words"]}
    if "tags" in file.values:
        index = {name: position for position, name in enumerate(names)}
        columns["label"] = [
            [name_index(file, row, tag, index) for tag in tags] for row, tags in enumerate(file.values["tags"])
        ]
    return columns


def _read(path: Path, words: str, tags: str, *, needed: bool) -> Columns:
    """Read sentences as lists: ``words`` and, where there are any, ``tags``."""
    if path.suffix.lower() not in _LISTS:
        return _read_conll(path, needed=needed)
    file = read_columns(path, [words, tags] if needed else [words], optional=[] if needed else [tags])
    values = {"words": file.values[words]} | ({"tags": file.values[tags]} if tags in file.values else {})
    for row, cells in enumerate(zip(*values.values(), strict=True)):
        if not all(isinstance(cell, (list, tuple)) and cell for cell in cells):
            raise DataError(f"{file.where(row)}: '{words}' and '{tags}' must hold lists that are not empty.")
        if len({len(cell) for cell in cells}) > 1:
            raise DataError(
                f"{file.where(row)}: {len(cells[0])} words have {len(cells[1])} tags. Each word needs a tag of its own."
            )
        if any(item == "" or item != item or item is None for cell in cells for item in cell):
            raise DataError(f"{file.where(row)}: a word or a tag is empty. Fill it in or remove the row.")
    texts = {name: [[str(item) for item in cell] for cell in column] for name, column in values.items()}
    return Columns(file.path, file.unit, file.numbers, texts)


def _read_conll(path: Path, *, needed: bool) -> Columns:
    found = list(_conll_sentences(path, needed=needed))
    sentences = [sentence for _, sentence in found]
    values = {"words": [[cells[0] for cells in sentence] for sentence in sentences]}
    if len(sentences[0][0]) > 1:
        values["tags"] = [[cells[-1] for cells in sentence] for sentence in sentences]
    return Columns(path, "line", [number for number, _ in found], values)


def _conll_sentences(path: Path, *, needed: bool) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the first line and the cells of each word of every sentence; with ``needed``, each word must have a tag."""
    check_exists(path)
    sentence: list[list[str]] = []
    first, fresh, width = 0, True, 0
    for number, line in enumerate(lines(path), start=1):
        # blanks and tabs only: other white space can be a word
        bare = line.strip(" \r\n")
        cells = [cell.strip(" ") for cell in bare.split("\t")] if "\t" in bare else re.split(" +", bare)
        if not any(cells) or cells[0] == "-DOCSTART-":
            fresh = True
            continue
        if not all(cells):
            if not line.endswith("\n"):
                raise cut_off(path, number, f"it ends with {line[-20:]!r}")
            raise DataError(
                f"{path}, line {number}: a word or a tag is empty: {line!r}. Fill it in or remove the line."
            )
        width = width or len(cells)
        if len(cells) != width or (needed and width < 2):
            if not line.endswith("\n") and len(cells) < width:
                raise cut_off(path, number, f"it has {len(cells)} of {width} columns")
            expected = f"{width} as in the lines before" if len(cells) != width else "at least 2, a word and its tag"
            raise DataError(f"{path}, line {number}: {len(cells)} columns were found, {expected} expected: {line!r}")
        if fresh:
            if sentence:
                yield first, sentence
            first, sentence, fresh = number, [], False
        sentence.append(cells)
    if not sentence:
        raise DataError(f"{path} has no sentences. Each line must hold a word and its tag.")
    yield first, sentence

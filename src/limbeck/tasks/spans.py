"""Answer questions by a span of a text: windows over long texts, decoding, and SQuAD's official scores."""

from __future__ import annotations

import collections
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from limbeck._internal.progress import progress
from limbeck.errors import DataError, RecipeError
from limbeck.metrics import answer_scores, normalized_answer
from limbeck.runtime.answers import MAX_ANSWER, N_BEST, Span, answered, best_spans
from limbeck.runtime.reading import OUTSIDE, STRIDE, longest_question, shorten_question
from limbeck.tasks.task import Task, make_split

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("limbeck")

_CHUNK = 1_000  # questions per tokenizer call
_MAX_LENGTH = 384
_MIN_LENGTH = 16


@dataclass(frozen=True)
class SpanTask(Task):
    """Hold questions and the texts with their answers; a long text is read in windows, each an encoded row of its own.

    Splits have ``id``, ``question_id``, ``question``, ``context`` and, where they are known, ``answers`` (texts; none
    where a question has no answer) and ``starts`` (their first characters).
    """

    unanswerable: bool = field(default=False, kw_only=True)  # questions may have no answer
    stride: int = field(default=STRIDE, kw_only=True)
    max_answer: int = field(default=MAX_ANSWER, kw_only=True)
    n_best: int = field(default=N_BEST, kw_only=True)
    threshold: float = field(default=0.0, kw_only=True)

    @classmethod
    def of_texts(cls, texts: Dataset, columns: Sequence[str], **decoding: Any) -> SpanTask:
        """Make a task for prediction: questions, and texts that may answer them; ``decoding`` sets the fields above."""
        if len(columns) != 2:
            raise RecipeError(
                f"This model finds answers in texts: name two columns, the question and the text; seen: {len(columns)}."
            )
        ids = texts["id"][:]
        values = {"id": ids, "question_id": ids, "question": texts[columns[0]][:], "context": texts[columns[1]][:]}
        split = make_split("predict", values)
        return cls("predict", "span", ("question", "context"), (), (), {"predict": split}, **decoding)

    @property
    def num_labels(self) -> int:
        """Return 2: a start and an end."""
        return 2

    def suggest_length(self, tokenizer: Any, limit: int) -> tuple[int, str]:
        """Suggest the length of a window, and say why."""
        return min(_MAX_LENGTH, limit), "longer texts are read in windows that overlap, so that nothing is lost"

    def encode(
        self, split: str, tokenizer: Any, max_length: int, too_long: Literal["cut", "refuse"] = "cut"
    ) -> Dataset:
        """Make a row for each window: ``id``, ``example`` (its question's row), token ids, and ``labels`` if known.

        ``begins`` and ``ends`` are each token's characters in the context, -1 outside of it.
        """
        import pyarrow as pa
        from datasets import Dataset

        if max_length < _MIN_LENGTH:
            raise RecipeError(f"task.max_length is {max_length}; a question and its text need at least {_MIN_LENGTH}.")
        data = self.split(split)
        longest = longest_question(max_length)
        chunks: dict[str, list[Any]] = collections.defaultdict(list)
        cut = 0
        with progress(f"tokenize {self.name} {split}", len(data)) as steps:
            for first in range(0, len(data), _CHUNK):
                rows = data[first : first + _CHUNK]
                questions, shortened = _questions(rows["question"], tokenizer, longest)
                cut += shortened
                windows = self._windows(rows, questions, tokenizer, max_length, first)
                for name, values in windows.items():
                    kind = pa.int32() if name == "example" else pa.list_(pa.int32())
                    chunks[name].append(pa.array(values, type=kind))
                steps.advance(len(questions))
        if cut and too_long == "refuse":
            raise DataError(
                f"{self.name} {split}: {cut:,} questions have more than {longest} tokens, and too_long is 'refuse'. "
                "Shorten them, or let them be cut: task.too_long=cut."
            )
        if cut:
            logger.warning(
                "%s %s: %s of %s questions have more than %d tokens and were cut.",
                self.name,
                split,
                f"{cut:,}",
                f"{len(data):,}",
                longest,
                extra={"cut": cut},
            )
        columns: dict[str, Any] = {name: pa.chunked_array(arrays) for name, arrays in chunks.items()}
        columns["id"] = list(range(len(columns["input_ids"])))
        return Dataset.from_dict(columns, split=data.split)

    def _windows(
        self, rows: Mapping[str, Any], questions: list[str], tokenizer: Any, max_length: int, first: int
    ) -> dict[str, list[Any]]:
        encoded = tokenizer(
            questions,
            list(rows["context"]),
            padding=False,
            truncation="only_second",
            max_length=max_length,
            stride=min(self.stride, max_length // 3),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        owners = encoded["overflow_to_sample_mapping"]
        columns: dict[str, list[Any]] = {"example": [first + owner for owner in owners], "begins": [], "ends": []}
        for window in range(len(owners)):
            of_context = [part == 1 for part in encoded.sequence_ids(window)]
            places = encoded["offset_mapping"][window]
            pairs = [place if inside else (OUTSIDE,) * 2 for place, inside in zip(places, of_context, strict=True)]
            columns["begins"].append([begin for begin, _ in pairs])
            columns["ends"].append([end for _, end in pairs])
        kept = ("input_ids", "attention_mask", "token_type_ids")
        columns |= {name: encoded[name] for name in kept if name in encoded}
        if "answers" in rows:
            around = [None, *owners, None]
            whole = [
                (owner != before, owner != after)
                for before, owner, after in zip(around, owners, around[2:], strict=False)
            ]
            columns["labels"] = [
                _label(rows["answers"][owner], rows["starts"][owner], *window)
                for owner, *window in zip(owners, columns["begins"], columns["ends"], whole, strict=True)
            ]
        return columns

    def best(self, logits: Sequence[np.ndarray], encoded: Any) -> list[Span]:
        """Find the best answer to each question, over all of its windows."""
        windows = list(zip(encoded["example"], encoded["begins"], encoded["ends"], strict=True))
        return best_spans(self._data(encoded)["context"][:], windows, logits, self.max_answer, self.n_best)

    def _data(self, encoded: Any) -> Any:
        """Return the questions that were encoded."""
        return self.splits[str(encoded.split)]

    def texts(self, answers: Sequence[Span]) -> list[str]:
        """Return the answers as text: empty where "no answer" beats the best one by more than the threshold."""
        return answered(answers, {"threshold": self.threshold} if self.unanswerable else {})

    def score(self, logits: Any, encoded: Any) -> dict[str, float]:
        """Compute SQuAD's official scores; those of 2.0 also apart for questions with and without an answer."""
        answers = self.best(logits, encoded)
        scores = self._rate(self.texts(answers), encoded)
        results = {"f1": float(scores[:, 1].mean()), "exact_match": float(scores[:, 0].mean())}
        if not self.unanswerable:
            return results
        answerable = np.array([bool(known) for known in self._data(encoded)["answers"]])
        for name, kind in (("has_answer", answerable), ("no_answer", ~answerable)):
            if kind.any():
                results[f"{name}_f1"] = float(scores[kind, 1].mean())
                results[f"{name}_exact_match"] = float(scores[kind, 0].mean())
        return results | self._best_thresholds(answers, encoded, answerable)

    def _rate(self, texts: Sequence[str], encoded: Any) -> np.ndarray:
        """Return the exact match and F1 of each question, (N, 2)."""
        known = self._data(encoded)["answers"]
        return np.array(
            [answer_scores(text, answers, self.unanswerable) for text, answers in zip(texts, known, strict=True)]
        )

    def _best_thresholds(self, answers: Sequence[Span], encoded: Any, answerable: np.ndarray) -> dict[str, float]:
        """Score the best threshold for answering nothing, as the official evaluation does."""
        scores = self._rate([answer.text for answer in answers], encoded)
        missing = np.array([answer.null_score - answer.score for answer in answers])
        order = np.argsort(missing, kind="stable")
        answered = np.array([bool(answer.text) for answer in answers])
        results = {}
        for name, column in (("best_f1", 1), ("best_exact_match", 0)):
            # answering one question more at a time, from the surest: gained where it has an answer, else lost
            gains = np.where(answerable, scores[:, column], -answered.astype(float))[order]
            results[name] = float(((~answerable).sum() + max(0.0, gains.cumsum().max())) / len(answers))
        return results

    def answers(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return the answer to each question with its scores, as columns."""
        data, best = self._data(encoded), self.best(logits, encoded)
        texts = self.texts(best)
        scores = self._rate(texts, encoded)
        return {
            "id": data["question_id"][:],
            "label": data["answers"][:],
            "prediction": texts,
            "best_text": [answer.text for answer in best],
            "score": [answer.score for answer in best],
            "null_score": [answer.null_score for answer in best],
            "exact_match": scores[:, 0],
            "f1": scores[:, 1],
        }

    def agreement(self, logits: Any, others: Any, encoded: Any, others_encoded: Any = None) -> float:
        """Return how often two models give the same answer, as SQuAD compares them."""
        ours, theirs = (
            self.texts(self.best(*side))
            for side in ((logits, encoded), (others, encoded if others_encoded is None else others_encoded))
        )
        return float(np.mean([normalized_answer(a) == normalized_answer(b) for a, b in zip(ours, theirs, strict=True)]))

    def readable(self, logits: Any, encoded: Any) -> dict[str, Any]:
        """Return the answers and their scores, as columns."""
        best = self.best(logits, encoded)
        return {"prediction": self.texts(best), "score": [answer.score for answer in best]}

    def submission_splits(self, split: str) -> tuple[str, ...]:
        """Return the split alone: any can be submitted."""
        return (split,)

    def submission(self, split: str, logits: Any, encoded: Any) -> dict[str, str]:
        """Write the predictions as the official evaluation takes them: an answer for each question's id."""
        from scipy.special import expit

        data, best = self._data(encoded), self.best(logits, encoded)
        files = {"predictions.json": dict(zip(data["question_id"], self.texts(best), strict=True))}
        if self.unanswerable:
            odds = np.array([answer.null_score - answer.score for answer in best])
            files["na_prob.json"] = dict(zip(data["question_id"], expit(odds).tolist(), strict=True))
        return {name: json.dumps(values, ensure_ascii=False, indent=1) + "\n" for name, values in files.items()}


def _questions(questions: Sequence[str], tokenizer: Any, at_most: int) -> tuple[list[str], int]:
    """Cut the questions to ``at_most`` tokens, and count those that had to be."""
    questions = [question.strip() for question in questions]
    encoded = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True, verbose=False)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    long = [row for row, ids in enumerate(encoded["input_ids"]) if len(ids) > at_most]
    for row in long:
        questions[row] = shorten_question(questions[row], encoded["offset_mapping"][row], count, at_most)
    return questions, len(long)


def _label(
    answers: Sequence[str], starts: Sequence[int], begins: Sequence[int], ends: Sequence[int], whole: tuple[bool, bool]
) -> list[int]:
    """Find the first and last token of the first answer; [0, 0], the first token, where it is not in the window.

    ``whole``: whether the window begins where the context begins, and ends where it ends. The answer's own first and
    last character need not be part of a token: tokenizers drop some.
    """
    if not answers:
        return [0, 0]
    text = answers[0]
    start, stop = starts[0] + len(text) - len(text.lstrip()), starts[0] + len(text.rstrip())
    inside = [token for token, (b, e) in enumerate(zip(begins, ends, strict=True)) if b < stop and e > start]
    if not inside:
        return [0, 0]
    seen_from = 0 if whole[0] else next(begin for begin in begins if begin != OUTSIDE)
    seen_to = stop if whole[1] else max(ends)
    return [inside[0], inside[-1]] if seen_from <= start and stop <= seen_to else [0, 0]

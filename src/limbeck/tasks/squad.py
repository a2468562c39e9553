"""Load SQuAD 1.1 and 2.0, from the official JSON files or from the hub.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016) and "Know What You Don't Know:
Unanswerable Questions for SQuAD" (2018).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from limbeck._internal import hub
from limbeck._internal.files import expand_home
from limbeck.errors import DataError
from limbeck.options import Count
from limbeck.tasks.cells import parse_json
from limbeck.tasks.files import check_exists
from limbeck.tasks.spans import SpanTask
from limbeck.tasks.task import Task, make_split

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("limbeck")

Version = Literal["1.1", "2.0"]
_HUB: dict[Version, str] = {"1.1": "rajpurkar/squad", "2.0": "rajpurkar/squad_v2"}
_FILES = {"train": "train", "validation": "dev"}
_METRICS = ("f1", "exact_match")
_METRICS_2 = (  # which 2.0 has beside those of 1.1
    *(f"{kind}_{name}" for kind in ("has_answer", "no_answer") for name in _METRICS),
    "best_f1",
    "best_exact_match",
)


def _load(version: Version, data_dir: str | None, **decoding: Any) -> Task:
    splits = _from_hub(version) if data_dir is None else _from_folder(version, expand_home(data_dir))
    return SpanTask(
        name=f"squad/{version}",
        problem="span",
        text_columns=("question", "context"),
        label_names=(),
        metrics=_METRICS + (_METRICS_2 if version == "2.0" else ()),
        splits=splits,
        unanswerable=version == "2.0",
        **decoding,
    )


def squad_1(*, data_dir: str | None = None, stride: Count = 128, max_answer: Count = 30, n_best: Count = 20) -> Task:
    """Load SQuAD 1.1: the span of a Wikipedia paragraph that answers a question (F1, exact match).

    Args:
        data_dir: the folder with train-v1.1.json and dev-v1.1.json; None: the hub.
        stride: how many tokens two windows over a long text share.
        max_answer: the longest answer, in tokens.
        n_best: how many starts and ends of each window are combined.
    """
    return _load("1.1", data_dir, stride=stride, max_answer=max_answer, n_best=n_best)


def squad_2(
    *,
    data_dir: str | None = None,
    stride: Count = 128,
    max_answer: Count = 30,
    n_best: Count = 20,
    threshold: float = 0.0,
) -> Task:
    """Load SQuAD 2.0: as 1.1, and half of the questions have no answer (F1, exact match).

    Args:
        data_dir: the folder with train-v2.0.json and dev-v2.0.json; None: the hub.
        stride: how many tokens two windows over a long text share.
        max_answer: the longest answer, in tokens.
        n_best: how many starts and ends of each window are combined.
        threshold: no answer is given where its score exceeds the best answer's by more than this.
    """
    return _load("2.0", data_dir, stride=stride, max_answer=max_answer, n_best=n_best, threshold=threshold)


def _from_folder(version: Version, folder: Path) -> dict[str, Dataset]:
    splits = {}
    for split, stem in _FILES.items():
        path = folder / f"{stem}-v{version}.json"
        check_exists(path)
        splits[split] = _split(split, _questions(path), str(path))
    return splits


def _questions(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"), str(path))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not whole JSON ({error}). Copy or download it again.") from error
    where = "data"
    try:
        for a, article in enumerate(content["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, question in enumerate(paragraph["qas"]):
                    where = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    impossible = question.get("is_impossible", False)
                    answers = [] if impossible else question["answers"]
                    row = {
                        "question_id": _text(str(question["id"])),
                        "question": _text(question["question"]),
                        "context": _text(paragraph["context"]),
                        "answers": [_text(answer["text"]) for answer in answers],
                        "starts": [int(answer["answer_start"]) for answer in answers],
                    }
                    _check_starts(f"{path}, {where}", row)
                    yield row
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(
            f"{path} is not in SQuAD's format: near {where}: {type(error).__name__}, {error}. "
            "Use the official JSON files, or leave out task.data_dir to load them from the hub."
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    value.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return value


def _check_starts(where: str, row: dict[str, Any]) -> None:
    outside = [start for start in row["starts"] if not 0 <= start < max(len(row["context"]), 1)]
    if outside:
        raise DataError(
            f"{where}: answer_start is {outside[0]:,}, but the context has {len(row['context']):,} characters. "
            "Correct it: characters (not bytes) are counted, from 0."
        )


def _from_hub(version: Version) -> dict[str, Dataset]:
    files = " and ".join(f"{stem}-v{version}.json" for stem in _FILES.values())
    loaded = hub.load_hub_data(f"squad/{version}", f"{files} (the official files)", _HUB[version])
    return {split: _split(split, map(_hub_row, loaded[split]), _HUB[version]) for split in _FILES}


def _hub_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "question_id": row["id"],
        "question": row["question"],
        "context": row["context"],
        "answers": list(row["answers"]["text"]),
        "starts": list(row["answers"]["answer_start"]),
    }


def _split(split: str, questions: Iterator[dict[str, Any]], source: str) -> Dataset:
    rows = _corrected_starts(split, list(questions), source)
    if not rows:
        raise DataError(f"{source} has no questions. Copy or download it again.")
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    return make_split(split, {"id": list(range(len(rows))), **columns})


def _corrected_starts(split: str, rows: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Move each answer to the place nearest to its ``answer_start`` where the context has it.

    An answer that the context does not have cannot be learned, so training leaves it out, and a question with it if it
    has no other. It can be scored, by its words, so validation keeps it.
    """
    kept, moved, lost = [], [], []
    for row in rows:
        starts = [_nearest(row["context"], *answer) for answer in zip(row["answers"], row["starts"], strict=True)]
        there = [place for place, start in enumerate(starts) if start >= 0]
        if starts and not there:
            lost.append(row["question_id"])
            if split == "train":
                continue
        elif starts != row["starts"]:
            moved.append(row["question_id"])
        if split == "train" or len(there) == len(starts):
            row |= {"answers": [row["answers"][place] for place in there], "starts": [starts[place] for place in there]}
        kept.append(row)
    total = f"{len(rows):,}"
    if moved:
        message = "%s: %s of %s questions have an answer that is not at its answer_start (the first is %s); %s."
        remedy = "the nearest place that has its text was taken instead"
        logger.warning(message, source, f"{len(moved):,}", total, moved[0], remedy)
    if lost:
        message = "%s: %s of %s questions have answers that are not in their context (the first is %s); %s."
        outcome = "they were left out" if split == "train" else "they are scored nevertheless"
        logger.warning(message, source, f"{len(lost):,}", total, lost[0], outcome)
    return kept


def _nearest(context: str, text: str, start: int) -> int:
    """Find where the context has the text, closest to ``start``; -1 if nowhere."""
    if context.startswith(text, start):
        return start
    places = (context.rfind(text, 0, start + len(text)), context.find(text, start))
    return min((place for place in places if place >= 0), key=lambda place: abs(place - start), default=-1)

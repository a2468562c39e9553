"""Keep what was measured of a run in the ``analysis`` folder of its run directory.

No model is needed to read it, so nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from limbeck._internal.files import replacing, write_text
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory

TOKEN_NORMS = ("none", "l2", "layernorm", "softmax")  # Huang et al. 2023, figure 5
_TIMED = ("milliseconds", "teacher_milliseconds", "speedup", "inference", "batch_size", "tokens", "session")


@dataclass(frozen=True)
class Record:
    """Hold numbers and arrays of one run.

    ``values``, each where it could be measured::

        layers                  {"teacher": 12, "student": 6}
        cka_diagonal            {"teacher": 1.0, "before": 0.71, "after": 0.93}: means of the heat maps' diagonals
        relation_difference     [{"step": 0, "inter_euclidean": ..., "inter_cosine", "intra_euclidean",
                                 "intra_cosine"}, ...]: of the student before, of checkpoints that were kept, and after
        intra_class_similarity  {"teacher": 0.8, "before": 0.3, "after": 0.7}: among the samples of a batch
        intra_class_similarity_pooled   the same among all samples
        sentences               [{"text": "...", "tokens": ["[CLS]", ...]}, ...]
        cost                    see :mod:`limbeck.analysis.cost`, and for what is timed :mod:`limbeck.analysis.latency`

    ``arrays``::

        heat_map.{teacher, before, after}   (m, m): CKA of the teacher's mini-batch i and the other model's j
        layers.{before, after}              (teacher's layers + 1, student's layers + 1), layer 0: embeddings
        layers.students                     (student's layers + 1) squared: before against after
        tokens.{sentence}.{teacher, student}.{norm}   (L, L) relations of a sentence's tokens
    """

    settings: dict[str, Any]  # examples, batch_size, pool, layer, estimator, and what was asked for
    values: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_record(run: Path, record: Record) -> None:
    """Write a record into its run directory, in place of an older one."""
    directory = RunDirectory(run)
    with replacing(directory.analysis_arrays) as file:
        np.savez_compressed(file, **record.arrays)  # type: ignore[arg-type]
        # the values of an older record must not stand beside these arrays
        directory.analysis_values.unlink(missing_ok=True)
    write_values(run, record)  # last, because without it there is no record


def write_values(run: Path, record: Record) -> None:
    """Write the values of a record whose arrays are in its run directory."""
    values = {"settings": record.settings, **record.values}
    write_text(RunDirectory(run).analysis_values, json.dumps(values, indent=2) + "\n")


def read_record(run: Path) -> Record | None:
    """Read what was measured of a run; None where nothing was."""
    file, arrays = RunDirectory(run).analysis_values, RunDirectory(run).analysis_arrays
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        # opened here, because numpy leaves a damaged file open
        with arrays.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            return Record({**values.pop("settings")}, values, dict(found))
    except Exception as error:  # numpy interprets what it finds, so damage may raise anything
        seen = " ".join(str(error).split())
        raise RunError(f"{file.parent} is damaged ({seen}). Measure it again: limbeck analyze --force {run}") from error


def session_of(record: Record) -> str | None:
    """Name the session in which a record's models were timed; None where it was in none."""
    session = _cost(record).get("session")
    return json.dumps(session, sort_keys=True) if isinstance(session, dict) else None


def is_timed(record: Record) -> bool:
    """Tell whether a record holds a latency, in whatever way it was measured."""
    return "milliseconds" in _cost(record)


def without_latency(record: Record) -> Record:
    """Return a record without what was timed of predictions, which must not stand beside that of another session."""
    kept = {name: value for name, value in _cost(record).items() if name not in _TIMED}
    return Record(record.settings, record.values | {"cost": kept}, record.arrays)


def _cost(record: Record) -> dict[str, Any]:
    cost = record.values.get("cost")
    return cost if isinstance(cost, dict) else {}

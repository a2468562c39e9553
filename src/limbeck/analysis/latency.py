"""Time the students and teachers of runs: all in turns, in one session, each architecture once.

Runs whose models have one architecture share one number, and two numbers of one session can be compared: whatever else
the machine did meanwhile, it did to both. Numbers of two sessions cannot.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck._internal.progress import progress
from limbeck.analysis.loaded_run import last_recipe
from limbeck.analysis.record import Record, read_record, session_of, write_values
from limbeck.errors import LimbeckError, RunError
from limbeck.inference.latency import processor_name, time_in_turns, torch_threads
from limbeck.inference.logits import model_logits
from limbeck.models.architecture import architecture_of, build_like
from limbeck.models.loading import longest_input
from limbeck.runs.directory import RunDirectory

logger = logging.getLogger("limbeck")

SECONDS = 6.0  # of a session, at least three turns of each architecture
_BATCH_SIZE, _LENGTH = 1, 128  # one text of so many tokens, fewer where a model reads no more
_THREADS = 1  # several wait for each other: where others use the processors, that takes longer than all the rest
_PERCENTILE = 5  # of the calls' times: other work makes calls slower, never faster
_BUSY = 1.5  # half of the calls take so much longer than those that count


def time_runs(
    runs: Sequence[Path], overrides: Sequence[str] = (), *, allow_code: bool = False, keep_going: bool = False
) -> None:
    """Time these runs' models in one session, unless one has timed them all, and add what was found to their records.

    A run whose cost was not measured is left alone; so is, with a warning, one whose models cannot be made again, where
    ``keep_going`` is set.
    """
    records = {}
    for run in runs:
        with _left_out(run, keep_going):
            if (record := read_record(run)) and _architectures(record):
                records[run] = record
    sessions = {session_of(record) for record in records.values()}
    if len(sessions) == 1 and None not in sessions:
        return
    models: dict[str, Any] = {}
    ready = []
    for run, record in records.items():
        with _left_out(run, keep_going):
            _add_models(models, run, record, partial(last_recipe, RunDirectory(run), overrides, allow_code))
            ready.append(run)
    if ready:
        measured = _time(models)
        for run in ready:
            write_values(run, _with_latency(records[run], *measured))


@contextmanager
def _left_out(run: Path, keep_going: bool) -> Iterator[None]:
    """Let a run that cannot be timed be left out with a warning, where ``keep_going`` is set."""
    try:
        yield
    except LimbeckError as error:
        if not keep_going:
            raise
        logger.warning("%s is not timed beside the others: %s", run, error)


def _architectures(record: Record) -> dict[str, str]:
    """Return the architecture of a record's student, and of its teacher where it has one."""
    cost = record.values.get("cost")
    names = {"student": "architecture", "teacher": "teacher_architecture"}
    return {side: cost[name] for side, name in names.items() if name in cost} if isinstance(cost, dict) else {}


def _add_models(models: dict[str, Any], run: Path, record: Record, load: Callable[[], tuple[Any, str]]) -> None:
    """Make a model of each architecture of a run that is not among ``models`` yet."""
    for side, name in _architectures(record).items():
        if name in models:
            continue
        source = str(run) if side == "student" else load()[0].teacher.leading.model
        model = build_like(source, record.values["cost"]["problem"])
        if architecture_of(model) != name:
            raise RunError(
                f"{source} is another model than the one that was measured in {run}: {architecture_of(model)}, not "
                f"{name}. Measure the run again: limbeck analyze --force {run}"
            )
        models[name] = model


def _time(models: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the milliseconds of each model, and how all of them were measured."""
    length = min(_LENGTH, *map(longest_input, models.values()))
    calls = [partial(model_logits, model, _texts(model, length)) for model in models.values()]
    logger.info("Timing %d architecture%s in turns.", len(models), "s" * (len(models) != 1))
    with progress("measure latency", 1) as steps, torch_threads(_THREADS):
        found = time_in_turns(calls, SECONDS)
        steps.advance()
    fast, half = (1000 * np.array([np.percentile(own, share) for own in found]) for share in (_PERCENTILE, 50))
    if (half > _BUSY * fast).any():
        logger.warning("The processor is busy with other work. Latencies are of the calls that it disturbed least.")
    times = dict(zip(models, fast.tolist(), strict=True))
    session = {"id": uuid.uuid4().hex, "processor": processor_name(), "threads": _THREADS}
    return times, {"batch_size": _BATCH_SIZE, "tokens": length, "session": session}


def _texts(model: Any, length: int) -> dict[str, Tensor]:
    words = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (_BATCH_SIZE, length), generator=words)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def _with_latency(record: Record, times: dict[str, float], how: dict[str, Any]) -> Record:
    names = _architectures(record)
    found: dict[str, Any] = {"milliseconds": times[names["student"]], **how}
    if "teacher" in names:
        taught = times[names["teacher"]]
        found |= {"teacher_milliseconds": taught, "speedup": taught / found["milliseconds"]}
    return Record(record.settings, record.values | {"cost": record.values["cost"] | found}, record.arrays)

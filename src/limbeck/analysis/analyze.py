"""Measure finished runs and keep what was found in their run directories."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from limbeck._internal.links import refuse_links
from limbeck._internal.processes import (
    join_processes,
    launched_processes,
    on_rank_zero,
    process_count,
    rank,
    single_process,
    wait_for_all,
)
from limbeck.analysis.cost import cost_of
from limbeck.analysis.geometry_pass import CKAEstimator, SamplePooling, geometry
from limbeck.analysis.latency import time_runs
from limbeck.analysis.loaded_run import LoadedRun, load_run
from limbeck.analysis.record import Record, is_timed, read_record, session_of, write_record
from limbeck.analysis.tokens import relations_of
from limbeck.errors import Fault, LimbeckError
from limbeck.inference.relation_difference import Layer

logger = logging.getLogger("limbeck")

_NOT_IMPORTED = "not_imported"  # of a record's settings: the method whose cost was left out


@dataclass(frozen=True)
class Settings:
    """Hold what is measured, and on what."""

    examples: int = 1000  # of the validation data, at most
    pool: SamplePooling = "mean"  # how a sample's tokens become one row
    layer: Layer = "last"  # whose tokens and samples are related
    estimator: CKAEstimator = "unbiased"  # of the heat maps; between layers it always is
    batch_size: int | None = None  # of a mini-batch; None: 32, or fewer where there would be less than 8 of them
    sentences: tuple[str, ...] = ()  # whose tokens are related; without any, some of the data
    cost: bool = True


# How papers measured, where they say it. The mini-batches of Jung et al. 2023 differ by task, in sizes not printed.
PRESETS: dict[str, dict[str, Any]] = {
    "jung2023": {"pool": "flat", "layer": "penultimate", "estimator": "biased"},  # figures 4 to 8, tables 6 and 7
    "saadi2023": {"pool": "cls", "layer": "last", "batch_size": 32},  # figure 2
}


def analyze(
    runs: Sequence[Path],
    settings: Settings | None = None,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    keep_going: bool = False,
    allow_code: bool = False,
    any_settings: bool = False,
) -> list[Record]:
    """Measure runs that were not measured with these settings before; one pass of a teacher serves all of them.

    With ``keep_going``, a run that cannot be measured is left out with a warning. Where a method is code of somebody's
    own, what its objective costs is measured with ``allow_code`` only, which imports it. With ``any_settings``, a run
    that was measured with others is not measured again. Several processes divide the runs; each returns the records
    of its own. The models of all runs are timed in one session, by the first process.
    """
    join_processes()
    settings = settings or Settings()
    asked = asdict(settings) | {"sentences": list(settings.sentences), "overrides": list(overrides)}
    measured = []
    own = runs[rank() :: process_count()]
    for run in own:
        refuse_links(run)  # whatever else is left out with a warning
    with tempfile.TemporaryDirectory() as folder, single_process():
        for run in own:
            record = None if force else read_record(run)  # a damaged one is an error, whatever else is left out
            try:
                if record is None or not (any_settings or _answers(record, asked, allow_code)):
                    logger.info("Measuring %s.", run)
                    loaded = load_run(run, settings.examples, overrides, allow_code, settings.batch_size)
                    write_record(run, measure(loaded, settings, asked, Path(folder)))
                measured.append(run)
            except LimbeckError as error:
                if keep_going:
                    logger.warning("%s is left out of the analyses: %s", run, error)
                elif launched_processes() > 1:
                    raise Fault(str(error)) from error
                else:
                    raise
    wait_for_all()
    if settings.cost:  # at the end, when no other process computes any more
        on_rank_zero(partial(time_runs, runs, overrides, allow_code=allow_code, keep_going=keep_going))
    return [record for run in measured if (record := read_record(run)) is not None]


def _answers(record: Record, asked: dict[str, Any], allow_code: bool) -> bool:
    """Tell whether a record holds what is asked for now; one without the method's cost does if that is not imported.

    One whose latency was not measured in turns with that of others does not.
    """
    untrusted = is_timed(record) and session_of(record) is None
    return (
        record.settings.get("asked") == asked
        and not untrusted
        and not (allow_code and _NOT_IMPORTED in record.settings)
    )


def measure(loaded: LoadedRun, settings: Settings, asked: dict[str, Any], folder: Path) -> Record:
    """Measure a run and return the record; ``folder`` is for what the teacher computes."""
    how = settings.pool, settings.layer, settings.estimator
    values, arrays = geometry(loaded, *how, folder)
    values["sentences"], relations = relations_of(loaded, settings.sentences, settings.layer)
    if settings.cost:
        if loaded.foreign_code:
            logger.warning(
                "%s: its method %s is code, which was not imported: what a training step costs is left out. "
                "'limbeck analyze %s --allow-code' measures it too, if you trust the code.",
                *(loaded.run.path, loaded.foreign_code, loaded.run.path),
            )
        values["cost"] = cost_of(loaded, folder)  # last, because it leaves the models changed
    used: dict[str, Any] = {
        "examples": loaded.examples,
        "batch_size": loaded.batch_size,
        "pool": settings.pool,
        "layer": settings.layer,
        "estimator": settings.estimator,
        "asked": asked,
    }
    if loaded.foreign_code and settings.cost:
        used[_NOT_IMPORTED] = loaded.foreign_code
    return Record(used, values, arrays | relations)

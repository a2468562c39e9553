"""Measure finished runs and keep what was found in their run directories."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from limbeck.analysis.cost import cost_of
from limbeck.analysis.opened import Opened, open_run
from limbeck.analysis.passes import Estimator, Layer, Pool, geometry
from limbeck.analysis.record import Record, read_record, write_record
from limbeck.analysis.tokens import relations_of
from limbeck.errors import Fault, LimbeckError
from limbeck.together import alone, join, launched, meet, processes, rank

logger = logging.getLogger("limbeck")


@dataclass(frozen=True)
class Settings:
    """What is measured, and on what."""

    examples: int = 1000  # of the validation data, at most
    pool: Pool = "mean"  # how a sample's tokens become one row
    layer: Layer = "last"  # whose tokens and samples are related
    estimator: Estimator = "unbiased"  # of the heat maps; between layers it always is
    sentences: tuple[str, ...] = ()  # whose tokens are related; without any, some of the data
    cost: bool = True


def analyze(
    runs: Sequence[Path],
    settings: Settings | None = None,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    keep_going: bool = False,
) -> list[Record]:
    """Measure runs that were not measured with these settings before; one pass of a teacher serves all of them.

    With ``keep_going``, a run that cannot be measured is left out with a warning. Several processes divide the runs;
    each returns the records of its own.
    """
    join()
    settings = settings or Settings()
    asked = asdict(settings) | {"sentences": list(settings.sentences), "overrides": list(overrides)}
    records = []
    own = runs[rank() :: processes()]
    with tempfile.TemporaryDirectory() as folder, alone():
        for run in own:
            try:
                record = None if force else read_record(run)
                if record is None or record.settings.get("asked") != asked:
                    logger.info("Measuring %s.", run)
                    record = measure(open_run(run, settings.examples, overrides), settings, asked, Path(folder))
                    write_record(run, record)
                records.append(record)
            except LimbeckError as error:
                if keep_going:
                    logger.warning("%s is left out of the analyses: %s", run, error)
                elif launched() > 1:
                    raise Fault(str(error)) from error
                else:
                    raise
    meet()
    return records


def measure(opened: Opened, settings: Settings, asked: dict[str, Any], folder: Path) -> Record:
    """The record of a run; ``folder`` is for what the teacher computes."""
    how = settings.pool, settings.layer, settings.estimator
    values, arrays = geometry(opened, *how, folder)
    values["sentences"], relations = relations_of(opened, settings.sentences, settings.layer)
    if settings.cost:
        values["cost"] = cost_of(opened, folder)  # last, because it leaves the models changed
    used = {
        "examples": opened.examples,
        "batch_size": opened.batch_size,
        "pool": settings.pool,
        "layer": settings.layer,
        "estimator": settings.estimator,
        "asked": asked,
    }
    return Record(used, values, arrays | relations)

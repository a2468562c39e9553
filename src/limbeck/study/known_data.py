"""Stop a study whose data or teachers are others than those that its runs were made with."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from limbeck.errors import LimbeckError
from limbeck.recipes.recipe import load_recipe
from limbeck.runs.data import check_data
from limbeck.study.jobs import Job, TrainJob
from limbeck.training.data_record import data_named_by

logger = logging.getLogger("limbeck")

_REMEDY = (
    "One table must not mix them. Put back what the study was begun with, or choose another --output for a study of "
    "what there is now."
)


class KnownData:
    """Know the data and the teachers that jobs name as they are now; each is read once."""

    def __init__(self) -> None:
        self._now: dict[str, dict[str, Any] | None] = {}  # by what names them

    def check(self, jobs: Iterable[Job]) -> None:
        """Raise where a run that has begun was made with other data, or another teacher, than there are now."""
        for job in jobs:
            if isinstance(job, TrainJob) and job.directory.data.is_file():
                now = self._named_by(job.values)
                if now is not None:
                    check_data(job.directory, now, _REMEDY)

    def _named_by(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Return the fingerprint of what a recipe names; None where it cannot be read any more."""
        blocks = [values, *(values.get("stages") or [])]
        names = json.dumps(
            [[block.get("task"), (block.get("teacher") or {}).get("model")] for block in blocks], default=str
        )
        if names not in self._now:
            try:
                self._now[names] = data_named_by(load_recipe(values=values).split()[-1])
            except LimbeckError as error:  # runs that are still to be done will say so themselves
                logger.warning("Whether the data are still those of the finished runs cannot be told: %s", error)
                self._now[names] = None
        return self._now[names]

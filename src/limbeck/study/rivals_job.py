"""Describe the job that makes the trivial rivals of a task, whose rows stand beside a study's students."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.errors import LimbeckError
from limbeck.rivals.making import Asked, make_rivals
from limbeck.runs.directory import StudyDirectory
from limbeck.runs.rivals import KeptRivals, RivalsFolder, read_rivals
from limbeck.study.jobs import Job

logger = logging.getLogger("limbeck")


@dataclass(frozen=True)
class RivalsJob(Job):
    """Describe the linear models on TF-IDF and on frozen features that the students of a task must beat."""

    name: str  # of the task
    task: dict[str, Any]  # its block in the recipes
    students: list[dict[str, Any]]  # their blocks
    teacher: str
    pretrained: str | None  # what the teacher is fine-tuned from, where the study does that

    @property
    def folder(self) -> RivalsFolder:
        """Point to what is kept of them."""
        return RivalsFolder.of(StudyDirectory(Path(self.study)), self.name)

    def kept(self) -> KeptRivals | None:
        """Return what was made for these students and this teacher; None where that is still to be done."""
        try:
            kept = read_rivals(self.folder)
            return kept if kept is not None and kept.asked == self._asked().as_values() else None
        except LimbeckError:  # damaged, or of what cannot be read any more: the job itself says so
            return None

    def finished(self) -> bool:
        return self.kept() is not None

    def run(self) -> None:
        make_rivals(self._asked(), [self.folder])

    def _asked(self) -> Asked:
        return Asked.of(self.task, self.students, self.teacher, self.pretrained)


def rivals_workflow(task: str, job: RivalsJob | None) -> Generator[Sequence[Job], dict[str, str], dict[str, Any]]:
    """Yield the job of a task's rivals, and return what the results say about them; a study does not fail with them."""
    if job is None:
        return {"rows": [], "why": "the study leaves them out (rivals: false)"}
    failed = yield [job]
    kept = None if failed else job.kept()
    if kept is None:
        why = failed.get(job.key, "nothing was kept of them")
        logger.warning("%s has no rows for linear models: %s", task, why)
        return {"rows": [], "why": why}
    rows = [{"label": one.name, "metrics": one.scores, "parameters": one.parameters} for one in kept.rivals]
    for name, why in kept.left_out.items():
        logger.warning("%s has no row for %s: %s", task, name, why)
    return {"rows": rows, "why": "; ".join(f"{name}: {why}" for name, why in kept.left_out.items())}

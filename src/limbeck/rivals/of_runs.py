"""Make the trivial rivals of finished runs that have none, and keep them beside the runs' results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limbeck._internal.links import refuse_links
from limbeck.errors import RunError
from limbeck.recipes.recipe import load_task_block
from limbeck.rivals.making import Asked, make_rivals
from limbeck.runs.data import data_differences, read_data
from limbeck.runs.directory import StudyDirectory
from limbeck.runs.reader import Run, last_stage
from limbeck.runs.rivals import KeptRivals, RivalsFolder, read_rivals
from limbeck.tasks import load_task
from limbeck.tasks.fingerprint import data_fingerprint

_REMEDY = "Name the data of the run, e.g. task.data_dir=FOLDER, or task.train=FILE and task.validation=FILE."


class Owner(NamedTuple):
    """Name a run, and the folder of the study that it belongs to, if it does: rivals are kept there."""

    run: Run
    study: Path | None


def rivals_of_runs(
    owners: Sequence[Owner], *, model: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, KeptRivals]:
    """Make what is missing for these runs, once for those that share data and encoder; return all, by task.

    ``model`` is the pre-trained model whose frozen features are read; without, the one that the teacher was made from.
    """
    groups: dict[tuple[str, ...], list[Owner]] = {}
    for owner in owners:
        alone = (repr(owner.run.settings.get("task")), owner.run.teacher or repr(_first_student(owner.run)))
        groups.setdefault((owner.run.task, *((str(owner.study),) if owner.study else alone)), []).append(owner)
    return {group[0].run.task: _make_missing(group, model, overrides) for group in groups.values()}


def _make_missing(owners: Sequence[Owner], model: str | None, overrides: Sequence[str]) -> KeptRivals:
    runs = [owner.run for owner in owners]
    block = load_task_block(dict(last_stage(runs[0].settings)["task"]), overrides)
    asked = Asked.of(block.model_dump(), map(_first_student, runs), runs[0].teacher, model or _without_teacher(runs[0]))
    task = load_task(block.name, **block.options)
    now = data_fingerprint(task)
    _check_data(runs, now)
    folders = {
        RivalsFolder.of(owner.run.directory if owner.study is None else StudyDirectory(owner.study), owner.run.task)
        for owner in owners
    }
    ordered = sorted(folders, key=lambda folder: str(folder.path))
    missing = [folder for folder in ordered if not _is_for(folder, asked, now)]
    if missing:
        for folder in missing:
            refuse_links(folder.path.parent.parent)
        make_rivals(asked, missing, task)
    kept = read_rivals(ordered[0])
    assert kept is not None
    return kept


def _is_for(folder: RivalsFolder, asked: Asked, now: Mapping[str, Any]) -> bool:
    """Tell whether what is kept was made for the same task, encoder, depths and data, and is whole."""
    try:
        kept = read_rivals(folder)
    except RunError:
        return False
    return kept is not None and kept.asked == asked.as_values() and not data_differences(kept.data, now)


def _check_data(runs: Sequence[Run], now: Mapping[str, Any]) -> None:
    """Raise where a run was made with other rows than there are now: what is fitted to those tells nothing about it."""
    for run in runs:
        known = read_data(run.directory)
        different = data_differences(known, now) if known is not None else []
        if different:
            raise RunError(
                f"{run.path} was made with other data than there are now; what differs: {'; '.join(different)}. "
                f"{_REMEDY}"
            )


def _first_student(run: Run) -> Mapping[str, Any]:
    """Return the student block of a recipe, the first of several."""
    student: Mapping[str, Any] = (run.settings.get("stages") or [run.settings])[0].get("student") or {}
    return student


def _without_teacher(run: Run) -> str | None:
    """Name the model that a run fine-tuned, where nothing taught it."""
    student = _first_student(run)
    return None if run.teacher else str(student.get("model") or student.get("from") or student.get("tokenizer") or "")

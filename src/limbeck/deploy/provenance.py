"""Read how a model came about from the files of its run, and from nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from limbeck._internal.files import expand_home
from limbeck.compare.answers import answers_of, has_answers
from limbeck.compare.entries import read_entries
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.reader import Run, last_stage, leading_teacher, read_recipe, read_run, teacher_names
from limbeck.stats import bootstrap_interval


class PublicName(NamedTuple):
    """Name a model as others may know it: never by a path of this machine."""

    name: str
    on_hub: bool


@dataclass(frozen=True)
class Provenance:
    """Hold how a model came about; of one that did not come out of a run, ``run`` is None and most is unknown."""

    origin: PublicName  # what its weights, or those of the teacher they were cut from, were before
    keep: str = ""  # which of its layers were kept, where some were removed
    run: Run | None = None
    seeds: tuple[Run, ...] = ()  # the runs of its setting, itself among them
    interval: tuple[float, float] | None = None  # of the main metric, by drawing the examples anew
    teacher: PublicName | None = None

    def for_task(self, task: str) -> Provenance:
        """Leave out the scores of a run on another task."""
        return self if self.run is None or self.run.task == task else Provenance(self.origin, self.keep)

    @property
    def last_stage(self) -> Mapping[str, Any]:
        """Return the recipe of the last stage."""
        return last_stage(self.run.settings if self.run else {})


def read_provenance(model: str | Path, siblings: Sequence[str | Path] = ()) -> Provenance:
    """Read how a model came about; ``siblings`` are runs of the same setting with other seeds."""
    path = Path(model)
    if not RunDirectory(path).finished:
        if siblings:
            raise RunError(f"--with names other seeds of a run, but {model} is not the directory of a finished run.")
        return Provenance(public_name(str(model)))
    run = read_run(path)
    student = _student(run.settings)
    return Provenance(
        origin=_source(run.settings, path),
        keep=str(student["keep"]) if student.get("keep") else "",
        run=run,
        seeds=_seeds(run, siblings),
        interval=_interval(run),
        teacher=_teacher(run),
    )


def _teacher(run: Run) -> PublicName | None:
    names = [public_name(name) for name in teacher_names(last_stage(run.settings))]
    return (
        names[0] if len(names) == 1 else PublicName(" and ".join(one.name for one in names), False) if names else None
    )


def public_name(source: str) -> PublicName:
    """Name a model of the hub as it is, a run by what it was made from, another folder by its last part."""
    folder = expand_home(source)
    if RunDirectory(folder).recipe.is_file():
        return _source(read_recipe(RunDirectory(folder)), folder)
    if not folder.exists() and _on_hub(source):
        return PublicName(source, True)
    return PublicName(folder.resolve().name, False)


def _source(settings: Mapping[str, Any], folder: Path) -> PublicName:
    student = _student(settings)
    if student.get("model"):
        return public_name(str(student["model"]))
    teacher = leading_teacher(_first(settings))
    if student.get("from") == "teacher" and teacher:
        return public_name(teacher)
    if student.get("from"):
        return public_name(str(student["from"]))
    return PublicName(folder.resolve().name, False)


def _first(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the recipe of the first stage, whose student is new."""
    return {**settings, **settings["stages"][0]} if settings.get("stages") else settings


def _student(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return _first(settings).get("student") or {}


def _on_hub(source: str) -> bool:
    """Tell whether a model was loaded from the hub: a path that is gone can look like a name there."""
    from huggingface_hub import try_to_load_from_cache

    named = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source)
    return bool(named) and isinstance(try_to_load_from_cache(source, "config.json"), str)


def _seeds(run: Run, siblings: Sequence[str | Path]) -> tuple[Run, ...]:
    """Return the runs that are named, or those of the study that this run belongs to."""
    study = run.path.resolve().parents[1]
    if not siblings and not StudyDirectory(study).finished:
        return (run,)
    entries = read_entries([run.path, *siblings] if siblings else [study]).entries
    if siblings and len(entries) > 1:
        raise RunError(
            "--with takes runs that differ from the exported one in their seed only; these are different settings: "
            f"{'; '.join(f'{entry.label} on {entry.task}' for entry in entries)}."
        )
    own = run.path.resolve()
    return next((entry.runs for entry in entries if any(one.path.resolve() == own for one in entry.runs)), (run,))


def _interval(run: Run) -> tuple[float, float] | None:
    metric = next(iter(run.scores))
    if not has_answers(run):
        return None
    sample = answers_of(run, metric)[0].sample(metric)
    return None if sample is None else bootstrap_interval(sample.metric, sample.predictions, sample.labels)

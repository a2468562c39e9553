"""Find finished runs for a table: which of them are one setting with several seeds, and what to call it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from limbeck.compare.kept_rivals import RivalsByTask, find_rivals
from limbeck.errors import RunError
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import MALFORMED, damaged, read_mapping
from limbeck.runs.reader import Reported, Run, parse_reported, read_run

_NAME_RUNS = "Name run directories of 'finetune' or 'distill', folders of them, or a study's folder."
_SETTINGS = ("baselines", "test", "sided", "level", "correction", "against")  # how entries are tested
_FURTHER = ("relative_to", "pooled", "average")  # tables beside that of scores
# what tells seeds, places and papers' numbers apart, but not one way of training from another
_NO_SETTING = re.compile(r"(seed|(reported|grid)(\..*)?|(stages\.\d+\.)?teacher\.(cache|model|confirmed))")


@dataclass(frozen=True)
class Entry:
    """Hold the runs of one setting on one task, by seed."""

    task: str
    label: str
    runs: tuple[Run, ...]
    reported: tuple[Reported, ...] = ()
    missing: int = 0  # how many runs failed
    why: str = ""


@dataclass(frozen=True)
class EntrySet:
    """Hold the entries of a table, and what studies say about it."""

    entries: list[Entry]
    title: str = ""
    teachers: dict[str, Run] = field(default_factory=dict)  # by task
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # how entries are tested, and with whom
    rivals: RivalsByTask = field(default_factory=dict)
    further: dict[str, Any] = field(default_factory=dict)  # which other tables a study wants


def read_entries(paths: Sequence[str | Path]) -> EntrySet:
    """Read the runs at these paths, each a run directory, a study's folder, or a folder of run directories."""
    runs: dict[Path, Run] = {}
    studies: list[EntrySet] = []
    study_folders: list[StudyDirectory] = []
    teachers: dict[str, Run] = {}
    notes: list[str] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError(f"{path} is no folder. {_NAME_RUNS}")
        study = StudyDirectory(path)
        if study.finished:
            studies.append(_read_study(study))
            study_folders.append(study)
        elif RunDirectory(path).exists:
            runs.setdefault(path.resolve(), read_run(path))
        else:
            children = [child for child in map(RunDirectory, sorted(path.iterdir())) if child.exists]
            if not children and study.exists:
                raise RunError(f"The study {path} has no results yet. Compare what is finished: {study.runs}.")
            if not children:
                raise RunError(f"{path} holds neither a run, nor runs, nor the results of a study. {_NAME_RUNS}")
            finished = {child.path.resolve(): read_run(child.path) for child in children if child.finished}
            unfinished = [child.path.name for child in children if not child.finished]
            if unfinished:
                notes.append(f"Left out of {path}, because they are not finished: {', '.join(unfinished)}.")
            taught = {Path(run.teacher).resolve(): run.task for run in finished.values() if run.teacher}
            for place, task in taught.items():
                if place in finished and not finished[place].teacher:
                    teachers[task] = finished.pop(place)  # it has the teacher's row
            runs |= finished
    entries = [entry for study in studies for entry in study.entries] + _grouped(list(runs.values()))
    if not entries:
        raise RunError(f"There is no finished run in {', '.join(map(str, paths))}.")
    _check_labels(entries)
    by_task: dict[str, list[Run]] = {}
    for entry in entries:
        by_task.setdefault(entry.task, []).extend(entry.runs)
    rivals, about_rivals = find_rivals(by_task, study_folders)
    agreed = {
        key: value
        for key, value in (studies[0].settings.items() if studies else ())
        if all(study.settings.get(key) == value for study in studies)
    }
    return EntrySet(
        entries=entries,
        title=", ".join(study.title for study in studies),
        teachers=teachers | {task: run for study in studies for task, run in study.teachers.items()},
        notes=tuple(dict.fromkeys([*(note for study in studies for note in study.notes), *notes, *about_rivals])),
        settings=agreed,
        rivals=rivals,
        further=studies[0].further if len(studies) == 1 else {},
    )


def _read_study(study: StudyDirectory) -> EntrySet:
    what = "the results of a study"
    values = read_mapping(study.results, what)
    try:
        entries = [
            _entry(
                str(entry["task"]),
                str(entry["label"]),
                [read_run(_inside(study, run)) for run in entry["runs"]],
                parse_reported(entry.get("reported")),
                int(entry.get("missing", 0)),
                str(entry.get("why") or ""),
            )
            for entry in values["entries"]
        ]
        teachers = {task: _inside(study, run) for task, run in (values.get("teachers") or {}).items()}
        searched = [*(values.get("searches") or []), *values["entries"]]
        return EntrySet(
            entries=entries,
            title=str(values["study"]),
            # a teacher that was given need not be a run
            teachers={task: read_run(run) for task, run in teachers.items() if RunDirectory(run).exists},
            notes=tuple(note for note in (str(values.get("selection") or ""), _chosen(searched)) if note),
            settings={key: values[key] for key in _SETTINGS if values.get(key) is not None},
            further={key: values[key] for key in _FURTHER if values.get(key)},
        )
    except MALFORMED as error:
        raise damaged(study.results, what, error) from error


def _inside(study: StudyDirectory, run: str) -> Path:
    """Locate a run inside its study; a file that came with a study must not choose where analyses write."""
    name = os.path.normpath(run)
    if os.path.isabs(name) or name.partition(os.sep)[0] == os.pardir:
        raise RunError(f"{study.results} names '{run}', which is outside of the study. Repeat the study.")
    return study.path / name


def _chosen(entries: Sequence[Mapping[str, Any]]) -> str:
    """Say which settings a search chose, for the notes."""
    several = len({entry["task"] for entry in entries}) > 1
    found = []
    for entry in entries:
        settings = [f"{name.rpartition('.')[2]} {value}" for name, value in (entry.get("chosen") or {}).items()]
        searched = entry.get("searched") or []
        lost = sum(trial["score"] is None for trial in searched)
        if settings:
            without = f" ({lost} of {len(searched)} settings have no score)" if lost else ""
            found.append(f"{entry['label']}{' on ' + entry['task'] if several else ''}: {', '.join(settings)}{without}")
    return f"Chosen: {'; '.join(found)}." if found else ""


def _entry(
    task: str, label: str, runs: Sequence[Run], reported: tuple[Reported, ...], missing: int = 0, why: str = ""
) -> Entry:
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.seed in by_seed:
            raise RunError(
                f"{by_seed[run.seed].path} and {run.path} are the same setting ({label} on {task}) with the same seed "
                f"{run.seed}, and would count twice. Name one of them."
            )
        by_seed[run.seed] = run
    return Entry(task, label, tuple(by_seed[seed] for seed in sorted(by_seed)), reported, missing, why)


class _Setting(NamedTuple):
    task: str
    method: str
    options: tuple[tuple[str, str], ...]


def _grouped(runs: Sequence[Run]) -> list[Entry]:
    """Group run directories by what they were trained to do, whatever their seeds."""
    groups: dict[_Setting, list[Run]] = {}
    options: dict[_Setting, dict[str, str]] = {}
    for run in runs:
        found = {key: text for key, text in _flat(run.settings).items() if not _NO_SETTING.fullmatch(key)}
        key = _Setting(run.task, run.method, tuple(sorted(found.items())))
        groups.setdefault(key, []).append(run)
        options[key] = found
    entries = []
    for key, members in groups.items():
        same_method = {other: found for other, found in options.items() if other.method == key.method}
        label = " ".join([key.method, *_telling(same_method, options[key])])
        reported = next((run.reported for run in members if run.reported), ())
        entries.append(_entry(key.task, label, members, reported))
    return entries


def _telling(same_method: Mapping[_Setting, Mapping[str, str]], ours: Mapping[str, str]) -> list[str]:
    """List the options, such as ``temperature=5``, that tell a method's settings on any one task apart."""
    differing: dict[str, None] = {}
    for task in {key.task for key in same_method}:
        found = [options for key, options in same_method.items() if key.task == task]
        names = dict.fromkeys(name for options in found for name in options)
        differing |= dict.fromkeys(name for name in names if len({options.get(name) for options in found}) > 1)
    short = [name.rpartition(".")[2] for name in differing]
    return [
        f"{last if short.count(last) == 1 else name}={ours[name]}"
        for name, last in sorted(zip(differing, short, strict=True))
        if name in ours
    ]


def _flat(values: Any, where: str = "") -> dict[str, str]:
    """List settings by their place (``stages.1.method.temperature``), as text in which 5 and 5.0 are the same."""
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        values = dict(enumerate(values, start=1))
    if isinstance(values, dict):
        parts = [_flat(value, f"{where}.{key}".lstrip(".")) for key, value in values.items()]
        return {name: text for part in parts for name, text in part.items()}
    return {where: _text(values)}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_labels(entries: Sequence[Entry]) -> None:
    for (task, label), count in Counter((entry.task, entry.label) for entry in entries).items():
        if count > 1:
            raise RunError(
                f"There are two sets of runs called '{label}' on {task}, of different studies or of a study and other "
                "runs. Compare them apart, or name their run directories instead of the studies."
            )

"""Show where results come from: the runs, their recipes and environments, and how to repeat them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.compare.entries import Entry, EntrySet
from limbeck.compare.tables import Cell, Table
from limbeck.report.data import finite
from limbeck.report.layout import listed
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import read_mapping
from limbeck.runs.reader import Run

_ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[^\s/:,;'\"()]+/)+([^\s/:,;'\"()]+)")


@dataclass(frozen=True)
class ShownRuns:
    """Describe the runs of one label on one task; the recipe is the first one's."""

    title: str
    seeds: str
    time: str
    folders: list[str]
    recipe: str


@dataclass(frozen=True)
class Environment:
    """Hold a table of versions, and the names of those that differ between runs."""

    table: Table
    differing: str


@dataclass(frozen=True)
class Repeat:
    """Hold commands, and for a study its file."""

    commands: list[str]
    name: str = ""
    study: str = ""


def runs_of(found: EntrySet) -> list[ShownRuns]:
    """Describe the runs of every entry."""
    several = len({entry.task for entry in found.entries}) > 1
    return [_shown(entry, several) for entry in found.entries if entry.runs]


def _shown(entry: Entry, several: bool) -> ShownRuns:
    seconds = [_seconds(run.directory) for run in entry.runs]
    known = [time for time in seconds if time]
    where = f" on {entry.task}" if several else ""
    return ShownRuns(
        title=f"{entry.label}{where}",
        seeds=", ".join(str(run.seed) for run in entry.runs),
        time=f"{_duration(sum(known) / len(known))} of training each" if known else "",
        folders=[run.path.resolve().name for run in entry.runs],
        recipe=entry.runs[0].directory.recipe.read_text(encoding="utf-8", errors="replace"),
    )


def _seconds(run: RunDirectory) -> float:
    """Add up the time of all stages."""
    stages = [run, *(stage for stage in run.stages() if stage.finished)]
    return sum(finite(stage.metrics().get("train_seconds") for stage in stages))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def environment_of(runs: Sequence[Run]) -> Environment | None:
    """Show the environment of runs as a table; None where no run kept it."""
    files = [run.directory.environment for run in runs]
    found = [_flat(read_mapping(file, "the environment of a run")) for file in files if file.is_file()]
    names = dict.fromkeys(name for values in found for name in values)
    rows, differing = [], []
    for name in names:
        texts = [values.get(name, "unknown") for values in found]
        counts = {text: texts.count(text) for text in dict.fromkeys(texts)}
        if len(counts) > 1:
            differing.append(name)
        of_runs = [f"{text} ({count} run{'' if count == 1 else 's'})" for text, count in counts.items()]
        rows.append((Cell(name), Cell(", ".join(of_runs) if len(counts) > 1 else texts[0])))
    if not rows:
        return None
    return Environment(Table("Environment", ("what", "version or value"), tuple(rows)), listed(differing))


def _flat(values: dict[str, Any]) -> dict[str, str]:
    packages = values.get("packages")
    rest = {name: str(value) for name, value in values.items() if name != "packages"}
    return rest | ({name: str(value) for name, value in packages.items()} if isinstance(packages, dict) else {})


def ways_to_repeat(found: EntrySet, paths: Sequence[Path]) -> list[Repeat]:
    """Repeat each study as a whole, and other runs one by one."""
    studies = [study for study in (StudyDirectory(path.resolve()) for path in paths) if study.exists]
    ways = [
        Repeat(
            [f"limbeck study {study.description.name} -o {shlex.quote(f'studies/{study.path.name}')}"],
            study.path.name,
            study.description.read_text(encoding="utf-8", errors="replace"),
        )
        for study in studies
    ]
    commands = []
    for entry in found.entries:
        alone = [run for run in entry.runs if not any(run.path.resolve().is_relative_to(s.path) for s in studies)]
        for place, run in enumerate(alone):
            seed = f" seed={run.seed}" if place else ""
            commands.append(f"limbeck distill recipe.yaml{seed} -o {shlex.quote(f'runs/{run.path.resolve().name}')}")
    return [*ways, *([Repeat(commands)] if commands else [])]


def names_only(text: str, paths: Sequence[Path], runs: Sequence[Run]) -> str:
    """Remove the folders of somebody's machine from a sentence."""
    places = {str(path): path.resolve().name for path in paths} | {run.teacher: Path(run.teacher).name for run in runs}
    for place in sorted(places, key=len, reverse=True):
        if Path(place).is_absolute():
            text = text.replace(place, places[place])
    return _ABSOLUTE.sub(r"\1", text)

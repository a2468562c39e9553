"""Find the trivial rivals that are kept beside runs and in studies, for the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limbeck.errors import RunError
from limbeck.runs.data import data_differences, read_data
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.reader import Run
from limbeck.runs.rivals import KeptRival, KeptRivals, RivalsFolder, read_rivals

RivalsByTask = dict[str, tuple[KeptRival, ...]]
_WITHOUT_RIVALS = {"exact_match", "perplexity", "loss"}  # metrics of tasks that have none


def find_rivals(runs: Mapping[str, Sequence[Run]], studies: Sequence[StudyDirectory]) -> tuple[RivalsByTask, list[str]]:
    """Return the rivals of these runs by task, and notes about those that are not there."""
    found: RivalsByTask = {}
    notes, unknown = [], []
    for task, members in runs.items():
        owners: list[StudyDirectory | RunDirectory] = [*studies, *(run.directory for run in members)]
        kept = []
        for owner in owners:
            try:
                one = read_rivals(RivalsFolder.of(owner, task))
            except RunError as error:
                notes.append(f"The rivals of {task} are left out: {error}")
                continue
            if one is not None and _same_data(one, members):
                kept.append(one)
        found[task] = tuple({rival.name: rival for one in reversed(kept) for rival in one.rivals}.values())
        if kept:
            notes += [f"No row for {name} on {task}: {_sentence(why)}" for name, why in kept[0].left_out.items()]
        elif any(not _WITHOUT_RIVALS & run.scores.keys() for run in members):
            unknown.append(task)
    if unknown:
        what = f"What linear models score on {', '.join(unknown)} is not known"
        notes.append(f"{what}: 'limbeck rivals', with the same paths, adds it.")
    return found, notes


def _same_data(kept: KeptRivals, runs: Sequence[Run]) -> bool:
    """Tell whether rivals were scored on the rows that the runs were scored on; older runs do not tell theirs."""
    known = [data for run in runs if (data := read_data(run.directory)) is not None]
    return not known or not data_differences(_scored(known[0]), _scored(kept.data))


def _scored(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"labels": data["labels"], "splits": {k: v for k, v in data["splits"].items() if k != "train"}}


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."

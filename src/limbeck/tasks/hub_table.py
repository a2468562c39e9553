"""Read a table from a data set of the hub, or from a folder with one, through ``datasets``. No code of it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from limbeck._internal import hub
from limbeck._internal.files import expand_home
from limbeck.errors import DataError, RecipeError, unknown
from limbeck.tasks.files import Columns, pick

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation", "test")
_VALIDATION = ("validation", "dev", "valid", "val")  # as data sets call it
_SAVED = ("dataset_dict.json", "state.json")  # of a folder that save_to_disk wrote
_FILES = "the data set's Parquet, CSV or JSONL files"


class HubTable(NamedTuple):
    """Hold the wanted columns of each split, and the names of the labels where the data set numbers them."""

    files: dict[str, Columns]
    names: tuple[str, ...] | None


def read_dataset(
    dataset: str,
    config: str | None,
    split: str | Mapping[str, str] | None,
    texts: Sequence[str],
    labels: Sequence[str],
    ids: Sequence[str],
) -> HubTable:
    """Read the columns of the splits that are wanted; numbers of a ClassLabel become the names that it has for them."""
    loaded = _load(dataset, config)
    files: dict[str, Columns] = {}
    names: tuple[str, ...] | None = None
    for ours, theirs in _chosen(dataset, split, loaded).items():
        rows = loaded[theirs]
        where = Path(f"{dataset} ({theirs})")
        needed = [*texts, *ids, *([] if ours == "test" else labels)]
        wanted = pick(where, rows.column_names, needed, labels if ours == "test" else ())
        found = _names_of(rows, labels[0]) if len(labels) == 1 and labels[0] in wanted else None
        if ours == "train":
            names = found
        elif found is not None and found != names:
            raise DataError(f"{where}: its labels are {found}, those of the training data {names}.")
        rows = rows.select_columns(wanted)
        values = {name: list(rows[name][:]) for name in wanted}
        if found is not None:
            values[labels[0]] = [_named(cell, found) for cell in values[labels[0]]]
            if ours == "test" and all(cell is None for cell in values[labels[0]]):  # the hub's mark of unlabelled rows
                del values[labels[0]]
        if not len(rows):
            raise DataError(f"{where} has no rows.")
        files[ours] = Columns(where, "row", range(1, len(rows) + 1), values)
    return HubTable(files, names)


def _load(dataset: str, config: str | None) -> Mapping[str, Dataset]:
    folder, more = expand_home(dataset), [config] if config is not None else []
    if folder.is_dir():
        loaded = _from_folder(folder, more)
    elif folder.is_absolute() or dataset.startswith((".", "~")):
        raise DataError(
            f"task.dataset: {dataset} is no folder here, and no name of the hub (org/name). Check the path."
        )
    else:
        loaded = hub.load_hub_data(f"task.dataset {dataset}", _FILES, dataset, *more, option="task.dataset")
    return loaded if hasattr(loaded, "keys") else {"train": loaded}


def _from_folder(folder: Path, config: Sequence[str]) -> Any:
    """Load what save_to_disk wrote, or files; a script that would load them is not run."""
    import datasets

    try:
        if any((folder / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), *config)
    except Exception as error:  # whatever a damaged folder makes of the library
        raise DataError(
            f"task.dataset: {folder} cannot be read as a data set ({' '.join(str(error).split())}). It needs "
            "Parquet, CSV or JSONL files (train.parquet, validation.parquet, ...), or all that save_to_disk wrote."
        ) from error


def _chosen(dataset: str, split: str | Mapping[str, str] | None, loaded: Mapping[str, Any]) -> dict[str, str]:
    """Return the data set's name for each of our splits."""
    there = ", ".join(loaded)
    if split is None:
        if "train" not in loaded:
            raise DataError(f"{dataset} has no split 'train'. It has: {there}. Say which one trains, task.split=NAME.")
        validation = next((name for name in _VALIDATION if name in loaded), None)
        named = {"train": "train", "validation": validation, "test": "test" if "test" in loaded else None}
        return {ours: theirs for ours, theirs in named.items() if theirs is not None}
    named_splits = {"train": split} if isinstance(split, str) else dict(split)
    for ours, theirs in named_splits.items():
        if ours not in SPLITS:
            raise RecipeError(unknown("split in task.split:", ours, SPLITS, f"There are {', '.join(SPLITS)}."))
        if theirs not in loaded:
            raise DataError(f"{dataset} has no split '{theirs}' (task.split). It has: {there}.")
    if "train" not in named_splits:
        raise RecipeError("task.split names no training data: write {train: NAME, validation: NAME}.")
    return named_splits


def _names_of(rows: Dataset, label: str) -> tuple[str, ...] | None:
    """Return the names of a ClassLabel, or of a list of them; None of anything else."""
    feature = rows.features[label]
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return tuple(map(str, names)) if names else None


def _named(cell: Any, names: tuple[str, ...]) -> Any:
    if isinstance(cell, (list, tuple)):
        return [_named(number, names) for number in cell]
    return None if cell is None or cell < 0 else names[cell]

"""Name and read what is kept of trivial rivals, beside the runs that they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck._internal.files import file_name
from limbeck.runs.directory import RunDirectory, StudyDirectory
from limbeck.runs.files import MALFORMED, damaged, read_mapping

_WHAT = "what is kept of trivial rivals"


@dataclass(frozen=True)
class RivalsFolder:
    """Point to the rivals of one task, inside a run directory or a study's folder."""

    path: Path

    @classmethod
    def of(cls, owner: RunDirectory | StudyDirectory, task: str) -> RivalsFolder:
        """Point to the rivals of a task that a run or a study keeps."""
        return cls(owner.rivals / file_name(task))

    @property
    def record(self) -> Path:
        """Locate what the rivals are and score, and what they were made for."""
        return self.path / "rivals.json"

    def predictions(self, number: int, split: str) -> Path:
        """Locate the answers of a rival, counted from 0, to a split of the validation data."""
        return self.path / f"{number}-{split}.parquet"


@dataclass(frozen=True)
class KeptRival:
    """Hold a rival as it was kept; scores are fractions, the main metric's first."""

    name: str
    about: str
    scores: dict[str, float]
    parameters: int
    labels: tuple[str, ...]  # the task's, by number
    predictions: dict[str, Path]  # by split

    @property
    def in_words(self) -> str:
        """Name it in a sentence."""
        return self.name.replace("linear on", "a linear model on", 1)


@dataclass(frozen=True)
class KeptRivals:
    """Hold the rivals of a task, which were left out and why, and what they were made for."""

    rivals: tuple[KeptRival, ...]
    left_out: dict[str, str]
    data: dict[str, Any]  # the fingerprint of the rows and labels
    asked: dict[str, Any]  # task, encoder and depths, as they were named
    model: str  # the digest of the encoder; empty where there is none


def read_rivals(folder: RivalsFolder) -> KeptRivals | None:
    """Read the rivals in a folder; None where none were made."""
    if not folder.record.is_file():
        return None
    values = read_mapping(folder.record, _WHAT)
    try:
        data = values["data"]
        labels = tuple(str(name) for name in data["labels"])
        rivals = [
            KeptRival(
                name=str(kept["name"]),
                about=str(kept["about"]),
                scores={str(name): float(score) for name, score in kept["metrics"].items()},
                parameters=int(kept["parameters"]),
                labels=labels,
                predictions={split: folder.predictions(number, split) for split in data["splits"] if split != "train"},
            )
            for number, kept in enumerate(values["rivals"])
        ]
        left_out = {str(name): str(why) for name, why in values["left_out"].items()}
        return KeptRivals(tuple(rivals), left_out, data, dict(values["asked"]), str(values["model"]))
    except MALFORMED as error:
        raise damaged(folder.record, _WHAT, error) from error

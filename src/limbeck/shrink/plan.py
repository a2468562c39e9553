"""Keep what 'limbeck shrink' was asked for and what it decided in a file: started again, it decides nothing twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from limbeck._internal.files import expand_home, file_digest, write_text
from limbeck._internal.links import refuse_links
from limbeck._internal.locks import holds_nothing
from limbeck.errors import DataError, RunError
from limbeck.models.loading import resolve
from limbeck.runs.files import read_mapping
from limbeck.shrink.budget import Budget
from limbeck.shrink.layout import DATA, PLAN
from limbeck.tasks.task import Task

_FEWEST_DEV, _FEWEST_TRAIN = 20, 40  # rows; fewer cannot tell one student from another


@dataclass(frozen=True)
class Request:
    """Hold what was asked for: ``dev`` None holds out a tenth of ``data``; all may take about ``minutes``.

    Without a ``budget`` a student is proposed. ``unlabelled`` is a file with more texts; ``separator`` stands between
    the names of several labels in one cell.
    """

    model: str
    data: str
    text: tuple[str, ...]
    label: str
    budget: str | None = None
    dev: str | None = None
    unlabelled: str | None = None
    separator: str | None = None
    minutes: float = 10.0
    seed: int = 0

    def task_block(self) -> dict[str, Any]:
        """Return the recipe's block for the task as it is in the user's files."""
        block: dict[str, Any] = {"name": "table", "train": self.data, "text": list(self.text), "label": self.label}
        if self.dev is not None:
            block["validation"] = self.dev
        if self.separator is not None:
            block |= {"separator": self.separator, "problem": "multi_label"}
        return block | {"seed": self.seed}

    def check(self, task: Task) -> None:
        """Raise what would make the result meaningless."""
        if self.budget is not None:
            Budget.parse(self.budget)
        train, dev = len(task.split("train")), len(task.split("validation"))
        if dev < _FEWEST_DEV and self.dev is None:
            raise DataError(
                f"{self.data} has {train + dev:,} rows, of which a tenth, {dev}, would be held out: too few to tell "
                f"one student from another. Give at least {10 * _FEWEST_DEV} rows, or others with --dev FILE."
            )
        if dev < _FEWEST_DEV:
            raise DataError(
                f"{self.dev} has {dev} rows, too few to tell one student from another. Give {_FEWEST_DEV} or more."
            )
        if train < _FEWEST_TRAIN:
            raise DataError(f"{self.data} has {train} rows, too few to train on. Give {_FEWEST_TRAIN} or more.")

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the result, the content of the files included."""
        files = [expand_home(name) for name in (self.data, self.dev, self.unlabelled) if name is not None]
        content = [_digest(file) for file in (*files, *_model_files(self.model))]
        asked: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # as it is read again: tuples are lists
        return asked | {"content of the files": content}


def _model_files(model: str) -> list[Path]:
    """List what a model computes with, where it is a folder."""
    folder = expand_home(resolve(model))
    return sorted(file for file in folder.glob("*") if file.suffix == ".safetensors" or file.name == "config.json")


def _digest(file: Path) -> str:
    return file_digest(file)[:16]


class Workspace:
    """Hold the folder of one request, whose plan grows with each decision; refuse a folder of another request."""

    def __init__(self, folder: Path, request: Request) -> None:
        self.folder, self._file = folder, folder / PLAN
        asked = request.identity()
        others = folder.is_dir() and not holds_nothing(folder)
        if folder.is_file() or (others and not self._file.is_file()):
            raise RunError(f"{folder} holds something else. Choose another --output.")
        refuse_links(folder)
        if self._file.is_file():
            self.plan: dict[str, Any] = self._read()
            theirs = self.plan["asked"]
            different = [
                f"{key} ({theirs.get(key)!r} there, {asked[key]!r} now)"
                for key in asked
                if asked[key] != theirs.get(key)
            ]
            if different:
                raise RunError(
                    f"{folder} was made for something else; it differs in: {', '.join(different)}. "
                    "Choose another --output."
                )
        else:
            self.plan = {"asked": asked}

    def _read(self) -> dict[str, Any]:
        try:
            plan = read_mapping(self._file, "the plan of 'limbeck shrink'")
            if not isinstance(plan.get("asked"), dict):
                raise RunError(f"{self._file} does not say what was asked for.")
        except RunError as error:
            raise RunError(
                f"{error} Remove the folder {self.folder} to start again, or choose another --output."
            ) from error
        return plan

    def begin(self) -> None:
        """Write what was asked before anything else: what a kill leaves behind is then known to be of this request."""
        if not self._file.is_file():
            self._write()

    def forget(self) -> None:
        """Remove what was written, unless something was decided: another request may use the folder."""
        if self.plan.keys() == {"asked"}:
            shutil.rmtree(self.folder / DATA, ignore_errors=True)
            self._file.unlink(missing_ok=True)

    def decide(self, name: str, decision: dict[str, Any]) -> None:
        """Add a decision to the plan, and write the plan."""
        self.plan[name] = json.loads(json.dumps(decision))  # as it is read again: tuples are lists
        self._write()

    def _write(self) -> None:
        write_text(self._file, json.dumps(self.plan, indent=1) + "\n")

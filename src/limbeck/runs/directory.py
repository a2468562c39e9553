"""The directory of a run: what it holds, whether another run may go on there, and what its results may depend on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRUNED = "pruned.json"  # in the place of metrics.json where a run was not worth finishing


@dataclass(frozen=True)
class RunDirectory:
    """What a run leaves behind, and the only thing that later commands read."""

    path: Path

    @property
    def student(self) -> Path:
        return self.path / "student"

    @property
    def features(self) -> Path:
        """What the teacher computed, while the run needs it."""
        return self.path / "teacher-cache"

    def stage(self, number: int) -> RunDirectory:
        """Of a run of several, one before the last."""
        return RunDirectory(self.path / f"stage-{number}")

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").is_file()

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((self.path / "metrics.json").read_text())
        return metrics

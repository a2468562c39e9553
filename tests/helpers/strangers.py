"""Make run directories, recipes and studies as a stranger would who wants his code to be run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from helpers.saved_runs import read_json

# A whole method, so that whoever does allow it can train with it; it leaves a mark when it is imported.
_CODE = """
from pathlib import Path
Path({mark!r}).touch()
from limbeck import Objective, SoftLogits
def evil(pair, *, beta: float = 1.0):
    return Objective(soft=(beta, SoftLogits(pair.problem, 2.0)))
"""


class Stranger:
    """Hold a folder that came from somebody else; its ``method`` is importable from the folder's parent."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.folder, self.mark = shutil.copytree(run, folder), folder.parent / "imported"
        self.method = f"{folder.name}.student.evil:evil"
        (folder / "student" / "evil.py").write_text(_CODE.format(mark=str(self.mark)))
        self.recipe = folder / "recipe.yaml"

    def rewrite(self, **changes: Any) -> None:
        """Change blocks of the recipe; None removes one. The results name the method, as those of such a run do."""
        values = yaml.safe_load(self.recipe.read_text()) | changes
        self.recipe.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        results = self.folder / "metrics.json"
        results.write_text(json.dumps(read_json(results) | {"method": self.method}))

    def write(self, name: str, values: dict[str, Any]) -> Path:
        """Write another YAML file into the folder."""
        (self.folder / name).write_text(yaml.safe_dump(values))
        return self.folder / name

"""Fill a user's folder with a bit of everything, for tests of what commands do there."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import transformers
import yaml

from helpers.fuzzed_inputs import KD, STUDY
from helpers.tiny_tables import sentences, write_csv
from helpers.watched_commands import Watched
from limbeck import execute, load_recipe


class Desk(Watched):
    """Hold a user's folder: data, a teacher, a recipe and a study in ``in``, and two finished runs in ``runs``."""

    def __init__(self, home: Path, model: Path) -> None:
        import matplotlib.font_manager  # noqa: F401  # writes a list of fonts into the user's home the first time

        transformers.utils.logging.disable_progress_bar()  # as the command does before it imports transformers
        self.model = home / "model"
        shutil.copytree(model, self.model)
        super().__init__(home / "desk")
        for name in ("a", "b"):
            values = copy.deepcopy(KD) | {"seed": int(name == "b")}
            for block, key in (("task", "train"), ("task", "validation"), ("teacher", "model")):
                values[block][key] = str(self.work / values[block][key])
            execute(load_recipe(values=values), home / "runs" / name)
        self.runs = home / "runs"
        self.clear()

    def clear(self) -> None:
        super().clear()
        folder = self.work / "in"
        folder.mkdir()
        write_csv(folder / "train.csv", sentences(24))
        write_csv(folder / "dev.csv", sentences(12, seed=1))
        (folder / "recipe.yaml").write_text(yaml.safe_dump(KD))
        (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
        shutil.copytree(self.model, folder / "teacher")
        if hasattr(self, "runs"):
            shutil.copytree(self.runs, self.work / "runs")

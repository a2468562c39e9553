"""The directory of a run: what it holds, whether another run may go on there, and what its results may depend on."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from limbeck import __version__, plain_yaml
from limbeck.errors import RunError
from limbeck.faults import LOCK
from limbeck.files import write_text
from limbeck.recipe import Recipe
from limbeck.together import launched

PRUNED = "pruned.json"  # in the place of metrics.json where a run was not worth finishing
VERSIONS_OF = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "numpy",
    "scikit-learn",
    "scipy",
)


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


def check_output(run: RunDirectory, recipe: Recipe, resume: bool) -> None:
    if run.path.is_file():
        raise RunError(f"{run.path} is a file; --output must be a folder.")
    if not run.path.is_dir() or all(file.name == LOCK for file in run.path.iterdir()):
        return
    if not (run.path / "recipe.yaml").is_file():
        raise RunError(f"{run.path} holds other files and is no run directory. Choose another --output.")
    if not resume:
        state = "a finished run" if run.finished else "an unfinished run"
        raise RunError(
            f"{run.path} already holds {state}. Choose another --output, or add --resume to continue the same recipe."
        )
    ours = plain_yaml.load(recipe.to_yaml())
    theirs = _recipe_in(run)
    # where the teacher's features are kept changes no result, and must change where a disk is full
    different = sorted(found for found in _differences(ours, theirs) if "teacher.cache" not in found.split()[0])
    if different:
        raise RunError(
            f"{run.path} holds a run of another recipe; it differs in: {', '.join(different)}. "
            "Resume with the same settings, or choose another --output."
        )


def _recipe_in(run: RunDirectory) -> Any:
    try:
        return plain_yaml.load((run.path / "recipe.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise RunError(f"{run.path / 'recipe.yaml'} is damaged: {why}. Choose another --output.") from error


def _differences(ours: Any, theirs: Any, where: str = "") -> set[str]:
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = (dict(enumerate(values, start=1)) for values in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        parts = [_differences(ours.get(key), theirs.get(key), f"{where}.{key}".lstrip(".")) for key in keys]
        return set().union(*parts)
    chosen = ours == "auto" and where.endswith("task.max_length")  # which stands for what the run chose
    return set() if ours == theirs or chosen else {f"{where} ({theirs!r} there, {ours!r} now)"}


def open_run(run: RunDirectory, recipe: Recipe) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{run.path} cannot be made: {error.strerror}. Choose another --output.") from error
    (run.path / PRUNED).unlink(missing_ok=True)
    write_text(run.path / "recipe.yaml", recipe.to_yaml())
    write_text(run.path / "environment.json", json.dumps(environment(), indent=2) + "\n")


def environment() -> dict[str, Any]:
    """What a result may depend on; nothing about the user, the host or its variables."""
    commit = _commit()
    return {
        "limbeck": __version__,
        **({"commit": commit} if commit else {}),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: metadata.version(name) for name in VERSIONS_OF},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "processes": launched(),
    }


@functools.cache
def _commit() -> str:
    """That of limbeck's own source, with ``+`` where its files have been changed since; empty outside a checkout."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # an installed limbeck may lie in somebody else's repository
        return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

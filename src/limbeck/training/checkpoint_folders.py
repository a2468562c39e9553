"""Find the newest whole checkpoint of a run, put damaged ones aside, and remove those that a newer one stands for."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from transformers.trainer_callback import TrainerCallback

from limbeck._internal.files import make_durable, make_folder, write_text
from limbeck._internal.processes import wait_for_all
from limbeck._internal.tensors import load_state, load_tensors
from limbeck.errors import RunError

logger = logging.getLogger("limbeck")

MODEL, TRAINING = "model.safetensors", "training.safetensors"
STATE = "trainer_state.json"  # as Trainer calls it
_ASIDE = "set-aside"
_NAME = re.compile(r"checkpoint-([0-9]+)")
_BLOCK = 1 << 24


class Checkpoints(NamedTuple):
    """Name the newest whole checkpoint of a folder, and what is wrong with those that are newer."""

    newest: Path | None
    damaged: dict[Path, str]

    def set_damaged_aside(self) -> None:
        """Move the checkpoints that cannot be used out of the way, each with the reason beside it and a warning."""
        for checkpoint, seen in self.damaged.items():
            home = checkpoint.parent / _ASIDE
            make_folder(home)
            number, moved = 1, home / checkpoint.name
            while os.path.lexists(moved):
                number += 1
                moved = home / f"{checkpoint.name}-{number}"
            write_text(moved.with_name(f"{moved.name}.txt"), f"{seen}\n")
            os.replace(checkpoint, moved)
            logger.warning("%s is left out and kept as %s: %s", checkpoint, moved, seen)


def checkpoint_folders(folder: Path) -> list[Path]:
    """List the checkpoints in a folder by their step, whole or not; names such as ``checkpoint-best`` are of others."""
    try:
        # not glob(), to which a folder that cannot be read is an empty one
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return after which step a checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoint(folder: Path) -> Path | None:
    """Find the newest whole checkpoint."""
    return inspect_checkpoints(folder).newest


def last_epoch(folder: Path) -> float | None:
    """Return how many epochs were done at the newest whole checkpoint; None where there is none."""
    newest = last_checkpoint(folder)
    return None if newest is None else float(json.loads((newest / STATE).read_bytes())["epoch"])


def inspect_checkpoints(folder: Path) -> Checkpoints:
    """Look for the newest whole checkpoint; incomplete ones, left by a killed process, are named beside it.

    Trainer writes ``trainer_state.json`` after everything else. Raise where the disk or the rights keep one from being
    read: it may be whole.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(checkpoint_folders(folder)):
        if not (seen := _what_is_wrong(checkpoint)):
            return Checkpoints(checkpoint, damaged)
        damaged[checkpoint] = seen
    return Checkpoints(None, damaged)


def _what_is_wrong(checkpoint: Path) -> str:
    try:
        if not checkpoint.is_dir():
            return "it is no folder."
        state = json.loads((checkpoint / STATE).read_bytes())
        for name in {MODEL, TRAINING} | {file.name for file in checkpoint.iterdir() if file.suffix == ".safetensors"}:
            _read_through(checkpoint / name)
            if name != TRAINING:
                load_tensors(checkpoint / name)
        if load_state(checkpoint / TRAINING)["step"] != state["global_step"]:
            return "its files are of different steps."
    except (FileNotFoundError, IsADirectoryError) as error:
        return f"it is incomplete: {Path(error.filename).name} is missing."
    except OSError as error:
        raise _unreadable(checkpoint, error) from error
    except (ValueError, KeyError, TypeError, RunError) as error:
        return str(error)
    return ""


def _read_through(file: Path) -> None:
    """Read a file to its end, because a disk's error ends the process where a file is mapped into memory."""
    with file.open("rb") as opened:
        while opened.read(_BLOCK):
            pass


def _unreadable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{error.filename or path} cannot be read: {error.strerror or error}. It may be whole, so nothing was changed. "
        f"See to the disk or to the rights, then use --resume again; or move {path} away, to go on without it."
    )


class RotateCheckpoints(TrainerCallback):
    """Keep the ``limit`` newest checkpoints in ``folder``, the best among them; None keeps all.

    These are Trainer's own rules. But an older one is removed only after the newer one is on the disk, and steps count,
    not the times of files.
    """

    def __init__(self, folder: Path, limit: int | None) -> None:
        self._folder, self._limit = folder, limit

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the folder durable that Trainer has made, with what it holds already."""
        if args.should_save and self._folder.is_dir():
            make_durable(self._folder)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the checkpoint durable that was just saved, and remove those that it stands for."""
        wait_for_all()  # who write their own files into it
        if not args.should_save:
            return
        newest = self._folder / f"checkpoint-{state.global_step}"
        make_durable(newest)
        if self._limit is not None and self._limit > 0:
            best = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else newest.name
            self._remove(newest, best)

    def _remove(self, newest: Path, best: str) -> None:
        assert self._limit is not None
        there = [path for path in checkpoint_folders(self._folder) if path.is_dir()]
        kept = {newest.name, best} & {path.name for path in there}
        others = [path for path in there if path.name not in kept]
        for path in others[: max(0, len(there) - max(self._limit, len(kept)))]:
            shutil.rmtree(path, ignore_errors=True)
        aside = self._folder / _ASIDE
        # damaged ones up to this step served in case it was not reached again
        if aside.is_dir() and all(_aside_step(path) <= step_of(newest) for path in aside.iterdir()):
            shutil.rmtree(aside, ignore_errors=True)


def _aside_step(path: Path) -> int:
    found = _NAME.match(path.name)
    return int(found[1]) if found else 0

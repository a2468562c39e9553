"""Make all trivial rivals of a task, once, and keep them where tables find them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from limbeck._internal.files import replacing_folder, write_text
from limbeck.distillation.fingerprint import model_digest
from limbeck.errors import LimbeckError
from limbeck.models.families import blocks_of
from limbeck.models.loading import checked_length, load_config, load_for_training, load_tokenizer
from limbeck.recipes.recipe import TaskBlock, load_task_block
from limbeck.rivals.frozen import frozen_rivals
from limbeck.rivals.rival import Rival, why_no_rivals
from limbeck.rivals.tfidf import NAME as TFIDF
from limbeck.rivals.tfidf import tfidf_rival
from limbeck.runs.directory import RunDirectory
from limbeck.runs.reader import read_recipe
from limbeck.runs.rivals import RivalsFolder
from limbeck.tasks import load_task
from limbeck.tasks.fingerprint import data_fingerprint
from limbeck.tasks.task import Task
from limbeck.tasks.writing import write_table

logger = logging.getLogger("limbeck")

# what may go wrong with data that a linear model cannot be fitted to, in limbeck's words or in scikit-learn's
_NOT_FITTED = (LimbeckError, ValueError, ArithmeticError)


@dataclass(frozen=True)
class Asked:
    """Name what rivals are made for, so that they are made once: the task, the encoder, how deep the students are."""

    task: dict[str, Any]  # the task block of a recipe
    model: str  # the pre-trained model, or where that is not known the teacher itself
    pretrained: bool  # which of the two it is
    depths: tuple[int, ...]

    @classmethod
    def of(
        cls, task: Mapping[str, Any], students: Iterable[Mapping[str, Any]], teacher: str, model: str | None = None
    ) -> Asked:
        """Ask for the rivals of these students (the blocks of recipes); ``model`` is the pre-trained one, if known."""
        block = load_task_block(dict(task)).model_dump()
        depths = {depth for student in students if (depth := depth_of_student(student)) is not None}
        origin = model or origin_of(teacher)
        return cls(block, origin or teacher, bool(origin), tuple(sorted(depths)))

    def as_values(self) -> dict[str, Any]:
        """Return what is written down, and compared before anything is made again."""
        return dict(json.loads(json.dumps(asdict(self), default=str)))

    @property
    def called(self) -> str:
        """Name the encoder in tables."""
        return f"frozen {Path(self.model).name}" if self.pretrained else "the frozen teacher"


def origin_of(teacher: str) -> str:
    """Return the model that a teacher was fine-tuned from; empty where its run does not tell, or it is not there."""
    run = RunDirectory(Path(teacher))
    if not run.recipe.is_file():
        return ""
    recipe = read_recipe(run)
    first = (recipe.get("stages") or [recipe])[0]
    source = str((first.get("student") or {}).get("model") or "")
    try:
        return source if source and load_config(source) is not None else ""
    except LimbeckError as error:
        logger.info("The model that %s was made from cannot be read, so the teacher stands for it: %s", teacher, error)
        return ""


def depth_of_student(block: Mapping[str, Any]) -> int | None:
    """Tell how many layers the student of a recipe has; None where that needs more than its settings."""
    keep, config = block.get("keep"), block.get("config") or {}
    if isinstance(keep, str):
        count = keep.partition(":")[2]
        return int(count) if count.isdecimal() else None
    if isinstance(keep, Sequence):
        return len(keep)
    try:
        if block.get("model"):
            return int(load_config(str(block["model"])).num_hidden_layers)
        return int(config["num_hidden_layers"])
    except (LimbeckError, KeyError, TypeError, ValueError):
        return None


def make_rivals(asked: Asked, folders: Sequence[RivalsFolder], data: Task | None = None) -> None:
    """Make the rivals of a task and keep them in each of these folders; ``data`` is the task where it is loaded.

    One that cannot be made is left out, with the reason.
    """
    block = load_task_block(asked.task)
    task = data or load_task(block.name, **block.options)
    rivals: list[Rival] = []
    left_out: dict[str, str] = {}
    digest = ""
    if reason := why_no_rivals(task):
        left_out["linear models"] = reason
    else:
        try:
            rivals.append(tfidf_rival(task))
        except _NOT_FITTED as error:
            left_out[TFIDF] = _first_line(error)
        try:
            found, digest = _frozen(task, block, asked)
            rivals += found
        except _NOT_FITTED as error:
            left_out["linear on frozen features"] = _first_line(error)
    for name, reason in left_out.items():
        logger.warning("%s has no row for %s: %s", task.name, name, reason)
    record = {
        "asked": asked.as_values(),
        "data": data_fingerprint(task),
        "model": digest,
        "rivals": [_kept(rival) for rival in rivals],
        "left_out": left_out,
    }
    for folder in folders:
        _write(folder, record, rivals)


def _frozen(task: Task, block: TaskBlock, asked: Asked) -> tuple[list[Rival], str]:
    tokenizer = load_tokenizer(asked.model)
    model, _ = load_for_training(asked.model, task, tokenizer)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    depth = len(blocks_of(model))
    layers = sorted({layer for layer in asked.depths if 0 < layer < depth} | {depth})
    length = None if block.max_length == "auto" else checked_length(block.max_length, model)
    digest = model_digest(model.base_model)  # its head is new
    return frozen_rivals(task, model, tokenizer, layers, name=asked.called, max_length=length), digest


def _kept(rival: Rival) -> dict[str, Any]:
    return {
        "name": rival.name,
        "about": rival.about,
        "metrics": rival.metrics,
        "parameters": rival.parameters,
        "seconds": round(rival.seconds, 2),
        "details": rival.details,
    }


def _write(folder: RivalsFolder, record: dict[str, Any], rivals: Sequence[Rival]) -> None:
    with replacing_folder(folder.path) as temporary:
        new = RivalsFolder(temporary)
        for number, rival in enumerate(rivals):
            for split, columns in rival.answers.items():
                write_table(new.predictions(number, split), columns)
        write_text(new.record, json.dumps(record, indent=1) + "\n")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""Recipe to run directory: the only place that assembles task, teacher, student, objective and trainer."""

from __future__ import annotations

import json
import logging
import platform
import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import TrainingArguments, set_seed

from limbeck import __version__
from limbeck.batches import Batches
from limbeck.distiller import Distiller
from limbeck.errors import RecipeError, RunError
from limbeck.families import blocks_of
from limbeck.files import replacing_folder, write_text
from limbeck.inference import predict_logits
from limbeck.methods import find_method
from limbeck.metrics import METRICS
from limbeck.models import (
    check_same_tokenizer,
    label_config,
    load_fine_tuned,
    load_for_training,
    load_tokenizer,
    parameters,
)
from limbeck.pair import Pair
from limbeck.recipe import Recipe
from limbeck.student import check_not_deeper, from_config, keep_layers, layers_to_keep
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator, encode
from limbeck.tasks.files import write_table
from limbeck.tasks.task import Task
from limbeck.teacher import LiveTeacher
from limbeck.trainer import DistillTrainer, last_checkpoint

logger = logging.getLogger("limbeck")

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
    def finished(self) -> bool:
        return (self.path / "metrics.json").is_file()

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((self.path / "metrics.json").read_text())
        return metrics


@dataclass(frozen=True)
class Parts:
    """Everything a recipe names, loaded and checked against each other."""

    task: Task
    tokenizer: Any
    student: Any
    teacher: Any | None
    distiller: Distiller
    collate: Collator
    encoded: dict[str, Any]  # split -> token ids


def execute(recipe: Recipe, output: str | Path, *, resume: bool = False) -> RunDirectory:
    """Run a recipe into ``output``; with ``resume``, continue from the last complete checkpoint there.

    Nothing is written before the recipe, the data and the models have been found to fit together.
    """
    run = RunDirectory(Path(output))
    _check_output(run, recipe, resume)
    if run.finished:
        logger.info("%s is finished already.", run.path)
        return run
    parts = assemble(recipe)
    logger.info("%s", parts.distiller.objective)
    _make_folder(run.path)
    write_text(run.path / "recipe.yaml", recipe.to_yaml())
    write_text(run.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
    started = time.monotonic()
    steps = _train(recipe, parts, run)
    seconds = time.monotonic() - started
    with replacing_folder(run.student) as folder:
        parts.student.save_pretrained(folder)
        parts.tokenizer.save_pretrained(folder)
    _write_results(recipe, parts, run, {"train_seconds": round(seconds, 2), "steps": steps})
    _drop_checkpoints(recipe, run)
    return run


def assemble(recipe: Recipe) -> Parts:
    """Load the task, the models and the data that a recipe names; raise a clear error where they do not fit."""
    set_seed(recipe.seed)
    task = load_task(recipe.task.name, **recipe.task.options)
    teacher = load_fine_tuned(recipe.teacher.model, task) if recipe.teacher else None
    tokenizer = _tokenizer(recipe)
    student = _student(recipe, task, teacher, tokenizer)
    if teacher is not None:
        check_not_deeper(student, teacher)
    for model in (student, teacher) if teacher is not None else (student,):
        _check_length(recipe.task.max_length, model)
    method = find_method(recipe.method.name)
    objective = method(Pair.of(student, teacher, task.problem), **recipe.method.options)
    encoded = {
        split: encode(task, task.split(split), tokenizer, recipe.task.max_length, recipe.task.too_long)
        for split in ("train", "validation")
    }
    distiller = Distiller(student, objective, LiveTeacher(teacher) if teacher is not None else None)
    return Parts(task, tokenizer, student, teacher, distiller, Collator(tokenizer), encoded)


def _tokenizer(recipe: Recipe) -> Any:
    spec = recipe.student
    own = spec.tokenizer or spec.model or (spec.from_ if spec.from_ != "teacher" else None)
    if recipe.teacher is None:
        return load_tokenizer(own or "")
    tokenizer = load_tokenizer(recipe.teacher.model)
    if own is not None:
        check_same_tokenizer(load_tokenizer(own), tokenizer)
    return tokenizer


def _student(recipe: Recipe, task: Task, teacher: Any | None, tokenizer: Any) -> Any:
    spec = recipe.student
    if spec.model is not None:
        return load_for_training(spec.model, task, tokenizer)
    if spec.config is not None:
        inherited = label_config(task) | {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        return from_config(spec.config, teacher.config if teacher is not None else None, **inherited)
    source: Any = teacher if spec.from_ == "teacher" else load_for_training(spec.from_ or "", task, tokenizer)
    return keep_layers(source, layers_to_keep(spec.keep or "", len(blocks_of(source))))


def _check_length(max_length: int, model: Any) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    if model.config.model_type in ("roberta", "xlm-roberta"):
        limit -= model.config.pad_token_id + 1  # their positions start after the padding id
    if limit is not None and max_length > limit:
        raise RecipeError(
            f"task.max_length is {max_length}, but this {model.config.model_type} model reads at most {limit} tokens. "
            f"Set task.max_length={limit} or less; longer texts are then cut."
        )


def _check_output(run: RunDirectory, recipe: Recipe, resume: bool) -> None:
    if run.path.is_file():
        raise RunError(f"{run.path} is a file; --output must be a folder.")
    if not run.path.is_dir() or not any(run.path.iterdir()):
        return
    if not (run.path / "recipe.yaml").is_file():
        raise RunError(f"{run.path} holds other files and is no run directory. Choose another --output.")
    if not resume:
        state = "a finished run" if run.finished else "an unfinished run"
        raise RunError(
            f"{run.path} already holds {state}. Choose another --output, or add --resume to continue the same recipe."
        )
    ours = yaml.safe_load(recipe.to_yaml())
    theirs = yaml.safe_load((run.path / "recipe.yaml").read_text())
    different = sorted(_differences(ours, theirs))
    if different:
        raise RunError(
            f"{run.path} holds a run of another recipe; it differs in: {', '.join(different)}. "
            "Resume with the same settings, or choose another --output."
        )


def _differences(ours: Any, theirs: Any, where: str = "") -> set[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        parts = [_differences(ours.get(key), theirs.get(key), f"{where}.{key}".lstrip(".")) for key in keys]
        return set().union(*parts)
    return set() if ours == theirs else {f"{where} ({theirs!r} there, {ours!r} now)"}


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be made: {error.strerror}. Choose another --output.") from error


def _train(recipe: Recipe, parts: Parts, run: RunDirectory) -> int:
    def score() -> dict[str, float]:
        return parts.task.score(_logits(parts, parts.student, recipe), _labels(parts))

    checkpoints = run.path / "checkpoints"
    try:
        arguments = TrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=recipe.train.epochs,
            per_device_train_batch_size=recipe.train.batch_size,
            learning_rate=recipe.train.learning_rate,
            seed=recipe.seed,
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            label_names=["labels"],
            **{"metric_for_best_model": parts.task.metrics[0], "greater_is_better": True} | recipe.train.options,
        )
    except (ValueError, ImportError) as error:
        raise RecipeError(f"train: {error}") from error
    trainer = DistillTrainer(
        parts.distiller, arguments, parts.encoded["train"], parts.collate, score, run.path / "history.jsonl"
    )
    checkpoint = last_checkpoint(checkpoints)
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
    else:
        batches = Batches(parts.encoded["train"], parts.collate, recipe.train.batch_size, run.path / "prepared")
        parts.distiller.objective.prepare(parts.distiller.teacher, batches)
    # Every random number of the training itself follows from here, however its parts were made.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return int(trainer.state.global_step)


def _drop_checkpoints(recipe: Recipe, run: RunDirectory) -> None:
    """A single checkpoint served only to resume, and is several times the student's size."""
    if recipe.train.options.get("save_total_limit") == 1:
        shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def _logits(parts: Parts, model: Any, recipe: Recipe) -> np.ndarray:
    return predict_logits(
        model, parts.encoded["validation"], parts.collate, recipe.train.batch_size, "evaluate on validation"
    )


def _labels(parts: Parts) -> np.ndarray:
    return np.asarray(parts.encoded["validation"]["labels"][:])


def _write_results(recipe: Recipe, parts: Parts, run: RunDirectory, cost: dict[str, Any]) -> None:
    task = parts.task
    logits, labels = _logits(parts, parts.student, recipe), _labels(parts)
    scores = task.score(logits, labels)
    results: dict[str, Any] = {
        "task": task.name,
        "split": "validation",
        "examples": len(labels),
        "method": recipe.method.name,
        "seed": recipe.seed,
        "metric": task.metrics[0],
        "score": scores[task.metrics[0]],
        "metrics": scores,
        "parameters": parameters(parts.student),
        **cost,
    }
    if parts.teacher is not None:
        parts.teacher.to(parts.student.device)
        teacher_logits = _logits(parts, parts.teacher, recipe)
        results["teacher"] = {
            "parameters": parameters(parts.teacher),
            "metrics": task.score(teacher_logits, labels),
            "agreement": agreement(task, logits, teacher_logits),
        }
    write_table(
        run.path / "predictions.parquet",
        {
            "id": np.asarray(parts.encoded["validation"]["id"][:]),
            "label": labels,
            "prediction": task.predictions(logits),
            "logits": logits,
        },
    )
    # last, because it marks the run as finished
    write_text(run.path / "metrics.json", json.dumps(results, indent=2) + "\n")


def agreement(task: Task, logits: np.ndarray, teacher_logits: np.ndarray) -> float:
    """How often student and teacher predict the same (regression: how their predictions correlate)."""
    ours, theirs = task.predictions(logits), task.predictions(teacher_logits)
    if task.problem == "regression":
        return METRICS["pearson"](ours, theirs)
    return float((ours == theirs).mean())


def environment() -> dict[str, Any]:
    """What a result may depend on; nothing about the user, the host or its variables."""
    return {
        "limbeck": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: metadata.version(name) for name in VERSIONS_OF},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }

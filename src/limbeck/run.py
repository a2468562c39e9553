"""Recipe to run directory: train, stage by stage, and write down what came of it.

The last stage of a recipe runs in the run directory itself, those before it in ``stage-1``, ``stage-2``, ... inside,
which are run directories too.
"""

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

import torch
import yaml
from transformers import TrainingArguments, set_seed

from limbeck import __version__
from limbeck.assemble import Data, Parts, assemble, check_stages, load_data
from limbeck.cache import FeatureCache
from limbeck.caching import automatic_cache, named_cache, teacher_logits, use_cache
from limbeck.errors import RecipeError, RunError
from limbeck.files import replacing_folder, write_text
from limbeck.inference import dev_loss, predict_logits
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.models import parameters
from limbeck.recipe import Recipe, StudentBlock
from limbeck.tasks.profile import profile
from limbeck.tasks.task import Task, of_split
from limbeck.tasks.text import TextTask
from limbeck.tasks.writing import write_table
from limbeck.trainer import DistillTrainer, Stop, last_checkpoint

logger = logging.getLogger("limbeck")

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


def execute(
    recipe: Recipe, output: str | Path, *, resume: bool = False, show_data: bool = True, stop: Stop | None = None
) -> RunDirectory:
    """Run a recipe into ``output``; with ``resume``, continue from the last complete checkpoint there.

    ``stop`` sees the scores of the evaluations so far, and whether more is better; where it says so, the run ends
    without results (``pruned.json`` instead of ``metrics.json``).

    Nothing is written before the recipe, the data and the models have been found to fit together.
    """
    run = RunDirectory(Path(output))
    _check_output(run, recipe, resume)
    if run.finished:
        logger.info("%s is finished already.", run.path)
        return run
    stages = recipe.split()
    if len(stages) > 1:
        check_stages(stages)
        _open(run, recipe)
    student = recipe.student
    for number, stage in enumerate(stages, start=1):
        if len(stages) > 1:
            logger.info("Stage %d of %d: %s on %s.", number, len(stages), stage.method.name, stage.task.name)
        last = number == len(stages)
        folder = run if last else run.stage(number)
        if not folder.finished:
            new_data = show_data and (number == 1 or stage.task != stages[number - 2].task)
            stage = stage.model_copy(update={"student": student})
            _run_stage(stage, folder, recipe if last else stage, new_data, stop if last else None)
        student = StudentBlock(model=str(folder.path))
    return run


def _run_stage(recipe: Recipe, run: RunDirectory, written: Recipe, show_data: bool, stop: Stop | None) -> None:
    """Train one stage into ``run``, whose recipe.yaml is ``written``."""
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    cache = named_cache(recipe, parts, data)
    if show_data and logger.isEnabledFor(logging.INFO):
        for line in profile(parts.task, parts.tokenizer, parts.max_length, data.splits).lines():
            logger.info("%s", line)
    logger.info("%s", parts.distiller.objective)
    _open(run, written.settled(parts.max_length))
    (run.path / PRUNED).unlink(missing_ok=True)
    started = time.monotonic()
    steps, dev, stopped = _train(recipe, parts, data, cache, run, stop)
    seconds = time.monotonic() - started
    if stopped:
        for folder in (run.features, run.path / "checkpoints"):
            shutil.rmtree(folder, ignore_errors=True)
        write_text(run.path / PRUNED, json.dumps({"steps": steps, "train_seconds": round(seconds, 2)}) + "\n")
        return
    with replacing_folder(run.student) as folder:
        parts.student.save_pretrained(folder)
        parts.tokenizer.save_pretrained(folder)
    shutil.rmtree(run.features, ignore_errors=True)
    dev = _evaluate(parts, data) if dev is None else dev
    _write_results(recipe, parts, data, dev, run, {"train_seconds": round(seconds, 2), "steps": steps})
    _drop_checkpoints(recipe, run)


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
    # where the teacher's features are kept changes no result, and must change where a disk is full
    different = sorted(found for found in _differences(ours, theirs) if "teacher.cache" not in found.split()[0])
    if different:
        raise RunError(
            f"{run.path} holds a run of another recipe; it differs in: {', '.join(different)}. "
            "Resume with the same settings, or choose another --output."
        )


def _differences(ours: Any, theirs: Any, where: str = "") -> set[str]:
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = (dict(enumerate(values, start=1)) for values in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        parts = [_differences(ours.get(key), theirs.get(key), f"{where}.{key}".lstrip(".")) for key in keys]
        return set().union(*parts)
    chosen = ours == "auto" and where.endswith("task.max_length")  # which stands for what the run chose
    return set() if ours == theirs or chosen else {f"{where} ({theirs!r} there, {ours!r} now)"}


def _open(run: RunDirectory, recipe: Recipe) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{run.path} cannot be made: {error.strerror}. Choose another --output.") from error
    write_text(run.path / "recipe.yaml", recipe.to_yaml())
    write_text(run.path / "environment.json", json.dumps(environment(), indent=2) + "\n")


def _train(
    recipe: Recipe, parts: Parts, data: Data, cache: FeatureCache | None, run: RunDirectory, stop: Stop | None
) -> tuple[int, Any, bool]:
    """How many steps were made, what an evaluation after the last of them found (None if there was none), and whether
    ``stop`` ended it.
    """
    evaluated: dict[int, Any] = {}

    def score() -> dict[str, float]:
        evaluated.clear()
        evaluated[trainer.state.global_step] = dev = _evaluate(parts, data)
        return _scores(parts, data, dev)

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
            **_best(parts.task) | recipe.train.options,
        )
    except (ValueError, ImportError) as error:
        raise RecipeError(f"train: {error}") from error
    if "quiz" in data.splits:
        parts.distiller.teacher.examine_on(data.batches("quiz"))  # type: ignore[union-attr]
    trainer = DistillTrainer(
        parts.distiller, arguments, data.splits["train"], data.collate, score, run.path / "history.jsonl", stop
    )
    checkpoint = last_checkpoint(checkpoints)
    resumed = checkpoint is not None
    cache = cache or automatic_cache(recipe, parts, data, run.features, arguments.device, resumed)
    if cache is not None:
        use_cache(cache, parts, data, arguments.device)
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
    else:
        parts.distiller.objective.prepare(parts.distiller.teacher, data.batches("train", run.path / "prepared"))
    # Every random number of the training itself follows from here, however its parts were made.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    steps = int(trainer.state.global_step)
    # the best student, which may be an earlier one, was not the last to be evaluated
    return steps, None if arguments.load_best_model_at_end else evaluated.get(steps), trainer.stopped


def _best(task: Task) -> dict[str, Any]:
    return {"metric_for_best_model": task.metrics[0], "greater_is_better": task.metrics[0] not in SMALLER_IS_BETTER}


def _drop_checkpoints(recipe: Recipe, run: RunDirectory) -> None:
    """A single checkpoint served only to resume, and is several times the student's size."""
    if recipe.train.options.get("save_total_limit") == 1:
        shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def _evaluate(parts: Parts, data: Data) -> Any:
    """The student on the validation data: its logits, or a language model's scores."""
    if isinstance(parts.task, TextTask):
        return dev_loss(parts.distiller, data.batches("validation"))
    validation = data.splits["validation"]
    return predict_logits(parts.student, validation, data.collate, data.batch_size, "evaluate on validation")


def _scores(parts: Parts, data: Data, dev: Any) -> dict[str, float]:
    return dev if isinstance(parts.task, TextTask) else parts.task.score(dev, data.splits["validation"])


def _write_results(recipe: Recipe, parts: Parts, data: Data, dev: Any, run: RunDirectory, cost: dict[str, Any]) -> None:
    scores = _scores(parts, data, dev)
    metric = parts.task.metrics[0]
    results = {
        "task": parts.task.name,
        "split": "validation",
        "method": recipe.method.name,
        "seed": recipe.seed,
        "metric": metric,
        "score": scores[metric],
        "parameters": parameters(parts.student),
        **cost,
        # questions, not the windows over their texts
        "examples": len((data.splits if isinstance(parts.task, TextTask) else parts.task.splits)["validation"]),
        "metrics": scores | _other_scores(parts, data, run),
    }
    if majority := parts.task.majority(data.splits["train"], data.splits["validation"]):
        results["majority"] = majority
    answers = {} if isinstance(parts.task, TextTask) else parts.task.answers(dev, data.splits["validation"])
    if parts.teacher is not None:
        results["teacher"], theirs = _beside_the_teacher(recipe, parts, data, dev)
        answers |= {f"teacher_{name}": theirs[name] for name in ("prediction", "logits") if name in theirs}
    if answers:
        write_table(run.path / "predictions.parquet", answers)
    # last, because it marks the run as finished
    write_text(run.path / "metrics.json", json.dumps(results, indent=2) + "\n")


def _other_scores(parts: Parts, data: Data, run: RunDirectory) -> dict[str, float]:
    """The student's scores on the task's other validation data (MNLI's mismatched), whose predictions are written."""
    scores: dict[str, float] = {}
    for split in parts.task.dev_splits[1:]:
        encoded = data.splits[split]
        logits = predict_logits(parts.student, encoded, data.collate, data.batch_size, f"evaluate on {split}")
        scores |= of_split(split, parts.task.score(logits, encoded))
        write_table(run.path / f"predictions-{split}.parquet", parts.task.answers(logits, encoded))
    return scores


def _beside_the_teacher(recipe: Recipe, parts: Parts, data: Data, dev: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The teacher's results, and its answers to the validation data."""
    results: dict[str, Any] = {"parameters": parameters(parts.teacher)}
    if isinstance(parts.task, TextTask):
        return results, {}
    validation = data.splits["validation"]
    logits = teacher_logits(recipe, parts, data, parts.student.device)
    results["metrics"] = _scores(parts, data, logits)
    results["agreement"] = parts.task.agreement(dev, logits, validation)
    return results, parts.task.answers(logits, validation)


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

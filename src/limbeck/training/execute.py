"""Recipe to run directory: train, stage by stage, and write down what came of it.

The last stage of a recipe runs in the run directory itself, those before it in ``stage-1``, ``stage-2``, ... inside,
which are run directories too.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainingArguments, set_seed

from limbeck._internal.files import replacing_folder, write_text
from limbeck._internal.locks import locked
from limbeck._internal.processes import join_processes, on_rank_zero, process_count, rank, rank_zero_first
from limbeck.distillation.feature_cache import FeatureCache
from limbeck.errors import RecipeError
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.recipes.recipe import Recipe, StudentBlock
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.batching import Batches
from limbeck.tasks.profile import profile
from limbeck.training.assemble import Data, Parts, assemble, check_stages_fit, load_data
from limbeck.training.cache_policy import automatic_cache, named_cache, use_cache
from limbeck.training.checkpoints import last_checkpoint
from limbeck.training.fault_handling import machine_errors_explained
from limbeck.training.output import check_output, create_run
from limbeck.training.results import answer_validation, scores_of, write_results
from limbeck.training.trainer import DistillTrainer, Stop

logger = logging.getLogger("limbeck")


def execute(
    recipe: Recipe, output: str | Path, *, resume: bool = False, show_data: bool = True, stop: Stop | None = None
) -> RunDirectory:
    """Run a recipe into ``output``; with ``resume``, continue from the last complete checkpoint there.

    ``stop`` sees the scores of the evaluations so far, and whether more is better; where it says so, the run ends
    without results (``pruned.json`` instead of ``metrics.json``).

    Nothing is written before the recipe, the data and the models have been found to fit together. Processes that a
    launcher started train together; the first one writes.
    """
    join_processes()
    run = RunDirectory(Path(output))
    on_rank_zero(lambda: check_output(run, recipe, resume))
    with ExitStack() as held:
        if not run.finished:
            on_rank_zero(lambda: held.enter_context(locked(run.path)))
        if run.finished:  # before, or by another process just now
            logger.info("%s is finished already.", run.path)
        else:
            _run_stages(recipe, run, show_data, stop)
    return run


def _run_stages(recipe: Recipe, run: RunDirectory, show_data: bool, stop: Stop | None) -> None:
    stages = recipe.split()
    if len(stages) > 1:
        check_stages_fit(stages)
        on_rank_zero(lambda: create_run(run, recipe))
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


def _run_stage(recipe: Recipe, run: RunDirectory, written: Recipe, show_data: bool, stop: Stop | None) -> None:
    """Train one stage into ``run``, whose recipe.yaml is ``written``."""
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    cache = named_cache(recipe, parts, data)
    arguments = _arguments(recipe, parts, run)
    _use_relation_batch(recipe, parts, arguments.gradient_accumulation_steps)
    if show_data and logger.isEnabledFor(logging.INFO):
        for line in profile(parts.task, parts.tokenizer, parts.max_length, data.splits).lines():
            logger.info("%s", line)
    logger.info("%s", parts.distiller.objective)
    on_rank_zero(lambda: create_run(run, written.settled(parts.max_length)))
    started = time.monotonic()
    with machine_errors_explained():
        trained = _train(recipe, parts, data, cache, arguments, run, stop)
    cost = {"train_seconds": round(time.monotonic() - started, 2), "steps": trained.steps}
    on_rank_zero(lambda: _prune(run, cost) if trained.stopped else _finish(recipe, data, trained, run, cost))


def _arguments(recipe: Recipe, parts: Parts, run: RunDirectory) -> TrainingArguments:
    metric = parts.task.metrics[0]
    own = {
        "use_cpu": not torch.accelerator.is_available(),
        "metric_for_best_model": metric,
        "greater_is_better": metric not in SMALLER_IS_BETTER,
    }
    try:
        return TrainingArguments(
            output_dir=str(run.checkpoints),
            num_train_epochs=recipe.train.epochs,
            per_device_train_batch_size=recipe.train.relation_batch or recipe.train.batch_size,
            learning_rate=recipe.train.learning_rate,
            seed=recipe.seed,
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            label_names=["labels"],
            **own | recipe.train.options,
        )
    except (ValueError, ImportError, RuntimeError) as error:
        raise RecipeError(f"train: {error}") from error


def _use_relation_batch(recipe: Recipe, parts: Parts, accumulated: int) -> None:
    """How many samples are related with each other: those of a step that are in memory at once, or more."""
    size, together = recipe.train.batch_size, recipe.train.relation_batch
    relating = [name for name, term in parts.distiller.objective.terms.items() if getattr(term, "relational", False)]
    if together is None:
        if accumulated > 1 and relating:
            logger.info(
                "%s: among the %d samples of a part of a step, not the %d of the step. "
                "train.relation_batch=%d (without gradient_accumulation_steps) relates them all.",
                *(" and ".join(relating), size, size * accumulated, size * accumulated),
            )
        return
    if together < size:
        raise RecipeError(
            f"train.relation_batch ({together}) must be at least train.batch_size ({size}), the part that is in memory."
        )
    if parts.method.make_teacher is not None or parts.method.run_student is not None:
        raise RecipeError(
            f"{recipe.method.name} changes its models in every pass, so a step cannot be computed in parts. "
            "Leave train.relation_batch out."
        )
    parts.distiller.micro_batch_size = size


class Trained(NamedTuple):
    parts: Parts
    steps: int
    dev: Any  # what an evaluation after the last step found; None if there was none
    stopped: bool  # by ``stop``


def _train(
    recipe: Recipe,
    parts: Parts,
    data: Data,
    cache: FeatureCache | None,
    arguments: TrainingArguments,
    run: RunDirectory,
    stop: Stop | None,
) -> Trained:
    evaluated: dict[int, Any] = {}

    def gathered() -> Parts:
        """With all their weights in this process, if it is the first."""
        if (weights := trainer.whole_weights()) is not None and rank() == 0:
            whole.distiller.load_state_dict(weights)
        return whole

    def score() -> dict[str, float]:
        whole = gathered()

        def evaluated_now() -> dict[str, float]:
            evaluated.clear()
            evaluated[trainer.state.global_step] = dev = answer_validation(whole, data)
            return scores_of(whole, data, dev)

        return on_rank_zero(evaluated_now)

    if "quiz" in data.splits:
        # as many in every process as one alone would take
        quiz = Batches(data.splits["quiz"], data.collate, data.batch_size * process_count())
        parts.distiller.teacher.examine_on(quiz)  # type: ignore[union-attr]
    trainer = _trainer(parts, arguments, data, score, run, stop)
    whole = parts
    if trainer.is_fsdp_enabled and rank() == 0:  # which divides the weights of the parts that are trained
        with torch.random.fork_rng():  # all processes must draw the same afterwards
            whole = assemble(recipe)
    checkpoint = on_rank_zero(lambda: last_checkpoint(run.checkpoints))
    cache = cache or automatic_cache(recipe, parts, data, run.teacher_cache, arguments.device, checkpoint is not None)
    if cache is not None:
        use_cache(cache, parts, data, arguments.device)
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
    else:
        batches = data.batches("train")
        rank_zero_first(lambda: parts.distiller.objective.prepare(parts.distiller.teacher, batches, run.prepared))
    # Every random number of the training itself follows from here, however its parts were made.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.settle()
    steps = int(trainer.state.global_step)
    # the best student, which may be an earlier one, was not the last to be evaluated
    dev = None if arguments.load_best_model_at_end else evaluated.get(steps)
    return Trained(gathered(), steps, dev, trainer.stopped)


def _trainer(
    parts: Parts, arguments: TrainingArguments, data: Data, score: Any, run: RunDirectory, stop: Stop | None
) -> DistillTrainer:
    train, history = data.splits["train"], run.history
    try:
        return DistillTrainer(parts.distiller, arguments, train, data.collate, score, history, stop)
    except (ValueError, ImportError, RuntimeError) as error:  # what report_to asks for is not installed
        raise RecipeError(f"train: {error}") from error


def _prune(run: RunDirectory, cost: dict[str, Any]) -> None:
    for folder in (run.teacher_cache, run.checkpoints):
        shutil.rmtree(folder, ignore_errors=True)
    write_text(run.pruned, json.dumps(cost) + "\n")


def _finish(recipe: Recipe, data: Data, trained: Trained, run: RunDirectory, cost: dict[str, Any]) -> None:
    parts = trained.parts
    with replacing_folder(run.student) as folder:
        parts.student.save_pretrained(folder)
        parts.tokenizer.save_pretrained(folder)
    shutil.rmtree(run.teacher_cache, ignore_errors=True)
    dev = answer_validation(parts, data) if trained.dev is None else trained.dev
    write_results(recipe, parts, data, dev, run, cost)
    # a single checkpoint served only to resume, and is several times the student's size
    if recipe.train.options.get("save_total_limit") == 1:
        shutil.rmtree(run.checkpoints, ignore_errors=True)

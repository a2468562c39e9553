"""Train one stage of a recipe into a run directory."""

from __future__ import annotations

import json
import logging
import shutil
import time
from contextlib import nullcontext
from typing import Any

import torch
from transformers import set_seed

from limbeck._internal.files import make_durable, replacing_folder, write_text
from limbeck._internal.processes import on_rank_zero, process_count, rank, rank_zero_first
from limbeck.distillation.distiller import Distiller
from limbeck.distillation.feature_cache import CachedTeacher, FeatureCache
from limbeck.errors import RecipeError, unknown
from limbeck.metrics import SMALLER_IS_BETTER
from limbeck.recipes.recipe import Head, Recipe
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.mixing import MixedRows
from limbeck.tasks.profile import profile
from limbeck.tasks.task import Logits
from limbeck.training.assemble import Parts, assemble, hand_over_held_out, load_data, views
from limbeck.training.cache_policy import automatic_caches, fill_for_run, named_caches
from limbeck.training.checkpoint_folders import Checkpoints, inspect_checkpoints
from limbeck.training.data_record import check_not_changed, data_of, keep_data
from limbeck.training.fault_handling import check_trained_weights, memory_errors_explained
from limbeck.training.head_start import HeadStart, choose_head, start_head
from limbeck.training.layer_choosing import LayerChoice
from limbeck.training.loggers import ReportedArguments, report_recipe
from limbeck.training.output import create_run
from limbeck.training.precision import computing_as
from limbeck.training.relation_points import RelationPoints
from limbeck.training.results import answer_validation, validation_scores, write_results
from limbeck.training.teacher_outputs import examine_teacher
from limbeck.training.teaching import file_teachers, taught
from limbeck.training.trainer import RunTrainer, Stop

logger = logging.getLogger("limbeck")


class TrainingSession:
    """Train one stage: load what its recipe names, train, and write down what came of it.

    Making a session writes nothing and raises what does not fit; :meth:`run` does the work. ``written`` is the recipe
    that the run directory keeps: for the last stage that of the whole run. ``pause_after`` is a share of all steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        written: Recipe,
        stop: Stop | None = None,
        pause_after: float | None = None,
        layers: LayerChoice | None = None,
    ) -> None:
        self.recipe, self.directory, self.written = recipe, run, written
        self.stop, self.pause_after, self.layers = stop, pause_after, layers
        self.parts = assemble(recipe)
        self.data = load_data(recipe, self.parts)
        self._mixed = self.data.training if isinstance(self.data.training, MixedRows) else None  # raises what is wrong
        self._files = file_teachers(self.parts, self.data)
        self.caches = named_caches(recipe, self.parts, self.data)
        self.arguments = training_arguments(recipe, self.parts, run)
        self._whole = self.parts  # whose weights are not divided between processes
        self._latest: tuple[int, Any] | None = None  # the step of the last evaluation, and the student's answers
        self._teacher_answers: Logits | None = None
        points = recipe.train.relation_points
        self._relations = RelationPoints(self.parts, self.data, run, points) if points else None
        self._head = choose_head(recipe, self.parts)
        report_recipe(self.arguments, recipe.settled(self.parts.max_length).with_head(self._head))
        self._start: HeadStart | None = None

    def run(self) -> None:
        """Train, and leave a finished run directory, a pruned one where ``stop`` said so, or one to go on with."""
        with memory_errors_explained():
            on_rank_zero(self._begin)
            started = time.monotonic()
            trainer = self._train()
        if trainer.paused:
            return
        steps = int(trainer.state.global_step)
        cost = {"train_seconds": round(time.monotonic() - started, 2), "steps": steps}
        if trainer.stopped:
            on_rank_zero(lambda: self._prune(cost))
        else:
            trained = self._trained_parts(trainer)
            on_rank_zero(lambda: self._finish(trained, steps, cost))

    def _begin(self) -> None:
        """Make the run directory; one that is there must be of the same data and teacher."""
        now = data_of(self.parts)
        check_not_changed(self.directory, now)
        if not any(self.directory.checkpoints.glob("checkpoint-*")):  # else it was examined before
            self._examine_teacher()
            if self._head is not None:
                self._start = self._make_start(self._head)
        create_run(self.directory, self.written.settled(self.parts.max_length).with_head(self._head), self.layers)
        keep_data(self.directory, now)

    def _make_start(self, head: Head) -> HeadStart:
        return start_head(self.recipe, self.parts, self.data, head, self.arguments.device)

    def _start_head(self, head: Head) -> None:
        """Give the student of every process the same head before the first step."""
        start = on_rank_zero(lambda: self._start or self._make_start(head))
        start.apply(self.parts)
        on_rank_zero(lambda: start.write(self.directory))

    def _examine_teacher(self) -> None:
        """Raise where the teacher is doubtful; keep its answers for the results, unless it will learn."""
        logits = examine_teacher(self.recipe, self.parts, self.data, self.arguments.device)
        self._teacher_answers = logits if self.parts.method.make_teacher is None else None

    def describe(self, show_data: bool) -> None:
        """Log what is trained on, and the objective as an equation."""
        if show_data and logger.isEnabledFor(logging.INFO):
            parts = self.parts
            for line in profile(parts.task, parts.tokenizer, parts.max_length, self.data.splits).lines():
                logger.info("%s", line)
        if self._mixed is not None:
            logger.info("%s", self._mixed.describe(self._rows_of_step))
        self._describe_parts()
        logger.info("%s", self.parts.method.objective)

    @property
    def _rows_of_step(self) -> int:
        """Count the rows of a step, in all of its parts and processes."""
        return self.arguments.train_batch_size * process_count() * self.arguments.gradient_accumulation_steps

    def _describe_parts(self) -> None:
        """Log what a step in parts does otherwise than a step at once, where gradients are accumulated."""
        size, parts_of_step = self.recipe.train.batch_size, self.arguments.gradient_accumulation_steps
        if parts_of_step == 1:
            return
        relating = [name for name, term in self.parts.method.objective.terms.items() if term.relational]
        if self.recipe.train.relation_batch is None and relating:
            logger.info(
                "%s: among the %d samples of a part of a step, not the %d of the step. "
                "train.relation_batch=%d (without gradient_accumulation_steps) relates them all.",
                *(" and ".join(relating), size, size * parts_of_step, size * parts_of_step),
            )
        if self.parts.method.make_teacher is not None:
            logger.info(
                "%s: the teacher learns in each of the %d parts of a step, not once in a step. "
                "train.batch_size=%d (without gradient_accumulation_steps) lets it learn once.",
                *(self.recipe.method.name, parts_of_step, size * parts_of_step),
            )

    def _train(self) -> RunTrainer:
        hand_over_held_out(self.parts, self.data)
        checkpoint = on_rank_zero(self._set_damaged_checkpoints_aside).newest
        if checkpoint is None and self._head is not None:
            self._start_head(self._head)
        caches = self.caches | automatic_caches(
            *(self.recipe, self.parts, self.data, self.directory.teacher_cache, self.arguments.device),
            resumed=checkpoint is not None,
        )
        cached = {place: CachedTeacher(cache) for place, cache in caches.items()}
        distiller = taught(self.parts, {**self._files, **cached})
        trainer = self._make_trainer(distiller)
        if trainer.is_fsdp_enabled and rank() == 0:  # which divides the weights of the parts that are trained
            with torch.random.fork_rng():  # all processes must draw the same afterwards
                self._whole = assemble(self.recipe)
        self._prepare(distiller, caches, resumed=checkpoint is not None)
        if checkpoint is not None:
            logger.info("Resuming from %s.", checkpoint)
        # Every random number of the training itself follows from here, however its parts were made.
        set_seed(self.recipe.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return trainer

    def _set_damaged_checkpoints_aside(self) -> Checkpoints:
        """Put away what cannot be resumed from, and return what is left to resume from."""
        found = inspect_checkpoints(self.directory.checkpoints)
        found.set_damaged_aside()
        return found

    def _make_trainer(self, distiller: Distiller) -> RunTrainer:
        train = self.data.training
        try:
            return RunTrainer(
                *(distiller, self.arguments, train, self.data.collate, self._score, self.directory),
                stop=self.stop,
                pause_after=self.pause_after,
                warmup_epochs=self.recipe.train.warmup_epochs,
                save_seconds=self.recipe.train.save_seconds if self._keeps_one_checkpoint else 0.0,
                at_steps=(self._relations.steps, self._measure) if self._relations else None,
            )
        except (ValueError, ImportError, RuntimeError) as error:  # what report_to asks for is not installed
            raise RecipeError(f"train: {error}") from error

    def _prepare(self, distiller: Distiller, caches: dict[int, FeatureCache], resumed: bool) -> None:
        """Fill the caches, and have the terms read the training data where this is no resumed run."""
        for place, cache in caches.items():
            fill_for_run(cache, *views(self.recipe, self.parts)[place], self.data, self.arguments.device)
        if not resumed:
            batches, folder = self.data.batches("train"), self.directory.prepared
            rank_zero_first(lambda: distiller.objective.prepare(distiller.teacher, batches, folder))

    def _score(self, trainer: RunTrainer) -> dict[str, float]:
        """Score the student on the validation data, as the trainer asks after epochs or steps."""
        parts, step = self._trained_parts(trainer), trainer.state.global_step
        # the last answers are the results, which are those of the student as it is served
        fast = computing_as(self.recipe, parts.student.device) if step < trainer.state.max_steps else nullcontext()

        def score() -> dict[str, float]:
            with fast:
                answers = answer_validation(parts, self.data)
            self._latest = step, answers
            return validation_scores(parts, self.data, answers)

        return on_rank_zero(score)

    def _measure(self, trainer: RunTrainer) -> None:
        """Compare the student's relations with the teacher's, as the trainer asks at some steps."""
        assert self._relations is not None
        relations, parts, step = self._relations, self._trained_parts(trainer), trainer.state.global_step
        on_rank_zero(lambda: relations.measure(parts, step))

    def _trained_parts(self, trainer: RunTrainer) -> Parts:
        """Return the parts with all of the trained weights in this process, if it is the first."""
        if (weights := trainer.whole_weights()) is not None and rank() == 0:
            self._whole.distiller.load_state_dict(weights)
        return self._whole

    def _finish(self, trained: Parts, steps: int, cost: dict[str, Any]) -> None:
        run = self.directory
        check_trained_weights(trained.student, steps)
        # the best student, which may be an earlier one, was not the last to be evaluated
        if self._latest is not None and self._latest[0] == steps and not self.arguments.load_best_model_at_end:
            answers = self._latest[1]
        else:
            answers = answer_validation(trained, self.data)
        # after its answers, which are an error where they are no numbers
        with replacing_folder(run.student) as folder:
            trained.student.save_pretrained(folder)
            trained.tokenizer.save_pretrained(folder)
        shutil.rmtree(run.teacher_cache, ignore_errors=True)
        if run.history.is_file():
            make_durable(run.history)
        write_results(self.recipe, trained, self.data, answers, self._teacher_answers, run, cost)
        if self._keeps_one_checkpoint:
            shutil.rmtree(run.checkpoints, ignore_errors=True)

    @property
    def _keeps_one_checkpoint(self) -> bool:
        """Tell whether checkpoints serve only to resume: one is several times the student's size."""
        return bool(self.recipe.train.options.get("save_total_limit") == 1)

    def _prune(self, cost: dict[str, Any]) -> None:
        write_text(self.directory.pruned, json.dumps(cost) + "\n")  # first: what it stands for may then go
        for folder in (self.directory.teacher_cache, self.directory.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)


def training_arguments(recipe: Recipe, parts: Parts, run: RunDirectory) -> ReportedArguments:
    """Return the recipe's train block as transformers takes it."""
    metric = parts.task.metrics[0]
    best = recipe.train.options.get("metric_for_best_model")
    if best is not None and best not in parts.task.metrics:
        known = f"{parts.task.name} has {', '.join(parts.task.metrics)}."
        raise RecipeError(unknown("metric for train.metric_for_best_model", best, parts.task.metrics, known))
    own = {
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "run_name": run.name,
        "metric_for_best_model": metric,
        "greater_is_better": metric not in SMALLER_IS_BETTER,
        "bf16": recipe.train.precision == "bfloat16",
        "fp16": recipe.train.precision == "float16",
    }
    try:
        return ReportedArguments(
            output_dir=str(run.checkpoints),
            num_train_epochs=recipe.train.epochs,
            per_device_train_batch_size=recipe.train.relation_batch or recipe.train.batch_size,
            learning_rate=recipe.train.learning_rate,
            seed=recipe.seed,
            disable_tqdm=True,
            remove_unused_columns=False,
            label_names=["labels"],
            **own | recipe.train.options,
        )
    except (ValueError, TypeError, ImportError, RuntimeError, OSError) as error:
        raise RecipeError(f"train: {error}") from error

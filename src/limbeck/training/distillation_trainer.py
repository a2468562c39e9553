"""Distil in the way of transformers: a Trainer that is given a teacher and a method."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor
from transformers import TrainingArguments
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
from transformers.utils import find_labels

from limbeck.distillation.feature_cache import CachedTeacher, FeatureCache
from limbeck.distillation.fingerprint import fingerprint
from limbeck.distillation.method import Method
from limbeck.distillation.objective import Term
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, RecipeError
from limbeck.methods import MethodFunction
from limbeck.models.heads import problem_of_model
from limbeck.models.loading import longest_input
from limbeck.protocols import Model
from limbeck.recipes.train_block import why_refused
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.batching import Batches
from limbeck.training.distillation_loss import ID, DistillationLoss, check_models, make_loss, make_method, name_of
from limbeck.training.distiller_trainer import DistillerTrainer
from limbeck.training.held_out import hold_out

# keys of TrainingArguments that would have no effect, or break what methods read
_REFUSED = ("label_smoothing_factor", "neftune_noise_alpha", "use_liger_kernel", "deepspeed")


class DistillationTrainer(DistillerTrainer):
    """Train ``student`` by a method, as ``transformers.Trainer`` trains a model.

    ``method`` is a name of `limbeck.METHODS` or a function of your own; further keywords are its options. All
    else is Trainer's: data sets of token ids, ``compute_metrics`` on the student's logits and the labels, callbacks and
    loggers, ``evaluate`` and ``predict`` (with the student's own loss), ``save_model`` and ``push_to_hub``, which
    write the student alone. The log has the value of each term of the loss.

    ``teacher_cache`` is a folder: there the teacher's features of the training data are computed once and kept.
    ``class_weights`` multiply the task loss of each class.

    Example:

        trainer = limbeck.DistillationTrainer(
            student=limbeck.keep_layers(teacher, "spread:6"),
            teacher=teacher,
            method="fcd",
            args=TrainingArguments("out", eval_strategy="epoch"),
            train_dataset=train,
            eval_dataset=validation,
            processing_class=tokenizer,
        )
        trainer.train()
    """

    _distiller: DistillationLoss
    # a checkpoint is a folder that transformers loads as well; what else is trained lies beside the student
    weights_file = "distiller.safetensors"

    def __init__(
        self,
        student: Model,
        teacher: Model | None = None,
        method: str | MethodFunction = "kd",
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        teacher_cache: str | os.PathLike[str] | None = None,
        class_weights: Sequence[float] | None = None,
        **method_options: Any,
    ) -> None:
        args = TrainingArguments() if args is None else args
        check_models(student, teacher)
        for key in _REFUSED:
            if getattr(args, key, None):
                raise RecipeError(f"TrainingArguments.{key} cannot be used with a method: {why_refused(key)}.")
        problem = problem_of_model(student, _first_label(train_dataset))
        self.student = student
        self._method = make_method(student, teacher, method, problem, class_weights, method_options)
        self._held_out = None
        if self._method.held_out and train_dataset is not None:
            train_dataset, self._held_out = hold_out(train_dataset, self._method.held_out, args.seed, name_of(method))
        self._cache_folder = None if teacher_cache is None else Path(teacher_cache)
        if self._cache_folder is not None:
            _check_cached(self._method, name_of(method), teacher, processing_class)
            train_dataset = _with_ids(train_dataset)
        super().__init__(
            make_loss(self._method, student, teacher),
            args,
            RunDirectory(Path(args.output_dir or ".")).bad_batch,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        if args.label_names is None:
            self.label_names = find_labels(type(student))

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train; from a checkpoint where one is given, or from the last one where it is True."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no checkpoint in {self.args.output_dir} to resume from.")
        self._prepare(resumed=bool(resume_from_checkpoint))
        return super().train(resume_from_checkpoint or None, **options)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the method's loss of a training batch; of the student alone, its own."""
        if model is self.student:
            return transformers.Trainer.compute_loss(self, model, inputs, return_outputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def prediction_step(self, model: Any, inputs: dict[str, Any], *given: Any, **options: Any) -> Any:
        """Ask the student, as it will be served."""
        return super().prediction_step(self.student, inputs, *given, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the student and its tokenizer; into a checkpoint also what it takes to resume from it."""
        folder = Path(output_dir or self.args.output_dir or ".")
        if _internal_call and folder.name.startswith(f"{PREFIX_CHECKPOINT_DIR}-"):
            super().save_model(str(folder), _internal_call)
        weights = self.whole_weights()
        if self.args.should_save:
            self._save_student(folder, weights)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_student(self, folder: Path, weights: Mapping[str, Tensor] | None) -> None:
        """Write each file under another name first."""
        folder.mkdir(parents=True, exist_ok=True)
        student: Any = self.student
        prefix, own = "student.", None
        if weights is not None:
            own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        with tempfile.TemporaryDirectory(dir=folder, prefix="_") as between:
            student.save_pretrained(between, state_dict=own)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(between)
            for file in sorted(Path(between).iterdir()):
                os.replace(file, folder / file.name)

    def _set_signature_columns_if_needed(self) -> None:
        trainer: Any = self
        if trainer._signature_columns is None:
            outer, trainer.model = trainer.model, self.student
            super()._set_signature_columns_if_needed()
            trainer.model = outer
            if self._cache_folder is not None:
                columns: Any = trainer._signature_columns
                trainer._signature_columns = [*columns, ID]

    def _prepare(self, resumed: bool) -> None:
        """Fill the cache, and let terms and teacher read the data that they need before the first step."""
        distiller = self._distiller
        if self._held_out is not None and self._method.use_held_out is not None:
            self._method.use_held_out(distiller.teacher, self._batches(self._held_out))
        if self._cache_folder is not None and isinstance(distiller.teacher, LiveTeacher):
            teacher, data = distiller.teacher, self._columns(self.train_dataset)
            length = longest_input(teacher.model)
            made_for = fingerprint(teacher.model, self.processing_class, data, length)
            cache = FeatureCache(self._cache_folder, data, made_for)
            cache.fill(
                teacher, self._as_terms_read, self.args.train_batch_size, distiller.needs.teacher, self.args.device
            )
            distiller.teacher = CachedTeacher(cache)
        if not resumed and any(type(term).prepare is not Term.prepare for term in distiller.objective):
            distiller.objective.prepare(distiller.teacher, self._batches(self.train_dataset))

    def _batches(self, data: Any) -> Batches:
        return Batches(self._columns(data), self._as_terms_read, self.args.train_batch_size)

    def _as_terms_read(self, rows: list[Any]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = self._prepare_inputs(self.data_collator(rows))
        return self._distiller.as_terms_read(batch)

    def _columns(self, data: Any) -> Any:
        return self._remove_unused_columns(data, "training")


def _check_cached(method: Method, name: str, teacher: Any, tokenizer: Any) -> None:
    if teacher is None or tokenizer is None:
        raise CacheError("teacher_cache needs a teacher, and its tokenizer as processing_class.")
    if method.make_teacher is not None:
        raise CacheError(
            f"{name}: its teacher learns while it teaches, so it cannot be cached. Leave teacher_cache out."
        )
    if method.objective.needs().teacher.padding:
        raise CacheError(
            f"{name} with mask_padding=False reads padding, which no cache keeps. Leave teacher_cache out."
        )


def _with_ids(data: Any) -> Any:
    """Give each row a number, by which its features are found."""
    columns = getattr(data, "column_names", None)
    if not isinstance(columns, list) or "input_ids" not in columns:
        raise CacheError(
            "teacher_cache needs a datasets.Dataset of token ids (a column input_ids) as train_dataset; "
            f"seen: {columns or type(data).__name__}."
        )
    return (data.remove_columns(ID) if ID in columns else data).add_column(ID, list(range(len(data))))


def _first_label(data: Any) -> Any:
    """Return the label of the first row, which tells several labels at once from one; None where there is none."""
    if data is None or not hasattr(data, "__getitem__") or not len(data):
        return None
    row = data[0]
    return next((row[name] for name in ("labels", "label", "label_ids") if name in row), None)

"""Train a distiller into a run directory: length-grouped batches, scores on validation data, a history."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from accelerate.data_loader import prepare_data_loader
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.trainer_utils import SaveStrategy, seed_worker

from limbeck._internal.files import write_text
from limbeck._internal.processes import on_rank_zero, process_count, rank
from limbeck._internal.progress import Steps, progress
from limbeck.distillation.distiller import Distiller
from limbeck.runs.directory import RunDirectory
from limbeck.tasks.batching import LengthGroupedOrder, OwnShare, OwnShareOfStream, token_counts
from limbeck.tasks.mixing import MixedOrder, MixedRows
from limbeck.training.distiller_trainer import DistillerTrainer
from limbeck.training.fault_handling import StopOnSigterm, check_trained_weights
from limbeck.training.loggers import keep_events, own_runs

# Given the scores of all evaluations so far, and whether more is better: is the rest not worth the time?
Stop = Callable[[Sequence[float], bool], bool]
# Given the number of all steps, those after which something is to be done; and what, given the trainer.
AtSteps = tuple[Callable[[int], set[int]], Callable[["RunTrainer"], None]]


class RunTrainer(DistillerTrainer):
    """Train a Distiller into a run directory.

    ``score`` is given the trainer and returns the student's dev metrics by name. ``stop`` is asked after every
    evaluation but the last; ``stopped`` tells whether it agreed. With ``pause_after``, a share of all steps, the
    training ends there with an evaluation and a checkpoint to go on from; ``paused`` tells whether it did. ``at_steps``
    is done after some steps, by all processes. ``save_seconds`` is the least time between checkpoints at the ends of
    epochs. The log goes to the history of ``run``.
    """

    def __init__(
        self,
        distiller: Distiller,
        args: transformers.TrainingArguments,
        train_dataset: Any,
        collate: Callable[[list[Any]], Any],
        score: Callable[[RunTrainer], dict[str, float]],
        run: RunDirectory,
        stop: Stop | None = None,
        pause_after: float | None = None,
        warmup_epochs: float | None = None,
        save_seconds: float = 0.0,
        at_steps: AtSteps | None = None,
    ) -> None:
        self._on_sigterm = StopOnSigterm()
        self._pause = _Pause(pause_after)
        super().__init__(
            distiller,
            args,
            run.bad_batch,
            train_dataset=train_dataset,
            eval_dataset=train_dataset,  # never iterated: evaluate() asks ``score``
            data_collator=collate,
            callbacks=[_ShowProgress(), _WriteHistory(run.history), _SaveRarely(save_seconds), self._pause],
        )
        self.add_callback(self._on_sigterm)
        self.remove_callback(PrinterCallback)
        keep_events(self, run)
        if at_steps is not None:
            self.add_callback(_AtSteps(self, *at_steps))
        self._score = score
        self._stop, self.stopped = stop, False
        self._warmup_epochs = warmup_epochs

    @property
    def paused(self) -> bool:
        """Tell whether the training ended where it was to pause, and not at its end."""
        return self._pause.reached and self.state.global_step < self.state.max_steps

    def train(self, *args: Any, **options: Any) -> Any:
        """Train; stop with a checkpoint where SIGTERM comes."""
        with self._on_sigterm.listening(), own_runs(self.args.report_to):
            return super().train(*args, **options)

    def _run_epoch(self, *args: Any, **options: Any) -> None:
        """Run an epoch, unless a resumed training was at its end: inside an epoch, Trainer would do one step more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **options)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the schedule of the learning rate, whose warm-up may be given in epochs."""
        if self._warmup_epochs is not None:
            share = self._warmup_epochs / self.args.num_train_epochs
            self.args.warmup_steps = math.ceil(round(num_training_steps * share, 6))  # a number of steps, not a share
        return super().create_scheduler(num_training_steps, optimizer)

    def get_train_dataloader(self) -> Any:
        """Load this process's part of the batches that one process alone would have."""
        data, args = self.train_dataset, self.args
        shared = (args.train_batch_size * process_count(), rank(), process_count(), args.dataloader_drop_last)
        options: dict[str, Any] = {
            "collate_fn": functools.partial(_collated, self.data_collator, data),
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory,
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
        if isinstance(data, IterableDataset):
            loader: Any = DataLoader(OwnShareOfStream(data, *shared), batch_size=None, **options)
        else:
            seed = functools.partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index)
            batches = OwnShare(self._order(), *shared)
            loader = DataLoader(data, batch_sampler=batches, worker_init_fn=seed, **options)
        # as one process: the parts are taken already
        return prepare_data_loader(
            loader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )

    def _order(self) -> LengthGroupedOrder | MixedOrder:
        # Padded to one length, batches gain nothing from similar lengths, and papers drew theirs at random. Terms that
        # relate samples would have other values among texts of one length, even of wide buckets: benchmarks/batches.py
        data = self.train_dataset
        mixed = getattr(self.data_collator, "pad_to", None) or any(t.relational for t in self._distiller.objective)
        lengths = np.ones(len(data), np.int64) if mixed else token_counts(data)
        # a step of several parts has the examples of a step of one
        step = self.args.train_batch_size * process_count() * self.args.gradient_accumulation_steps
        if isinstance(data, MixedRows):
            return data.order(lengths, step, self.args.seed)
        return LengthGroupedOrder(lengths, step, self.args.seed)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Log the student's scores, and ask whether the rest is worth the time."""
        check_trained_weights(self.model, self.state.global_step)
        metrics = {f"eval_{name}": value for name, value in self._score(self).items()}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self._stop is not None and self.state.global_step < self.state.max_steps:
            name = f"eval_{self.args.metric_for_best_model}"
            scores = [entry[name] for entry in self.state.log_history if name in entry]
            self.stopped = self._stop(scores, bool(self.args.greater_is_better))
            self.control.should_training_stop |= self.stopped
        return metrics


def _collated(collate: Callable[[list[Any]], dict[str, Tensor]], data: Any, rows: list[Any]) -> dict[str, Tensor]:
    """Return a batch; an empty one has the shape that others have."""
    if rows:
        return collate(rows)
    return {name: value[:0] for name, value in collate([next(iter(data))]).items()}


class _ShowProgress(TrainerCallback):
    def __init__(self) -> None:
        self._open = ExitStack()
        self._steps = Steps()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        left = state.max_steps - state.global_step
        self._steps = self._open.enter_context(progress("train", left))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._steps.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._steps.advance(0, note=f"loss {logs['loss']:.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._open.close()


class _Pause(TrainerCallback):
    """End the training after a share of its steps, with a score and a checkpoint to go on from."""

    def __init__(self, share: float | None) -> None:
        self._share, self.reached = share, False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._share is not None and state.global_step >= self._share * state.max_steps:
            self.reached = True
            control.should_evaluate = control.should_save = control.should_training_stop = True


class _SaveRarely(TrainerCallback):
    """Leave out the checkpoint of an epoch that took little time: to write one takes some too.

    Of what is saved at an epoch's end; one that must be the best, or that somebody asks for after a step, is saved.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = time.monotonic()

    on_save = on_train_begin

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.save_strategy == SaveStrategy.EPOCH and not args.load_best_model_at_end:
            control.should_save &= on_rank_zero(lambda: time.monotonic() - self._since >= self._seconds)


class _AtSteps(TrainerCallback):
    def __init__(
        self, trainer: RunTrainer, steps: Callable[[int], set[int]], act: Callable[[RunTrainer], None]
    ) -> None:
        self._trainer, self._steps, self._act = trainer, steps, act

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._act(self._trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in self._steps(state.max_steps):
            self._act(self._trainer)


class _WriteHistory(TrainerCallback):
    """Write the trainer's own log, which is checkpointed: a resumed run continues it without repeats."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            # at every log: what a power cut takes, the log of the last checkpoint has, and the end makes it durable
            lines = "".join(json.dumps(entry) + "\n" for entry in state.log_history)
            write_text(self._file, lines, durable=False)

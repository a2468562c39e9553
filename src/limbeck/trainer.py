"""A thin transformers.Trainer: length-grouped order, a mean per loss term in the log, safetensors checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import Tensor
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from limbeck.batches import LengthGroupedOrder
from limbeck.distiller import Distiller
from limbeck.files import write_text
from limbeck.progress import Steps, progress

# Given the scores of all evaluations so far, and whether more is better: is the rest not worth the time?
Stop = Callable[[Sequence[float], bool], bool]


class DistillTrainer(transformers.Trainer):
    """Trains a Distiller; ``score`` returns the student's dev metrics by name.

    ``stop`` is asked after every evaluation but the last; ``stopped`` tells whether it agreed.
    """

    def __init__(
        self,
        distiller: Distiller,
        args: transformers.TrainingArguments,
        train_dataset: Any,
        collate: Callable[[list[Any]], Any],
        score: Callable[[], dict[str, float]],
        history: Path,
        stop: Stop | None = None,
    ) -> None:
        # Several visible GPUs without a launcher would mean DataParallel, which copies the module at every step and
        # loses the teacher. One process is one device; more devices are started with accelerate or torchrun.
        if args.n_gpu > 1:
            args._n_gpu = 1
        super().__init__(
            model=distiller,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=train_dataset,  # never iterated: evaluate() asks ``score``
            data_collator=collate,
            callbacks=[_ShowProgress(), _WriteHistory(history)],
        )
        self.remove_callback(PrinterCallback)
        self._score = score
        self._stop, self.stopped = stop, False
        self._sums: dict[str, Tensor] = {}
        self._batches = 0

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        # padded to one length, batches gain nothing from similar lengths, and papers drew theirs at random
        fixed = getattr(self.data_collator, "pad_to", None)
        lengths = [fixed or len(ids) for ids in dataset["input_ids"]]
        return LengthGroupedOrder(lengths, self.args.train_batch_size, self.args.seed)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        output = model(**inputs)
        # Summed on the device and read at the next log only: reading a value waits for the device.
        for name, value in output["terms"].items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=value.device)) + value.detach()
        self._batches += 1
        return (output["loss"], output) if return_outputs else output["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._batches:
            logs |= {f"term/{name}": (total / self._batches).item() for name, total in self._sums.items()}
            self._sums, self._batches = {}, 0
        super().log(logs, start_time)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        metrics = {f"eval_{name}": value for name, value in self._score().items()}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self._stop is not None and self.state.global_step < self.state.max_steps:
            name = f"eval_{self.args.metric_for_best_model}"
            scores = [entry[name] for entry in self.state.log_history if name in entry]
            self.stopped = self._stop(scores, bool(self.args.greater_is_better))
            self.control.should_training_stop |= self.stopped
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Student and objective in one safetensors file, tied weights once, and no pickled arguments beside it."""
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        file = str(folder / "model.safetensors")
        if state_dict is None:
            safetensors.torch.save_model(self.model, file, metadata={"format": "pt"})
        else:
            safetensors.torch.save_file(state_dict, file, metadata={"format": "pt"})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            file = str(Path(resume_from_checkpoint) / "model.safetensors")
            safetensors.torch.load_model(self.model if model is None else model, file)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; incomplete ones, left by a killed process, are removed.

    Trainer writes ``trainer_state.json`` after everything else and deletes older checkpoints only then.
    """
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    while checkpoints:
        newest = checkpoints.pop()
        try:
            json.loads((newest / "trainer_state.json").read_text())
        except (OSError, ValueError):
            shutil.rmtree(newest, ignore_errors=True)
        else:
            return newest
    return None


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


class _WriteHistory(TrainerCallback):
    """``history.jsonl`` is the trainer's own log, which is checkpointed: a resumed run continues it without repeats."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            write_text(self._file, "".join(json.dumps(entry) + "\n" for entry in state.log_history))

"""Check the ``train`` block of a recipe: a few short names, and any key of transformers' TrainingArguments."""

from __future__ import annotations

import dataclasses
import enum
import typing
from functools import cache
from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, PositiveInt

from limbeck.errors import unknown
from limbeck.options import Mistake, OpenBlock, Positive, Weight

Precision = Literal["auto", "float32", "bfloat16", "float16"]


class TrainBlock(OpenBlock):
    """Hold the usual settings under short names, and any key of transformers' TrainingArguments."""

    epochs: Positive = 3.0
    batch_size: PositiveInt = 32
    learning_rate: Positive = 5e-5
    precision: Precision = "auto"  # of products in the models' layers; auto: bfloat16 where this machine is fast at it
    relation_batch: PositiveInt | None = None  # examples of a step, where they are more than fit into memory at once
    relation_points: PositiveInt | None = None  # how often the relations are compared with the teacher's, for analyze
    save_seconds: Weight = 60.0  # an epoch that ends sooner after the last checkpoint has none, where one is kept
    warmup_epochs: Weight | None = None  # instead of warmup_steps; where it is more than epochs, the rate only rises


# Keys of TrainingArguments that limbeck sets itself, with where the user sets them instead.
_OURS = {
    "output_dir": "use --output",
    "seed": "set seed at the top of the recipe",
    "data_seed": "set seed at the top of the recipe",
    "num_train_epochs": "write epochs",
    "per_device_train_batch_size": "write batch_size",
    "resume_from_checkpoint": "use --resume",
    "save_only_model": "checkpoints hold what --resume needs",
    "remove_unused_columns": "limbeck's collator chooses the columns",
    "label_names": "limbeck's task knows its labels",
    "label_smoothing_factor": "the loss is the method's",
    "train_sampling_strategy": "batches are grouped by length, or drawn at random where a term relates samples",
    "disable_tqdm": "use --quiet",
    "push_to_hub": "upload the run's student/ folder instead",
    "hub_token": "a run directory must hold no secret",
    "deepspeed": "several processes train with DDP, or with FSDP (fsdp: true)",
    "parallelism_config": "several processes train with DDP, or with FSDP (fsdp: true)",
    "accelerator_config": "limbeck divides the batches among processes itself",
    "average_tokens_across_devices": "losses are those of one process with all examples",
    "ddp_backend": "limbeck connects the processes itself",
    "ddp_timeout": "limbeck connects the processes itself",
    "local_rank": "the launcher sets it",
    "save_on_each_node": "the first process writes, for all",
    "enable_jit_checkpoint": "a checkpoint is saved on SIGTERM anyway",
    "restore_callback_states_from_checkpoint": "a resumed run goes on as it was anyway",
    "auto_find_batch_size": "a run must not depend on the machine's memory: set batch_size, and relation_batch where "
    "steps should stay as large",
    "neftune_noise_alpha": "noise on embeddings would be a method: write one of your own (module:function)",
    "use_liger_kernel": "its kernels replace the layers whose outputs methods read",
    "liger_kernel_config": "its kernels replace the layers whose outputs methods read",
    "use_cache": "no text is generated",
    "bf16": "write precision: bfloat16",
    "fp16": "write precision: float16",
    "debug": "a loss that is no number stops a run anyway, and its batch is kept",
    "optim_args": "none of the optimisers that work here reads it",
    "optim_target_modules": "none of the optimisers that work here reads it",
    "length_column_name": "batches are grouped by length, which is counted",
    "dataloader_in_order": "batches come in their order, or a run could not be repeated",
    "do_train": "the command says what is done",
    "do_eval": "the command says what is done; see eval_strategy",
    "do_predict": "the command says what is done",
}
_OURS |= dict.fromkeys(
    (
        "per_device_eval_batch_size",
        "prediction_loss_only",
        "bf16_full_eval",
        "fp16_full_eval",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "eval_accumulation_steps",
        "include_for_metrics",
        "batch_eval_metrics",
    ),
    "limbeck scores the student itself, in batches of batch_size",
)
_OURS |= dict.fromkeys(
    ("hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"), _OURS["push_to_hub"]
)

# Those whose state is plain tensors, which checkpoints hold, and which need no part in the training loop.
_OPTIMISERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")


# What a run does unless the recipe says otherwise; written out in every recipe.yaml.
_TRAIN_DEFAULTS: dict[str, Any] = {
    "warmup_steps": 0.06,  # below 1: a share of all steps
    "logging_steps": 10,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
}


def why_refused(key: str) -> str:
    """Say why limbeck leaves out a key of TrainingArguments."""
    return _OURS[key]


def check_training(given: Any) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the keys of TrainingArguments in the block, converted, and what is wrong with them."""
    typed: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    if not isinstance(given, dict):
        return typed, mistakes
    known = _training_arguments()
    for key, value in given.items():
        if key in TrainBlock.model_fields:
            continue
        if key in _OURS:
            mistakes.append(Mistake(("train", key), f"is not yours to set here: {_OURS[key]}."))
        elif key not in known:
            names = [*TrainBlock.model_fields, *known]
            mistakes.append(Mistake(("train", key), unknown("key", str(key), names, "See TrainingArguments.")))
        else:
            value = "no" if value is False and key.endswith("_strategy") else value  # as YAML reads a plain no
            try:
                typed[key] = known[key].validate_python(value)
            except pydantic.ValidationError as error:
                mistakes.append(Mistake(("train", key), f"{error.errors()[0]['msg']}; seen: {value!r}."))
    return typed, mistakes or _check_together(typed) + _check_warmup(given)


def _check_together(given: dict[str, Any]) -> list[Mistake]:
    """Return what is wrong with keys that are each right in itself."""
    mistakes = []
    if what := _scheduler_mistake(given):
        key = "lr_scheduler_kwargs" if "lr_scheduler_kwargs" in given else "lr_scheduler_type"
        mistakes.append(Mistake(("train", key), f"{what.rstrip('.')}. See transformers.get_scheduler."))
    if (given.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant"):
        reason = "use_reentrant must be false: else nothing that a method reads inside the student has a gradient."
        mistakes.append(Mistake(("train", "gradient_checkpointing_kwargs"), reason))
    for key in ("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"):
        if given.get(key) and not given.get("dataloader_num_workers"):
            mistakes.append(Mistake(("train", key), "needs processes that load data: set dataloader_num_workers."))
    return mistakes


def _check_warmup(given: dict[str, Any]) -> list[Mistake]:
    """Refuse what does not go together with a warm-up in epochs."""
    if given.get("warmup_epochs") is None:
        return []
    reasons = {
        "warmup_steps": "the warm-up is given twice: take warmup_steps (steps, or a share of all) or warmup_epochs.",
        "max_steps": "a training of so many steps has no epochs to warm up in: take warmup_steps instead.",
    }
    return [Mistake(("train", key), reason) for key, reason in reasons.items() if given.get(key) is not None]


def _scheduler_mistake(given: dict[str, Any]) -> str:
    """Return what keeps a schedule from being made of its name and arguments."""
    if not given.keys() & {"lr_scheduler_type", "lr_scheduler_kwargs"}:
        return ""
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    name, more = given.get("lr_scheduler_type", "linear"), given.get("lr_scheduler_kwargs") or {}
    try:
        get_scheduler(name, optimizer, num_warmup_steps=1, num_training_steps=10, scheduler_specific_kwargs=dict(more))
    except (TypeError, ValueError, KeyError) as error:
        return str(error)
    return ""


def with_defaults(given: dict[str, Any], warmup_epochs: float | None = None) -> dict[str, Any]:
    """Fill in limbeck's defaults for what the block leaves open."""
    defaults = dict(_TRAIN_DEFAULTS)
    if warmup_epochs is not None:
        del defaults["warmup_steps"]
    for job in ("eval", "save"):
        if f"{job}_steps" in given:  # asking for steps is asking for the strategy
            defaults[f"{job}_strategy"] = "steps"
    return defaults | given


@cache
def _training_arguments() -> dict[str, pydantic.TypeAdapter[Any]]:
    from transformers import TrainingArguments
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    hints = typing.get_type_hints(TrainingArguments)
    services = ("none", "all", *INTEGRATION_TO_CALLBACK)
    service: Any = Literal[services]
    hints["report_to"] = service | list[service] | None
    hints["fsdp"] = bool | str | None
    hints["optim"] = Literal[_OPTIMISERS]
    hints["lr_scheduler_kwargs"] = hints["gradient_checkpointing_kwargs"] = dict[str, Any] | None
    config = ConfigDict(arbitrary_types_allowed=True)
    adapters: dict[str, pydantic.TypeAdapter[Any]] = {}
    for field in dataclasses.fields(TrainingArguments):
        if field.init and field.name not in _OURS:
            hint = _plain_type(hints[field.name])
            adapters[field.name] = pydantic.TypeAdapter(hint, config=config)
    return adapters


def _plain_type(hint: Any) -> Any:
    """Turn an enumeration (of strategies, optimisers) into its plain names, which YAML can hold."""
    for part in typing.get_args(hint):
        if isinstance(part, type) and issubclass(part, enum.Enum):
            return Literal[tuple(choice.value for choice in part)]
    return hint

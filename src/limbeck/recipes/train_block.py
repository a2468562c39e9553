"""Check the ``train`` block of a recipe: four short names, and any key of transformers' TrainingArguments."""

from __future__ import annotations

import dataclasses
import enum
import typing
from functools import cache
from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, PositiveFloat, PositiveInt

from limbeck.errors import unknown
from limbeck.options import Mistake, OpenBlock


class TrainBlock(OpenBlock):
    """Hold the usual settings under short names, and any key of transformers' TrainingArguments."""

    epochs: PositiveFloat = 3.0
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 5e-5
    relation_batch: PositiveInt | None = None  # examples of a step, where they are more than fit into memory at once


# Keys of TrainingArguments that limbeck sets itself, with where the user sets them instead.
_OURS = {
    "output_dir": "use --output",
    "seed": "set seed at the top of the recipe",
    "data_seed": "set seed at the top of the recipe",
    "num_train_epochs": "write epochs",
    "per_device_train_batch_size": "write batch_size",
    "resume_from_checkpoint": "use --resume",
    "remove_unused_columns": "limbeck's collator chooses the columns",
    "label_names": "limbeck's task knows its labels",
    "label_smoothing_factor": "the loss is the method's",
    "train_sampling_strategy": "batches are grouped by length",
    "disable_tqdm": "use --quiet",
    "push_to_hub": "upload the run's student/ folder instead",
    "hub_token": "a run directory must hold no secret",
    "deepspeed": "several processes train with DDP, or with FSDP (fsdp: true)",
}


# What a run does unless the recipe says otherwise; written out in every recipe.yaml.
_TRAIN_DEFAULTS: dict[str, Any] = {
    "warmup_steps": 0.06,  # below 1: a share of all steps
    "logging_steps": 10,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
}


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
    return typed, mistakes


def with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in limbeck's defaults for what the block leaves open."""
    defaults = dict(_TRAIN_DEFAULTS)
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
    config = ConfigDict(arbitrary_types_allowed=True)
    adapters: dict[str, pydantic.TypeAdapter[Any]] = {}
    for field in dataclasses.fields(TrainingArguments):
        if field.init and field.name not in _OURS:
            hint = _plain_type(hints[field.name])
            dataclass_like = dataclasses.is_dataclass(hint) or "ParallelismConfig" in str(hint)
            adapters[field.name] = (
                pydantic.TypeAdapter(Any) if dataclass_like else pydantic.TypeAdapter(hint, config=config)
            )
    return adapters


def _plain_type(hint: Any) -> Any:
    """Turn an enumeration (of strategies, optimisers) into its plain names, which YAML can hold."""
    for part in typing.get_args(hint):
        if isinstance(part, type) and issubclass(part, enum.Enum):
            return Literal[tuple(choice.value for choice in part)]
    return hint

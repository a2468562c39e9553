"""Say who teaches: a model, a file of answers, or several of both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from limbeck.options import Share

Named = Annotated[str, Field(min_length=1), pydantic.AfterValidator(os.path.expanduser)]  # a model: a folder or a name

_ROUNDING = 1e-6  # by which weights may miss 1


class TeacherBlock(pydantic.BaseModel):
    """Name the teacher; ``cache`` is ``auto`` (where it saves time), ``off``, or a folder that runs may share.

    ``confirmed`` says that the user wants this teacher though its labels have no names, or it knows too little.
    A list of such blocks is several teachers: the first one, with the ``others`` behind it.
    """

    model_config = ConfigDict(extra="forbid")

    model: Named | None = None
    probabilities: Named | None = None  # a table with what somebody answers for the training texts
    logits: Named | None = None  # the same, as logits
    weight: Share | None = None  # of one of several; what is left of 1 is shared by those that have none
    followed: Literal[True] | None = None  # of several, the one whose hidden states are compared; None: the first model
    cache: str = "auto"
    cache_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    confirmed: bool = False
    others: tuple[TeacherBlock, ...] = ()

    @pydantic.field_validator("cache", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        if value is True or value == "":
            raise ValueError("write auto, off or a folder")
        if isinstance(value, str):
            return os.path.expanduser(value)
        return "off" if value is False else value  # YAML reads a plain off as false

    @pydantic.model_validator(mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not value or not all(isinstance(block, dict) for block in value):
            raise ValueError("write a block such as {model: runs/teacher}, or a list of them")
        return {**value[0], "others": value[1:]} if len(value) > 1 else value[0]

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> TeacherBlock:
        given = [name for name in ("model", "probabilities", "logits") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of model, probabilities or logits; seen: {', '.join(given) or 'none of them'}."
            )
        if self.model is None and self.cache_folder is not None:
            raise ValueError(f"{self.answers} is read as it is: cache belongs to a model. Leave it out.")
        if not self.others:
            return self
        if any(block.others for block in self.others):
            raise ValueError("others: write several teachers as a list of blocks.")
        if sum(block.followed is not None for block in self.members) > 1:
            raise ValueError("followed: hidden states can be compared with those of one teacher only.")
        if any(block.followed and block.model is None for block in self.members):
            raise ValueError("followed: a file has no hidden states to follow. Name a model.")
        self._check_weights()
        return self

    def _check_weights(self) -> None:
        given = [block.weight for block in self.members if block.weight is not None]
        left = 1 - sum(given)
        every = len(given) == len(self.members)
        if (abs(left) > _ROUNDING) if every else (left < _ROUNDING):
            rule = "must add up to 1" if every else "must leave some of 1 to those that have none"
            raise ValueError(f"weight: the weights {rule}; seen: {', '.join(f'{weight:g}' for weight in given)}.")
        if 0.0 in given:
            raise ValueError("weight: a teacher of weight 0 teaches nothing. Leave it out.")

    @pydantic.model_serializer(mode="wrap")
    def _as_written(self, handler: Any) -> Any:
        values = handler(self)
        if isinstance(values, list):  # of a model that holds its own kind, pydantic asks twice
            return values
        others = values.pop("others", ())
        return [values, *others] if others else values

    @property
    def members(self) -> tuple[TeacherBlock, ...]:
        """Return each teacher as a block of its own, in their order."""
        return (self.model_copy(update={"others": ()}), *self.others) if self.others else (self,)

    @property
    def weights(self) -> tuple[float, ...]:
        """Return the weight of each teacher; they add up to 1."""
        members = self.members
        given = [block.weight for block in members if block.weight is not None]
        if len(members) == 1 or len(given) == len(members):
            return tuple(1.0 if block.weight is None else block.weight for block in members)
        rest = (1 - sum(given)) / (len(members) - len(given))
        return tuple(rest if block.weight is None else block.weight for block in members)

    @property
    def leading(self) -> TeacherBlock | None:
        """Return the teacher whose hidden states are compared, and from whose layers a student can be made."""
        models = [block for block in self.members if block.model is not None]
        chosen = [block for block in models if block.followed]
        return next(iter([*chosen, *models]), None)

    @property
    def answers(self) -> str:
        """Return the file of answers that teaches; empty where a model does."""
        return self.probabilities or self.logits or ""

    @property
    def source(self) -> str:
        """Return what teaches, the model or the file, as it was named."""
        return self.model or self.answers

    @property
    def cache_folder(self) -> Path | None:
        """Return the folder that ``cache`` names, if it names one."""
        return None if self.cache in ("auto", "off") else Path(self.cache)

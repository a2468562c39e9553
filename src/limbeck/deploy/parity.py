"""Check that an exported model answers as the model it was made of, on real examples of its own task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.tasks.task import Logits, Task

_AGREEMENT = 0.995  # 2 of 512 texts that lie on the border of two labels may change sides
_AGREEMENT_INT8 = 0.9
_ROUNDING = 1e-9  # 1.00 - 0.99 is a little more than 0.01


class Limits(NamedTuple):
    """Hold how far an exported model may be from the original."""

    difference: float | None  # of two logits, in units of the largest one (at least 1)
    agreement: float
    drop: float  # of the main metric


def limits_for(form: str, max_drop: float) -> Limits:
    """Return the limits of a form.

    Hugging Face: the same program on the same weights, but perhaps padded on the other side. ONNX: the same sums in
    another order. int8: other weights.
    """
    return {
        "hf": Limits(1e-4, _AGREEMENT, max_drop),
        "onnx": Limits(1e-3, _AGREEMENT, max_drop),
        "onnx-int8": Limits(None, _AGREEMENT_INT8, max_drop),
    }[form]


class ExampleLogits(NamedTuple):
    """Hold a model's logits, and the examples as it reads them."""

    logits: Logits
    encoded: Any


@dataclass(frozen=True)
class Parity:
    """Hold how an exported model answers beside the original."""

    form: str
    task: str
    split: str
    examples: int
    same_tokens: bool
    max_difference: float
    largest_logit: float
    agreement: float
    metric: str
    before: float
    after: float
    limits: Limits

    @classmethod
    def of(
        cls, form: str, task: Task, split: str, before: ExampleLogits, after: ExampleLogits, max_drop: float
    ) -> Parity:
        """Compare the logits of the original and of the exported model."""
        same = before.encoded["input_ids"][:] == after.encoded["input_ids"][:]
        # texts that are split into other tokens have no logits to compare one by one
        ours, theirs = (_flat(side.logits) for side in (after, before))
        metric, limits = task.metrics[0], limits_for(form, max_drop)
        if task.problem == "regression":
            limits = limits._replace(agreement=-1.0)  # numbers have a difference, and no label to share
        return cls(
            form=form,
            task=task.name,
            split=split,
            examples=len(task.split(split)),
            same_tokens=same,
            max_difference=float(np.abs(ours - theirs).max()) if same else float("nan"),
            largest_logit=float(np.abs(theirs).max()),
            agreement=task.agreement(after.logits, before.logits, before.encoded) if same else float("nan"),
            metric=metric,
            before=task.score(before.logits, before.encoded)[metric],
            after=task.score(after.logits, after.encoded)[metric],
            limits=limits,
        )

    def failures(self) -> list[str]:
        """Return what is not as it must be, with what was seen; written so that NaN fails."""
        if not self.same_tokens:
            return ["its tokenizer splits texts into other tokens"]
        found = []
        if self.limits.difference is not None:
            most = self.limits.difference * max(1.0, self.largest_logit)
            if not self.max_difference <= most:
                found.append(f"logits differ by up to {self.max_difference:.2g}, more than {most:.2g}")
        if not self.agreement >= self.limits.agreement:
            found.append(
                f"{self.agreement:.2%} of the predictions are the same, fewer than {self.limits.agreement:.2%}"
            )
        drop = self.after - self.before if self.metric in SMALLER_IS_BETTER else self.before - self.after
        if not drop <= self.limits.drop + _ROUNDING:
            found.append(f"{self.score_change()}, a loss of more than {readable_score(self.metric, self.limits.drop)}")
        return found

    def score_change(self) -> str:
        """Write how the main score changed: ``accuracy went from 71.20 to 70.90``."""
        before, after = (readable_score(self.metric, value) for value in (self.before, self.after))
        return f"{self.metric} went from {before} to {after}"

    def describe(self) -> str:
        """Write all findings as one sentence."""
        agreement = "" if self.limits.agreement < 0 else f", {self.agreement:.2%} of the predictions are the same"
        return (
            f"On {self.examples:,} {self.split} examples of {self.task} the largest difference between two logits is "
            f"{self.max_difference:.2g}{agreement}, and {self.score_change()}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all findings as plain data."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "same_tokens"}
        return values | {"limits": self.limits._asdict()}


def _flat(logits: Logits) -> np.ndarray:
    return np.concatenate([np.ravel(row) for row in logits])

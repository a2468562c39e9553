"""Check that an exported model answers as the model it was made of, on real examples of its own task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limbeck.metrics import SMALLER_IS_BETTER, readable_score
from limbeck.models.trimming import TrimmedVocabulary
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


class KeptPieces(NamedTuple):
    """Hold how many pieces of a vocabulary an export kept, and which share of the examples needs no others."""

    kept: int
    of: int
    unchanged: float

    def describe(self) -> str:
        """Write it as a sentence."""
        return (
            f"Its vocabulary has {self.kept:,} of {self.of:,} pieces; {self.unchanged:.1%} of these examples need no "
            "others, and two logits are compared on them."
        )


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
    vocabulary: KeptPieces | None = None

    @classmethod
    def of(
        cls,
        form: str,
        task: Task,
        split: str,
        before: ExampleLogits,
        after: ExampleLogits,
        max_drop: float,
        trimmed: TrimmedVocabulary | None = None,
    ) -> Parity:
        """Compare the logits of the original and of the exported model.

        With a trimmed vocabulary, the logits of examples that need no other pieces, and the predictions of all.
        """
        same, ours, theirs, vocabulary = _compare(before, after, trimmed)
        metric, limits = task.metrics[0], limits_for(form, max_drop)
        if vocabulary is not None:
            # examples with pieces that are gone are other inputs: only the score holds for them
            limits = limits._replace(agreement=limits.agreement * vocabulary.unchanged)
        if task.problem == "regression":
            limits = limits._replace(agreement=-1.0)  # numbers have a difference, and no label to share
        return cls(
            form=form,
            task=task.name,
            split=split,
            examples=len(task.split(split)),
            same_tokens=same,
            # texts that are split into other tokens have no logits to compare one by one
            max_difference=float(np.abs(ours - theirs).max(initial=0.0)) if same else float("nan"),
            largest_logit=float(np.abs(_flat(before.logits)).max()),
            agreement=task.agreement(after.logits, before.logits, after.encoded, before.encoded)
            if same
            else float("nan"),
            metric=metric,
            before=task.score(before.logits, before.encoded)[metric],
            after=task.score(after.logits, after.encoded)[metric],
            limits=limits,
            vocabulary=vocabulary,
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
            + (f" {self.vocabulary.describe()}" if self.vocabulary else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all findings as plain data."""
        left_out = ("same_tokens", "vocabulary")
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        values |= {"limits": self.limits._asdict()}
        return values | ({"vocabulary": self.vocabulary._asdict()} if self.vocabulary else {})


def _compare(
    before: ExampleLogits, after: ExampleLogits, trimmed: TrimmedVocabulary | None
) -> tuple[bool, np.ndarray, np.ndarray, KeptPieces | None]:
    """Tell whether texts are split as before, and return both sides' logits for them.

    With a trimmed vocabulary, only examples whose pieces were all kept are compared.
    """
    theirs, ours = _by_example(before), _by_example(after, trimmed)
    if trimmed is None:
        compared, vocabulary = list(theirs), None
    else:
        kept = set(trimmed.kept)
        compared = [one for one, rows in theirs.items() if all(kept.issuperset(ids) for ids, _ in rows)]
        vocabulary = KeptPieces(len(trimmed.kept), len(trimmed.whole), len(compared) / len(theirs))
    same = all([ids for ids, _ in ours[one]] == [ids for ids, _ in theirs[one]] for one in compared)
    sides = ([logits for one in compared for _, logits in side[one]] for side in (ours, theirs))
    ours_flat, theirs_flat = (_flat(rows) if rows else np.zeros(0) for rows in sides)
    return same, ours_flat, theirs_flat, vocabulary


def _by_example(
    side: ExampleLogits, trimmed: TrimmedVocabulary | None = None
) -> dict[int, list[tuple[list[int], np.ndarray]]]:
    """Return for each example the old ids and the logits of its rows: several where a text is read in windows."""
    encoded = side.encoded
    owners = encoded["example"][:] if "example" in encoded.column_names else range(len(encoded))
    found: dict[int, list[tuple[list[int], np.ndarray]]] = {}
    for owner, ids, logits in zip(owners, encoded["input_ids"], side.logits, strict=True):
        old = list(ids) if trimmed is None else [trimmed.kept[index] for index in ids]
        found.setdefault(owner, []).append((old, np.asarray(logits)))
    return found


def _flat(logits: Logits) -> np.ndarray:
    return np.concatenate([np.ravel(row) for row in logits])

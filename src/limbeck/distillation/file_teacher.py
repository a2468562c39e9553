"""Let a file teach: what it answers for the examples of a batch, found by their ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ModelError
from limbeck.models.features import Features, Wanted
from limbeck.tasks.answer_file import AnswerFile


class FileTeacher:
    """Answer as the file does, with logits and nothing else; ``numbers`` are those of the answers to these ``ids``."""

    def __init__(self, answers: AnswerFile, ids: np.ndarray, numbers: np.ndarray) -> None:
        self.answers = answers
        order = np.argsort(ids)
        self._ids, self._numbers = ids[order], numbers[order]

    def __call__(self, batch: Mapping[str, Tensor], wanted: Wanted) -> Features:
        mask = batch["attention_mask"].bool()
        if wanted.names() != ["logits"]:
            raise ModelError(why_not_taught(self.answers, wanted))
        ids = batch["ids"].cpu().numpy()
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        if not (self._ids[place] == ids).all():
            missing = ids[self._ids[place] != ids][0]
            raise ModelError(f"{self.answers.path} was not asked about the example with id {missing}.")
        logits = torch.from_numpy(self.answers.logits(self._numbers[place]))
        return Features(mask, logits=logits.to(mask.device))


def why_not_taught(answers: AnswerFile, wanted: Wanted) -> str:
    """Say why a file cannot teach a method that wants this of its teacher; empty where it can."""
    more = [name for name in wanted.names() if name != "logits"]
    if not more:
        return ""
    kinds = ", ".join(dict.fromkeys(name.partition(".")[0] for name in more))
    return (
        f"It reads the teacher's {kinds} beside its logits, and {answers.path} has {answers.kind} only. Take kd, which "
        "needs no more, or name the model as the teacher (teacher.model)."
    )

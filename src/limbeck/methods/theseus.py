"""Build BERT-of-Theseus (Xu et al. 2020): the student's blocks replace the teacher's at random in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from limbeck.distillation.method import Method
from limbeck.distillation.objective import Objective
from limbeck.distillation.pair import Pair
from limbeck.methods.ft import TaskLoss
from limbeck.methods.paired import check_same_blocks
from limbeck.models.capture import Capture
from limbeck.models.families import blocks_of, family_of
from limbeck.models.features import Features, Wanted
from limbeck.models.layers import layer_map
from limbeck.options import Count, Share


class Replacing(nn.Module):
    """Run the student with the teacher's blocks in place of some of its own, drawn anew in each training step.

    The student's blocks are the successors. Each has its predecessors in the teacher, evenly spread, which run on its
    input where it is not drawn; gradients pass through them to the successors below.
    """

    step: Tensor

    def __init__(self, student: Any, teacher: Any, p: float, full_after: int | None, freeze_rest: bool) -> None:
        super().__init__()
        self.capture = Capture(student)
        self.teacher = [teacher.eval().requires_grad_(False)]  # in a list: it is not trained and not checkpointed
        self.groups = predecessors(teacher, len(self.capture.blocks))
        self.p, self.full_after = p, full_after
        self.seed = torch.initial_seed()
        self.parts = self.parts_left = 1
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        if freeze_rest:
            _take_rest(student, teacher)

    def forward(self, batch: Mapping[str, Tensor], wanted: Wanted) -> tuple[Any, Features]:
        if not self.capture.model.training:  # the successor alone is what is scored
            return self.capture(batch, wanted)
        [teacher] = self.teacher
        if teacher.device != self.capture.model.device:
            teacher.to(self.capture.model.device)
        # by the step alone: processes that train together must draw the same
        generator = torch.Generator().manual_seed((self.seed + int(self.step)) % 2**63)
        drawn = torch.rand(len(self.capture.blocks), generator=generator) < self.chance()
        self.parts_left -= 1
        if self.parts_left == 0:
            self.step += 1
            self.parts_left = self.parts
        with ExitStack() as swaps:
            for own, successor, group in zip(drawn, self.capture.blocks, self.groups, strict=True):
                if not own:
                    swaps.enter_context(_standing_in(successor, group))
            return self.capture(batch, wanted)

    def begin_step(self, parts: int) -> None:
        """Draw the same blocks in the next so many passes, which are parts of one step."""
        self.parts = self.parts_left = parts

    def chance(self) -> float:
        """Return the chance that a successor is drawn: constant, or growing from p to 1."""
        if self.full_after is None:
            return self.p
        return min(1.0, self.p + (1 - self.p) * int(self.step) / self.full_after)


def predecessors(teacher: Any, successors: int) -> list[Sequence[nn.Module]]:
    """Split the teacher's blocks into as many groups as there are successors: 6 of 12 gives (1, 2), (3, 4), ..."""
    blocks = blocks_of(teacher)
    ends = [end for _, end in layer_map("uniform", successors, len(blocks))]
    return [list(blocks[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


@contextmanager
def _standing_in(successor: nn.Module, group: Sequence[nn.Module]) -> Iterator[None]:
    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not hidden.requires_grad:  # a step in which no successor is drawn must still have a backward pass
            hidden = hidden.detach().requires_grad_()
        for block in group:
            output = block(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        return output

    successor.forward = forward
    try:
        yield
    finally:
        del successor.forward  # the class's own again


def _take_rest(student: Any, teacher: Any) -> None:
    """Copy the teacher's embeddings and head to the student and freeze them; only the blocks are trained."""
    prefix = f"{student.base_model_prefix}.{family_of(student).blocks}."
    theirs = dict(teacher.named_parameters())
    for name, parameter in student.named_parameters():
        if not name.startswith(prefix):
            parameter.data.copy_(theirs[name])
            parameter.requires_grad_(False)


def theseus(
    pair: Pair,
    *,
    stage: Literal["replacing", "successor"] = "replacing",
    p: Share = 0.5,
    schedule: Literal["constant", "linear"] = "constant",
    full_after: Count = 1000,
    freeze_rest: bool = True,
) -> Objective | Method:
    """Replace the teacher's blocks at random by the student's, then fine-tune the student: BERT-of-Theseus, two stages.

    Equation: replacing: L = CE(y, m), m the teacher with each group of blocks replaced by its successor where r_i = 1,
    r_i ~ Bernoulli(p) for each block and step. successor: L = CE(y, s)
    Left open by the paper: depths that do not divide; groups are then as even as possible. There is no distillation
    loss: the successors learn to work between the teacher's blocks.
    Citation: Xu, Zhou, Ge, Wei and Zhou, 2020, "BERT-of-Theseus: Compressing BERT by Progressive Module Replacing",
    EMNLP, arXiv:2002.02925.

    Options:
        stage: replacing or successor; a recipe that sets neither runs both, in this order
        p: chance that a block is replaced; where the linear schedule starts
        schedule: constant p, or linear from p to 1
        full_after: the step from which the linear schedule replaces every block
        freeze_rest: embeddings and head stay the teacher's while replacing, as in the paper
    """
    objective = Objective(task=(1.0, TaskLoss(pair)))
    if stage == "successor":
        return objective
    check_same_blocks("theseus", pair)
    grows = full_after if schedule == "linear" else None
    return Method(objective, run_student=partial(Replacing, p=p, full_after=grows, freeze_rest=freeze_rest))

"""Compose a loss of named, weighted terms; ``str()`` of an objective is its equation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from limbeck._internal.processes import process_count, sum_over_processes
from limbeck.distillation.gather import gather_all_processes, mean_shares
from limbeck.errors import RecipeError
from limbeck.models.features import Features, Needs


class Term(nn.Module):
    """Compute one scalar, unweighted part of a loss; parameters it owns are trained, checkpointed and never exported.

    ``relational``: the value depends on which samples share the batch. With several processes it is then computed of
    all their samples at once; other values are means (see ``count``), and their mean over processes is taken.
    ``summed``: it is a sum over the samples, so that those of the parts of a step are added up.
    """

    relational = False
    summed = False
    passes = 0  # over the training data, by the teacher, in prepare()

    def needs(self) -> Needs:
        """Name what must be captured on each side; it drives capture and caching."""
        return Needs()

    def prepare(self, teacher: Any, batches: Iterable[Mapping[str, Tensor]], folder: Path | None = None) -> None:
        """Read the training batches before training starts, where a term needs to.

        What took long may be kept in ``folder``, so that a run that is resumed need not start over.
        """

    def count(self, student: Features, batch: Mapping[str, Tensor]) -> Tensor:
        """Count the things that the value is a mean of, as one number: the samples, unless a term says otherwise.

        They are counted before the student has run: ``student`` has its mask alone.
        """
        return torch.tensor(len(student.mask), device=student.mask.device)

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the value as a scalar; each kind of term defines its own."""
        raise TypeError(f"{type(self).__name__} defines no forward(student, teacher, batch).")


class Objective(nn.Module):
    """Add up weighted terms: ``Objective(task=(0.5, TaskLoss(...)), kd=(0.5, SoftLogits(...)))``.

    Terms of weight 0 are kept out: nothing is captured or computed for them.
    """

    def __init__(self, **terms: tuple[float, Term]) -> None:
        super().__init__()
        self.weights = {name: float(weight) for name, (weight, _) in terms.items() if weight != 0}
        if not self.weights:
            raise RecipeError(
                f"Every weight of this objective ({', '.join(terms)}) is 0: there is nothing to learn from."
            )
        self.terms = nn.ModuleDict({name: terms[name][1] for name in self.weights})

    def __iter__(self) -> Iterator[Term]:
        return iter(cast(Iterable[Term], self.terms.values()))

    def needs(self) -> Needs:
        """Join what the terms need."""
        needs = Needs()
        for term in self:
            needs = needs | term.needs()
        return needs

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the value of each term, unweighted."""
        if process_count() > 1:
            return self._with_others(student, teacher, batch)
        return {name: term(student, teacher, batch) for name, term in self.terms.items()}

    def _with_others(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the same where this process has only some samples: the mean over processes is that of all."""
        relating = [term for term in self if term.relational]
        needs = functools.reduce(operator.or_, (term.needs() for term in relating), Needs())
        all_samples = gather_all_processes(student, teacher, batch, needs) if relating else None
        share = iter(mean_shares(torch.stack([term.count(student, batch).float() for term in self])))
        values = {}
        for name, term, part in zip(self.weights, self, share, strict=True):
            if term.relational and all_samples is not None:
                values[name] = term(*all_samples)
            elif len(student.mask):
                values[name] = part * term(student, teacher, batch)
            else:  # nothing of a last batch was left for this process; its gradients are waited for all the same
                values[name] = torch.stack([student[kind].sum() for kind in term.needs().student.names()]).sum() * 0
        return values

    def counts(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """Count the things that each term's value is a mean of, in several batches and in all processes: (terms,)."""
        found = [(Features(batch["attention_mask"].bool()), batch) for batch in batches]
        own = [torch.stack([term.count(*given).float() for term in self]) for given in found]
        total = torch.stack(own).sum(0)
        return sum_over_processes(total) if process_count() > 1 else total

    def shares(self, part: Tensor, step: Tensor, parts: int) -> dict[str, Tensor]:
        """Return the factor of each term's value that makes the mean over the parts of a step the value of the step.

        ``part`` and ``step`` are the ``counts`` of this part and of all parts.
        """
        shares = parts * part / step.clamp(min=1)
        by_name = zip(self.weights, self, shares, strict=True)
        return {name: torch.full_like(share, parts) if term.summed else share for name, term, share in by_name}

    def total(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the terms' values: the loss."""
        return cast(Tensor, sum(self.weights[name] * value for name, value in values.items()))

    @torch.no_grad()  # the teacher is only read: one that learns must not take these passes for lessons
    def prepare(self, teacher: Any, batches: Iterable[Mapping[str, Tensor]], folder: Path | None = None) -> None:
        """Have each term read the training batches; see :meth:`Term.prepare`."""
        for term in self:
            term.prepare(teacher, batches, folder)

    def __str__(self) -> str:
        """Write the equation: ``L = 0.5·task + 0.5·kd``."""
        return "L = " + " + ".join(f"{weight:g}·{name}" for name, weight in self.weights.items())

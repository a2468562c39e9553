"""What a batch with unlabelled rows gives: the loss of its labelled rows, and every other term of all rows."""

from __future__ import annotations

import pytest
import torch
from helpers.method_cases import cases, features, labels_for, objective_for, tensors

from limbeck import Features, TaskLoss
from limbeck.problems import IGNORED, UNKNOWN

LENGTHS = (5, 3, 4, 1, 6, 2)
MISSING = [1, 4, 5]
every_stage = pytest.mark.parametrize(("name", "options"), list(cases()))
every_problem = pytest.mark.parametrize("problem", ["classification", "regression", "multi_label", "tokens"])


def without_labels(labels, problem, rows):
    labels = labels.clone()
    if labels.is_floating_point():
        labels[rows] = torch.nan
    elif problem == "tokens":
        labels[rows] = torch.where(labels[rows] == IGNORED, IGNORED, UNKNOWN)
    else:
        labels[rows] = IGNORED
    return labels


def rows_of(found, rows):
    """Return these rows of features, as far padded as they were."""
    return Features.named(found.mask[rows], {name: found[name][rows] for name in found.names()})


@every_stage
@every_problem
def test_the_task_loss_is_that_of_labelled_rows_and_other_terms_are_those_of_all(name, options, problem):
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    labels = labels_for(problem, LENGTHS)
    student = features(needs.student, LENGTHS, problem, grad=True)
    teacher = features(needs.teacher, LENGTHS, problem, seed=1)
    known = [row for row in range(len(LENGTHS)) if row not in MISSING]
    found = objective(student, teacher, {"labels": without_labels(labels, problem, MISSING)})
    of_all = objective(student, teacher, {"labels": labels})
    of_known = objective(rows_of(student, known), rows_of(teacher, known), {"labels": labels[known]})
    for term, value in found.items():
        by_label = isinstance(objective.terms[term], TaskLoss) or (name == "ics" and term == "hidden")
        torch.testing.assert_close(value, (of_known if by_label else of_all)[term])
    objective.total(found).backward()
    assert all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in tensors(student))


@every_stage
@every_problem
def test_a_batch_without_any_label_has_a_finite_loss(name, options, problem):
    objective = objective_for(name, options, problem)
    needs = objective.needs()
    student = features(needs.student, LENGTHS, problem, grad=True)
    teacher = features(needs.teacher, LENGTHS, problem, seed=1)
    labels = without_labels(labels_for(problem, LENGTHS), problem, list(range(len(LENGTHS))))
    found = objective(student, teacher, {"labels": labels})
    for term, value in found.items():
        assert value.isfinite()
        if isinstance(objective.terms[term], TaskLoss):
            assert value == 0
    objective.total(found).backward()
    assert all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in tensors(student))


@every_stage
@every_problem
def test_parts_of_a_step_add_up_to_the_step(name, options, problem):
    """The parts have 1, 0 and 2 rows with a label."""
    objective = objective_for(name, options, problem)
    if any(term.relational for term in objective):
        pytest.skip("relates samples")
    needs = objective.needs()
    labels = without_labels(labels_for(problem, LENGTHS), problem, MISSING)
    student = features(needs.student, LENGTHS, problem)
    teacher = features(needs.teacher, LENGTHS, problem, seed=1)
    whole = objective(student, teacher, {"labels": labels})
    parts = [[0, 1], [4, 5], [2, 3]]
    batches = [{"labels": labels[rows], "attention_mask": student.mask[rows].long()} for rows in parts]
    step = objective.counts(batches)
    totals = dict.fromkeys(whole, torch.zeros(()))
    for rows, batch in zip(parts, batches, strict=True):
        shares = objective.shares(objective.counts([batch]), step, len(parts))
        values = objective(rows_of(student, rows), rows_of(teacher, rows), batch)
        totals = {term: totals[term] + shares[term] * values[term] / len(parts) for term in totals}
    for term, value in whole.items():
        torch.testing.assert_close(totals[term], value, msg=term)

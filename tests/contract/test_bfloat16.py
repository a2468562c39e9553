"""Check what every method must hold to when models compute in bfloat16, as ``train.precision`` has them do."""

from __future__ import annotations

import pytest
import torch
from helpers.method_cases import cases
from helpers.tiny_models import tiny_batch, tiny_model

from limbeck import METHODS, Distiller, LearningTeacher, LiveTeacher, Pair
from limbeck.training.precision import computing_in

CPU = torch.device("cpu")
LENGTHS = (6, 3, 5, 1, 4, 6, 2, 5)
EIGHT_BITS = 2**-8  # of a product in bfloat16, relative
every_stage = pytest.mark.parametrize(("name", "options"), list(cases()))
families = pytest.mark.parametrize("family", ["bert", "gpt2"])


def distil(name, options, family, precision, width=None):
    """Make a student's pass and its gradient in a precision, of models that are the same in each."""
    student, teacher = (
        tiny_model(family, depth=depth, seed=depth, **no_dropout(family)).train(depth == 2) for depth in (2, 4)
    )
    torch.manual_seed(1)  # theseus draws a successor
    distiller = Distiller.of(METHODS[name](Pair.of(student, teacher, "classification"), **options), student, teacher)
    with computing_in(precision, CPU):
        distiller.objective.prepare(LiveTeacher(teacher), [tiny_batch((6, 5, 4, 3) * 30)])
        if hasattr(distiller.teacher, "examine_on"):
            distiller.teacher.examine_on([tiny_batch(seed=5)])
        loss = distiller(**tiny_batch(LENGTHS, width=width))["loss"]
    loss.backward()
    return distiller, student, teacher, loss


def no_dropout(family):
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop") if family == "gpt2" else ()
    return dict.fromkeys(names or ("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)


@every_stage
@families
def test_a_step_is_finite_in_float32_and_teaches_the_student_alone(name, options, family):
    distiller, student, teacher, loss = distil(name, options, family, "bfloat16")
    assert loss.dtype == torch.float32 and loss.isfinite()
    gradients = [parameter.grad for parameter in distiller.parameters() if parameter.grad is not None]
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    if isinstance(distiller.teacher, LearningTeacher):
        assert all(value.isfinite().all() for value in teacher.state_dict().values() if value.is_floating_point())
    else:
        assert all(parameter.grad is None for parameter in teacher.parameters())


@every_stage
@families
def test_padding_changes_no_more_than_rounding_does(name, options, family):
    losses = {width: distil(name, options, family, "bfloat16", width)[3].item() for width in (None, 11)}
    exact = distil(name, options, family, "float32")[3].item()
    for loss in losses.values():
        assert loss == pytest.approx(exact, rel=8 * EIGHT_BITS, abs=8 * EIGHT_BITS)
    assert losses[None] == pytest.approx(losses[11], rel=4 * EIGHT_BITS, abs=4 * EIGHT_BITS)

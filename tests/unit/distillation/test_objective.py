from __future__ import annotations

import math

import pytest
import torch
from helpers.tiny_models import tiny_batch, tiny_model
from torch import nn

from limbeck import METHODS, Distiller, Features, LiveTeacher, Needs, Objective, Pair, Term, Wanted, projector
from limbeck.distillation.pair import ModelShape
from limbeck.errors import ModelError, RecipeError


def pair(problem="classification", num_labels=3):
    return Pair(ModelShape("bert", 2, 32, 4), ModelShape("bert", 4, 32, 4), problem, num_labels)


def features(logits):
    return Features(torch.ones(len(logits), 3, dtype=torch.bool), logits)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def softmax(row, temperature):
    exps = [math.exp(value / temperature) for value in row]
    return [value / sum(exps) for value in exps]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


S = [[1.0, -2.0, 0.5], [0.3, 0.1, 2.0]]
T = [[2.0, -1.0, 0.0], [-0.5, 0.4, 1.0]]


def test_kd_classification_equals_plain_loops():
    values = METHODS["kd"](pair(), temperature=4.0)(
        features(torch.tensor(S)), features(torch.tensor(T)), {"labels": torch.tensor([0, 2])}
    )
    soft = [16 * kl(softmax(t, 4), softmax(s, 4)) for s, t in zip(S, T, strict=True)]
    hard = [-math.log(softmax(s, 1)[label]) for s, label in zip(S, (0, 2), strict=True)]
    assert values["kd"].item() == pytest.approx(sum(soft) / 2, rel=1e-5)
    assert values["task"].item() == pytest.approx(sum(hard) / 2, rel=1e-5)


def test_kd_regression_is_the_squared_difference_for_any_temperature():
    for temperature in (1.0, 5.0):
        values = METHODS["kd"](pair("regression", 1), temperature=temperature)(
            features(torch.tensor([[1.0], [3.0]])),
            features(torch.tensor([[2.0], [5.0]])),
            {"labels": torch.tensor([1.5, 2.0])},
        )
        assert values["kd"].item() == pytest.approx((1 + 4) / 2)
        assert values["task"].item() == pytest.approx((0.25 + 1) / 2)


def test_kd_multi_label_is_a_sum_of_bernoulli_divergences():
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    values = METHODS["kd"](pair("multi_label"), temperature=2.0)(
        features(torch.tensor(S)), features(torch.tensor(T)), {"labels": labels}
    )
    soft = [
        sum(
            kl([sigmoid(t / 2), 1 - sigmoid(t / 2)], [sigmoid(s / 2), 1 - sigmoid(s / 2)])
            for s, t in zip(rs, rt, strict=True)
        )
        for rs, rt in zip(S, T, strict=True)
    ]
    hard = [
        -math.log(sigmoid(s) if on else 1 - sigmoid(s))
        for rs, row in zip(S, labels.tolist(), strict=True)
        for s, on in zip(rs, row, strict=True)
    ]
    assert values["kd"].item() == pytest.approx(4 * sum(soft) / 2, rel=1e-5)
    assert values["task"].item() == pytest.approx(sum(hard) / 6, rel=1e-5)


def test_weights_and_equation():
    objective = METHODS["kd"](pair(), alpha=0.2)
    assert str(objective) == "L = 0.2·task + 0.8·kd"
    total = objective.total({"task": torch.tensor(1.0), "kd": torch.tensor(10.0)})
    assert total.item() == pytest.approx(8.2)


def test_a_term_of_weight_zero_is_neither_captured_nor_computed():
    objective = METHODS["kd"](pair(), alpha=1.0)
    assert objective.needs().teacher == Wanted()
    assert set(objective(features(torch.tensor(S)), None, {"labels": torch.tensor([0, 1])})) == {"task"}


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(RecipeError, match="Every weight"):
        METHODS["ics"](pair(), alpha_1=0, alpha_2=0, alpha_3=0)


def test_half_precision_logits_are_compared_in_float32():
    values = METHODS["kd"](pair())(
        features(torch.tensor(S).bfloat16()), features(torch.tensor(T).bfloat16()), {"labels": torch.tensor([0, 2])}
    )
    assert all(value.dtype == torch.float32 for value in values.values())


class Hint(Term):
    def __init__(self, student, teacher):
        super().__init__()
        self.project = projector(student, teacher)

    def needs(self):
        return Needs(Wanted(hidden=[1]), Wanted(hidden=[2]))

    def forward(self, student, teacher, batch):
        return (self.project(student.hidden[1]) - teacher.hidden[2])[student.mask].square().mean()


def test_distiller_runs_student_and_teacher_once_and_trains_the_student_only():
    student, teacher = tiny_model("bert", depth=2, hidden_size=16), tiny_model("bert", depth=3, seed=1)
    distiller = Distiller(student, Objective(hint=(2.0, Hint(16, 32))), LiveTeacher(teacher))
    out = distiller(**tiny_batch())
    assert out["loss"].item() == pytest.approx(2 * out["terms"]["hint"].item())
    assert out["logits"] is None  # no term needs them, so the head was not run
    out["loss"].backward()
    assert not teacher.training
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
    assert student.bert.encoder.layer[0].output.dense.weight.grad.abs().sum() > 0
    names = dict(distiller.named_parameters())
    assert "objective.terms.hint.project.weight" in names
    assert not any(name.startswith("teacher") for name in [*names, *distiller.state_dict()])


def test_the_teacher_does_not_run_when_no_term_needs_it():
    def teacher(batch, wanted):
        raise AssertionError("the teacher was run")

    student = tiny_model("bert", depth=2)
    Distiller(student, METHODS["ft"](Pair.of(student, None, "classification")), teacher)(**tiny_batch())


def test_an_objective_that_needs_a_teacher_says_so():
    student = tiny_model("bert", depth=2)
    with pytest.raises(ModelError, match="needs a teacher"):
        Distiller(student, METHODS["kd"](Pair.of(student, None, "classification")))


def test_equal_widths_need_no_projector():
    assert isinstance(projector(32, 32), nn.Identity)
    assert projector(16, 32).weight.shape == (32, 16)


def test_a_term_without_forward_says_which():
    class Empty(Term):
        pass

    with pytest.raises(TypeError, match="Empty defines no forward"):
        Empty()(None, None, {})

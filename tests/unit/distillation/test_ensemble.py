"""Several teachers as one: the probabilities that their terms see, against numbers computed by hand in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.method_cases import PROBLEMS, features, labels_for
from scipy.special import expit, log_softmax, softmax

from limbeck import Features
from limbeck.distillation.ensemble import Ensemble, mixed_answers
from limbeck.methods.kd import SoftLogits
from limbeck.models.features import Wanted
from limbeck.problems import IGNORED

LENGTHS, WEIGHTS = (5, 3, 4), (0.7, 0.2, 0.1)


def members(problem):
    return [features(Wanted(logits=True), LENGTHS, problem, seed=seed) for seed in (1, 2, 3)]


def ensemble_of(found, problem, weights=WEIGHTS):
    teachers = [lambda batch, wanted, one=one: one for one in found]
    return Ensemble(teachers, weights, problem, 0)({}, Wanted(logits=True))


def expected_kd(problem, student, teachers, labels, temperature, weights=WEIGHTS):
    """T²·KL(Σ w·softmax(z/T) ‖ softmax(s/T)), decision by decision."""
    s, *ts = (one.logits.double().numpy() / temperature for one in (student, *teachers))
    if problem == "regression":
        mean = sum(w * t for w, t in zip(weights, ts, strict=True))
        return temperature**2 * ((s - mean) ** 2).sum() / len(s)
    if problem == "multi_label":
        p, q = sum(w * expit(t) for w, t in zip(weights, ts, strict=True)), expit(s)
        kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        return temperature**2 * kl.sum() / len(s)
    if problem == "span":
        total = 0.0
        for row, length in enumerate(LENGTHS):
            for side in range(2):
                p = sum(w * softmax(t[row, :length, side]) for w, t in zip(weights, ts, strict=True))
                total += (p * (np.log(p) - log_softmax(s[row, :length, side]))).sum()
        return temperature**2 * total / (2 * len(LENGTHS))
    if problem in ("tokens", "language_model"):
        decided = labels.numpy() != IGNORED
        s, ts = s[decided], [t[decided] for t in ts]
    p = sum(w * softmax(t, axis=-1) for w, t in zip(weights, ts, strict=True))
    return temperature**2 * (p * (np.log(p) - log_softmax(s, axis=-1))).sum() / len(s)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_the_target_is_the_mean_of_softened_probabilities(problem, temperature):
    found, labels = members(problem), labels_for(problem, LENGTHS)
    student = features(Wanted(logits=True), LENGTHS, problem, seed=9)
    value = SoftLogits(problem, temperature)(student, ensemble_of(found, problem), {"labels": labels})
    expected = expected_kd(problem, student, found, labels, temperature)
    assert value.item() == pytest.approx(expected, rel=5e-6, abs=1e-6)  # float32, times T²


@pytest.mark.parametrize("problem", PROBLEMS)
def test_at_temperature_1_the_logits_of_the_mean_say_the_same(problem):
    found, labels = members(problem), labels_for(problem, LENGTHS)
    together = ensemble_of(found, problem)
    plain = Features(together.mask, together.logits)
    student = features(Wanted(logits=True), LENGTHS, problem, seed=9)
    term = SoftLogits(problem, 1.0)
    torch.testing.assert_close(
        term(student, plain, {"labels": labels}), term(student, together, {"labels": labels}), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_one_teacher_three_times_is_one_teacher(problem):
    found, labels = members(problem), labels_for(problem, LENGTHS)
    student = features(Wanted(logits=True), LENGTHS, problem, seed=9)
    term = SoftLogits(problem, 3.0)
    thrice = ensemble_of([found[0]] * 3, problem)
    expected = term(student, found[0], {"labels": labels})
    torch.testing.assert_close(term(student, thrice, {"labels": labels}), expected, rtol=1e-5, atol=1e-6)


def test_a_file_that_knows_for_certain_is_averaged_too():
    sure = Features(torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0.0, -1e30]]))
    unsure = Features(sure.mask, torch.tensor([[0.0, 0.0]]))
    student = Features(sure.mask, torch.tensor([[0.3, -0.2]]))
    together = ensemble_of([sure, unsure], "classification", (0.5, 0.5))
    value = SoftLogits("classification", 2.0)(student, together, {})
    p, log_q = np.array([0.75, 0.25]), log_softmax(np.array([0.15, -0.1]))
    assert value.item() == pytest.approx(4 * (p * (np.log(p) - log_q)).sum(), abs=1e-6)


def test_hidden_states_are_those_of_the_followed_teacher():
    wanted, asked = Wanted(logits=True, hidden=[1]), []

    def teacher(number):
        def answer(batch, named):
            asked.append((number, named.names()))
            return features(named, LENGTHS, seed=number)

        return answer

    together = Ensemble([teacher(0), teacher(1)], (0.5, 0.5), "classification", 1)
    found = together({}, wanted)
    assert asked == [(0, ["logits"]), (1, ["logits", "hidden.1"])]
    expected = features(wanted, LENGTHS, seed=1).hidden[1]
    torch.testing.assert_close(found.hidden[1], expected, equal_nan=True)  # what is in padding does not matter
    asked.clear()
    together({}, Wanted(hidden=[1]))
    assert asked == [(1, ["hidden.1"])]


def test_parts_of_a_batch_join():
    found = members("classification")
    together = ensemble_of(found, "classification")
    parts = [ensemble_of([_row(one, row) for one in found], "classification") for row in range(3)]
    joined = Features.joined([_padded(part, 5) for part in parts])
    torch.testing.assert_close(joined.members.logits, together.members.logits)
    torch.testing.assert_close(joined.logits, together.logits)


def _row(one, row):
    return Features(one.mask[row : row + 1], one.logits[row : row + 1])


def _padded(part, width):
    assert part.mask.shape[1] == width
    return part


@pytest.mark.parametrize("problem", ["classification", "regression", "multi_label", "tokens", "span"])
def test_answers_to_all_examples_mix_alike(problem):
    found = members(problem)
    together = ensemble_of(found, problem)
    if problem in ("tokens", "span"):
        rows = [[one.logits[row, :length].numpy() for row, length in enumerate(LENGTHS)] for one in found]
        for row, length in enumerate(LENGTHS):
            expected = together.logits[row, :length].numpy()
            np.testing.assert_allclose(mixed_answers(rows, WEIGHTS, problem)[row], expected, atol=1e-6)
    else:
        mixed = mixed_answers([one.logits.numpy() for one in found], WEIGHTS, problem)
        np.testing.assert_allclose(mixed, together.logits.numpy(), atol=1e-6)

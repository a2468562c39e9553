"""``relation_batch``: a step of more examples than are in memory at once has the value and gradients of all."""

from __future__ import annotations

import pytest
import torch
from method_cases import cases
from tiny import tiny_batch, tiny_model

from limbeck import METHODS, Distiller, LiveTeacher, Method, Pair, keep_layers


def distiller_of(name, options):
    torch.manual_seed(0)
    teacher = tiny_model("bert", depth=4)
    student = keep_layers(teacher, [1, 2])
    method = Method.of(METHODS[name](Pair.of(student, teacher, "classification"), **options))
    if method.make_teacher or method.run_student:
        pytest.skip("changes its models in every pass")
    distiller = Distiller.of(method, student, teacher)
    batches = [tiny_batch(tuple([7, 5, 9, 3] * 30))]
    method.objective.prepare(LiveTeacher(teacher), batches)
    return distiller.eval()  # without dropout, which draws by the batch


@pytest.mark.parametrize(("name", "options"), list(cases()))
@pytest.mark.parametrize("size", [1, 3, 4])
def test_parts_are_the_whole(name, options, size):
    batch = tiny_batch(tuple([5, 9, 3, 7, 6, 4, 8]))
    found = []
    for at_a_time in (None, size):
        distiller = distiller_of(name, options)
        distiller.at_a_time = at_a_time
        torch.manual_seed(1)
        output = distiller(**batch)
        output["loss"].backward()
        gradients = {name: p.grad for name, p in distiller.named_parameters() if p.grad is not None}
        found.append((output["terms"], gradients))
    (terms, gradients), (of_parts, gradients_of_parts) = found
    assert gradients.keys() == gradients_of_parts.keys() and gradients
    for term in terms:
        assert of_parts[term].item() == pytest.approx(terms[term].item(), abs=1e-6, rel=1e-6)
    for place, gradient in gradients.items():
        torch.testing.assert_close(gradients_of_parts[place], gradient, rtol=1e-5, atol=1e-6)


def test_dropout_is_the_same_when_it_is_computed_again():
    distiller = distiller_of("cka", {}).train()
    for module in distiller.student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    distiller.at_a_time = 2
    batch = tiny_batch(tuple([5, 9, 3, 7, 6]))
    drawn = []
    distiller.student.get_input_embeddings().register_forward_hook(lambda *_: drawn.append(torch.get_rng_state()))
    distiller(**batch)["loss"].backward()
    parts = len(drawn) // 2
    # parts are computed again from the last to the first
    assert parts == 3 and all(torch.equal(a, b) for a, b in zip(drawn[:parts], reversed(drawn[parts:]), strict=True))

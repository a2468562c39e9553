"""Take a step of more examples than are in memory at once: ``relation_batch`` gives value and gradients of all."""

from __future__ import annotations

import pytest
import torch
from helpers.method_cases import cases
from helpers.tiny_models import tiny_batch, tiny_model, without_dropout
from helpers.tiny_recipes import tiny_recipe
from safetensors.torch import load_file

from limbeck import METHODS, Distiller, LiveTeacher, Method, Pair, execute, keep_layers
from limbeck.errors import RecipeError

REFUSED = ("theseus-replace", "metadistil", "reptiledistil")  # they change their models in every pass


def distiller_of(name, options):
    torch.manual_seed(0)
    teacher = tiny_model("bert", depth=4)
    student = keep_layers(teacher, [1, 2])
    method = Method.of(METHODS[name](Pair.of(student, teacher, "classification"), **options))
    distiller = Distiller.of(method, student, teacher)
    batches = [tiny_batch(tuple([7, 5, 9, 3] * 30))]
    method.objective.prepare(LiveTeacher(teacher), batches)
    return distiller.eval()  # without dropout, which draws by the batch


@pytest.mark.parametrize(("name", "options"), [case for case in cases() if case.id not in REFUSED])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_parts_are_the_whole(name, options, size):
    batch = tiny_batch(tuple([5, 9, 3, 7, 6, 4, 8]))
    found = []
    for micro_batch_size in (None, size):
        distiller = distiller_of(name, options)
        distiller.micro_batch_size = micro_batch_size
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
    distiller.micro_batch_size = 2
    batch = tiny_batch(tuple([5, 9, 3, 7, 6]))
    drawn = []
    distiller.student.get_input_embeddings().register_forward_hook(lambda *_: drawn.append(torch.get_rng_state()))
    distiller(**batch)["loss"].backward()
    parts = len(drawn) // 2
    # parts are computed again from the last to the first
    assert parts == 3 and all(torch.equal(a, b) for a, b in zip(drawn[:parts], reversed(drawn[parts:]), strict=True))


@pytest.fixture()
def recipe(table_files, teacher_folder, tmp_path):
    teacher = without_dropout(teacher_folder, tmp_path / "teacher")

    def recipe(method, **train):
        train = {"max_steps": 3, "learning_rate": 1e-3, "optim": "sgd", "eval_strategy": "no"} | train
        return tiny_recipe(table_files, teacher, method, train=train)

    return recipe


def test_a_run_with_it_is_the_run_with_the_large_batch(recipe, tmp_path):
    large = execute(recipe({"name": "cka"}, batch_size=12), tmp_path / "large", show_data=False)
    parts = execute(recipe({"name": "cka"}, batch_size=5, relation_batch=12), tmp_path / "parts", show_data=False)
    small = execute(recipe({"name": "cka"}, batch_size=5), tmp_path / "small", show_data=False)
    weights = [load_file(run.student / "model.safetensors") for run in (large, parts, small)]
    apart = [max((weights[0][name] - other[name]).abs().max() for name in other) for other in weights[1:]]
    assert apart[0] < 1e-6 < apart[1]


@pytest.mark.parametrize("name", ["theseus", "metadistil", "reptiledistil"])
def test_it_is_refused_where_models_change_in_every_pass(name, recipe, tmp_path):
    with pytest.raises(RecipeError, match="changes its models in every pass"):
        execute(recipe({"name": name}, batch_size=4, relation_batch=8), tmp_path / "run", show_data=False)


def test_it_is_no_less_than_what_is_in_memory(recipe, tmp_path):
    with pytest.raises(RecipeError, match=r"relation_batch \(4\) must be at least train.batch_size \(8\)"):
        execute(recipe({"name": "cka"}, batch_size=8, relation_batch=4), tmp_path / "run", show_data=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "said"), [("cka", True), ("kd", False)])
def test_accumulation_says_what_is_related(name, said, recipe, tmp_path, caplog):
    caplog.set_level("INFO", "limbeck")
    train = {"batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 1}
    execute(recipe({"name": name}, **train), tmp_path / "run", show_data=False)
    assert ("sim: among the 4 samples of a part of a step, not the 8" in caplog.text) == said
    assert ("train.relation_batch=8" in caplog.text) == said

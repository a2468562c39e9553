"""Test Theseus, MetaDistil and ReptileDistil, which change the training itself."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.tiny_models import tiny_batch, tiny_model

from limbeck import METHODS, Capture, Distiller, LiveTeacher, Objective, Pair, Term, Wanted, keep_layers
from limbeck.errors import ModelError, RecipeError
from limbeck.methods.reptiledistil import block_pairs
from limbeck.methods.theseus import predecessors
from limbeck.models.families import blocks_of

CALM = {
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "roberta": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "electra": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "summary_last_dropout": 0.0},
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "deberta-v2": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "modernbert": {},
}


def models(family="bert", depths=(2, 4), **changes):
    """Make a teacher, and a student made of its first layers, without dropout."""
    teacher = tiny_model(family, depth=depths[1], seed=1, **CALM[family] | changes)
    return keep_layers(teacher, list(range(1, depths[0] + 1))).train(), teacher


def distiller(name, student, teacher, **options):
    return Distiller.of(METHODS[name](Pair.of(student, teacher, "classification"), **options), student, teacher)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def logits(model, batch):
    return Capture(model)(batch, Wanted(logits=True))[1].logits


# Theseus


@pytest.mark.parametrize("family", CALM)
def test_theseus_that_replaces_nothing_is_the_predecessor(family):
    student, teacher = models(family)
    for parameter in student.parameters():  # embeddings and head are taken from the teacher anyway
        parameter.data.normal_()
    out = distiller("theseus", student, teacher, p=0.0)(**tiny_batch())
    torch.testing.assert_close(out["logits"], logits(teacher, tiny_batch()))


@pytest.mark.parametrize("family", CALM)
def test_theseus_that_replaces_everything_is_fine_tuning(family):
    student, teacher = models(family)
    other = copy.deepcopy(student)
    ours = distiller("theseus", student, teacher, p=1.0, freeze_rest=False)
    theirs = distiller("ft", other, None)
    optimisers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (student, other)]
    for seed in range(3):
        for model, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            model(**tiny_batch(seed=seed))["loss"].backward()
            optimiser.step()
    assert same(weights(student), weights(other))


def test_theseus_trains_successors_only_and_through_predecessors():
    student, teacher = models()
    before, theirs = weights(student), weights(teacher)
    model = distiller("theseus", student, teacher, p=0.5)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for seed in range(8):
        optimiser.zero_grad()
        model(**tiny_batch(seed=seed))["loss"].backward()
        optimiser.step()
    changed = {name for name, value in weights(student).items() if not torch.equal(value, before[name])}
    assert changed and all(name.startswith("bert.encoder.layer.") for name in changed)
    assert {name.split(".")[3] for name in changed} == {"0", "1"}
    assert same(theirs, weights(teacher))


def test_theseus_draws_each_block_in_each_step():
    student, teacher = models(depths=(2, 4))
    model = distiller("theseus", student, teacher, p=0.3)
    torch.manual_seed(0)
    ran = {"0": 0, "1": 0}

    def count(name):
        return lambda *_: ran.__setitem__(name, ran[name] + 1)

    for name in ran:
        blocks_of(student)[int(name)].attention.register_forward_hook(count(name))
    with torch.no_grad():
        for _ in range(600):
            model(**tiny_batch((3,)))
    for share in (ran["0"] / 600, ran["1"] / 600):
        assert share == pytest.approx(0.3, abs=0.06)
    model.eval()
    ran.update({"0": 0, "1": 0})
    with torch.no_grad():
        assert torch.equal(model(**tiny_batch())["logits"], logits(student, tiny_batch()))
    assert ran == {"0": 2, "1": 2}  # scored alone: the model's own forward and the distiller's


def test_theseus_schedule_grows_to_one_and_is_checkpointed():
    student, teacher = models()
    model = distiller("theseus", student, teacher, p=0.2, schedule="linear", full_after=4)
    chances = []
    for _ in range(6):
        chances.append(model.run_student.chance())
        model(**tiny_batch())
    assert chances == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    state = model.state_dict()
    assert state["run_student.step"] == 6
    assert not any("teacher" in name for name in state)
    assert len(state) == len(student.state_dict()) + 1


def test_theseus_groups():
    teacher = tiny_model("bert", depth=5)
    blocks = list(blocks_of(teacher))
    assert predecessors(teacher, 2) == [blocks[:2], blocks[2:]]
    assert predecessors(teacher, 5) == [[block] for block in blocks]


def test_the_student_is_whole_again_after_a_step():
    student, teacher = models()
    distiller("theseus", student, teacher, p=0.0)(**tiny_batch())
    assert all("forward" not in vars(block) for block in blocks_of(student))


# ReptileDistil


def test_reptile_that_does_not_move_is_kd():
    teacher = tiny_model("bert", depth=4, seed=1)  # with dropout: the copy's step must not change the student's
    students = [keep_layers(teacher, [1, 2]).train() for _ in range(2)]
    trained = []
    for student, name, options in zip(students, ("reptiledistil", "kd"), ({"mu": 0.0}, {"alpha": 0.5}), strict=True):
        model = distiller(name, student, teacher, **options)
        optimiser = torch.optim.AdamW(student.parameters(), lr=1e-3)
        torch.manual_seed(0)
        for seed in range(3):
            optimiser.zero_grad()
            model(**tiny_batch(seed=seed))["loss"].backward()
            optimiser.step()
        trained.append(weights(student))
    assert same(*trained)


def test_reptile_moves_the_mapped_blocks_as_published():
    student, teacher = models(depths=(2, 4))
    student_before, before = weights(student), weights(teacher)
    model = distiller("reptiledistil", student, teacher, mu=0.25, inner_rate=0.1, blocks="skip")
    batch = tiny_batch()
    own = copy.deepcopy(student)
    loss = distiller("kd", own, copy.deepcopy(teacher), alpha=0.5)(**batch)["loss"]
    loss.backward()
    stepped = {name: p.detach() - 0.1 * (0 if p.grad is None else p.grad) for name, p in own.named_parameters()}
    model(**batch)
    for name, value in weights(teacher).items():
        parts = name.split(".")
        if parts[1] == "encoder" and int(parts[3]) in (0, 2):
            assert torch.equal(value, before[name]), name
            continue
        if parts[1] == "encoder":  # blocks 2 and 4, counted from 1, move to the student's 1 and 2
            parts[3] = str(int(parts[3]) // 2)
        expected = before[name] - 0.25 * (before[name] - stepped[".".join(parts)])
        torch.testing.assert_close(value, expected)
    assert same(student_before, weights(student))  # the real step is the optimiser's


def test_reptile_mappings():
    assert block_pairs("first", 2, 4) == [(1, 1), (2, 2)]
    assert block_pairs("last", 2, 4) == [(1, 3), (2, 4)]
    assert block_pairs("skip", 2, 4) == [(1, 2), (2, 4)]
    assert block_pairs("both", 2, 4) == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert block_pairs("both", 2, 3) == [(1, 1), (2, 2), (2, 3)]


# MetaDistil


class Quiz:
    """Serve two fixed batches."""

    def __init__(self):
        self.batches = [tiny_batch((4, 6, 3), seed=seed) for seed in (11, 12)]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


@pytest.mark.parametrize(
    ("family", "inner"),
    [(family, "kd") for family in ("bert", "roberta", "distilbert", "gpt2")]
    + [("bert", inner) for inner in ("fcd", "rkd", "shape", "cka", "minilmv2", "pkd")],
)
def test_the_teachers_gradient_is_the_derivative_of_the_quiz(family, inner):
    student, teacher = (model.double() for model in models(family, depths=(2, 4)))
    torch.manual_seed(3)
    for model in (student, teacher):  # away from the nearly linear start, where derivatives are tiny
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    rate = 1e-3 if inner == "rkd" else 0.05  # its weights are in the hundreds
    model = distiller("metadistil", student, teacher, inner=inner, inner_rate=rate)
    learner, batch, quiz = model.teacher, tiny_batch((5, 4, 6, 3)), Quiz()[0]
    gradients = learner.gradients(batch, quiz)
    direction = {name: torch.randn_like(p) for name, p in teacher.named_parameters()}

    def quiz_loss(step):
        """Compute it plainly: copies of both models, one step of SGD, the loss on the quiz."""
        moved, pupil = copy.deepcopy(teacher), copy.deepcopy(student)
        for name, parameter in moved.named_parameters():
            parameter.data += step * direction[name]
        objective = copy.deepcopy(model.objective)
        loss = Distiller(pupil, objective, LiveTeacher(moved))(**batch)["loss"]
        loss.backward()
        with torch.no_grad():
            for parameter in pupil.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
            return torch.nn.functional.cross_entropy(logits(pupil, quiz), quiz["labels"]).item()

    slope = (quiz_loss(1e-4) - quiz_loss(-1e-4)) / 2e-4
    named = zip(direction, gradients, strict=True)
    ours = sum((gradient * direction[name]).sum() for name, gradient in named if gradient is not None)
    assert abs(slope) > 1e-3, "the case does not test anything"
    assert ours.item() == pytest.approx(slope, rel=2e-3)  # losses are float32, which limits the difference


def test_metadistil_moves_the_teacher_and_leaves_the_student_to_its_optimiser():
    student, teacher = models()
    before, theirs = weights(student), weights(teacher)
    model = distiller("metadistil", student, teacher, teacher_rate=1e-3)
    model.teacher.examine_on(Quiz())
    out = model(**tiny_batch())
    assert same(before, weights(student))
    moved = {name for name, value in weights(teacher).items() if not torch.equal(value, theirs[name])}
    assert moved and all((weights(teacher)[name] - theirs[name]).abs().max() <= 1.01e-3 for name in moved)
    # the student learns from the teacher as it is now
    s, t = out["logits"].detach(), logits(teacher, tiny_batch()).detach()
    kd = 25 * torch.nn.functional.kl_div(
        (s / 5).log_softmax(-1), (t / 5).log_softmax(-1), log_target=True, reduction="batchmean"
    )
    torch.testing.assert_close(out["terms"]["kd"].detach(), kd)
    out["loss"].backward()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
    model.eval()
    with torch.no_grad():
        model(**tiny_batch())
    assert model.teacher.lessons == 1  # it learns only while the student does


def quiz_loss_after_training(name, **options):
    """Teach alone: the student sees neither the quiz nor any label."""
    student, teacher = models()
    model = distiller(name, student, teacher, **options)
    if name == "metadistil":
        model.teacher.examine_on(Quiz())
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        model(**tiny_batch())["loss"].backward()
        optimiser.step()
    with torch.no_grad():
        pairs = [(logits(student, batch), batch["labels"]) for batch in Quiz().batches]
        return sum(torch.nn.functional.cross_entropy(*pair).item() for pair in pairs)


def test_metadistil_teaches_what_the_quiz_asks():
    rates = {"teacher_rate": 1e-2, "inner_rate": 0.1}
    taught = quiz_loss_after_training("metadistil", inner_options={"alpha": 0.0}, **rates)
    assert taught < quiz_loss_after_training("kd", alpha=0.0) - 0.05


def test_metadistils_adam_is_adam():
    student, teacher = models()
    other = copy.deepcopy(teacher)
    model = distiller("metadistil", student, teacher, teacher_rate=1e-3)
    reference = torch.optim.Adam(other.parameters(), lr=1e-3)
    for seed in range(4):
        torch.manual_seed(seed)
        gradients = [torch.randn_like(parameter) for parameter in teacher.parameters()]
        model.teacher.descend(gradients)
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
    for ours, theirs in zip(teacher.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_metadistils_adam_goes_on_from_a_checkpoint():
    whole, broken = (distiller("metadistil", *models(), teacher_rate=1e-3) for _ in range(2))
    torch.manual_seed(0)
    steps = [[torch.randn_like(parameter) for parameter in whole.teacher.model.parameters()] for _ in range(4)]
    for gradients in steps:
        whole.teacher.descend(gradients)
    for gradients in steps[:2]:
        broken.teacher.descend(gradients)
    resumed = distiller("metadistil", *models(), teacher_rate=1e-3)
    resumed.load_state_dict(broken.state_dict())
    for gradients in steps[2:]:
        resumed.teacher.descend(gradients)
    ours, theirs = resumed.teacher.state_dict(), whole.teacher.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "inner", [name for name in METHODS if name not in ("ft", "theseus", "metadistil", "reptiledistil")]
)
def test_any_loss_can_be_the_inner_one(inner):
    student, teacher = models()
    objective = METHODS["metadistil"](Pair.of(student, teacher, "classification"), inner=inner)
    model = Distiller.of(objective, student, teacher)
    before = weights(teacher)
    model.teacher.examine_on(Quiz())
    model.objective.prepare(model.teacher, [tiny_batch((6, 5, 4, 3) * 30)])
    assert same(before, weights(teacher))  # a pass before training is no lesson
    model(**tiny_batch((6, 3, 5, 1, 4, 6, 2, 5)))["loss"].backward()
    assert all(parameter.isfinite().all() for parameter in teacher.parameters())
    assert not same(before, weights(teacher))


def test_a_pass_before_training_is_no_lesson():
    class Reads(Term):
        def prepare(self, teacher, batches, folder=None):
            for batch in batches:
                teacher(batch, Wanted(hidden=[1]))

    student, teacher = models()
    before = weights(teacher)
    model = distiller("reptiledistil", student, teacher, mu=0.5)
    Objective(reads=(1.0, Reads())).prepare(model.teacher, [tiny_batch()])
    assert same(before, weights(teacher))
    model(**tiny_batch())
    assert not same(before, weights(teacher))


def test_what_the_teacher_has_learnt_is_checkpointed():
    student, teacher = models()
    model = distiller("metadistil", student, teacher)
    model.teacher.examine_on(Quiz())
    model(**tiny_batch())
    state = model.state_dict()
    assert {f"teacher.model.{name}" for name in teacher.state_dict()} <= state.keys()
    assert "teacher.lessons" in state and "teacher.mean_0" in state
    other = distiller("metadistil", *models())
    other.load_state_dict(state)
    assert same(weights(other.teacher.model), weights(teacher)) and other.teacher.lessons == 1
    # nothing is registered twice, and the optimiser sees the student only
    assert not any(name.startswith(("teacher.student", "teacher._student", "run_student")) for name in state)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and all(name.startswith("student.") for name in trained)


# Errors


@pytest.mark.parametrize("name", ["theseus", "reptiledistil"])
def test_blocks_must_fit(name):
    student, teacher = tiny_model("bert", depth=2, hidden_size=16), tiny_model("bert", depth=4)
    with pytest.raises(ModelError, match="of one family, width and number of heads"):
        distiller(name, student, teacher)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "ft"}, "a loss between student and teacher; seen: ft"),
        ({"inner": "theseus"}, "a loss between student and teacher; seen: theseus"),
        ({"inner": "metadistil"}, "a loss between student and teacher"),
        ({"inner": "kdd"}, "Did you mean 'kd'"),
        ({"inner_options": {"alpa": 1}}, "inner_options.alpa: Unknown key 'alpa'"),
        ({"quiz": 0.0}, "between 0 and 1"),
        ({"quiz": 1.0}, "between 0 and 1"),
    ],
)
def test_metadistils_options_are_checked(options, message):
    with pytest.raises(RecipeError, match=message):
        distiller("metadistil", *models(), **options)


def test_a_teacher_without_a_quiz_says_so():
    model = distiller("metadistil", *models())
    with pytest.raises(RecipeError, match="no quiz yet"):
        model(**tiny_batch())

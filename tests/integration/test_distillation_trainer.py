"""The drop-in trainer: what people do with transformers.Trainer works, and the loss is the method's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import limbeck
from limbeck.distillation.feature_cache import CachedTeacher
from limbeck.errors import CacheError, ModelError, RecipeError
from limbeck.methods import METHODS
from limbeck.methods.ft import TaskLoss

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture()
def teacher(teacher_folder):
    return AutoModelForSequenceClassification.from_pretrained(teacher_folder)


@pytest.fixture(scope="module")
def data(tokenizer):
    def encoded(count, seed):
        rows = sentences(count, seed)
        columns = dict(tokenizer([text for text, _ in rows]))
        return Dataset.from_dict(
            columns | {"text": [text for text, _ in rows], "label": [int(name == "positive") for _, name in rows]}
        )

    return encoded(48, 0), encoded(20, 1)


def arguments(folder, **changes):
    given = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "use_cpu": True}
    given |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return TrainingArguments(str(folder), **given | changes)


def accuracy(answer):
    logits, labels = answer
    assert isinstance(logits, np.ndarray) and logits.shape == (len(labels), 2)
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def trainer_for(folder, teacher, data, tokenizer, method="kd", keep="first:2", **more):
    changes = more.pop("changes", {})
    return limbeck.DistillationTrainer(
        student=limbeck.keep_layers(teacher, keep),
        teacher=teacher,
        method=method,
        args=arguments(folder, **changes),
        train_dataset=data[0],
        eval_dataset=data[1],
        processing_class=tokenizer,
        **more,
    )


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_equal_weights(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_behaves_as_a_trainer(teacher, data, tokenizer, tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            seen.append(dict(logs))

    trainer = trainer_for(
        *(tmp_path / "out", teacher, data, tokenizer, "fcd"),
        compute_metrics=accuracy,
        callbacks=[Watch()],
        changes={"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2},
    )
    before, theirs = weights_of(trainer.student), weights_of(teacher)
    assert isinstance(trainer, Trainer) and trainer.train().global_step == 4
    assert any(not torch.equal(value, before[name]) for name, value in trainer.student.state_dict().items())
    assert_equal_weights(weights_of(teacher), theirs)
    evaluations = [logs for logs in seen if "eval_accuracy" in logs]
    assert len(evaluations) == 2 and all(np.isfinite(logs["eval_loss"]) for logs in evaluations)
    steps = [logs for logs in seen if "loss" in logs]
    equation = trainer._distiller.objective.weights
    for logs in steps:
        assert {f"term/{name}" for name in equation} <= logs.keys()
        assert logs["loss"] == pytest.approx(
            sum(weight * logs[f"term/{name}"] for name, weight in equation.items()), abs=2e-4
        )
    # the student's own loss and accuracy, by a plain Trainer
    plain = Trainer(
        trainer.student, arguments(tmp_path / "plain"), eval_dataset=data[1], processing_class=tokenizer,
        compute_metrics=accuracy,
    )  # fmt: skip
    expected, found = plain.evaluate(), trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=1e-6)
    assert found["eval_accuracy"] == expected["eval_accuracy"]
    answers = trainer.predict(data[1])
    assert answers.predictions == pytest.approx(plain.predict(data[1]).predictions, abs=1e-6)
    assert answers.label_ids.tolist() == data[1]["label"][:]


# a plain Trainer with its defaults is told the same
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
def test_default_arguments_work(teacher, data, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = data[0].select(range(8)), data[1]
    trainer = limbeck.DistillationTrainer(
        limbeck.keep_layers(teacher, "first:1"), teacher, train_dataset=few[0], processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model("student")
    student = AutoModelForSequenceClassification.from_pretrained("student")
    assert_equal_weights(weights_of(student), weights_of(trainer.student))
    assert AutoTokenizer.from_pretrained("student").get_vocab() == tokenizer.get_vocab()
    assert not any("distiller" in path.name for path in (tmp_path / "student").iterdir())


def test_a_checkpoint_is_a_student_and_can_be_resumed_from(teacher, data, tokenizer, tmp_path):
    """Use a method with weights of its own, and dropout: a resumed training ends with the same bits."""

    def trainer(folder, **changes):
        torch.manual_seed(0)
        student = limbeck.keep_layers(teacher, "first:2")
        given = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3} | changes
        return limbeck.DistillationTrainer(
            student, teacher, "pkd", arguments(folder, **given),
            train_dataset=data[0], processing_class=tokenizer,
        )  # fmt: skip

    whole = trainer(tmp_path / "whole")
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    served = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    assert served.config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(checkpoint).get_vocab() == tokenizer.get_vocab()
    assert not list(tmp_path.rglob("*.bin")) and not list(tmp_path.rglob("*.pt*"))
    again = trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(checkpoint))
    assert_equal_weights(weights_of(again.student), weights_of(whole.student))
    last = trainer(tmp_path / "whole")
    last.train(resume_from_checkpoint=True)  # at its end already
    assert_equal_weights(weights_of(last.student), weights_of(whole.student))
    with pytest.raises(ValueError, match="no checkpoint"):
        trainer(tmp_path / "none").train(resume_from_checkpoint=True)


def test_the_best_checkpoint_is_taken(teacher, data, tokenizer, tmp_path):
    trainer = trainer_for(
        *(tmp_path, teacher, data, tokenizer),
        compute_metrics=accuracy,
        changes={"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 2, "eval_steps": 2,
                 "load_best_model_at_end": True, "metric_for_best_model": "accuracy", "save_total_limit": 1},
    )  # fmt: skip
    trainer.train()
    best = AutoModelForSequenceClassification.from_pretrained(trainer.state.best_model_checkpoint)
    assert_equal_weights(weights_of(best), weights_of(trainer.student))


def test_parts_of_a_step_are_the_step(teacher, data, tokenizer, tmp_path):
    def trained(folder, **changes):
        trainer = trainer_for(tmp_path / folder, teacher.eval(), data, tokenizer, "kd", changes=changes)
        trainer.student.config.hidden_dropout_prob = 0.0
        for module in trainer.student.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        return weights_of(trainer.student)

    whole = trained("whole", max_steps=3)
    parts = trained("parts", max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=2e-5)


def test_a_cached_teacher_teaches_the_same(teacher, data, tokenizer, tmp_path, monkeypatch):
    def trained(**more):
        trainer = trainer_for(tmp_path / "out", teacher, data, tokenizer, "fcd", changes={"max_steps": 8}, **more)
        trainer.train()
        return trainer

    live, cached = trained(), trained(teacher_cache=tmp_path / "cache")
    assert isinstance(cached._distiller.teacher, CachedTeacher)
    for name, value in weights_of(live.student).items():
        torch.testing.assert_close(cached.student.state_dict()[name], value, rtol=0, atol=1e-5)
    teacher.classifier.weight.data.mul_(2)
    with pytest.raises(CacheError, match="the teacher's weights"):
        trained(teacher_cache=tmp_path / "cache")


# reptiledistil and metadistil hold out examples, and have teachers that learn; theseus runs another student
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, teacher, data, tokenizer, tmp_path):
    options = {"fitnets": {"layers": "uniform"}, "fsd": {"memory": 8}, "fsd_g": {"memory": 8}}.get(method, {})
    trainer = trainer_for(tmp_path, teacher, data, tokenizer, method, changes={"max_steps": 2}, **options)
    before = weights_of(trainer.student)
    trainer.train()
    assert any(not torch.equal(value, before[name]) for name, value in trainer.student.state_dict().items())


class TestOtherProblems:
    def run(self, teacher, rows, tokenizer, folder, method="kd", **more):
        student = limbeck.keep_layers(teacher, "first:2")
        trainer = limbeck.DistillationTrainer(
            student, teacher, method, arguments(folder, max_steps=1, learning_rate=1e-9),
            train_dataset=rows, eval_dataset=rows, processing_class=tokenizer, **more,
        )  # fmt: skip
        trainer.train()
        found = trainer.evaluate()
        return trainer, found

    def own_loss(self, trainer, model):
        """Compute the model's own loss of all rows at once, without dropout."""
        batch = next(iter(trainer.get_eval_dataloader()))
        return float(model.eval()(**batch).loss.detach())

    def check_task_loss(self, trainer):
        """Compare the term ``task`` with the loss that transformers computes."""
        batch = next(iter(trainer.get_eval_dataloader()))
        trainer.student.eval()
        ours = trainer._distiller(**batch)["terms"]["task"]
        assert ours.item() == pytest.approx(float(trainer.student(**batch).loss.detach()), abs=1e-5)

    def tiny(self, auto, depth=4, **changes):
        return auto.from_config(tiny_model("bert", depth=depth, **changes).config)

    def test_tags(self, data, tokenizer, tmp_path):
        rows = data[0].remove_columns(["label", "text"])
        rows = rows.add_column("labels", [[-100, *[i % 2 for i in ids[1:-1]], -100] for ids in rows["input_ids"]])
        collate = DataCollatorForTokenClassification(tokenizer)
        trainer, found = self.run(
            self.tiny(AutoModelForTokenClassification), rows, tokenizer, tmp_path, data_collator=collate
        )
        assert trainer._distiller.objective.terms["task"].problem == "tokens" and np.isfinite(found["eval_loss"])
        self.check_task_loss(trainer)

    def test_answers(self, data, tokenizer, tmp_path):
        rows = data[0].remove_columns(["label", "text"])
        rows = rows.add_column("start_positions", [1] * len(rows)).add_column("end_positions", [2] * len(rows))
        trainer, found = self.run(self.tiny(AutoModelForQuestionAnswering), rows, tokenizer, tmp_path)
        assert trainer._distiller.objective.terms["task"].problem == "span" and np.isfinite(found["eval_loss"])
        batch = next(iter(trainer.get_eval_dataloader()))
        padding = ~batch["attention_mask"].bool()
        assert padding.any()  # which transformers takes for possible answers
        trainer.student.eval()
        answer = trainer.student(**batch)
        expected = 0.0
        for logits, name in ((answer.start_logits, "start_positions"), (answer.end_logits, "end_positions")):
            shares = logits.double().masked_fill(padding, -torch.inf).log_softmax(1)
            expected -= shares[torch.arange(len(shares)), batch[name]].mean().item() / 2
        assert trainer._distiller(**batch)["terms"]["task"].item() == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("kind", ["regression", "multi_label"])
    def test_numbers_and_several_labels(self, kind, data, tokenizer, tmp_path):
        labels = [[float(label), 1.0] if kind == "multi_label" else float(label) for label in data[0]["label"]]
        rows = data[0].remove_columns(["label", "text"]).add_column("labels", labels)
        model = tiny_model("bert", depth=4)
        model.config.num_labels = 1 if kind == "regression" else 2
        teacher = AutoModelForSequenceClassification.from_config(model.config)
        teacher.config.problem_type = None
        trainer, found = self.run(teacher, rows, tokenizer, tmp_path)
        assert trainer._distiller.objective.terms["task"].problem == kind and np.isfinite(found["eval_loss"])
        trainer.student.config.problem_type = None
        self.check_task_loss(trainer)

    @pytest.mark.parametrize("causal", [False, True])
    def test_language_models(self, causal, data, tokenizer, tmp_path):
        rows = data[0].remove_columns(["label", "text"])
        auto = AutoModelForCausalLM if causal else AutoModelForMaskedLM
        config = tiny_model("gpt2" if causal else "bert", depth=4).config
        teacher = auto.from_config(config)
        collate = DataCollatorForLanguageModeling(tokenizer, mlm=not causal, seed=0)
        trainer, _ = self.run(
            teacher,
            rows.remove_columns("token_type_ids") if causal else rows,
            tokenizer,
            tmp_path,
            data_collator=collate,
        )
        assert trainer._distiller.objective.terms["task"].problem == "language_model"
        self.check_task_loss(trainer)


class TestBadInput:
    def test_names_of_models(self, teacher, data, tokenizer, tmp_path):
        with pytest.raises(ModelError, match=r"student must be a model.*from_pretrained\('some/name'\)"):
            limbeck.DistillationTrainer("some/name", teacher)
        with pytest.raises(ModelError, match="teacher must be a model"):
            limbeck.distillation_loss(teacher, "some/name")

    def test_other_vocabularies(self, teacher, tokenizer):
        with pytest.raises(ModelError, match="cannot read the same token ids"):
            limbeck.distillation_loss(tiny_model("bert", depth=2, vocab_size=50), teacher)

    def test_options_that_are_none(self, teacher):
        student = limbeck.keep_layers(teacher, "first:2")
        with pytest.raises(RecipeError, match=r"The options of 'kd'.*temperatur.*Did you mean 'temperature'"):
            limbeck.distillation_loss(student, teacher, "kd", temperatur=3)
        with pytest.raises(RecipeError, match=r"alpha: .*seen: 7"):
            limbeck.distillation_loss(student, teacher, "kd", alpha=7)

    def test_arguments_that_would_have_no_effect(self, teacher, data, tokenizer, tmp_path):
        with pytest.raises(RecipeError, match="label_smoothing_factor cannot be used with a method: the loss is"):
            trainer_for(tmp_path, teacher, data, tokenizer, changes={"label_smoothing_factor": 0.1})

    def test_methods_of_ones_own(self, teacher, data, tokenizer, tmp_path):
        student = limbeck.keep_layers(teacher, "first:2")
        with pytest.raises(RecipeError, match="give the function: method=mine"):
            limbeck.distillation_loss(student, teacher, "mine:mine")

        def mine(pair, *, weight: float = 2.0):
            return limbeck.Objective(task=(weight, TaskLoss(pair)))

        trainer = trainer_for(tmp_path, teacher, data, tokenizer, mine, weight=3)
        assert dict(trainer._distiller.objective.weights) == {"task": 3}
        trainer.train()

    def test_no_mask(self, teacher, data, tokenizer):
        loss = limbeck.distillation_loss(limbeck.keep_layers(teacher, "first:2"), teacher)
        with pytest.raises(ModelError, match="no attention_mask"):
            loss(input_ids=torch.tensor([[1, 2]]), labels=torch.tensor([0]))

    def test_what_cannot_be_cached(self, teacher, data, tokenizer, tmp_path):
        with pytest.raises(CacheError, match="learns while it teaches"):
            trainer_for(tmp_path, teacher, data, tokenizer, "metadistil", teacher_cache=tmp_path / "cache")
        with pytest.raises(CacheError, match="its tokenizer as processing_class"):
            trainer_for(tmp_path, teacher, data, None, teacher_cache=tmp_path / "cache")
        with pytest.raises(CacheError, match=r"needs a datasets\.Dataset"):
            trainer_for(tmp_path, teacher, ([{"input_ids": [1]}], None), tokenizer, teacher_cache=tmp_path / "cache")

    def test_a_loss_that_is_no_number_is_not_saved(self, teacher, data, tokenizer, tmp_path):
        trainer = trainer_for(tmp_path, teacher, data, tokenizer, changes={"save_strategy": "steps", "save_steps": 1})
        trainer.student.classifier.bias.data.fill_(float("nan"))
        with pytest.raises(limbeck.errors.LimbeckError, match="nan"):
            trainer.train()
        assert not list(tmp_path.glob("checkpoint-*/model.safetensors"))
        assert json.loads((tmp_path / "bad-batch" / "about.json").read_text())["step"] == 1

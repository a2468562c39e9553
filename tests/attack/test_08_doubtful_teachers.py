"""Doubt models whose labels have no names or that know less than the most frequent answer, and say what to type."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import table_task
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoModelForSequenceClassification

from limbeck import load_recipe, load_task
from limbeck.errors import RecipeError
from limbeck.shrink.teacher import reason_to_fine_tune

pytestmark = pytest.mark.usefixtures("quick_collection")
ALPHABET, REVERSED = ("negative", "positive"), ("positive", "negative")


@pytest.fixture(scope="module")
def network(tokenizer):
    """Make a model with two labels, LABEL_0 and LABEL_1, each for half of the sentences."""
    model = tiny_model("bert", depth=3, initializer_range=0.3).eval()
    found = logits_of(model, tokenizer, [text for text, _ in sentences(200)])
    model.classifier.bias.data[1] -= float(np.median(found[:, 1] - found[:, 0]))
    return model


def logits_of(model, tokenizer, texts):
    with torch.inference_mode():
        return model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()


@pytest.fixture(scope="module")
def teacher(network, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "teacher"
    for part in (network, tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture()
def tables(network, tokenizer, tmp_path):
    """Write a training and a validation file whose labels are what the model answers, under these names."""

    def write(names, dev=40):
        files = []
        for name, rows in (("train.csv", sentences(96)), ("dev.csv", sentences(dev, seed=1))):
            texts = [text for text, _ in rows]
            answers = logits_of(network, tokenizer, texts).argmax(-1)
            files.append(write_csv(tmp_path / name, list(zip(texts, np.array(names)[answers], strict=True))))
        return tuple(files)

    return write


@pytest.fixture()
def named(teacher, tmp_path):
    """Copy the model with names in its config."""

    def copy(*names):
        folder = shutil.copytree(teacher, tmp_path / "named")
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        model.config.id2label, model.config.label2id = dict(enumerate(names)), {n: i for i, n in enumerate(names)}
        model.save_pretrained(folder)
        return folder

    return copy


def words_for(files):
    options = [f"task.{key}={value}" for key, value in table_task(files).items() if key != "name"]
    return ["--task", "table", *options]


def pair_for(files, teacher, method="kd"):
    short = ["--batch-size", "16", "train.max_steps=2", "train.eval_strategy=no", "train.save_strategy=no"]
    return [*words_for(files), "--teacher", teacher, "--keep", "first:2", "--method", method, *short]


def typed(said):
    """Return the option that a message tells to type, as a shell reads it."""
    [option] = shlex.split(re.findall(r"'task\.labels=.*?'(?=[.\s]|$)", said)[0])
    return option


def accuracy(said):
    return float(re.findall(r"accuracy\s+([\d.]+)", said)[-1])


def test_evaluate_warns_of_labels_without_names_and_says_what_to_type(teacher, tables, command):
    words = ["evaluate", teacher, *words_for(tables(ALPHABET))]
    code, said = command(*words)
    assert code == 0 and "calls its labels LABEL_0, LABEL_1" in said and accuracy(said) == 100
    assert typed(said) == "task.labels=[negative, positive]"
    code, said = command(*words, typed(said))
    assert code == 0 and "LABEL_0" not in said and accuracy(said) == 100


def test_evaluate_warns_of_a_score_below_the_most_frequent_answer(teacher, tables, command):
    words = ["evaluate", teacher, *words_for(tables(REVERSED))]
    code, said = command(*words)
    assert code == 0 and "no better than an answer that is always the same: its accuracy is 0.00" in said
    other = shlex.split(re.findall(r"state it, e\.g\. ('.*?')\. ", said)[0])[0]
    assert other == "task.labels=[positive, negative]"
    code, said = command(*words, other)
    assert code == 0 and accuracy(said) == 100 and "no better" not in said


def test_names_in_another_order_can_be_stated(named, tables, command):
    """A model of positive, negative was refused with the advice to fine-tune it again."""
    words = ["evaluate", named(*REVERSED), *words_for(tables(REVERSED))]
    code, said = command(*words)
    assert code == 1 and "Traceback" not in said
    assert typed(said) == "task.labels=[positive, negative]"
    code, said = command(*words, typed(said))
    assert code == 0 and accuracy(said) == 100


def test_an_order_that_the_config_contradicts_is_refused(named, tables, command):
    words = ["evaluate", named(*ALPHABET), *words_for(tables(ALPHABET)), "task.labels=[positive, negative]"]
    code, said = command(*words)
    assert code == 1 and typed(said) == "task.labels=[negative, positive]"


@pytest.mark.parametrize("names", [ALPHABET, REVERSED])
def test_export_warns(names, teacher, tables, command, tmp_path):
    code, said = command("export", teacher, *words_for(tables(names)), "-o", "out")
    assert code == 0 and "calls its labels LABEL_0, LABEL_1" in said
    assert ("no better than" in said) == (names == REVERSED)


def test_a_distillation_from_labels_without_names_stops(teacher, tables, command, tmp_path):
    words = ["distill", *pair_for(tables(ALPHABET), teacher), "-o", "run"]
    code, said = command(*words)
    assert code == 1 and "LABEL_0" in said and "teacher.confirmed=true" in said and not (tmp_path / "run").exists()
    code, shown = command(*words, typed(said))
    assert code == 0 and "LABEL_0" not in shown
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["task"]["labels"] == list(ALPHABET)
    # the student has names, and whoever evaluates or resumes the run knows them
    assert read_json(tmp_path / "run" / "student" / "config.json")["id2label"] == {"0": "negative", "1": "positive"}
    assert "LABEL_0" not in command("evaluate", "run")[1]


def test_what_finetune_made_of_such_a_model_teaches_and_the_model_itself_does_not(teacher, tables, command):
    files = tables(ALPHABET)
    quick = ["train.max_steps=1", "train.learning_rate=1e-9", "train.save_strategy=no"]
    assert command("finetune", *words_for(files)[1:], "--model", teacher, *quick, "-o", "runs/teacher")[0] == 0
    code, said = command("distill", *pair_for(files, "runs/teacher"), "-o", "run")
    assert code == 0 and "confirmed" not in said and "no better" not in said
    assert command("distill", *pair_for(files, teacher), "-o", "other")[0] == 1


def test_a_distillation_that_was_confirmed_goes_on(teacher, tables, command, tmp_path):
    words = ["distill", *pair_for(tables(ALPHABET), teacher), "teacher.confirmed=true", "-o", "run"]
    code, said = command(*words)
    assert code == 0 and "LABEL_0" not in said
    assert read_json(tmp_path / "run" / "metrics.json")["teacher"]["metrics"]["accuracy"] == 1


@pytest.mark.parametrize("method", ["kd", "fcd", "metadistil"])
def test_a_distillation_from_less_than_the_most_frequent_answer_stops(method, named, tables, command, tmp_path):
    """Its labels have names here, so that only its score tells."""
    words = ["distill", *pair_for(tables(REVERSED), named(*ALPHABET), method), "-o", "run"]
    code, said = command(*words)
    assert code == 1 and "its accuracy is 0.00" in said and "task.labels" in said and "teacher.confirmed=true" in said
    assert not (tmp_path / "run").exists()
    assert command(*words, "teacher.confirmed=true")[0] == 0


def test_a_stated_order_does_not_confirm_a_low_score(teacher, tables, command, tmp_path):
    words = ["distill", *pair_for(tables(REVERSED), teacher), "task.labels=[negative, positive]", "-o", "run"]
    code, said = command(*words)
    assert code == 1 and "no better than" in said and "calls its labels" not in said


def test_a_teacher_as_good_as_the_most_frequent_answer_is_a_warning(named, tables, command, tmp_path):
    folder, files = named(*ALPHABET), tables(ALPHABET)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    majority = max(ALPHABET, key=lambda name: files[0].read_text().count(f",{name}"))
    model.classifier.weight.data.zero_()
    model.classifier.bias.data = torch.tensor([float(name == majority) for name in ALPHABET])
    model.save_pretrained(folder)
    code, said = command("distill", *pair_for(files, folder), "-o", "run")
    assert code == 0 and "no better than" in said
    found = read_json(tmp_path / "run" / "metrics.json")
    assert found["teacher"]["metrics"]["accuracy"] == found["majority"]["accuracy"]


def test_a_method_that_asks_nothing_of_its_teacher_is_a_warning(teacher, tables, command):
    code, said = command("distill", *pair_for(tables(ALPHABET), teacher, "ft"), "-o", "run")
    assert code == 0 and "calls its labels LABEL_0, LABEL_1" in said


def test_a_regression_below_the_mean_stops(tokenizer, tmp_path, command):
    """Pearson's correlation of an answer that is always the same is 0; this teacher's is negative."""
    model = tiny_model("bert", 3, 1, initializer_range=0.3).eval()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "teacher")
    files = []
    for name, rows in (("train.csv", sentences(96)), ("dev.csv", sentences(40, seed=1))):
        texts = [text for text, _ in rows]
        numbers = -logits_of(model, tokenizer, texts)[:, 0]
        files.append(write_csv(tmp_path / name, list(zip(texts, map(str, numbers), strict=True))))
    words = ["distill", *pair_for(files, tmp_path / "teacher"), "-o", "run"]
    code, said = command(*words)
    assert code == 1 and "its pearson is -100.00, that of the most frequent answer 0.00" in said
    assert "task.labels" not in said and not (tmp_path / "run").exists()
    assert command(*words, "teacher.confirmed=true")[0] == 0


def study_file(tmp_path, files, teacher, **more):
    task = {key: value for key, value in table_task(files).items() if key != "name"}
    study = {"tasks": ["table"], "task": task, "teacher": {"fine_tuned": str(teacher)} | more, "methods": ["kd"]}
    study["rivals"] = False
    study |= {"seeds": [0], "student": {"from": "teacher", "keep": "first:2"}, "train": {"max_steps": 2}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    return "study.yaml"


@pytest.mark.parametrize("names", [ALPHABET, REVERSED])
def test_a_study_stops_unless_its_teacher_is_confirmed(names, teacher, tables, command, tmp_path):
    words = ["study", study_file(tmp_path, tables(names), teacher), "-o", "out"]
    code, said = command(*words)
    assert code == 1 and "LABEL_0" in said and "teacher.confirmed=true" in said
    assert not list((tmp_path / "out").rglob("student"))
    assert command(*words, "teacher.confirmed=true")[0] == 0
    [run] = (tmp_path / "out" / "runs").iterdir()
    # to confirm is no other setting: the same runs, whoever asks
    code, _ = command("study", study_file(tmp_path, tables(names), teacher, confirmed=True), "-o", "out")
    assert code == 0 and list((tmp_path / "out" / "runs").iterdir()) == [run]


def test_a_study_takes_the_order_of_labels(teacher, tables, command, tmp_path):
    words = ["study", study_file(tmp_path, tables(REVERSED), teacher), "task.labels=[positive, negative]", "-o", "out"]
    code, said = command(*words)
    assert code == 0, said
    [results] = (tmp_path / "out").rglob("metrics.json")
    assert read_json(results)["teacher"]["metrics"]["accuracy"] == 1


def test_a_cache_of_a_doubtful_teacher_is_a_warning(teacher, tables, command, tmp_path):
    code, said = command("cache", *pair_for(tables(REVERSED), teacher), "-o", "out")
    assert code == 0 and "calls its labels LABEL_0, LABEL_1" in said and "no better than" in said
    assert list((tmp_path / "out").glob("logits-*.safetensors"))


def test_shrink_warns_of_labels_without_names_and_fine_tunes_what_is_below(teacher, tables, caplog):
    def task(names):
        block = {key: value for key, value in table_task(tables(names)).items() if key != "max_length"}
        return load_task(**block)

    with caplog.at_level(logging.WARNING, "limbeck"):
        assert reason_to_fine_tune(str(teacher), task(REVERSED)) == "whose head does not know these labels"
        assert not caplog.messages
        assert reason_to_fine_tune(str(teacher), task(ALPHABET)) == ""
    [message] = caplog.messages
    assert "LABEL_0, LABEL_1" in message and "negative, positive" in message and "100.00" in message


def test_the_teacher_is_asked_once_about_the_validation_data(named, tables, command, monkeypatch, tmp_path):
    import limbeck.training.teacher_outputs as outputs

    asked, predict = [], outputs.predict_logits
    monkeypatch.setattr(outputs, "predict_logits", lambda *given, **more: asked.append(1) or predict(*given, **more))
    words = pair_for(tables(ALPHABET), named(*ALPHABET))
    assert command("distill", *words, "-o", "run")[0] == 0 and len(asked) == 1
    # one that learns is scored as it has become; what it answers before that is known in this process
    moved = [word if word != "kd" else "metadistil" for word in words]
    assert command("distill", *moved, "-o", "moved")[0] == 0 and len(asked) == 2


def test_a_resumed_run_is_not_examined_again(teacher, tables, command, monkeypatch, tmp_path):
    import limbeck.training.session

    save = ["train.save_strategy=steps", "train.save_steps=1"]
    words = [*pair_for(tables(ALPHABET), teacher), *save, "-o", "run"]
    write, examined = limbeck.training.session.write_results, []

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(limbeck.training.session, "write_results", stopped)
    assert command("distill", *words, "teacher.confirmed=true")[0] == 130
    monkeypatch.setattr(limbeck.training.session, "write_results", write)
    monkeypatch.setattr(limbeck.training.session, "examine_teacher", lambda *_: examined.append(1))
    # and to have confirmed is not another recipe
    assert command("distill", *words, "--resume")[0] == 0 and not examined
    assert read_json(tmp_path / "run" / "metrics.json")["teacher"]["metrics"]["accuracy"] == 1


# The option itself


def table(path: Path, **options):
    return load_task("table", train=str(path), validation=str(path), text="text", label="label", **options)


def test_labels_are_numbered_as_stated(tmp_path):
    file = write_csv(tmp_path / "a.csv", [("one", "b"), ("two", "a"), ("three", "c")])
    task = table(file, labels=["c", "a", "b"])
    assert task.label_names == ("c", "a", "b") and task.split("train")["label"][:] == [2, 1, 0]
    weights = {"a": 5}
    assert table(file, labels=["c", "a", "b"], class_weights=weights).class_weights == (1, 5, 1)
    lists = write_csv(tmp_path / "b.csv", [("one", "x;y"), ("two", "y")])
    task = table(lists, labels=["y", "x"], problem="multi_label", separator=";")
    assert task.label_names == ("y", "x") and task.split("train")["label"][:] == [[1.0, 1.0], [1.0, 0.0]]


def test_several_label_columns_are_ordered_too(tmp_path):
    file = write_csv(tmp_path / "a.csv", [("one", "1,0"), ("two", "0,0")], "text,x,y")
    given = {"train": str(file), "validation": str(file), "text": "text", "label": ["x", "y"]}
    task = load_task("table", **given, labels=["y", "x"])
    assert task.label_names == ("y", "x") and task.split("train")["label"][:] == [[0.0, 1.0], [0.0, 0.0]]


def test_tags_are_numbered_as_stated(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("the O\ncat B-X\n\na O\ndog B-Y\n")
    task = load_task("tokens", train=str(file), validation=str(file), labels=["B-Y", "O", "B-X"])
    assert task.label_names == ("B-Y", "O", "B-X") and task.split("train")["label"][:] == [[1, 2], [1, 0]]
    with pytest.raises(RecipeError, match=r"it lacks 'B-Y', and .*a\.txt has no 'B-Z'"):
        load_task("tokens", train=str(file), validation=str(file), labels=["B-Z", "O", "B-X"])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["b", "a"], r"it lacks 'c'"),
        (["b", "a", "c", "d"], r"a\.csv has no 'd'"),
        (["b", "a", "C"], r"it lacks 'c', and .*a\.csv has no 'C'.*'task\.labels=\[a, b, c\]'"),
        (["b", "a", "a"], "'a' is named twice"),
        (["b", True], "True is not a label's name"),
        ([], "write a list of names"),
        ("abc", "write a list of names"),
    ],
)
def test_what_is_not_the_set_of_labels_is_refused(labels, said, tmp_path):
    file = write_csv(tmp_path / "a.csv", [("one", "b"), ("two", "a"), ("three", "c")])
    with pytest.raises(RecipeError, match=said):
        table(file, labels=labels)


def test_numbers_have_no_order_to_state(tmp_path):
    file = write_csv(tmp_path / "a.csv", [("one", "0.5"), ("two", "1.5")])
    with pytest.raises(RecipeError, match=r"task\.labels is .* are numbers"):
        table(file, labels=["0.5", "1.5"])


@pytest.mark.parametrize(
    "names",
    [
        ("0", "1"),
        ("no", "yes"),
        ("1.0", "null"),
        ("a, b", "it's"),
        ('"x"', "~"),
        ("é", "a: b"),
        ("[x]", "#1"),
        ("-", "y"),
    ],
)
def test_what_is_told_to_be_typed_reads_as_these_names(names, tmp_path):
    """Names that YAML or a shell would read otherwise are written so that they do not."""
    from limbeck.tasks.labels import order_option

    [word] = shlex.split(order_option(names))
    values = {"task": {"name": "table", "train": "t", "text": "x", "label": "y"}, "method": {"name": "ft"}}
    recipe = load_recipe(values=values | {"student": {"model": "m"}}, overrides=[word])
    assert recipe.task.options["labels"] == list(names)

"""Run docs/your-own-data.md from top to bottom, as printed; small stand-ins have the names of its models."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex

import numpy as np
import pytest
import yaml
from helpers.paths import ROOT
from helpers.saved_runs import read_json
from helpers.tiny_tables import write_csv
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from limbeck._internal.progress import QUIET
from limbeck.cli.main import app
from limbeck.cli.render import out
from limbeck.errors import RecipeError, RunError
from limbeck.inference.evaluate import evaluate
from limbeck.inference.predict import predict_file
from limbeck.models.vocabulary import make_wordpiece
from limbeck.recipes.recipe import load_recipe
from limbeck.training.execute import execute

PAGE = (ROOT / "docs" / "your-own-data.md").read_text()
BLOCK = re.compile(r"(?:`([\w./-]+)`:\n\n)?```(\w*)\n(.*?)```", re.DOTALL)
STAND_INS = {
    "bert-base-uncased": {
        "model_type": "bert",
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_hidden_layers": 12,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_positions": 64, "n_layer": 12},
}
CONFIRMED = ["teacher.confirmed=true"]  # a random stand-in learns next to nothing: its score is chance


def stand_in(folder, texts, model_type, **sizes):
    make_wordpiece(texts, folder, vocab_size=500)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id, "pad_token_id": 0}
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **special, **sizes)
    AutoModel.from_config(config).save_pretrained(folder)


def commands(block):
    """Return (variables set before it, the words after ``limbeck``) of each command."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            place = words.index("limbeck")
            yield dict(word.split("=", 1) for word in words[:place]), words[place + 1 :]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the folder in which every block of the page has run, and what each command printed."""
    folder, printed = tmp_path_factory.mktemp("page"), {}
    for name, settings in STAND_INS.items():
        stand_in(folder / name, [PAGE], **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, language, block in BLOCK.findall(PAGE):
            if name:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(block)
            elif language == "python":
                exec(compile(block, str(PAGE), "exec"), {})
            elif not language:
                for variables, words in commands(block):
                    for variable, value in variables.items():
                        patch.setenv(variable, value)
                    printed[" ".join(words)] = run(words + (CONFIRMED if words[0] == "distill" else []))
    return folder, printed


def run(words):
    with out.capture() as captured:
        app(words, standalone_mode=False)
    return captured.get()


def test_every_block_of_the_page_runs(page):
    _, printed = page
    assert {words.split()[0] for words in printed} == {
        "profile",
        "finetune",
        "distill",
        "evaluate",
        "predict",
        "validate",
    }
    assert all(printed.values())


def test_the_profile_on_the_page_is_what_is_printed(page):
    """Leave out the lengths, which follow from the model's vocabulary."""
    _, printed = page

    def table(text):
        lines = [re.findall(r"\w+", line) for line in text.splitlines()]
        splits = [line[:2] for line in lines if line[:1] in (["train"], ["validation"], ["test"])]
        return splits, [line for line in lines if line[:1] in (["balance"], ["transfer"], ["card"])]

    shown = next(block for _, language, block in BLOCK.findall(PAGE) if language == "text")
    first = next(text for words, text in printed.items() if words.startswith("profile"))
    assert table(shown) == table(first)
    assert [len(part) for part in table(shown)] == [3, 3]


def rows_of(file):
    with open(file, newline="") as handle:
        return list(csv.DictReader(handle))


def test_names_of_labels_are_in_the_exported_models_and_in_the_predictions(page):
    folder, _ = page
    intents = ["balance", "card", "transfer"]
    for name in ("teacher", "small", "small-fcd", "small-gpt2"):
        config = read_json(folder / "runs" / name / "student" / "config.json")
        assert config["id2label"] == {str(index): intent for index, intent in enumerate(intents)}
        assert config["label2id"] == {intent: index for index, intent in enumerate(intents)}
    rows = rows_of(folder / "predictions.csv")
    assert len(rows) == len(rows_of(folder / "test.csv")) == 12
    assert list(rows[0]) == ["prediction", *(f"p({intent})" for intent in intents)]
    for row in rows:
        chances = [float(row[f"p({intent})"]) for intent in intents]
        assert sum(chances) == pytest.approx(1, abs=1e-5) and row["prediction"] == intents[int(np.argmax(chances))]
    assert {row["prediction"] for row in rows_of(folder / "pair-predictions.csv")} <= {"yes", "no"}
    tags = {row["prediction"] for row in rows_of(folder / "tags.csv")}
    assert {tag for row in tags for tag in row.split()} <= {"O", "B-PER", "I-PER", "B-LOC"}
    mails = read_json(folder / "runs" / "mails" / "student" / "config.json")
    assert list(mails["id2label"].values()) == ["account", "billing", "technical", "urgent"]
    assert mails["problem_type"] == "multi_label_classification"
    assert read_json(folder / "runs" / "stars" / "metrics.json")["metric"] == "pearson"
    assert read_json(folder / "runs" / "small-reader" / "metrics.json")["metric"] == "f1"
    model = AutoModelForSequenceClassification.from_pretrained(folder / "runs" / "small" / "student")
    assert model.config.num_hidden_layers == 6


def test_single_texts_and_pairs_reach_the_model_as_such(page, monkeypatch):
    """Expect a second segment in a pair, and none in a single text."""
    from limbeck.training.assemble import assemble, load_data

    folder, _ = page
    monkeypatch.chdir(folder)
    for name, pair in (("balanced", False), ("pairs", True)):
        recipe = load_recipe(folder / "runs" / name / "recipe.yaml")
        data = load_data(recipe, assemble(recipe))
        segments = {kind for row in data.splits["train"]["token_type_ids"] for kind in row}
        assert segments == ({0, 1} if pair else {0})


# The length that is chosen from the data


@pytest.fixture(scope="module")
def long_texts(tmp_path_factory):
    """Write 199 texts of 10 words and one of 100, and a model that reads 64 tokens."""
    folder = tmp_path_factory.mktemp("long")
    words = [f"w{i}" for i in range(10)]
    rows = [(" ".join(words), "ab"[i % 2]) for i in range(199)] + [(" ".join(words * 10), "a")]
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", rows[:20])
    write_csv(folder / "long.csv", [(" ".join(words * 10), "ab"[i % 2]) for i in range(20)])
    stand_in(
        folder / "model",
        [" ".join(words)],
        **STAND_INS["bert-base-uncased"] | {"num_hidden_layers": 2, "max_position_embeddings": 64},
    )
    return folder


def recipe_of(folder, train="train.csv", **task):
    block = {"name": "table", "train": str(folder / train), "validation": str(folder / "dev.csv")}
    block |= {"text": "text", "label": "label"} | task
    student, training = (
        {
            "model": str(folder / "model"),
            "head": "fresh",
        },  # texts are so few that a fitted head would have huge weights
        {"max_steps": 2, "batch_size": 4, "save_steps": 1, "logging_steps": 1},
    )
    training |= {"save_strategy": "steps"}
    return load_recipe(values={"task": block, "student": student, "method": {"name": "ft"}, "train": training})


def written_length(run):
    return yaml.safe_load((run.path / "recipe.yaml").read_text())["task"]["max_length"]


def test_the_length_is_chosen_said_written_and_used_again(long_texts, tmp_path, caplog):
    with caplog.at_level("INFO", logger="limbeck"):
        run = execute(recipe_of(long_texts), tmp_path / "run")
    # 12 tokens with the special ones, rounded up to 8
    assert written_length(run) == 16
    said = next(message for message in caplog.messages if message.startswith("task.max_length"))
    assert "16 tokens" in said and "99% of the training texts have at most 12 tokens" in said
    assert "the longest 102" in said and "0.5% are cut" in said
    assert any("200 train, 20 validation rows" in message for message in caplog.messages)
    seen = lengths_read(run, long_texts / "long.csv")
    assert seen == {16}


def lengths_read(run, file):
    """Note the widths of the batches that evaluate and predict give to the model of a run."""
    import limbeck.inference.logits

    widths, original = set(), limbeck.inference.logits.model_inputs

    def spy(model, batch):
        widths.add(batch["input_ids"].shape[1])
        return original(model, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limbeck.inference.logits, "model_inputs", spy)
        evaluate(run.path, overrides=[f"task.validation={file}"])
        predict_file(run.path, file, run.path / "p.csv")
    return widths


def test_an_explicit_length_wins(long_texts, tmp_path, caplog):
    with caplog.at_level("INFO", logger="limbeck"):
        run = execute(recipe_of(long_texts, max_length=9), tmp_path / "run")
    assert written_length(run) == 9 and lengths_read(run, long_texts / "long.csv") == {9}
    assert not any(message.startswith("task.max_length") for message in caplog.messages)


def test_only_an_explicit_length_can_be_too_long_for_the_model(long_texts, tmp_path, caplog):
    with caplog.at_level("INFO", logger="limbeck"):
        run = execute(recipe_of(long_texts, train="long.csv"), tmp_path / "run")
    assert written_length(run) == 64
    said = next(message for message in caplog.messages if message.startswith("task.max_length"))
    assert "the model reads no more" in said and "100.0% are cut" in said
    with pytest.raises(RecipeError, match=r"task\.max_length is 65, but this bert model reads at most 64 tokens"):
        execute(recipe_of(long_texts, max_length=65), tmp_path / "other")
    with pytest.raises(RecipeError, match=r"task\.max_length is 65"):
        evaluate(run.path, overrides=["task.max_length=65"])
    with pytest.raises(RecipeError, match=r"task\.max_length is 65"):
        predict_file(run.path, long_texts / "long.csv", tmp_path / "p.csv", max_length=65)
    assert lengths_read(run, long_texts / "long.csv") == {64}


def test_a_run_with_a_chosen_length_is_resumed_by_the_same_command(long_texts, tmp_path, monkeypatch):
    import limbeck.training.session

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(limbeck.training.session, "write_results", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(recipe_of(long_texts, problem="classification"), tmp_path / "run")
    unfinished = tmp_path / "run"
    assert yaml.safe_load((unfinished / "recipe.yaml").read_text())["task"]["max_length"] == 16
    with pytest.raises(RunError, match=r"differs in: task.max_length \(16 there, 24 now\)"):
        execute(recipe_of(long_texts, problem="classification", max_length=24), unfinished, resume=True)
    # auto stands for the chosen length only, not for what other options leave open
    with pytest.raises(RunError, match=r"differs in: task.problem"):
        execute(recipe_of(long_texts, problem="auto"), unfinished, resume=True)
    run = execute(recipe_of(long_texts, problem="classification"), unfinished, resume=True)
    assert run.finished and written_length(run) == 16
    assert execute(recipe_of(long_texts, problem="classification", max_length=16), unfinished, resume=True).finished


def test_the_recipe_of_a_run_with_a_chosen_length_runs_the_same_again(long_texts, tmp_path):
    first = execute(recipe_of(long_texts), tmp_path / "first")
    again = execute(load_recipe(first.path / "recipe.yaml"), tmp_path / "again")
    recipes = [yaml.safe_load((run.path / "recipe.yaml").read_text()) for run in (first, again)]
    assert recipes[0] == recipes[1]
    assert first.metrics()["score"] == again.metrics()["score"]


# Class weights in a recipe and on the command line


def validated(folder, weights):
    recipe = {"task": {"name": "table", "train": "data.csv", "text": "text", "label": "label"}}
    recipe |= {"student": {"model": "some-model"}, "method": {"name": "ft"}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return run(["validate", str(folder / "recipe.yaml"), f"task.class_weights={weights}"])


@pytest.mark.parametrize(
    ("weights", "written"),
    [("balanced", "balanced"), ("{positive: 5}", {"positive": 5.0}), ("none", "none"), ("{1: 2}", {"1": 2.0})],
)
def test_validate_takes_class_weights(weights, written, tmp_path):
    shown = validated(tmp_path, weights)
    assert yaml.safe_load(shown.rpartition("valid")[0])["task"]["class_weights"] == written


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("balance", "write none, balanced, or weights by label such as {spam: 5}; seen: 'balance'."),
        ("3", "write none, balanced, or weights by label such as {spam: 5}; seen: 3."),
        ("{positive: 0}", "the weight of 'positive' must be a finite number above 0; seen: 0."),
        ("{positive: .inf}", "the weight of 'positive' must be a finite number above 0; seen: inf."),
        ("{yes: 2}", "True is not a label's name"),
    ],
)
def test_validate_refuses_other_class_weights_with_one_message(weights, message, tmp_path):
    with pytest.raises(RecipeError) as caught:
        validated(tmp_path, weights)
    said = str(caught.value)
    assert "1 mistake in the recipe" in said and f"task.class_weights: {message}" in said


def test_class_weights_reach_the_loss_of_a_run(long_texts, tmp_path):
    losses = []
    for name, weights in (("plain", "none"), ("weighted", {"a": 3, "b": 3})):
        run = execute(recipe_of(long_texts, class_weights=weights), tmp_path / name)
        history = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
        losses.append(next(entry["loss"] for entry in history if "loss" in entry))
    assert losses[1] == pytest.approx(3 * losses[0], rel=1e-3)


def test_class_weights_survive_a_run_and_its_resumption(long_texts, tmp_path):
    run = execute(recipe_of(long_texts, class_weights={"a": 3}), tmp_path / "run")
    assert yaml.safe_load((run.path / "recipe.yaml").read_text())["task"]["class_weights"] == {"a": 3.0}
    assert execute(recipe_of(long_texts, class_weights={"a": 3}), run.path, resume=True).finished
    with pytest.raises(RunError, match="class_weights"):
        execute(recipe_of(long_texts, class_weights="balanced"), run.path, resume=True)


def test_training_says_what_it_reads_unless_it_is_quiet(long_texts, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv(QUIET, "")
    caplog.set_level("INFO", logger="limbeck")
    texts = [" ".join(order) for order in itertools.islice(itertools.permutations(f"w{i}" for i in range(10)), 195)]
    write_csv(tmp_path / "train.csv", [(text, "ab"[i % 2]) for i, text in enumerate(texts + texts[:5])])
    words = ["finetune", "table", f"task.train={tmp_path / 'train.csv'}", "task.text=text", "task.label=label"]
    words += ["--model", str(long_texts / "model"), "student.head=fresh", "train.max_steps=1", "-o"]
    run([*words, str(tmp_path / "loud")])
    said = [message for message in caplog.messages if message.startswith(("table: ", "Tokens: ", "Labels: ", "Worth"))]
    assert said[0] == "table: 180 train, 20 validation rows."
    assert said[1].startswith("Tokens: median 12, 95% 12, longest ") and said[2].startswith("Labels: b 91 (50.6%)")
    assert "training rows repeat the text of another" in said[3] and len(said) == 4
    caplog.clear()
    run(["--quiet", *words, str(tmp_path / "quiet")])
    assert [message for message in caplog.messages if "were cut" not in message] == []


def test_stages_on_the_same_data_show_it_once(long_texts, tmp_path, caplog):
    teacher = execute(recipe_of(long_texts), tmp_path / "teacher")
    values = {"task": {"name": "table", "train": str(long_texts / "train.csv"), "text": "text", "label": "label"}}
    values |= {
        "teacher": {"model": str(teacher.path), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:1"},
    }
    values |= {"method": {"name": "tinybert"}, "train": {"max_steps": 1, "batch_size": 4}}
    caplog.clear()  # a test before this one may have left the level of the command line
    with caplog.at_level("INFO", logger="limbeck"):
        run = execute(load_recipe(values=values), tmp_path / "run")
    assert sum(message.startswith("table: ") for message in caplog.messages) == 1
    written = yaml.safe_load((run.path / "recipe.yaml").read_text())
    assert [stage["task"]["max_length"] for stage in written["stages"]] == ["auto", 16]
    first = yaml.safe_load((run.path / "stage-1" / "recipe.yaml").read_text())
    assert first["task"]["max_length"] == 16

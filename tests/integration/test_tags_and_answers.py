"""Go from files to tags and answers on tiny models: train, distil with and without a cache, predict."""

from __future__ import annotations

import csv
import json
import random
import shutil
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.saved_runs import read_json
from helpers.tiny_models import tiny_model
from helpers.tiny_recipes import recipe_values, tiny_recipe
from helpers.tiny_tables import WORDS
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification, AutoTokenizer

from limbeck import execute, load_recipe
from limbeck.distillation.pair import Pair
from limbeck.methods import find_method
from limbeck.metrics import answer_scores, entity_scores
from limbeck.models.features import Features
from limbeck.tasks import load_task
from limbeck.tasks.encode import Collator
from limbeck.training import cache_policy as caching

ANIMALS = {"cat", "dog", "bird", "fish"}
SIZES = {"big", "small"}
OTHERS = [word for word in WORDS if word not in ANIMALS | SIZES]
TINY = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 64, "max_position_embeddings": 64}
TRAIN = {"batch_size": 16, "learning_rate": 5e-3, "eval_strategy": "no", "save_strategy": "no", "logging_steps": 1}
TASKS = ["tokens", "squad/1.1", "squad/2.0"]


def text_of(chance, length, animal=True):
    """Draw words with one animal among them, if any: (words, its first word, the word after its last)."""
    words = [chance.choice(OTHERS) for _ in range(length)]
    if not animal:
        return words, 0, 0
    place = chance.randrange(length)
    name = [chance.choice(sorted(ANIMALS))]
    name = [chance.choice(sorted(SIZES)), *name] if chance.random() < 0.5 else name
    words[place : place + 1] = name
    return words, place, place + len(name)


def conll(count, seed):
    chance, lines = random.Random(seed), []
    for _ in range(count):
        words, start, stop = text_of(chance, chance.randint(3, 12))
        for place, word in enumerate(words):
            tag = "O" if not start <= place < stop else "B-animal" if place == start else "I-animal"
            lines.append(f"{word}\t{tag}\n")
        lines.append("\n")
    return "".join(lines)


def squad(count, seed, version):
    chance, paragraphs = random.Random(seed), []
    for number in range(count):
        there = version == "1.1" or number % 3 > 0
        words, start, stop = text_of(chance, chance.choice([4, 8, 40]), there)
        answers = [{"text": " ".join(words[start:stop]), "answer_start": len(" ".join([*words[:start], ""]))}]
        question = {"id": f"{seed}-{number}", "question": "the old sad", "answers": answers if there else []}
        question |= {"is_impossible": not there} if version == "2.0" else {}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    return {"version": version, "data": [{"title": "animals", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for stem, seed, count in (("train", 0, 120), ("dev", 1, 30)):
        (folder / f"{stem}.conll").write_text(conll(count, seed))
        for version in ("1.1", "2.0"):
            (folder / f"{stem}-v{version}.json").write_text(json.dumps(squad(count, seed, version)))
    return folder


def options(files, name):
    if name == "tokens":
        return {"train": str(files / "train.conll"), "validation": str(files / "dev.conll")}
    return {"data_dir": str(files), "stride": 8}


def block(files, name):
    return {"name": name, "max_length": 32} | options(files, name)


@pytest.fixture(scope="module")
def teachers(files, tokenizer_folder, tmp_path_factory):
    """Train a model for each task."""
    runs, made = tmp_path_factory.mktemp("teachers"), {}

    def make(name):
        if name not in made:
            student = {"config": TINY, "tokenizer": str(tokenizer_folder)}
            values = {"task": block(files, name), "student": student, "method": {"name": "ft"}}
            made[name] = execute(
                load_recipe(values=values | {"train": TRAIN | {"epochs": 12}}), runs / name.replace("/", "-")
            )
        return made[name]

    return make


def distil(files, teacher, name, method, folder, cache="off", **train):
    train = TRAIN | {"epochs": 2} | train
    values = recipe_values(block(files, name), teacher.path, method, keep="first:1", train=train)
    values["teacher"]["cache"] = str(cache)
    return execute(load_recipe(values=values), folder)


@pytest.mark.parametrize(("name", "metric"), [("tokens", "accuracy"), ("squad/2.0", "micro_f1")])
def test_layers_are_compared_by_single_tokens(files, teachers, tmp_path, name, metric):
    values = recipe_values(block(files, name), teachers(name).path, keep="best:1", train=TRAIN | {"max_steps": 1})
    run = execute(load_recipe(values=values), tmp_path / "run")
    found = read_json(run.path / "layers.json")
    assert found["metric"] == metric and found["chosen"] in ([1], [2])
    assert all(0 < candidate["score"] <= 1 for candidate in found["candidates"])


@pytest.mark.parametrize(("name", "least"), [("tokens", 0.95), ("squad/1.1", 0.8), ("squad/2.0", 0.8)])
def test_a_tiny_model_learns(teachers, name, least):
    """Learn what can be read off single words, for which labels, decoding and scores must fit together."""
    metrics = teachers(name).metrics()
    assert metrics["score"] > least
    assert metrics["examples"] == 30  # questions, not windows
    if name == "squad/2.0":
        assert metrics["metrics"]["has_answer_f1"] > 0.7 and metrics["metrics"]["no_answer_f1"] > 0.7
        assert metrics["metrics"]["best_f1"] >= metrics["score"]


def losses(run):
    lines = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def methods_and_tasks():
    """Give one method on every task and every method on one task to the usual run; the others are slow."""
    for method, name in product(("kd", "fcd", "ics"), TASKS):
        marks = () if method == "kd" or name == "tokens" else pytest.mark.slow
        yield pytest.param(method, name, id=f"{method}-{name}", marks=marks)


@pytest.mark.parametrize(("method", "name"), list(methods_and_tasks()))
def test_a_cached_teacher_teaches_the_same(files, teachers, name, method, tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "_FLOPS", {"cpu": 1.0, "cuda": 1.0})  # so that a cache always pays
    folder = tmp_path / "cache"
    live = distil(files, teachers(name), name, method, tmp_path / "off")
    curve = losses(live)
    assert len(curve) >= 16 and np.isfinite(curve).all()
    for number, cache in enumerate(["auto", folder, folder]):
        run = distil(files, teachers(name), name, method, tmp_path / str(number), cache)
        assert losses(run) == pytest.approx(curve, rel=2e-3)
        assert run.metrics()["teacher"]["metrics"] == pytest.approx(live.metrics()["teacher"]["metrics"])
        assert not (run.path / "teacher-cache").exists()
    assert any(folder.rglob("*.safetensors"))
    teacher = live.metrics()["teacher"]
    assert teacher["metrics"] == pytest.approx(teachers(name).metrics()["metrics"])
    assert 0.0 <= teacher["agreement"] <= 1.0


@pytest.mark.parametrize("name", TASKS)
def test_predictions_are_saved_for_each_example(files, teachers, name):
    run, task = teachers(name), load_task(name, **options(files, name))
    saved = pq.read_table(run.path / "predictions.parquet").to_pydict()
    dev, scores = task.split("validation"), run.metrics()["metrics"]
    if name == "tokens":
        assert saved["id"] == dev["id"][:] and saved["label"] == dev["label"][:]
        assert [len(row) for row in saved["prediction"]] == [len(row) for row in dev["words"]]
        named = [[[task.label_names[tag] for tag in row] for row in saved[side]] for side in ("prediction", "label")]
        assert entity_scores(*named)["entity_f1"] == pytest.approx(scores["entity_f1"])
        return
    assert saved["id"] == dev["question_id"][:] and saved["label"] == dev["answers"][:]
    assert all(text in context for text, context in zip(saved["prediction"], dev["context"], strict=True))
    rated = [
        answer_scores(*pair, name == "squad/2.0") for pair in zip(saved["prediction"], saved["label"], strict=True)
    ]
    assert [exact for exact, _ in rated] == saved["exact_match"] and [f1 for _, f1 in rated] == saved["f1"]
    assert np.mean(saved["f1"]) == pytest.approx(scores["f1"])
    if name == "squad/2.0":
        none = [null > best for null, best in zip(saved["null_score"], saved["score"], strict=True)]
        assert none == [not text for text in saved["prediction"]]
        assert any(none) and not all(none)


# The command line


def words_of(files, name):
    return [f"task.{key}={value}" for key, value in options(files, name).items()]


@pytest.mark.parametrize("name", TASKS)
def test_from_the_command_line(files, command, name, tmp_path, tokenizer_folder, tokenizer):
    shared = [*words_of(files, name), "--batch-size", 16, "train.max_steps=2"]
    student = f"student={{config: {json.dumps(TINY)}, tokenizer: {tokenizer_folder}}}"
    code, said = command("finetune", name, *shared, student, "-o", "teacher")
    assert code == 0 and "task.max_length" in said
    chosen = load_recipe(tmp_path / "teacher" / "recipe.yaml").task.max_length
    assert chosen == (16 if name == "tokens" else 64)  # what the data need, or what the model can read
    pair = ["--teacher", "teacher", "--keep", "first:1", "--method", "kd"]
    code, said = command("distill", "--task", name, *shared, *pair, "-o", "run")
    main_metric = "entity_f1" if name == "tokens" else "f1"
    assert code == 0 and main_metric in said and "agreement with teacher" in said
    metrics = read_json(tmp_path / "run" / "metrics.json")
    for evaluated in (
        command("evaluate", "run"),
        command("evaluate", "run/student", "--task", name, *words_of(files, name), f"task.max_length={chosen}"),
    ):
        assert evaluated[0] == 0 and "(30 examples)" in evaluated[1]
        for metric, value in metrics["metrics"].items():
            assert f"{metric} {100 * value:.2f}" in evaluated[1]
    loader = AutoModelForTokenClassification if name == "tokens" else AutoModelForQuestionAnswering
    model = loader.from_pretrained(tmp_path / "run" / "student")
    assert len(model.bert.encoder.layer) == 1
    if name == "tokens":
        assert list(model.config.id2label.values()) == ["O", "B-animal", "I-animal"]


def test_predicting_tags(files, teachers, command, tmp_path):
    texts = ["the big cat sees", "a dog", "never   here"]
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    run = teachers("tokens").path
    assert command("predict", run, "texts.csv", "--text", "text", "-o", "tags.csv")[0] == 0
    with (tmp_path / "tags.csv").open() as file:
        rows = [row["prediction"] for row in csv.DictReader(file)]
    assert rows == ["O B-animal I-animal O", "O B-animal", "O O"]
    assert "--text" in command("predict", run, "texts.csv", "-o", "more.csv")[1]
    code, said = command("predict", run, "texts.csv", "--text", "id", "--text", "text", "-o", "more.csv")
    assert code == 1 and "2 columns were named" in said


@pytest.mark.parametrize("name", TASKS[1:])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predicting_answers(files, teachers, command, name, ending, tmp_path):
    """Expect the same answers as in the run, from a file without labels."""
    run = teachers(name)
    dev = load_task(name, **options(files, name)).split("validation")
    with (tmp_path / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "context"), *zip(dev["question"], dev["context"], strict=True)])
    code, said = command("predict", run.path, "questions.csv", "-o", f"out.{ending}")
    assert code == 0 and "30 predictions" in said
    if ending == "csv":
        with (tmp_path / "out.csv").open() as file:
            answers = [row["prediction"] for row in csv.DictReader(file)]
    elif ending == "jsonl":
        answers = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    else:
        answers = pq.read_table(tmp_path / "out.parquet").to_pydict()["prediction"]
    assert answers == pq.read_table(run.path / "predictions.parquet").to_pydict()["prediction"]


def test_predictions_use_the_decoding_of_the_run(files, teachers, command, tmp_path):
    """Change its longest answer, one of the settings that a prediction must share with it."""
    run = tmp_path / "copy"
    shutil.copytree(teachers("squad/1.1").path, run)
    recipe = (run / "recipe.yaml").read_text()
    assert "max_answer: 30" in recipe
    (run / "recipe.yaml").write_text(recipe.replace("max_answer: 30", "max_answer: 1"))
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "the old sad", "context": "a big cat sees here"}) + "\n")
    for source, words in ((teachers("squad/1.1").path, 2), (run, 1)):
        assert command("predict", source, "q.jsonl", "-o", f"{words}.jsonl")[0] == 0
        assert len(json.loads((tmp_path / f"{words}.jsonl").read_text())["prediction"].split()) == words


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("tokens", {"train.conll": None}, "train.conll does not exist"),
        ("tokens", {"train.conll": ""}, "has no sentences"),
        ("tokens", {"train.conll": "cat\tB-animal\ndog\n"}, "line 2: 1 columns were found"),
        ("tokens", {"train.conll": "cat\tB-animal\nthe\tO\ndo"}, "looks cut off"),
        ("tokens", {"dev.conll": "cat\tB-anmial\n"}, "Did you mean 'B-animal'?"),
        ("squad/1.1", {"dev-v1.1.json": None}, "dev-v1.1.json does not exist"),
        ("squad/1.1", {"train-v1.1.json": '{"data": [{"par'}, "is not whole JSON"),
        ("squad/1.1", {"train-v1.1.json": '{"rows": []}'}, "is not in SQuAD's format"),
        ("squad/2.0", {"train-v2.0.json": '{"data": []}'}, "has no questions"),
        (
            "squad/1.1",
            {"train-v1.1.json": json.dumps(squad(3, 0, "1.1")).replace('"answer_start": ', '"answer_start": 9')},
            "but the context has",
        ),
    ],
)
def test_bad_files_stop_everything(files, command, teachers, tokenizer_folder, tmp_path, name, broken, message):
    folder = tmp_path / "data"
    shutil.copytree(files, folder)
    for file, content in broken.items():
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    task, teacher = words_of(folder, name), teachers(name).path
    student = f"student={{config: {json.dumps(TINY)}, tokenizer: {tokenizer_folder}}}"
    for words in (
        ["finetune", name, student, "-o", "run"],
        ["distill", "--task", name, "--teacher", teacher, "--keep", "first:1", "--method", "kd", "-o", "run"],
        ["evaluate", teacher],
    ):
        code, said = command(*words, *task)
        assert code == 1 and message in said and said.count("Error:") == 1
        assert sorted(tmp_path.rglob("*")) == before


def test_options_that_make_no_sense(files, command, tokenizer_folder):
    student = f"student={{config: {json.dumps(TINY)}, tokenizer: {tokenizer_folder}}}"
    for name, option, message in (
        ("squad/1.1", "task.stride=0", "task.stride"),
        ("squad/1.1", "task.n_best=0", "task.n_best"),
        ("squad/1.1", "task.threshold=1", "Unknown key 'threshold'"),
        ("squad/2.0", "task.threshold=high", "task.threshold"),
        ("squad/1.1", "task.max_length=15", "at least 16"),
        ("squad/1.1", "task.max_length=100", "reads at most 64"),
        ("tokens", "task.tagz=x", "Unknown key 'tagz'"),
    ):
        code, said = command("finetune", name, *words_of(files, name), option, student, "-o", "run")
        assert code == 1 and message in said


# Models


@pytest.mark.parametrize("name", TASKS)
def test_a_checkpoint_of_another_task_can_be_fine_tuned(files, tmp_path, tokenizer, name):
    """Make a new head: its own had three classes of texts."""
    tiny_model("bert", num_labels=3).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    values = {"task": block(files, name), "student": {"model": str(tmp_path / "other")}, "method": {"name": "ft"}}
    run = execute(load_recipe(values=values | {"train": TRAIN | {"max_steps": 1}}), tmp_path / "run")
    assert 0.0 <= run.metrics()["score"] <= 1.0
    config = read_json(run.student / "config.json")
    if name == "tokens":
        assert list(config["id2label"].values()) == ["O", "B-animal", "I-animal"]
    again = tiny_recipe(block(files, name), run.path, keep="first:1", train=TRAIN | {"max_steps": 1})
    assert execute(again, tmp_path / "again").finished


@pytest.mark.parametrize("name", TASKS)
def test_a_teacher_of_another_task_is_refused(files, command, teachers, tmp_path, tokenizer, name):
    # as many classes of texts as there are tags, in a head whose weights have the same names
    tiny_model("bert", num_labels=3).save_pretrained(tmp_path / "texts")
    tokenizer.save_pretrained(tmp_path / "texts")
    keep = ["--keep", "first:1", "--method", "kd", "-o", "run"]
    code, said = command("distill", "--task", name, *words_of(files, name), "--teacher", "texts", *keep)
    kind = "token classification" if name == "tokens" else "question answering"
    assert code == 1 and f"no trained {kind} head" in said
    other = teachers("squad/1.1" if name == "tokens" else "tokens").path
    code, said = command("distill", "--task", name, *words_of(files, name), "--teacher", other, *keep)
    assert code == 1 and ("head" in said or "labels" in said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("method", ["ft", "kd", "ics"])
def test_padding_changes_no_loss(files, teachers, tokenizer_folder, name, method, side):
    """Return the terms of an objective on random outputs, the same whatever the width and side of the padding."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, padding_side=side)
    task = load_task(name, **options(files, name))
    rows = task.encode("train", tokenizer, 32).select(range(6))
    loader = AutoModelForTokenClassification if name == "tokens" else AutoModelForQuestionAnswering
    model = loader.from_pretrained(teachers(name).student)
    objective = find_method(method)(Pair.of(model, model, task.problem))
    width = model.config.hidden_size

    def random_features(batch, seed):
        """Give each real token its own numbers, and padding others."""
        generator = torch.Generator().manual_seed(seed)
        mask = batch["attention_mask"].bool()
        noise = torch.Generator().manual_seed(len(mask[0]))
        outputs = []
        for size in (model.config.num_labels, width):
            values = torch.randn(*mask.shape, size, generator=noise) * 50
            values[mask] = torch.randn(int(mask.sum()), size, generator=generator)
            outputs.append(values)
        return Features(mask, outputs[0], hidden={layer: outputs[1] for layer in range(3)})

    results = []
    for pad_to in (None, 32, 48):
        batch = Collator(tokenizer, pad_to, task.problem)([rows[i] for i in range(6)])
        values = objective(random_features(batch, 0), random_features(batch, 1), batch)
        results.append(float(objective.total(values)))
    assert results[1:] == pytest.approx(results[:1] * 2, rel=1e-5)


def test_a_batch_in_which_nothing_is_decided_has_no_loss(tokenizer):
    """Tag a sentence of characters that the vocabulary drops."""
    model = tiny_model("bert", num_labels=3)
    batch = Collator(tokenizer, problem="tokens")(
        [{"input_ids": [2, 3], "attention_mask": [1, 1], "labels": [-100] * 2}]
    )
    features = Features(batch["attention_mask"].bool(), torch.randn(1, 2, 3, requires_grad=True))
    values = find_method("ft")(Pair.of(model, None, "tokens"))(features, features, batch)
    assert values["task"].item() == 0.0

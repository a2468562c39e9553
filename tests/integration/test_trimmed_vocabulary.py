"""Train, resume, read and export runs whose vocabulary is trimmed to their training texts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
import yaml
from helpers.saved_runs import read_json, student_weights
from helpers.tiny_models import VOCAB, tiny_model
from helpers.tiny_recipes import distill_words, recipe_values, table_task, table_words, tiny_recipe
from helpers.tiny_tables import WORDS, sentences, write_csv
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from limbeck import evaluate, execute, load_recipe
from limbeck.deploy.export import export
from limbeck.errors import ExportError, ModelError, RecipeError, RunError
from limbeck.inference.served import load_served
from limbeck.training.assemble import assemble

pytestmark = pytest.mark.usefixtures("quick_collection")

LEFT_OUT = {"bird", "quick", "often", "dark", "sees"}  # words that no training text holds
TRIMMED = {"from": "teacher", "keep": "first:2", "head": "kept", "vocabulary": "trimmed"}


def without(rows):
    """Take the words that are left out away from the texts; there is always one left."""
    kept = [(" ".join(word for word in text.split() if word not in LEFT_OUT), label) for text, label in rows]
    return [(text or "the", label) for text, label in kept]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few-words")
    return (
        write_csv(folder / "train.csv", without(sentences(96))),
        write_csv(folder / "dev.csv", sentences(40, seed=1)),
    )


@pytest.fixture(scope="module")
def run(files, teacher_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "trimmed"
    execute(tiny_recipe(files, teacher_folder, student=TRIMMED), folder)
    return folder


def test_a_run_knows_what_was_kept(run, files, teacher_folder):
    whole, ours = AutoTokenizer.from_pretrained(teacher_folder), AutoTokenizer.from_pretrained(run / "student")
    assert set(whole.get_vocab()) - set(ours.get_vocab()) == LEFT_OUT
    assert yaml.safe_load((run / "recipe.yaml").read_text())["student"]["vocabulary"] == "trimmed"
    found = read_json(run / "metrics.json")
    texts = [text for text, _ in sentences(40, seed=1)]
    words = [word for text in texts for word in text.split()]
    lost = sum(word in LEFT_OUT for word in words) / len(words)
    expected = {"kept": len(ours), "of": len(whole), "unseen_validation": pytest.approx(lost)}
    assert found["vocabulary"] == expected
    model = AutoModelForSequenceClassification.from_pretrained(run / "student")
    assert model.get_input_embeddings().num_embeddings == len(ours)
    assert found["parameters"] == model.num_parameters()
    # the teacher as its files hold it, not the copy that the run worked with
    teacher = AutoModelForSequenceClassification.from_pretrained(teacher_folder)
    assert found["teacher"]["parameters"] == teacher.num_parameters()


def test_training_is_that_of_the_whole_vocabulary(run, files, teacher_folder, tmp_path):
    execute(tiny_recipe(files, teacher_folder), tmp_path / "whole")
    ours, theirs = student_weights(run), student_weights(tmp_path / "whole")
    name = "bert.embeddings.word_embeddings.weight"
    sides = [AutoTokenizer.from_pretrained(folder / "student") for folder in (tmp_path / "whole", run)]
    old = [sides[0].get_vocab()[piece] for piece in sorted(sides[1].get_vocab(), key=sides[1].get_vocab().get)]
    assert ours.keys() == theirs.keys()
    for key, weight in ours.items():
        # the same steps; the norm of all gradients is summed over fewer zeros
        torch.testing.assert_close(weight, theirs[key][old] if key == name else theirs[key], rtol=1e-5, atol=1e-7)


def test_both_models_read_the_training_texts_as_before(files, teacher_folder):
    parts, whole = (
        assemble(tiny_recipe(files, teacher_folder, student=student))
        for student in (TRIMMED, {"from": "teacher", "keep": "first:2"})
    )
    texts = [text for text, _ in without(sentences(96))]
    for ours, theirs in ((parts.student, whole.student), (parts.teacher, whole.teacher)):
        batches = [side.tokenizer(texts, padding=True, return_tensors="pt") for side in (parts, whole)]
        with torch.no_grad():
            assert torch.equal(ours.eval()(**batches[0]).logits, theirs.eval()(**batches[1]).logits)
    assert parts.teacher_digest() == whole.teacher_digest()


def test_everything_that_reads_a_run(run, files, teacher_folder, tmp_path, command):
    folder = shutil.copytree(run, tmp_path / "run")
    score = f"{100 * read_json(folder / 'metrics.json')['score']:.2f}"
    for words in (("evaluate", "run"), ("evaluate", folder / "student", *table_words(files)), ("compare", "run")):
        code, said = command(*words)
        assert code == 0 and score in said, said
    assert command("predict", "run", files[1], "-o", "p.csv")[0] == 0
    assert command("bench", "run", "--seconds", 1, "--no-memory", "--length", 8, "--batch-size", 1)[0] == 0
    code, said = command("analyze", "run")
    assert code == 0, said
    cost = next(read_json(path) for path in folder.rglob("*.json") if "teacher_parameters" in path.read_text())
    assert str(read_json(folder / "metrics.json")["teacher"]["parameters"]) in json.dumps(cost)
    for form in ("hf", "onnx"):
        code, said = command("export", "run", "--to", form, "-o", form, "--max-drop", 0.1)
        assert code == 0, said
        assert evaluate(tmp_path / form, task="table", overrides=task_words(files)).metrics
        card = (tmp_path / form / "README.md").read_text()
        kept = read_json(folder / "metrics.json")["vocabulary"]
        assert f"Vocabulary: {kept['kept']:,} of {kept['of']:,} pieces" in card


def task_words(files):
    return [f"task.{key}={value}" for key, value in table_task(files).items() if key != "name"]


def test_resumed_it_ends_the_same(files, teacher_folder, tmp_path, command):
    words = ["student.vocabulary=trimmed", "--method", "kd", "train.max_steps=4", "train.save_steps=2"]
    words += ["train.save_strategy=steps", "train.save_total_limit=3"]
    job = distill_words(files, teacher_folder, *words)
    code, said = command("distill", *job, "-o", "whole")
    assert code == 0 and "pieces are kept" in said and "Give texts like them" in said, said
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "metrics.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "student")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "checkpoint-4")
    code, said = command("distill", *job, "-o", "cut", "--resume")
    assert code == 0 and "Resuming from" in said, said
    ours, theirs = student_weights(tmp_path / "cut"), student_weights(tmp_path / "whole")
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    code, said = command("distill", *job, "-o", "cut", "--resume")
    assert code == 0 and "finished already" in said, said


def test_further_texts_and_their_change(files, teacher_folder, tmp_path):
    more = tmp_path / "more.txt"
    more.write_text("a bird\nquick, quick\n")
    recipe = tiny_recipe(files, teacher_folder, student=TRIMMED | {"vocabulary_texts": str(more)})
    execute(recipe, tmp_path / "run")
    kept = AutoTokenizer.from_pretrained(tmp_path / "run" / "student").get_vocab()
    assert LEFT_OUT - set(kept) == {"often", "dark", "sees"}
    more.write_text("often\n")
    (tmp_path / "run" / "metrics.json").unlink()
    with pytest.raises(RunError, match="the pieces that a trimmed vocabulary keeps"):
        execute(recipe, tmp_path / "run", resume=True)


def test_stages_share_the_pieces_of_all_their_texts(files, teacher_folder, tokenizer, tmp_path):
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_model("bert", depth=4).config).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    (tmp_path / "texts.txt").write_text("".join(f"the bird number {'and ' * n}\n" for n in range(30)))
    text = {"name": "text", "train": str(tmp_path / "texts.txt"), "max_length": 8}
    teacher = {"model": str(teacher_folder), "confirmed": True}
    values = {
        "student": TRIMMED,
        "train": {"max_steps": 2, "batch_size": 8},
        "stages": [
            {"task": text, "teacher": {"model": str(tmp_path / "lm")}, "method": {"name": "distilbert"}},
            {"task": table_task(files), "teacher": teacher, "method": {"name": "kd"}},
        ],
    }
    run = tmp_path / "run"
    execute(load_recipe(values=values), run)
    first, last = (AutoTokenizer.from_pretrained(folder / "student") for folder in (run / "stage-1", run))
    assert first.get_vocab() == last.get_vocab()
    assert LEFT_OUT - set(last.get_vocab()) == LEFT_OUT - {"bird"}
    assert read_json(run / "metrics.json")["vocabulary"]["of"] == len(tokenizer)
    (run / "metrics.json").unlink()
    shutil.rmtree(run / "student")
    execute(load_recipe(values=values), run, resume=True)
    assert (run / "metrics.json").is_file()


def test_a_trimmed_student_goes_on_with_a_whole_teacher(run, files, teacher_folder, tmp_path, caplog):
    recipe = load_recipe(values=recipe_values(files, teacher_folder, student={"model": str(run)}))
    execute(recipe, tmp_path / "again")
    sides = [AutoTokenizer.from_pretrained(folder / "student").get_vocab() for folder in (run, tmp_path / "again")]
    assert sides[0] == sides[1]
    parts = assemble(recipe)
    assert parts.teacher.config.vocab_size == len(sides[0]) < parts.trimming.whole.vocab_size


def test_finetune_trims_the_model_itself(files, teacher_folder, tmp_path, command):
    words = ["table", *task_words(files), "--model", teacher_folder, "student.vocabulary=trimmed", "train.max_steps=2"]
    code, said = command("finetune", *words, "-o", "run")
    assert code == 0, said
    assert not LEFT_OUT & set(AutoTokenizer.from_pretrained(tmp_path / "run" / "student").get_vocab())
    # and a student of it has its vocabulary
    execute(tiny_recipe(files, tmp_path / "run"), tmp_path / "student")


def test_a_study_trims_every_run_in_the_same_way(files, teacher_folder, tmp_path, command):
    task = {f"task.{key}": value for key, value in table_task(files).items() if key != "name"}
    study = {"tasks": {"table": task}, "teacher": {"model": str(teacher_folder), "confirmed": True}, "student": TRIMMED}
    study |= {"methods": ["kd", "minilmv2"], "seeds": [0, 1], "train": {"max_steps": 2, "batch_size": 16}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    code, said = command("study", "study.yaml", "-o", "out")
    assert code == 0, said
    found = [read_json(path)["vocabulary"] for path in (tmp_path / "out" / "runs").rglob("metrics.json")]
    assert len(found) == 4 and all(one["of"] - one["kept"] == len(LEFT_OUT) for one in found)


def test_a_cache_is_of_one_vocabulary(files, teacher_folder, tmp_path, command):
    job = distill_words(files, teacher_folder, "--method", "kd", "teacher.cache=kept", "train.max_steps=2")
    assert command("distill", *job, "student.vocabulary=trimmed", "-o", "a")[0] == 0
    assert command("distill", *job, "student.vocabulary=trimmed", "seed=1", "-o", "b")[0] == 0
    code, said = command("distill", *job, "-o", "c")
    assert code != 0 and "kept" in said, said


@pytest.fixture(scope="module")
def whole(files, teacher_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    execute(tiny_recipe(files, teacher_folder), folder)
    return folder


class TestExport:
    @pytest.mark.parametrize("form", ["hf", "onnx", "onnx-int8"])
    def test_any_run(self, form, whole, files, tmp_path, command):
        shutil.copytree(whole, tmp_path / "whole")
        code, said = command("export", "whole", "--to", form, "--vocabulary", "trimmed", "--max-drop", 0.2)
        assert code == 0 and "78 of 83 pieces" in said, said
        folder = tmp_path / "exports" / f"whole-{form}-trimmed"
        found = read_json(folder / "parity.json")
        texts = [text for text, _ in sentences(40, seed=1)]
        unchanged = np.mean([not LEFT_OUT & set(text.split()) for text in texts])
        assert found["vocabulary"] == {"kept": 78, "of": 83, "unchanged": pytest.approx(unchanged)}
        assert found["max_difference"] < {"hf": 1e-6, "onnx": 1e-5, "onnx-int8": 1}[form]
        served = load_served(folder)
        assert served.parameters == load_served(whole).parameters - (VOCAB - 78) * 32
        assert not LEFT_OUT & set(served.tokenizer.get_vocab())
        card = (folder / "README.md").read_text()
        assert "78 of 83 pieces" in card and "trimming its vocabulary" in card

    @pytest.mark.parametrize("form", ["hf", "onnx-int8"])
    def test_all_pieces_come_back(self, form, run, teacher_folder, tmp_path, command):
        shutil.copytree(run, tmp_path / "run")
        code, said = command("export", "run", "--to", form, "--pieces-of", teacher_folder, "-o", "out", "--max-drop", 1)
        assert code == 0, said
        served, before = load_served(tmp_path / "out"), load_served(tmp_path / "run")
        assert served.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(teacher_folder).get_vocab()
        more = read_json(teacher_folder / "config.json")["vocab_size"] - len(before.tokenizer)
        assert served.parameters == before.parameters + more * 32 > before.parameters
        answers = [
            own.logits(own.tokenizer(["the cat naps", "a dog"], padding=True, return_tensors="pt"))
            for own in (served, before)
        ]
        assert answers[0] == pytest.approx(answers[1], abs=1e-6 if form == "hf" else 0.5)
        if form == "hf":
            ids = served.tokenizer.convert_tokens_to_ids(sorted(LEFT_OUT))
            teacher = AutoModelForSequenceClassification.from_pretrained(teacher_folder)
            ours, theirs = (one.get_input_embeddings().weight[ids] for one in (served.model, teacher))
            assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("name", ["whole", "gpt2", "tokens"])
    def test_a_compact_file_is_smaller(self, name, whole, trained, tmp_path, monkeypatch):
        for tier, count in (("BYTES", 10), ("NIBBLES", 10), ("SEEN", 20)):
            monkeypatch.setattr(f"limbeck.deploy.compact.{tier}", count)
        run = whole if name == "whole" else trained(name)
        task = yaml.safe_load((run / "recipe.yaml").read_text())["task"]
        for vocabulary in ("whole", "compact"):
            export(run, "onnx-int8", tmp_path / vocabulary, task=task, vocabulary=vocabulary, max_drop=1, force=True)
        plain, compact = (load_served(tmp_path / one) for one in ("whole", "compact"))
        assert plain.parameters == compact.parameters
        batch = plain.tokenizer([["the", "cat"], ["a", "dog", "naps"]], is_split_into_words=True, padding=True)
        batch = {name: torch.tensor(ids) for name, ids in batch.items()}
        assert compact.logits(batch) == pytest.approx(plain.logits(batch), abs=0.7)
        names = [
            {one.name for one in onnx.load(tmp_path / one / "onnx" / "model_quantized.onnx").graph.initializer}
            for one in ("whole", "compact")
        ]
        assert [any("rare.codes" in one for one in own) for own in names] == [False, True]

    def test_what_cannot_be_made_compact_or_whole(self, run, tmp_path):
        with pytest.raises(RecipeError, match="is a form of onnx-int8, not of hf"):
            export(run, "hf", tmp_path / "out", vocabulary="compact")
        tiny_model("bert", vocab_size=len(LEFT_OUT)).save_pretrained(tmp_path / "stranger")
        words = {word: index for index, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", *sorted(LEFT_OUT)])}
        backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
        stranger = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
        stranger.save_pretrained(tmp_path / "stranger")
        with pytest.raises(ModelError, match="Name the model that it was trimmed from"):
            export(run, "hf", tmp_path / "out", pieces_of=tmp_path / "stranger")
        assert not (tmp_path / "out").exists()

    def test_a_worse_model_is_not_written(self, whole, tmp_path):
        few = write_csv(tmp_path / "few.csv", [("the cat", "positive"), ("a dog", "negative")])
        with pytest.raises(ExportError, match=r"Keep all pieces \(--vocabulary whole\)"):
            export(
                *(whole, "hf", tmp_path / "out"),
                overrides=[f"task.train={few}"],
                vocabulary="trimmed",
                max_drop=-1,
            )
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("name", ["gpt2", "regression", "multi_label", "tokens", "span"])
    def test_every_kind_of_task(self, name, trained, tmp_path):
        run = trained(name)
        task = yaml.safe_load((run / "recipe.yaml").read_text())["task"]
        if name == "span":
            shutil.copytree(task["data_dir"], tmp_path / "data")
            for file in (tmp_path / "data").glob("*train*"):
                text = file.read_text()
                file.write_text(text.replace("bird", "cat").replace("quick", "red"))
            change = f"task.data_dir={tmp_path / 'data'}"
        else:
            source = trained.home / task["train"]
            text = source.read_text().replace("bird", "cat").replace("quick", "red")
            (tmp_path / source.name).write_text(text)
            change = f"task.train={tmp_path / source.name}"
        done = export(*(run, "hf", tmp_path / "out"), overrides=[change], vocabulary="trimmed", max_drop=1.0)
        found = done.parity.vocabulary
        assert found is not None and found.kept < found.of and 0 < found.unchanged < 1
        assert done.parity.max_difference < 1e-5  # other texts share the batches, and are padded otherwise

    def test_unknown_words(self, whole, tmp_path):
        with pytest.raises(RecipeError, match="Did you mean 'trimmed'"):
            export(whole, "hf", tmp_path / "out", vocabulary="trimed")


class TestBadInput:
    def test_tokenizers_that_cannot_be_trimmed(self, files, tmp_path, command):
        words = Tokenizer(models.WordLevel({"<unk>": 0, **{w: n for n, w in enumerate(WORDS, 1)}}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<unk>").save_pretrained(
            tmp_path / "m"
        )
        tiny_model("bert", vocab_size=len(WORDS) + 1).save_pretrained(tmp_path / "m")
        code, said = command(
            "finetune", "table", *task_words(files), "--model", "m", "student.vocabulary=trimmed", "-o", "run"
        )
        assert code == 1 and "its kind is WordLevel" in said and "Leave the vocabulary whole" in said
        assert not (tmp_path / "run").exists()

    def test_recipes(self, files, teacher_folder, tmp_path):
        for student, seen in (
            ({"vocabulary": "small"}, "'whole' or 'trimmed'"),
            ({"vocabulary": "whole", "vocabulary_texts": "x.txt"}, "set vocabulary: trimmed too"),
        ):
            with pytest.raises(RecipeError, match=seen):
                tiny_recipe(files, teacher_folder, student=TRIMMED | student)
        recipe = tiny_recipe(files, teacher_folder, student=TRIMMED | {"vocabulary_texts": str(tmp_path / "no.txt")})
        with pytest.raises(Exception, match=r"no\.txt does not exist"):
            execute(recipe, tmp_path / "run")

    def test_other_vocabularies_are_still_refused(self, run, files, tmp_path, tokenizer):
        tokenizer = AutoTokenizer.from_pretrained(run / "student")
        tiny_model("bert", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "other")
        tokenizer.add_tokens(["<x>"])
        tokenizer.save_pretrained(tmp_path / "other")
        recipe = tiny_recipe(files, run, student={"model": str(tmp_path / "other")})
        with pytest.raises(ModelError, match="different tokenizers"):
            assemble(recipe)

"""Get wrong what a user can: one clear message, a non-zero exit, no traceback, nothing overwritten."""

from __future__ import annotations

import os
import sys

import pytest
from helpers.tiny_models import tiny_model
from helpers.tiny_tables import sentences, write_csv
from transformers import AutoTokenizer

from limbeck.cli.main import main
from limbeck.models.vocabulary import make_wordpiece


@pytest.fixture()
def fails(capsys, monkeypatch, tmp_path):
    """Run the command in this process; it must fail with one message, which is returned, and write nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        before = snapshot(tmp_path)
        monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code not in (0, None)
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert snapshot(tmp_path) == before
        return " ".join(err.replace("│", " ").split())

    return run


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)}


@pytest.fixture()
def distil(fails, table_files, teacher_folder):
    def run(*more, train=table_files[0], dev=table_files[1], teacher=teacher_folder):
        task = [f"task.train={train}", f"task.validation={dev}", "task.text=text", "task.label=label"]
        settings = ["--keep", "first:2", "--method", "kd", "-o", "run", "task.max_length=16", "train.max_steps=1"]
        return fails("distill", "--task", "table", *task, "--teacher", teacher, *settings, *more)

    return run


def test_missing_file(distil, tmp_path, table_files):
    (tmp_path / "trian.csv").write_text("text,label\n")
    assert "train.csv does not exist. Did you mean 'trian.csv'?" in distil(train=tmp_path / "train.csv")


def test_missing_column(distil):
    assert "has no column 'sentence'. Its columns are 'text', 'label'" in distil("task.text=sentence")


def test_label_never_seen_in_training(distil, tmp_path):
    dev = write_csv(tmp_path / "dev.csv", [*sentences(5), ("a new one", "neutral")])
    message = distil(dev=dev)
    assert "neutral" in message and "line 7" in message


def test_empty_text(distil, tmp_path):
    train = write_csv(tmp_path / "train.csv", [*sentences(8), ("", "positive")])
    message = distil(train=train)
    assert "empty" in message and "line 10" in message


def test_text_longer_than_the_limit(distil, tmp_path):
    train = write_csv(tmp_path / "train.csv", [*sentences(8), ("cat " * 40, "positive")])
    assert "tokens, more than the 16 allowed" in distil("task.too_long=refuse", train=train)


def test_a_length_that_the_model_cannot_read(distil):
    assert "task.max_length is 600, but this bert model reads at most 512 tokens" in distil("task.max_length=600")


def test_a_truncated_last_line(fails, tmp_path, teacher_folder):
    folder = tmp_path / "glue" / "RTE"
    folder.mkdir(parents=True)
    good = "index\tsentence1\tsentence2\tlabel\n0\ta cat\ta dog\tentailment\n1\ta bird\ta fish\tnot_entailment\n"
    (folder / "train.tsv").write_text(good + "2\tThe last row sto")
    (folder / "dev.tsv").write_text(good)
    message = fails(
        "distill", "--task", "glue/rte", "--data-dir", "glue", "--teacher", teacher_folder, "--method", "kd"
    )
    assert "train.tsv, line 4: the file looks cut off in its last line" in message


def test_several_mistakes_in_one_recipe(fails, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "task: {name: glue/rte, max_lenght: 64}\nstudent: {model: x}\nmethod: {name: kdd}\ntrain: {epochs: -1}\n"
    )
    for command in ("validate", "distill"):
        message = fails(command, "recipe.yaml")
        for part in (
            "3 mistakes",
            "line 1: task.max_lenght: Unknown key 'max_lenght'.",
            "line 3: method.name: Unknown method 'kdd'. Did you mean 'kd'? Run 'limbeck methods'.",
            "line 4: train.epochs",
        ):
            assert part in message


def test_unknown_names_get_a_suggestion(fails, distil):
    assert "Unknown method 'kdd'. Did you mean 'kd'?" in distil("--method", "kdd")
    assert "Unknown task 'glue/rtee'. Did you mean 'glue/rte'?" in fails("finetune", "glue/rtee", "--model", "x")
    assert "Unknown method 'k'" in fails("methods", "k")
    assert "Unknown recipe 'kd-rtee'. Did you mean 'kd-rte'?" in fails("distill", "kd-rtee")
    assert "No such command 'distil'" in fails("distil")
    assert "No such option: --metod" in fails("distill", "--metod", "kd")


def test_student_deeper_than_teacher(distil, fails, tmp_path, tokenizer, table_files, teacher_folder):
    assert "'first:5' asks for 5 layers, but the source has 4" in distil("student.keep=first:5")
    tiny_model("bert", depth=6).save_pretrained(tmp_path / "deep")
    tokenizer.save_pretrained(tmp_path / "deep")
    assert "student has 6 layers and its teacher 4" in distil("student={model: deep}")


def test_different_tokenizers(distil, tmp_path):
    tiny_model("bert", depth=2).save_pretrained(tmp_path / "other")
    make_wordpiece(["entirely other words zebra quartz"], tmp_path / "words", vocab_size=120)
    AutoTokenizer.from_pretrained(tmp_path / "words").save_pretrained(tmp_path / "other")
    message = distil("student={model: other}")
    assert "Student and teacher have different tokenizers" in message and "student.from=teacher" in message


def test_an_output_directory_that_holds_another_run(distil, fails, tmp_path, table_files, teacher_folder):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "run holds other files and is no run directory" in distil()
    (folder / "notes.txt").unlink()
    (folder / "recipe.yaml").write_text("seed: 7\n")
    assert "run already holds an unfinished run" in distil()
    assert "holds a run of another recipe; it differs in" in distil("--resume")
    (folder / "metrics.json").write_text("{}")
    assert "run already holds a finished run" in distil()


def test_a_teacher_that_is_not_one(distil, fails, tmp_path, tokenizer):
    assert "there is no such folder here" in distil(teacher="runs/nothing")
    tiny_model("bert").base_model.save_pretrained(tmp_path / "headless")
    tokenizer.save_pretrained(tmp_path / "headless")
    assert "headless has no trained classification head" in distil(teacher="headless")
    tiny_model("bert", num_labels=3).save_pretrained(tmp_path / "three")
    tokenizer.save_pretrained(tmp_path / "three")
    assert "three predicts 3 labels, but table has 2" in distil(teacher="three")
    labels = {"id2label": {0: "positive", 1: "negative"}, "label2id": {"positive": 0, "negative": 1}}
    tiny_model("bert", **labels).save_pretrained(tmp_path / "swapped")
    tokenizer.save_pretrained(tmp_path / "swapped")
    said = distil(teacher="swapped")
    assert "swapped numbers the labels positive, negative in this order" in said
    assert "State the model's order: 'task.labels=[positive, negative]'" in said
    (tmp_path / "empty").mkdir()
    assert "Cannot load empty" in distil(teacher="empty")


def test_weights_in_a_pickle_are_refused(distil, tmp_path, tokenizer):
    import torch

    model = tiny_model("bert")
    model.config.save_pretrained(tmp_path / "pickled")
    tokenizer.save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    assert "pickled .bin weights are not read" in distil(teacher="pickled")


def test_missing_essentials(fails, teacher_folder):
    assert "Which teacher?" in fails("distill", "--method", "kd", "--task", "glue/rte")
    assert "Which model should be fine-tuned?" in fails("finetune", "glue/rte")
    message = fails("distill", "--teacher", teacher_folder)
    assert "task.name: is required" in message and "method.name: is required" in message
    assert "exclude each other" in fails("distill", "--teacher", "t", "--student", "s", "--keep", "first:2")


def test_predict_and_evaluate(fails, teacher_folder, table_files, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    assert "out.csv exists" in fails("predict", teacher_folder, table_files[1], "--text", "text", "-o", "out.csv")
    assert "Name the text columns" in fails("predict", teacher_folder, table_files[1])
    assert "has no column 'body'" in fails("predict", teacher_folder, table_files[1], "--text", "body")
    assert "extension '.xls' is not supported" in fails(
        "predict", teacher_folder, table_files[1], "--text", "text", "-o", "out.xls"
    )
    assert "add --task" in fails("evaluate", teacher_folder)
    assert "has no split 'holdout'" in fails(
        *("evaluate", teacher_folder, "--task", "table", f"task.train={table_files[0]}"),
        *("task.text=text", "task.label=label", "--split", "holdout"),
    )


def test_a_run_that_has_not_finished_is_no_teacher(distil, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "recipe.yaml").write_text("seed: 0\n")
    assert "half is a run directory without a model" in distil(teacher="half")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_cannot_be_written(distil, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be made" in distil("-o", "locked/run")


def test_a_full_disk_gives_one_message(distil, monkeypatch):
    import errno

    import limbeck.training.session

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "run/recipe.yaml")

    monkeypatch.setattr(limbeck.training.session, "create_run", full)
    assert "No space left on device: run/recipe.yaml" in distil()


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    from limbeck.errors import RecipeError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMBECK_DEBUG", "")  # restored afterwards
    monkeypatch.setattr(sys, "argv", ["limbeck", "--debug", "validate", "nothing"])
    with pytest.raises(RecipeError):
        main()

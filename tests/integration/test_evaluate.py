"""Score all validation data, write files for official evaluations, and show GLUE in one table, on tiny models."""

from __future__ import annotations

import json
import sys
from zipfile import ZipFile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.glue_files import NLI, SCORES, write_glue
from helpers.saved_runs import read_json
from helpers.tiny_models import SIZES, VOCAB, tiny_model
from helpers.tiny_recipes import tiny_recipe
from helpers.tiny_tables import sentences
from transformers import AutoConfig, AutoModelForQuestionAnswering

from limbeck import evaluate, execute
from limbeck.cli.main import main
from limbeck.tasks import load_task

LABELS = {
    "mnli": NLI,
    "rte": ("entailment", "not_entailment"),
    "qqp": ("not_duplicate", "duplicate"),
    "stsb": ("score",),
}


@pytest.fixture()
def call(capsys, monkeypatch, tmp_path):
    """Run the command in this process and return what it prints; ``fails`` where it must end with one message."""
    monkeypatch.chdir(tmp_path)

    def run(*words, fails=False):
        monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert bool(caught.value.code) == fails, printed.out + printed.err
        return " ".join((printed.err if fails else printed.out).split())

    return run


@pytest.fixture()
def model(tmp_path, tokenizer):
    """Save a tiny model for a GLUE task whose predictions differ from text to text."""

    def make(name):
        names = LABELS[name]
        labels = {"id2label": dict(enumerate(names)), "label2id": {label: i for i, label in enumerate(names)}}
        network = tiny_model("bert", num_labels=len(names), initializer_range=0.5, **labels)
        network.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return network.eval()

    return make


def predicted(network, tokenizer, task, split):
    """Compute row by row, without limbeck's batches."""
    rows = zip(*(task.split(split)[column] for column in task.text_columns), strict=True)
    with torch.no_grad():
        return torch.cat([network(**tokenizer(*row, return_tensors="pt")).logits for row in rows]).numpy()


def table(content):
    header, *rows = content.splitlines()
    assert header == "index\tprediction"
    return [row.split("\t") for row in rows]


def test_submissions_of_several_tasks_share_a_folder(call, model, tokenizer, tmp_path):
    glue = tmp_path / "glue"
    write_glue(glue, "stsb", rows=40)
    network = model("stsb")
    options = ["task.max_length=32", "--data-dir", glue, "--split", "test", "--submission", "out"]
    shown = call("evaluate", "stsb", "--task", "glue/stsb", *options)
    assert "1 of GLUE's 11 files: STS-B.tsv" in shown and "Missing: CoLA.tsv, SST-2.tsv, MRPC.tsv, QQP.tsv" in shown
    assert "metric" not in shown  # there are no labels, so there is no table of scores
    task = load_task("glue/stsb", data_dir=str(glue))
    expected = predicted(network, tokenizer, task, "test")[:, 0].clip(0, 5)
    rows = table((tmp_path / "out" / "STS-B.tsv").read_text())
    assert [row[0] for row in rows] == [str(i) for i in range(40)]
    np.testing.assert_allclose([float(row[1]) for row in rows], expected, atol=6e-4)
    assert len({row[1] for row in rows}) > 20

    write_glue(glue, "mnli", rows=30)
    (glue / "diagnostic").mkdir()
    diagnostic = [
        f"{i}\t{a}\t{b}" for i, ((a, _), (b, _)) in enumerate(zip(sentences(5), sentences(5, 9), strict=True))
    ]
    text = "\n".join(["index\tsentence1\tsentence2", *diagnostic, ""])
    (glue / "diagnostic" / "diagnostic.tsv").write_text(text)
    network = model("mnli")
    shown = call("evaluate", "mnli", "--task", "glue/mnli", *options)
    assert "out/submission.zip holds 4 of GLUE's 11 files: STS-B.tsv, MNLI-m.tsv, MNLI-mm.tsv, AX.tsv" in shown
    task = load_task("glue/mnli", data_dir=str(glue))
    classes = set()
    for split, file in (("test", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv"), ("diagnostic", "AX.tsv")):
        names = [NLI[i] for i in predicted(network, tokenizer, task, split).argmax(-1)]
        assert table((tmp_path / "out" / file).read_text()) == [[str(i), name] for i, name in enumerate(names)]
        classes |= set(names)
    assert len(classes) > 1
    with ZipFile(tmp_path / "out" / "submission.zip") as archive:
        assert archive.namelist() == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "STS-B.tsv"]
        assert archive.read("AX.tsv") == (tmp_path / "out" / "AX.tsv").read_bytes()


def test_labels_are_scored_beside_the_submission(call, model, tmp_path):
    write_glue(tmp_path / "glue", "rte")
    model("rte")
    options = ["--task", "glue/rte", "--data-dir", "glue"]
    shown = call("evaluate", "rte", *options, "--split", "validation", "--submission", "out")
    assert "accuracy" in shown and (tmp_path / "out" / "RTE.tsv").is_file()
    (tmp_path / "out" / "RTE.tsv").write_text("index\tprediction\n0\told\n")
    call("evaluate", "rte", *options, "--split", "test", "--submission", "out")
    assert len(table((tmp_path / "out" / "RTE.tsv").read_text())) == 12


def test_both_validation_sets_of_mnli(call, model, tokenizer, tmp_path):
    glue = write_glue(tmp_path / "glue", "mnli", rows=30)
    network = model("mnli")
    options = ["--task", "glue/mnli", "--data-dir", "glue", "task.max_length=32"]
    task = load_task("glue/mnli", data_dir=str(glue))
    right = {
        split: np.mean(predicted(network, tokenizer, task, split).argmax(-1) == task.split(split)["label"][:])
        for split in task.dev_splits
    }
    matched, mismatched = right.values()
    assert list(right) == ["validation", "validation_mismatched"] and matched != mismatched
    result = evaluate(tmp_path / "mnli", task="glue/mnli", overrides=[f"task.data_dir={glue}", "task.max_length=32"])
    assert result.metrics == pytest.approx({"accuracy": matched, "accuracy_mismatched": mismatched})
    assert result.split == "validation + validation_mismatched" and result.examples == 60
    shown = call("evaluate", "mnli", *options)
    assert f"{100 * matched:.2f}" in shown and "accuracy_mismatched" in shown and f"{100 * mismatched:.2f}" in shown
    shown = call("evaluate", "mnli", *options, "--split", "validation_mismatched")
    assert f"{100 * mismatched:.2f}" in shown and "accuracy_mismatched" not in shown


def test_a_labelled_diagnostic_set_is_scored_by_mcc(call, model, tmp_path):
    glue = write_glue(tmp_path / "glue", "mnli")
    rows = [f"Logic\t{text}\t{text}\t{NLI[i % 3]}" for i, (text, _) in enumerate(sentences(9))]
    (glue / "MNLI" / "diagnostic.tsv").write_text("\n".join(["Logic\tPremise\tHypothesis\tLabel", *rows, ""]))
    model("mnli")
    shown = call("evaluate", "mnli", "--task", "glue/mnli", "--data-dir", "glue", "--split", "diagnostic")
    assert "mcc" in shown and "accuracy" not in shown and "(9 examples)" in shown


def test_training_scores_all_validation_sets(call, model, tmp_path):
    glue = write_glue(tmp_path / "glue", "mnli")
    model("mnli")
    task = {"name": "glue/mnli", "data_dir": str(glue), "max_length": 32}
    recipe = tiny_recipe(task, tmp_path / "mnli", train={"max_steps": 2, "batch_size": 8})
    run = execute(recipe, tmp_path / "run")
    metrics = run.metrics()
    assert list(metrics["metrics"]) == ["accuracy", "accuracy_mismatched"]
    assert metrics["split"] == "validation" and metrics["score"] == metrics["metrics"]["accuracy"]
    saved = pq.read_table(run.path / "predictions-validation_mismatched.parquet").to_pydict()
    assert saved["id"] == list(range(12))
    assert metrics["metrics"]["accuracy_mismatched"] == pytest.approx(
        np.mean(np.array(saved["prediction"]) == np.array(saved["label"]))
    )
    again = evaluate(run.path)  # the saved student, the run's own task
    assert again.metrics == pytest.approx(metrics["metrics"])
    shown = call("glue", "run")
    assert "average 'glue': missing cola, sst2, mrpc, stsb, qqp, qnli, rte, wnli" in shown


def test_squad_is_scored_and_its_predictions_written(call, tokenizer, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", vocab_size=VOCAB, pad_token_id=0, num_hidden_layers=2, **SIZES["bert"])
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = [" ".join(text for text, _ in sentences(8, seed)) for seed in range(6)]  # longer than a window
    qas = [
        {"id": f"q{i}", "question": "the cat", "answers": [{"text": text.split()[0], "answer_start": 0}]}
        for i, text in enumerate(texts)
    ]
    paragraphs = [{"context": text, "qas": [qa]} for text, qa in zip(texts, qas, strict=True)]
    for part in ("train", "dev"):
        content = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (tmp_path / f"{part}-v1.1.json").write_text(json.dumps(content))
    options = ["--task", "squad/1.1", "--data-dir", tmp_path, "task.max_length=32"]
    shown = call("evaluate", "model", *options, "--submission", "out")
    assert "exact_match" in shown and "(6 examples)" in shown and "GLUE" not in shown
    answers = read_json(tmp_path / "out" / "predictions.json")
    assert list(answers) == [f"q{i}" for i in range(6)]
    assert all(answer and answer in text for answer, text in zip(answers.values(), texts, strict=True))


def test_what_cannot_be_submitted_or_scored(call, model, table_files, tmp_path):
    glue = write_glue(tmp_path / "glue", "rte")
    model("rte")
    rte = ["evaluate", "rte", "--task", "glue/rte", "--data-dir", "glue"]
    assert "'test' of glue/rte has no labels" in call(*rte, "--split", "test", fails=True)
    (tmp_path / "file").write_text("mine")
    assert "file is a file" in call(*rte, "--split", "test", "--submission", "file", fails=True)
    (glue / "RTE" / "test.tsv").unlink()
    assert "no split 'test'" in call(*rte, "--split", "test", "--submission", "out", fails=True)
    own = [f"task.train={table_files[0]}", "task.text=text", "task.label=label", "--submission", "out"]
    shown = call("evaluate", "nowhere", "--task", "table", *own, fails=True)  # before a model is looked for
    assert "table has no official evaluation to submit to" in shown
    write_glue(glue, "qqp")
    with (glue / "QQP" / "test.tsv").open("a") as file:
        file.write("12\tcut\n")
    model("qqp")
    qqp = ["evaluate", "qqp", "--task", "glue/qqp", "--data-dir", "glue", "--split", "test", "--submission", "out"]
    assert "Rows of glue/qqp test are damaged" in call(*qqp, fails=True)
    assert not (tmp_path / "out").exists()


def test_the_table_of_glue_runs(call, tmp_path):
    runs = []
    for name, metrics in SCORES.items():
        for seed in range(2 if name == "cola" else 1):
            runs.append(tmp_path / f"{name}-{seed}")
            runs[-1].mkdir()
            shifted = {metric: value + 0.2 * seed for metric, value in metrics.items()}
            results = {"task": f"glue/{name}", "method": "kd", "seed": seed, "metrics": shifted}
            (runs[-1] / "metrics.json").write_text(json.dumps(results))
    shown = call("glue", *runs)
    assert "CoLA │ mcc │ 20.00 │ 2" in shown and "MRPC │ accuracy / f1 │ 80.00 / 90.00 │ 1" in shown
    assert "accuracy / accuracy_mismatched │ 84.00 / 80.00" in shown
    nine = (0.2 + 0.9 + 0.85 + 0.7 + 0.62 + 0.82 + 0.75 + 0.65 + 0.4) / 9
    eight = (0.2 + 0.9 + 0.9 + 0.8 + 0.54 + 0.84 + 0.75 + 0.65) / 8
    assert f"average 'glue': {100 * nine:.2f}" in shown and f"average 'fcd': {100 * eight:.2f}" in shown
    shown = call("glue", *runs[:-1])
    assert "average 'glue': missing wnli" in shown and "average 'fcd': 69.75" in shown
    assert "is no finished run" in call("glue", tmp_path / "nothing", fails=True)
    assert "limbeck glue runs/" in call("glue", "--help").partition("Example")[2]

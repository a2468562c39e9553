"""Let a file teach: predict writes it, a run learns from it as from the model itself, and says what it cannot give."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.saved_runs import assert_same_weights, history, read_json
from helpers.tiny_recipes import recipe_values
from helpers.tiny_tables import sentences

from limbeck import METHODS, execute, load_recipe
from limbeck.analysis.analyze import Settings, analyze
from limbeck.errors import DataError, LimbeckError, ModelError, RecipeError
from limbeck.inference.predict import predict_file
from limbeck.runs.reader import read_run
from limbeck.training.assemble import assemble, load_data
from limbeck.training.teaching import file_teachers, taught

TRAIN = {"max_steps": 4, "batch_size": 16, "learning_rate": 1e-3, "logging_steps": 1, "eval_strategy": "no"}


@pytest.fixture(scope="module")
def soft(table_files, teacher_folder, tmp_path_factory):
    """Return a file with what the teacher predicts for training and validation rows."""
    home = tmp_path_factory.mktemp("soft")
    tables = []
    for file in table_files:
        predict_file(teacher_folder, file, home / "part.parquet", text=["text"], max_length=16, probabilities=True)
        tables.append(pq.read_table(home / "part.parquet"))
    pq.write_table(pa.concat_tables(tables), home / "soft.parquet")
    return home / "soft.parquet"


@pytest.fixture(scope="module")
def values(table_files, teacher_folder, soft):
    student = {"from": str(teacher_folder), "keep": "first:2", "head": "kept"}
    values = recipe_values(table_files, teacher_folder, "kd", student=student, train=TRAIN)
    return values | {"teacher": {"probabilities": str(soft), "confirmed": True}}


@pytest.fixture(scope="module")
def run(values, tmp_path_factory):
    return execute(load_recipe(values=values), tmp_path_factory.mktemp("run") / "run", show_data=False)


def test_predict_writes_texts_and_probabilities(soft, table_files):
    table = pq.read_table(soft)
    assert table.column_names == ["text", "p(negative)", "p(positive)"]
    assert table.num_rows == 136
    np.testing.assert_allclose(np.stack(table.columns[1:]).sum(0), 1, atol=1e-6)


def test_a_run_learns_from_the_file_as_from_the_model(values, run, teacher_folder, tmp_path):
    model = values | {"teacher": {"model": str(teacher_folder), "confirmed": True, "cache": "off"}}
    execute(load_recipe(values=model), tmp_path / "model", show_data=False)
    ours, theirs = ([line["loss"] for line in history(at) if "loss" in line] for at in (run.path, tmp_path / "model"))
    assert ours == pytest.approx(theirs, abs=1e-6) and len(ours) == 4
    assert_same_weights(run.path, tmp_path / "model", atol=1e-5)
    found, expected = (read_json(at / "metrics.json")["teacher"] for at in (run.path, tmp_path / "model"))
    assert found == {name: expected[name] for name in ("metrics", "agreement")}


def test_the_loss_is_that_of_the_numbers_in_the_file(values, soft, table_files, tmp_path):
    """By hand: T² Σ p_T (log p_T - log q_T), p_T the file's probabilities to the power of 1/T."""
    temperature = 4.0
    values = values | {"method": {"name": "kd", "alpha": 0.0, "temperature": temperature}}
    recipe = load_recipe(values=values)
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    distiller = taught(parts, file_teachers(parts, data)).eval()
    rows = [data.splits["train"][row] for row in (3, 17, 40)]
    found = distiller(**data.collate(rows))["terms"]["kd"].item()
    texts = [text for text, _ in sentences(96)]
    known = {row["text"]: [row["p(negative)"], row["p(positive)"]] for row in pq.read_table(soft).to_pylist()}
    p = np.array([known[texts[row["id"]]] for row in rows]) ** (1 / temperature)
    p /= p.sum(1, keepdims=True)
    s = distiller(**data.collate(rows))["logits"].double().detach().numpy() / temperature
    log_q = s - np.log(np.exp(s).sum(1, keepdims=True))
    expected = temperature**2 * (p * (np.log(p) - log_q)).sum(1).mean()
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_resumed_run_and_what_reads_runs(values, run, tmp_path):
    recipe = load_recipe(values=values, overrides=["train.save_steps=2", "train.save_strategy=steps"])
    execute(recipe, tmp_path / "again", pause_after=0.5, show_data=False)
    execute(recipe, tmp_path / "again", resume=True, show_data=False)
    assert_same_weights(tmp_path / "again", run.path)
    assert read_run(run.path).teacher.endswith("soft.parquet")
    written = yaml.safe_load((run.path / "recipe.yaml").read_text())["teacher"]
    assert set(written) == {"probabilities", "cache", "cache_dtype", "confirmed"}
    assert load_recipe(run.path / "recipe.yaml").teacher.answers == written["probabilities"]


def test_analyses_take_such_a_run(run):
    (record,) = analyze([run.path], Settings(examples=20))
    assert record.values["cost"]["step_milliseconds"] > 0 and "teacher_parameters" not in record.values["cost"]


def test_rows_without_a_label_are_answered_too(values, teacher_folder, soft, tmp_path):
    texts = [text for text, _ in sentences(60, seed=5)]
    more = tmp_path / "more.csv"
    more.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    changed = values | {"task": values["task"] | {"unlabelled": str(more)}}
    with pytest.raises(DataError, match=r"has no answer to \d+ of \d+ rows without a label, found by their texts"):
        execute(load_recipe(values=changed), tmp_path / "run", show_data=False)
    assert not (tmp_path / "run").exists()
    predict_file(teacher_folder, more, tmp_path / "more.parquet", text=["text"], max_length=16, probabilities=True)
    joined = pa.concat_tables([pq.read_table(soft), pq.read_table(tmp_path / "more.parquet")])
    pq.write_table(joined, tmp_path / "soft.parquet")
    changed["teacher"] = {"probabilities": str(tmp_path / "soft.parquet"), "confirmed": True}
    execute(load_recipe(values=changed), tmp_path / "run", show_data=False)
    changed["teacher"] = {"model": str(teacher_folder), "confirmed": True, "cache": "off"}
    execute(load_recipe(values=changed), tmp_path / "model", show_data=False)
    assert_same_weights(tmp_path / "run", tmp_path / "model", atol=1e-5)


def test_rows_that_are_trained_on_need_an_answer(values, soft, tmp_path):
    table = pq.read_table(soft)
    pq.write_table(table.slice(3), tmp_path / "few.parquet")
    changed = values | {"teacher": {"probabilities": str(tmp_path / "few.parquet")}}
    with pytest.raises(DataError) as caught:
        execute(load_recipe(values=changed), tmp_path / "run", show_data=False)
    assert "has no answer to 3 of 96 training rows" in str(caught.value)
    assert repr(sentences(96)[0][0])[:30] in str(caught.value) and "limbeck predict --probabilities" in str(
        caught.value
    )
    assert not (tmp_path / "run").exists()


def test_results_say_nothing_of_validation_rows_that_have_no_answer(values, soft, tmp_path, caplog):
    pq.write_table(pq.read_table(soft).slice(0, 130), tmp_path / "few.parquet")
    changed = values | {"teacher": {"probabilities": str(tmp_path / "few.parquet"), "confirmed": True}}
    with caplog.at_level(logging.INFO, logger="limbeck"):
        execute(load_recipe(values=changed), tmp_path / "run", show_data=False)
    assert "has no answer to 6 of the 40 validation rows" in caplog.text
    assert read_json(tmp_path / "run" / "metrics.json")["teacher"] == {}


def test_a_teacher_that_knows_less_than_nothing_is_refused(values, soft, tmp_path):
    table = pq.read_table(soft).to_pydict()
    labels = dict(sentences(96)) | dict(sentences(40, seed=1))
    wrong = [0.9 if labels[text] == "positive" else 0.1 for text in table["text"]]
    table |= {"p(negative)": wrong, "p(positive)": [1 - p for p in wrong]}
    pq.write_table(pa.table(table), tmp_path / "wrong.parquet")
    changed = values | {"teacher": {"probabilities": str(tmp_path / "wrong.parquet")}}
    with pytest.raises(ModelError, match=r"stand under the right labels.*teacher.confirmed=true"):
        execute(load_recipe(values=changed), tmp_path / "run", show_data=False)


def test_lists_without_an_order_are_refused(values, soft, tmp_path):
    table = pq.read_table(soft).to_pydict()
    lists = {"text": table["text"], "probabilities": list(zip(table["p(negative)"], table["p(positive)"], strict=True))}
    pq.write_table(pa.table(lists), tmp_path / "lists.parquet")
    changed = values | {"teacher": {"probabilities": str(tmp_path / "lists.parquet")}}
    with pytest.raises(ModelError, match=r"nothing tells which is of which label"):
        execute(load_recipe(values=changed), tmp_path / "run", show_data=False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_a_file_or_says_what_it_needs(method, values):
    recipe = load_recipe(values=values | {"method": {"name": method}})
    try:
        parts = [assemble(stage) for stage in recipe.split()]
    except ModelError as error:
        message = str(error)
        assert method in message and "\n" not in message and "teacher.model" in message
        assert method not in ("ft", "kd")
    else:
        assert all(set(part.needs.teacher.names()) <= {"logits"} for part in parts)


def test_what_does_not_go_together(values, soft, teacher_folder, tmp_path):
    def message(**changes):
        with pytest.raises(RecipeError) as caught:
            load_recipe(values=values | changes)
        return str(caught.value)

    both = {"teacher": {"probabilities": str(soft), "model": str(teacher_folder)}}
    assert "give exactly one of model, probabilities or logits; seen: model, probabilities" in message(**both)
    assert "seen: none of them" in message(teacher={})
    assert "cache belongs to a model" in message(teacher={"probabilities": str(soft), "cache": "somewhere"})
    assert "it is a file" in message(student={"from": "teacher", "keep": "first:2"})
    assert "also needs a tokenizer" in message(student={"config": {"model_type": "bert"}})
    with pytest.raises(RecipeError, match=r"task.augment makes other texts"):
        assemble(load_recipe(values=values | {"task": values["task"] | {"augment": {"model": str(teacher_folder)}}}))


def test_predict_refuses_what_could_not_teach(teacher_folder, table_files, tmp_path):
    with pytest.raises(LimbeckError, match=r"write .parquet or .jsonl, or add --raw-csv"):
        predict_file(teacher_folder, table_files[1], tmp_path / "soft.csv", text=["text"], probabilities=True)
    with pytest.raises(LimbeckError, match="--id belongs to --probabilities"):
        predict_file(teacher_folder, table_files[1], tmp_path / "soft.csv", text=["text"], id_column="text")


def test_the_command_writes_a_file_by_ids(command, teacher_folder, tmp_path):
    rows = sentences(48)
    data = tmp_path / "data.csv"
    data.write_text("uid,text,label\n" + "".join(f"r{n},{text},{label}\n" for n, (text, label) in enumerate(rows)))
    words = ["predict", teacher_folder, data, "--text", "text", "--probabilities", "--id", "uid", "-o", "soft.parquet"]
    assert command(*words)[0] == 0
    assert pq.read_table(tmp_path / "soft.parquet").column_names == ["uid", "text", "p(negative)", "p(positive)"]
    words = ["distill", "--method", "kd", "--task", "table", f"task.train={data}", "task.text=text", "task.label=label"]
    words += ["task.id=uid", "teacher={probabilities: soft.parquet, confirmed: true}", "--batch-size", "16"]
    words += [f"student={{from: {teacher_folder}, keep: 'first:2', head: kept}}", "train.max_steps=2", "-o", "run"]
    status, said = command(*words)
    assert status == 0, said
    assert "agreement" in read_json(tmp_path / "run" / "metrics.json")["teacher"]

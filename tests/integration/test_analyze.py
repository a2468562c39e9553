"""Run ``limbeck analyze`` as a user does: what is kept, measured again, found elsewhere or missing."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.saved_runs import read_json

from limbeck import execute, load_recipe
from limbeck.analysis.analyze import Settings, analyze
from limbeck.analysis.decisions import decisions_of
from limbeck.analysis.geometry_pass import ModelMeasures
from limbeck.analysis.record import read_record
from limbeck.distillation.teachers import LiveTeacher
from limbeck.inference.logits import predict_logits
from limbeck.models.capture import Capture
from limbeck.report.drawing import inline_svg
from limbeck.training.assemble import assemble, load_data

pytestmark = pytest.mark.usefixtures("quick_collection")
QUICK = Settings(cost=False)


def times(folder):
    return [file.stat().st_mtime_ns for file in sorted((folder / "analysis").iterdir())]


@pytest.fixture()
def counted(monkeypatch):
    """Count how many examples live teachers and students were run on, call by call."""
    calls = {"teacher": [], "all": []}
    teacher, capture = LiveTeacher.__call__, Capture.__call__

    def of_teacher(self, batch, wanted):
        calls["teacher"].append(len(batch["input_ids"]))
        return teacher(self, batch, wanted)

    def of_all(self, batch, *more):
        calls["all"].append(len(batch["input_ids"]))
        return capture(self, batch, *more)

    monkeypatch.setattr(LiveTeacher, "__call__", of_teacher)
    monkeypatch.setattr(Capture, "__call__", of_all)
    return calls


@pytest.fixture()
def undrawn(monkeypatch):
    """Leave out the figures, which take longer than everything else."""
    monkeypatch.setattr("limbeck.report.figures.all_figures", lambda results: [])
    monkeypatch.setattr("limbeck.report.folder.write_folder", lambda figures, tables, folder: [])


def test_files_and_tables(command, run, tmp_path):
    kd, fsd = run("kd"), run("fsd")
    status, shown = command("analyze", kd, fsd, "-o", "figures")
    assert status == 0 and "files in figures" in shown
    for title in ("CKA on the diagonal", "Relation difference, ranks", "Cost", "Restoration", "Calibration"):
        assert title in shown
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} == {".svg", ".png", ".pdf", ".md", ".tex", ".csv"}
    assert {file.name for path in (kd, fsd) for file in (path / "analysis").iterdir()} == {
        "analysis.json",
        "arrays.npz",
    }
    trained = {path.name: read_record(path).values["cost"]["trained_parameters"] for path in (kd, fsd)}
    assert trained["fsd"] > trained["kd"]


@pytest.mark.parametrize("name", ["alone", "multi_label", "span", "text"])
def test_every_kind_can_be_drawn(command, run, name, monkeypatch):
    drawings = []
    monkeypatch.setattr("limbeck.report.folder.save", lambda drawn, _: drawings.append(inline_svg(drawn)) or [])
    status, shown = command("analyze", run(name), "--no-cost")
    assert status == 0 and "files in analysis" in shown and "nan" not in shown.lower().split()
    assert len(drawings) >= 4


def test_what_was_measured_is_measured_again_only_if_something_is_asked(command, undrawn, run):
    path = run("kd")

    def measured(*words):
        before = times(path) if (path / "analysis").exists() else []
        assert command("analyze", path, "--no-cost", *words)[0] == 0
        return times(path) != before

    assert measured()
    assert not measured()
    assert measured("--layer", "penultimate") and not measured("--layer", "penultimate")
    assert measured("--pool", "cls") and measured("--estimator", "biased") and measured("--examples", "16")
    assert measured("--sentence", "the cat sees") and not measured("--sentence", "the cat sees")
    assert measured() and measured("--force")
    shown = read_record(path)
    assert shown.settings["examples"] == 40 and shown.settings["batch_size"] == 5


def test_chosen_sentences(run):
    (record,) = analyze([run("kd")], Settings(sentences=("the cat sees", "a dog"), cost=False))
    assert [sentence["text"] for sentence in record.values["sentences"]] == ["the cat sees", "a dog"]
    assert record.values["sentences"][1]["tokens"] == ["[CLS]", "a", "dog", "[SEP]"]
    assert record.arrays["tokens.1.student.l2"].diagonal() == pytest.approx(np.ones(4), abs=1e-5)


@pytest.mark.parametrize("name", ["kd", "text", "span"])
def test_the_number_of_examples_is_capped(run, counted, monkeypatch, name):
    path = run(name)
    counted["all"].clear()  # of training
    held, update = [], ModelMeasures.update

    def watched(self, *more):
        update(self, *more)
        held.append(sum(map(len, self.rows)))

    monkeypatch.setattr(ModelMeasures, "update", watched)
    (record,) = analyze([path], Settings(examples=16, cost=False))
    assert record.settings["examples"] == max(held) == 16 and record.settings["batch_size"] == 4
    assert record.arrays["heat_map.after"].shape == (4, 4)
    assert max(counted["all"]) <= 4


def test_one_pass_of_the_teacher_for_several_runs(run, counted):
    runs = [run(name) for name in ("kd", "fsd", "same")]
    counted["teacher"].clear()  # of training
    analyze(runs, QUICK)
    assert sum(counted["teacher"]) == 40


def test_the_cache_of_the_recipe(run, counted, tmp_path):
    path, cache = run("kd"), tmp_path / "cache"
    counted["teacher"].clear()  # of training
    recipe = yaml.safe_load((path / "recipe.yaml").read_text())
    recipe["teacher"]["cache"] = str(cache)
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    cache.mkdir()
    (cache / "manifest.json").write_text("{}")  # by which a folder is known to be one
    (first,) = analyze([path], QUICK)
    files = {file.name.partition("-")[0] for file in cache.rglob("*.safetensors")}
    assert files == {"hidden.4", *(f"mean.{layer}" for layer in range(5))} and sum(counted["teacher"]) == 40
    (second,) = analyze([path], QUICK, force=True)
    assert sum(counted["teacher"]) == 40
    assert second.values == first.values
    # a training that names the same folder finds nothing in its way, but for a manifest that is of nothing
    (cache / "manifest.json").unlink()
    recipe["train"]["max_steps"] = 1
    assert execute(load_recipe(values=recipe), tmp_path / "again").finished


def test_what_is_missing_is_one_message_and_nothing_is_lost(command, undrawn, run, trained, tmp_path):
    kd, regression = run("kd"), run("regression")
    assert command("analyze", kd, "--no-cost")[0] == 0
    record, before = times(kd), sorted(kd.rglob("*"))
    recipe = yaml.safe_load((kd / "recipe.yaml").read_text())
    for key, folder in (("teacher.model", recipe["teacher"]["model"]), ("task.train", recipe["task"]["train"])):
        status, shown = command("analyze", regression, kd, "--force", f"{key}={tmp_path / 'gone'}")
        assert status == 1 and shown.count("Error:") == 1 and str(tmp_path / "gone") in shown, folder
    assert times(kd) == record and sorted(kd.rglob("*")) == before
    fsd, broken = run("fsd"), run("stages")
    for recipe in broken.rglob("recipe.yaml"):
        recipe.write_text(recipe.read_text().replace("bert-classification", "gone"))
    status, shown = command("analyze", fsd, broken, "--no-cost")
    assert status == 1 and "gone" in shown and shown.count("Error:") == 1
    assert read_record(fsd) is not None and read_record(broken) is None


def test_a_report_leaves_out_what_cannot_be_measured(command, run, tmp_path):
    broken, kd = run("stages"), run("kd")
    (broken / "recipe.yaml").write_text((broken / "recipe.yaml").read_text().replace("bert-classification", "gone"))
    status, shown = command("report", broken, kd, "-o", "report.html")
    assert status == 0 and "left out" in shown and (tmp_path / "report.html").is_file()
    assert read_record(broken) is None and read_record(kd) is not None


@pytest.mark.parametrize("name", ["kd", "stages"])
def test_what_is_elsewhere_now(command, undrawn, run, trained, tmp_path, name):
    """Expect the same words for runs with and without stages."""
    path = run(name)
    for place in ("bert-classification", "data-classification"):
        shutil.copytree(trained.home / place, tmp_path / "moved" / place)
    recipe = path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(trained.home), "/nowhere"))
    assert command("analyze", path)[0] == 1
    words = [f"teacher.model={tmp_path}/moved/bert-classification"]
    files = {"train": "train.csv", "validation": "dev.csv"}
    words += [f"task.{key}={tmp_path}/moved/data-classification/{file}" for key, file in files.items()]
    status, shown = command("analyze", path, "--no-cost", *words)
    assert status == 0, shown
    (plain,) = analyze([shutil.copytree(trained(name), tmp_path / "plain")], QUICK)
    assert read_record(path).values == plain.values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pool", "max"), "Unknown pool 'max'."),
        (("--layer", "frist"), "Unknown layer 'frist'."),
        (("--estimator", "unbaised"), "Did you mean 'unbiased'?"),
        (("task.trian=x",), "trian"),
        (("--examples", "0"), "examples"),
    ],
)
def test_mistakes(command, run, words, message):
    path = run("kd")
    status, shown = command("analyze", path, *words)
    assert status != 0 and message in shown
    assert not (path / "analysis").exists()


@pytest.mark.parametrize(("gone", "message"), [("metrics.json", "finished"), ("student", "does not keep its student")])
def test_runs_that_cannot_be_measured(command, run, gone, message):
    path = run("kd")
    (path / gone).rename(path.parent / "elsewhere")
    status, shown = command("analyze", path)
    assert status == 1 and message in shown and shown.count("Error:") == 1


def test_a_damaged_record(command, undrawn, run):
    path = run("kd")
    assert command("analyze", path, "--no-cost")[0] == 0
    (path / "analysis" / "arrays.npz").write_bytes(b"")
    status, shown = command("analyze", path, "--no-cost")
    assert status == 1 and "is damaged" in shown and "--force" in shown
    assert command("analyze", path, "--no-cost", "--force")[0] == 0


@pytest.mark.parametrize("name", ["kd", "regression", "multi_label", "tokens", "span", "gpt2"])
def test_runs_keep_the_answers_of_their_teacher(trained, name):
    """Expect them as the teacher gives them itself, in the order of the student's."""
    path = trained(name)
    saved = pq.read_table(path / "predictions.parquet").to_pydict()
    recipe = load_recipe(path / "recipe.yaml")
    parts = assemble(recipe)
    data = load_data(recipe, parts)
    logits = predict_logits(parts.teacher, data.splits["validation"], data.collate, 8, "")
    expected = parts.task.answers(logits, data.splits["validation"])
    assert saved["id"] == list(expected["id"])
    if name in ("tokens", "span"):
        assert saved["teacher_prediction"] == expected["prediction"] and "teacher_logits" not in saved
    else:
        assert np.array(saved["teacher_prediction"]) == pytest.approx(np.array(expected["prediction"]), abs=1e-5)
        assert np.array(saved["teacher_logits"]) == pytest.approx(logits, abs=1e-5)
    agreement = read_json(path / "metrics.json")["teacher"]["agreement"]
    assert decisions_of(path).agreement == pytest.approx(agreement, abs=1e-6)

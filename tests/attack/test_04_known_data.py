"""Change the data or the teacher behind a run: what goes on with the run, or scores it, stops and says what differs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from helpers.fake_runs import classes, make_run
from helpers.in_process import run_command
from helpers.saved_runs import read_json
from helpers.tiny_recipes import distill_words, table_words
from helpers.tiny_runs import write_data
from safetensors.torch import load_file, save_file

from limbeck.errors import RunError
from limbeck.runs.data import data_differences
from limbeck.study.engines import InProcess
from limbeck.study.jobs import execute_job
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study
from limbeck.tasks import load_task
from limbeck.tasks.fingerprint import data_fingerprint

FILES = (Path("train.csv"), Path("dev.csv"))  # in the folder of the command, so that all can be copied elsewhere
KEPT = ["train.max_steps=2", "train.save_steps=1", "train.save_total_limit=2"]


@pytest.fixture(scope="module")
def made(table_files, teacher_folder, tmp_path_factory):
    """Train a run in a folder with its data, to be copied and changed."""
    folder = tmp_path_factory.mktemp("made")
    for file, name in zip(table_files, FILES, strict=True):
        shutil.copy(file, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, said = run_command(*distill(teacher_folder), "-o", "run")
    assert code == 0, said
    return folder


def distill(teacher):
    return ["distill", *distill_words(FILES, teacher, "--method", "kd", *KEPT)]


@pytest.fixture()
def files(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return FILES


@pytest.fixture()
def run(files):
    return Path("run")


@pytest.fixture()
def words(teacher_folder):
    return distill(teacher_folder)


def change(file, rows_of):
    """Write a table anew: ``rows_of`` is given its rows without the header."""
    with file.open(newline="") as opened:
        header, *rows = csv.reader(opened)
    with file.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([header, *rows_of(rows)])


def flip(rows):
    return [[text, {"positive": "negative", "negative": "positive"}[label]] for text, label in rows]


def retell(rows):
    return [[f"{text} and {text}", label] for text, label in rows]


CHANGES = {
    "flipped labels": (flip, "other labels"),
    "other texts": (retell, "other texts"),
    "a row more": (lambda rows: [*rows, ["a new fish", "positive"]], "rows then"),
    "sorted rows": (sorted, "the same rows in another order"),
}


def unfinish(run):
    """Leave what a kill leaves: checkpoints, and no results."""
    (run / "metrics.json").unlink()
    shutil.rmtree(run / "student")


@pytest.mark.parametrize("kind", CHANGES)
def test_resume_stops(kind, command, words, run, files):
    changed, seen = CHANGES[kind]
    unfinish(run)
    change(files[0], changed)
    code, said = command(*words, "-o", "run", "--resume")
    assert code == 1 and "other data" in said and f"train: {seen}" in said.replace("96 ", ""), said
    assert not (run / "metrics.json").exists() and list((run / "checkpoints").iterdir())


def test_resume_of_a_finished_run_stops_too(command, words, run, files):
    assert "finished already" in command(*words, "-o", "run", "--resume")[1]
    change(files[1], flip)
    code, said = command(*words, "-o", "run", "--resume")
    assert code == 1 and "validation: other labels" in said


def test_resume_stops_with_another_teacher(command, files, teacher_folder):
    teacher = Path(shutil.copytree(teacher_folder, "teacher"))
    words = distill(teacher)
    assert command(*words, "-o", "other")[0] == 0
    unfinish(Path("other"))
    weights = load_file(teacher / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, teacher / "model.safetensors", metadata={"format": "pt"})
    code, said = command(*words, "-o", "other", "--resume")
    assert code == 1 and "the teacher's weights or config" in said


def test_resume_stops_where_classes_were_renamed(command, files, teacher_folder):
    """Rename them so that their order, by the alphabet, and so their meaning is another."""
    words = ["finetune", "table", "--model", teacher_folder, *table_words(files)[2:], *KEPT]
    assert command(*words, "-o", "other")[0] == 0
    unfinish(Path("other"))
    for file in files:
        change(file, lambda rows: [[text, label.replace("negative", "unhappy")] for text, label in rows])
    code, said = command(*words, "-o", "other", "--resume")
    assert code == 1 and "negative, positive then, positive, unhappy now" in said


def test_a_run_resumes_where_nothing_changed(command, words, run):
    unfinish(run)
    code, said = command(*words, "-o", "run", "--resume")
    assert code == 0 and (run / "metrics.json").exists(), said


@pytest.mark.parametrize("kind", CHANGES)
def test_evaluate_stops_unless_only_the_order_changed(kind, command, run, files):
    scores = command("evaluate", run)[1].partition("Loading")[0]
    changed, seen = CHANGES[kind]
    change(files[1], changed)
    code, said = command("evaluate", run)
    if kind == "sorted rows":
        assert code == 0 and said.startswith(scores)
    else:
        assert code == 1 and f"validation: {seen}" in said.replace("40 ", ""), said


def test_evaluate_warns_where_other_data_are_named(command, run, files):
    other = Path(shutil.copy(files[1], "other.csv"))
    change(other, flip)
    code, said = command("evaluate", run, f"task.validation={other}")
    assert code == 0 and "not the data of the run" in said and "other labels" in said


def test_export_stops(command, run, files):
    change(files[1], flip)
    code, said = command("export", run, "-o", "exported")
    assert code == 1 and "validation: other labels" in said and not Path("exported").exists()


def test_analyze_stops(command, run, files):
    change(files[1], retell)
    code, said = command("analyze", run, "--no-cost", "-o", "figures")
    assert code == 1 and "validation: other texts" in said and not (run / "analysis").exists()


@pytest.fixture()
def study(files, teacher_folder, tmp_path):
    """Describe a study of two runs."""
    values = {
        "tasks": ["table"],
        "task": {"train": str(files[0]), "validation": str(files[1]), "text": "text", "label": "label"},
        "teacher": {"fine_tuned": str(teacher_folder), "confirmed": True},
        "student": {"from": "teacher", "keep": "first:2"},
        "train": {"max_steps": 1, "batch_size": 16, "eval_strategy": "no", "save_strategy": "no"},
        "methods": ["ft", "kd"],
        "rivals": False,
        "seeds": [1],
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_a_study_stops(command, study, files, tmp_path):
    assert command("study", study, "-o", "out")[0] == 0
    before = (tmp_path / "out" / "results.json").read_text()
    kept = files[1].read_text()
    change(files[1], flip)
    for more in ([], ["methods=[ft, kd, cka]"]):
        code, said = command("study", study, "-o", "out", *more)
        assert code == 1 and "validation: other labels" in said and "must not mix" in said, said
    assert (tmp_path / "out" / "results.json").read_text() == before
    files[1].write_text(kept)
    code, said = command("study", study, "-o", "out", "methods=[ft, kd, cka]")
    assert code == 0, said
    assert len(read_json(tmp_path / "out" / "results.json")["entries"]) == 3


def test_a_study_stops_where_the_data_change_under_it(command, study, files, tmp_path):
    def work(job):
        execute_job(job)
        if job.title.startswith("table ft"):
            change(files[0], flip)

    with pytest.raises(RunError, match="train: other labels"):
        run_study(load_study(study), tmp_path / "out", InProcess(work=work))
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.slow
def test_a_study_whose_data_are_gone_still_shows_its_results(command, study, files):
    assert command("study", study, "-o", "out")[0] == 0
    for file in files:
        file.unlink()
    code, said = command("study", study, "-o", "out")
    assert code == 0 and "cannot be told" in said, said


def test_runs_of_other_texts_are_not_compared(command, tmp_path):
    """Their labels are the same, and so are the numbers of their rows: nothing else tells."""
    answers = classes([0, 1, 1], [0, 1, 0])
    split = {"rows": 3, "texts": "a", "labels": "b", "content": "c"}
    for name, content in (("one", "c"), ("two", "d")):
        run = make_run(tmp_path / name, answers=answers, examples=3)
        validation = split | {"content": content, "texts": content}
        (run / "data.json").write_text(json.dumps({"labels": ["no", "yes"], "splits": {"validation": validation}}))
    code, said = command("compare", "one", "two")
    assert code == 1 and "different validation data (validation: other texts)" in said


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"labels": 3, "splits": {}}', '{"labels": [], "splits": 5}'])
def test_a_damaged_record_is_one_message(text, command, run):
    (run / "data.json").write_text(text)
    code, said = command("evaluate", run)
    assert code == 1 and "data.json" in said


# Every kind of task


@pytest.mark.parametrize("problem", ["classification", "regression", "multi_label", "tokens", "span", "language_model"])
def test_every_kind_of_data_is_known_again(problem, tmp_path):
    block = write_data(problem, tmp_path / "data")
    options = {key: value for key, value in block.items() if key not in ("name", "max_length")}
    first = data_fingerprint(load_task(block["name"], **options))
    assert data_differences(first, data_fingerprint(load_task(block["name"], **options))) == []
    assert json.loads(json.dumps(first)) == first
    file = next(path for path in (tmp_path / "data").iterdir() if path.stem.startswith("train"))
    text = file.read_text()
    for old, new in (("likes", "hates"), ("sees", "feeds")):
        assert old in text
        file.write_text(text.replace(old, new, 1))
        changed = data_differences(first, data_fingerprint(load_task(block["name"], **options)))
        assert len(changed) == 1 and changed[0].startswith("train: other texts"), changed

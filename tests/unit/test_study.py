"""Studies: what a file stands for, in which order it is done, what is chosen, and that nothing is done twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import fake_work
import pytest
import yaml

from limbeck.errors import RecipeError, RunError
from limbeck.study.conduct import conduct
from limbeck.study.description import load_study
from limbeck.study.engines import InProcess, Workers
from limbeck.study.jobs import TrainJob
from limbeck.study.plan import Plan

STUDY = {
    "tasks": ["glue/rte", "glue/cola"],
    "task": {"data_dir": "glue"},
    "teacher": {"model": "big", "train": {"epochs": 2}},
    "student": {"from": "teacher", "keep": "first:3"},
    "train": {"epochs": 1},
    "methods": {
        "ft": None,
        "kd": {"method.alpha": 0.3, "grid": {"method.temperature": [2, 5]}},
        "fsd w/o G": {"method.name": "fsd_il", "train.epochs": 4},
    },
    "seeds": [1, 2, 3],
}


@pytest.fixture()
def study_of(tmp_path):
    def load(*overrides, **changes):
        file = tmp_path / "my.yaml"
        file.write_text(yaml.safe_dump({**STUDY, **changes}))
        return load_study(file, overrides)

    return load


def run(study, folder, work=fake_work.quick):
    return conduct(study, folder, InProcess(work=work))


def test_blocks_and_changes_make_the_recipes(study_of):
    study = study_of(tasks={"glue/rte": None, "glue/cola": {"task.max_length": 64, "train.batch_size": 8}})
    kd = study.values("glue/rte", "kd", {"method.temperature": 5}, 7, "the-teacher", "off")
    assert kd["method"] == {"name": "kd", "alpha": 0.3, "temperature": 5}
    assert kd["task"] == {"data_dir": "glue", "name": "glue/rte"}
    assert kd["teacher"]["model"] == "the-teacher" and kd["seed"] == 7 and kd["train"] == {"epochs": 1}
    other = study.values("glue/cola", "fsd w/o G", {}, 1, "the-teacher", "off")
    assert other["task"]["max_length"] == 64 and other["train"] == {"epochs": 4, "batch_size": 8}
    assert other["method"] == {"name": "fsd_il"}
    assert "batch_size" not in study.teacher_values("glue/cola")["train"]
    assert study.teacher_values("glue/cola")["task"]["max_length"] == 64


def test_settings_of_one_tasks_teacher(study_of):
    study = study_of(tasks={"glue/rte": {"teacher.train.learning_rate": 1e-3}, "glue/cola": {}})
    assert study.teacher_values("glue/rte")["train"] == {"epochs": 2, "learning_rate": 1e-3}
    assert study.teacher_values("glue/cola")["train"] == {"epochs": 2}


def test_a_recipe_brings_its_settings_grid_and_reported_scores(study_of):
    methods = {"FSD": {"recipe": "fsd/{task}-fsd", "train.learning_rate": 1e-4}}
    study = study_of(methods=methods, student=None, train={})
    values = study.values("glue/cola", "FSD", {}, 1, "t", "off")
    assert values["method"]["name"] == "fsd" and values["student"] == {"from": "bert-base-uncased", "keep": "first:6"}
    assert values["train"] == {"epochs": 3, "batch_size": 32, "learning_rate": 1e-4}
    assert values["task"]["name"] == "glue/cola" and values["task"]["data_dir"] == "glue"
    assert [(score["metric"], score["value"]) for score in study.reported("glue/cola", "FSD")] == [("mcc", 43.03)]
    assert len(study.points("glue/cola", "FSD")) == 6 * 6 * 8 * 4
    assert study_of(methods=methods, student=None, train={}, grid={}).points("glue/cola", "FSD") == [{}]
    small = study_of(methods=methods, train={"epochs": 1})
    assert small.values("glue/rte", "FSD", {}, 1, "t", "off")["train"]["epochs"] == 1
    assert small.values("glue/rte", "FSD", {}, 1, "t", "off")["student"]["keep"] == "first:3"


def test_variants_change_the_study(tmp_path, study_of):
    variants = {"tiny": {"seeds": [9], "train.epochs": 7}}
    assert study_of(variants=variants).seeds == [1, 2, 3]
    tiny = load_study(f"{tmp_path / 'my.yaml'}/tiny")
    assert tiny.seeds == [9] and tiny.train == {"epochs": 7}
    with pytest.raises(RecipeError, match="Did you mean 'tiny'"):
        load_study(f"{tmp_path / 'my.yaml'}/tinny")


def test_overrides_change_the_study(study_of):
    study = study_of("seeds=[4, 5]", "task.data_dir=elsewhere", "teacher.model=small")
    assert study.seeds == [4, 5] and study.task["data_dir"] == "elsewhere" and study.teacher.model == "small"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["kdd"]}, "Did you mean 'kd'"),
        ({"methods": {"kd": {"method.temperatur": 3}}}, "Did you mean 'temperature'"),
        ({"methods": {"kd": {"grid": {"method.temperature": [2, -1]}}}}, r"kd.grid.method.temperature.*-1"),
        ({"methods": {"kd": {"grid": {"method.temperature": {"low": 1, "high": 9}}}}}, "sampler: tpe"),
        ({"methods": {"kd": {"grid": {"method.temperature": []}}}}, "list of choices"),
        ({"methods": {"kd": {"temperature": 3}}}, "is no setting; there are"),
        ({"methods": {"kd": {"recipe": "fsd/nothing"}}}, "Unknown recipe"),
        ({"methods": {"kd": {"tasks": "glue/rte"}}}, "is a list of tasks"),
        ({"tasks": ["glue/rtee"]}, "Did you mean 'glue/rte'"),
        ({"tasks": []}, "tasks"),
        ({"seeds": [1, 1]}, "each seed counts once"),
        ({"seeds": []}, "seeds"),
        ({"teacher": {}}, "give model"),
        ({"teacher": {"model": "a", "train": {"epoch": 3}}}, r"teacher.train.epoch.*Did you mean 'epochs'"),
        ({"baselines": ["sgd"]}, "Unknown method 'sgd'"),
        ({"baselines": ["ft", "kd", "ft", "kd", "ft"]}, "marks for 4 at most"),
        ({"metods": {}}, "Did you mean 'methods'"),
        ({"student": {"from": "teacher"}}, "from and keep belong together"),
    ],
)
def test_mistakes_are_named(study_of, changes, message):
    with pytest.raises(RecipeError, match=message):
        study_of(**changes)


def test_every_mistake_is_named_at_once(study_of):
    with pytest.raises(RecipeError) as caught:
        study_of(methods={"kd": {"method.temperatur": 3}, "fsd": {"train.epochs": -1}})
    assert "2 mistakes" in str(caught.value) and "methods.kd" in str(caught.value)


def test_a_key_follows_from_the_content(study_of, tmp_path):
    def key(study, folder="here", label="kd", **given):
        point = {"method.temperature": 2} | given
        return Plan(study, tmp_path / folder).run("glue/rte", label, point, 1, "kept").key

    study = study_of()
    assert key(study) == key(study, "elsewhere") == key(study_of(baselines=["ft"], keep="all"))
    renamed = study_of(methods={"soft": STUDY["methods"]["kd"] | {"method.name": "kd"}})
    assert key(renamed, label="soft") == key(study)
    for changed in (study_of("train.epochs=2"), study_of("teacher.train.epochs=1"), study_of("task.data_dir=other")):
        assert key(changed) != key(study)
    assert key(study, **{"method.alpha": 0.9}) != key(study)
    assert key(study).startswith("glue-rte-kd-s1-")


def test_all_runs_once_and_the_best_setting_is_reported(study_of, tmp_path):
    study, folder = study_of(select_seeds=[8, 9]), tmp_path / "out"
    results = run(study, folder)
    plan = Plan(study, folder)
    for entry in results["entries"]:
        assert entry["missing"] == 0 and len(entry["runs"]) == 3
        assert [json.loads((folder / path / "metrics.json").read_text())["seed"] for path in entry["runs"]] == [1, 2, 3]
    for task in study.tasks:
        means = {}
        for temperature in (2, 5):
            jobs = [plan.run(task, "kd", {"method.temperature": temperature}, seed, "kept") for seed in (8, 9)]
            means[temperature] = sum(map(fake_work.score_of, jobs)) / 2
        entry = next(entry for entry in results["entries"] if (entry["task"], entry["label"]) == (task, "kd"))
        assert entry["chosen"] == {"method.temperature": max(means, key=means.get)}
        assert {found["point"]["method.temperature"]: found["score"] for found in entry["searched"]} == pytest.approx(
            means
        )
    done = (folder / "work.txt").read_text().split()
    # two teachers; for each task ft and fsd on three seeds, kd on two settings x two seeds and three more
    assert len(done) == len(set(done)) == 2 + 2 * (3 + 3 + 4 + 3)
    assert json.loads((folder / "results.json").read_text()) == results
    assert "seeds 8, 9, and are reported on others: 1, 2, 3" in results["selection"]


def test_the_same_seeds_may_choose_and_report(study_of, tmp_path):
    results = run(study_of(), tmp_path / "out")
    assert len((tmp_path / "out" / "work.txt").read_text().split()) == 2 + 2 * (3 + 3 + 2 * 3)
    assert "optimistic" in results["selection"]


def test_a_second_start_does_nothing_and_new_methods_are_added(study_of, tmp_path):
    folder = tmp_path / "out"
    first = run(study_of(), folder)
    before = (folder / "work.txt").read_text()
    assert run(study_of(), folder) == first
    assert (folder / "work.txt").read_text() == before
    more = run(study_of(methods=STUDY["methods"] | {"rkd": {}}), folder)
    assert len((folder / "work.txt").read_text().split()) == len(before.split()) + 2 * 3
    assert [entry for entry in more["entries"] if entry["label"] != "rkd"] == first["entries"]


def test_the_same_run_under_two_names_runs_once(study_of, tmp_path):
    results = run(study_of(methods={"kd": {}, "again": {"method.name": "kd"}}, tasks=["glue/rte"]), tmp_path / "out")
    assert results["entries"][0]["runs"] == results["entries"][1]["runs"]
    assert len((tmp_path / "out" / "work.txt").read_text().split()) == 1 + 3


def test_methods_may_be_left_out_of_tasks(study_of, tmp_path):
    results = run(study_of(methods={"ft": {}, "kd": {"tasks": ["glue/rte"]}}), tmp_path / "out")
    assert [(entry["task"], entry["label"]) for entry in results["entries"]] == [
        ("glue/rte", "ft"),
        ("glue/rte", "kd"),
        ("glue/cola", "ft"),
    ]


@pytest.mark.parametrize(("keep", "kept"), [("reported", 2 * 9), ("all", 2 * (3 + 3 + 7)), ("none", 0)])
def test_students_are_kept_as_asked(study_of, tmp_path, keep, kept):
    folder = tmp_path / keep
    study = study_of(select_seeds=[8, 9], keep=keep)

    def work(job):
        fake_work.quick(job)
        if isinstance(job, TrainJob) and job.student == "removed":
            (Path(job.folder) / "student").rmdir()

    run(study, folder, work)
    assert len(list(folder.glob("runs/*/student"))) == kept
    assert len(list(folder.glob("teachers/*/student"))) == 2


def test_students_of_settings_that_lost_are_forgotten(study_of, tmp_path):
    run(study_of(), tmp_path / "out")
    assert len(list((tmp_path / "out").glob("runs/*/student"))) == 2 * 9


def test_failures_are_reported_and_the_rest_is_done(study_of, tmp_path):
    folder = tmp_path / "out"
    results = run(study_of(), folder, fake_work.breaks_on_kd)
    by_label = {entry["label"]: entry for entry in results["entries"]}
    assert by_label["kd"]["missing"] == 3 and by_label["kd"]["runs"] == []
    assert by_label["ft"]["missing"] == 0
    failures = [file.read_text() for file in (folder / "failures").iterdir()]
    assert len(failures) == 2 * 2 * 3 and all("kd cannot be done here." in text for text in failures)
    mended = run(study_of(), folder)
    assert all(entry["missing"] == 0 for entry in mended["entries"])
    assert list((folder / "failures").iterdir()) == []


def test_a_failed_teacher_is_named(study_of, tmp_path):
    results = run(study_of(), tmp_path / "out", fake_work.always_crashes)
    assert all("no teacher: RuntimeError: out of luck" in entry["why"] for entry in results["entries"])
    # a crash may be an accident and is tried again; the methods share the teacher, so it is tried twice and no more
    assert set(Counter((tmp_path / "out" / "tries.txt").read_text().split()).values()) == {2}


def test_a_given_teacher_is_used(study_of, tmp_path):
    study = study_of(teacher={"fine_tuned": "models/bert-{task}"})
    plan = Plan(study, tmp_path)
    assert plan.teacher("glue/rte") is None
    assert plan.run("glue/rte", "ft", {}, 1, "kept").values["teacher"]["model"] == "models/bert-rte"
    run(study, tmp_path / "out")
    assert not (tmp_path / "out" / "teachers").exists()


def test_a_folder_of_something_else_is_refused(study_of, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="is no study"):
        run(study_of(), tmp_path)


def test_two_processes_do_not_work_on_one_study(study_of, tmp_path):
    def meddle(job):
        with pytest.raises(RunError, match="Another process is at work"):
            run(study_of(), tmp_path / "out")
        fake_work.quick(job)

    run(study_of(tasks=["glue/rte"], methods=["ft"]), tmp_path / "out", meddle)
    assert (tmp_path / "out" / "results.json").is_file()


@pytest.mark.distributed
def test_workers_come_to_the_same_results(study_of, tmp_path):
    alone = run(study_of(), tmp_path / "a" / "out")
    together = conduct(study_of(), tmp_path / "b" / "out", Workers(2, 1, fake_work.quick))
    assert together == alone


@pytest.mark.chaos
def test_a_worker_that_dies_is_replaced_and_its_job_done_again(study_of, tmp_path):
    study = study_of(tasks=["glue/rte"], methods=["ft", "kd"])
    results = conduct(study, tmp_path / "out", Workers(2, 1, fake_work.dies_once))
    assert all(entry["missing"] == 0 for entry in results["entries"])
    assert len((tmp_path / "out" / "work.txt").read_text().split()) == 1 + 2 * 3


def test_the_studys_file_is_written_in_full(study_of, tmp_path):
    study = study_of()
    run(study, tmp_path / "out")
    assert load_study(tmp_path / "out" / "study.yaml") == study

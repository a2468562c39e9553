"""Check what a study's file stands for, in which order it is done, what is chosen, and that nothing is done twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from helpers import fake_training as fake_work

from limbeck.errors import RecipeError, RunError
from limbeck.study import estimate
from limbeck.study.chains import all_points
from limbeck.study.engines import InProcess, Workers
from limbeck.study.jobs import TrainJob
from limbeck.study.loading import load_study
from limbeck.study.plan import Plan
from limbeck.study.runner import run_study

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
    return run_study(study, folder, InProcess(work=work))


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
    student = {"from": "bert-base-uncased", "keep": "first:6", "head": "kept"}
    assert values["method"]["name"] == "fsd" and values["student"] == student
    expected = {"epochs": 3, "batch_size": 32, "learning_rate": 1e-4, "precision": "float32", "warmup_steps": 0}
    assert values["train"] == expected
    assert values["task"]["name"] == "glue/cola" and values["task"]["data_dir"] == "glue"
    assert [(score["metric"], score["value"]) for score in study.reported("glue/cola", "FSD")] == [("mcc", 43.03)]
    (space,) = study.steps("glue/cola", "FSD")
    assert len(all_points(space)) == 2 * 2 * 8 * 4
    assert study_of(methods=methods, student=None, train={}, grid={}).steps("glue/cola", "FSD") == []
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
        return Plan(study, tmp_path / folder).train_job("glue/rte", label, point, 1, "kept").key

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
            jobs = [plan.train_job(task, "kd", {"method.temperature": temperature}, seed, "kept") for seed in (8, 9)]
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
        if isinstance(job, TrainJob) and job.weights == "removed":
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
    assert by_label["kd"]["why"].endswith("tried to the end: kd cannot be done here.")
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
    assert plan.teacher_job("glue/rte") is None
    assert plan.train_job("glue/rte", "ft", {}, 1, "kept").values["teacher"]["model"] == "models/bert-rte"
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
    together = run_study(study_of(), tmp_path / "b" / "out", Workers(2, 1, fake_work.quick))
    assert together == alone


@pytest.mark.chaos
@pytest.mark.slow  # seven processes die; the next test kills one that waits
def test_a_worker_that_dies_is_replaced_and_its_job_done_again(study_of, tmp_path):
    study = study_of(tasks=["glue/rte"], methods=["ft", "kd"])
    results = run_study(study, tmp_path / "out", Workers(2, 1, fake_work.dies_once))
    assert all(entry["missing"] == 0 for entry in results["entries"])
    assert len((tmp_path / "out" / "work.txt").read_text().split()) == 1 + 2 * 3


def test_the_studys_file_is_written_in_full(study_of, tmp_path):
    study = study_of()
    run(study, tmp_path / "out")
    assert load_study(tmp_path / "out" / "study.yaml") == study


def test_a_nested_block_changes_only_what_it_names(study_of):
    study = study_of(
        "methods.kd.train.learning_rate=0.001",
        "methods.kd.method.alpha=0.9",
        tasks={"glue/rte": {"teacher": {"train": {"epochs": 9}}, "task": {"max_length": 16}}},
        methods={"kd": {"method.alpha": 0.3}, "soft": {"method": {"name": "kd", "temperature": 3}}},
    )
    kd = study.values("glue/rte", "kd", {}, 1, "t", "off")
    assert kd["train"] == {"epochs": 1, "learning_rate": 0.001} and kd["method"] == {"name": "kd", "alpha": 0.9}
    assert kd["task"] == {"data_dir": "glue", "name": "glue/rte", "max_length": 16} and kd["teacher"]["model"] == "t"
    assert study.teacher_values("glue/rte")["train"] == {"epochs": 9}
    assert study.values("glue/rte", "soft", {}, 1, "t", "off")["method"] == {"name": "kd", "temperature": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": 0}, "level"),
        ({"level": 1}, "level"),
        ({"methods": {"kd": {"tasks": ["glue/rt"]}}}, r"methods.kd.tasks.*Did you mean 'glue/rte'"),
        ({"methods": {"kd": {"tasks": [{"glue/rte": {}}]}}}, "methods.kd.tasks: Unknown task"),
        ({"methods": {"kd": {"grid": {"seed": [1, 2]}}}}, r"kd.grid.seed: cannot be searched"),
        ({"methods": {"kd": {"grid": {"teacher.model": ["a", "b"]}}}}, r"kd.grid.teacher.model: cannot be searched"),
    ],
)
def test_mistakes_that_would_show_after_the_last_run(study_of, changes, message):
    with pytest.raises(RecipeError, match=message):
        study_of(**changes)


def test_a_baseline_on_none_of_the_tasks_is_left_out(study_of):
    methods = {"ft": {}, "kd": {"tasks": ["glue/mrpc"]}}
    assert study_of(methods=methods).present_baselines == ["ft"]
    assert study_of(methods=methods, baselines=["kd"]).present_baselines == []


def test_a_setting_that_lost_stays_where_another_method_reports_it(study_of, tmp_path):
    fixed = {str(t): {"method.name": "kd", "method.temperature": t} for t in (2, 5)}
    searched = {"method.name": "kd", "grid": {"method.temperature": [2, 5, 9]}}
    study, folder = study_of(tasks=["glue/rte"], methods={"searched": searched, **fixed}), tmp_path / "out"
    first = run(study, folder)
    before = (folder / "work.txt").read_text()
    reported = {path for entry in first["entries"] for path in entry["runs"]}
    assert {file.parent.relative_to(folder).as_posix() for file in folder.glob("runs/*/student")} == reported
    # a reported run without its student would be done again
    assert run(study, folder) == first and (folder / "work.txt").read_text() == before


def test_a_setting_that_diverged_is_not_chosen(study_of, tmp_path):
    def work(job):
        fake_work.quick(job)
        if isinstance(job, TrainJob) and job.values["method"].get("temperature") == 2:
            file = Path(job.folder) / "metrics.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"score": float("nan")}))

    for entry in run(study_of(methods={"kd": STUDY["methods"]["kd"]}), tmp_path / "out", work)["entries"]:
        assert entry["chosen"] == {"method.temperature": 5} and entry["searched"][0]["score"] is None


def test_a_cache_serves_only_runs_that_ask_for_what_it_holds(study_of, tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.study.jobs.cache_for_runs", lambda recipes, folder: list(recipes))

    def used(study, label="kd", **point):
        return Plan(study, tmp_path).train_job("glue/rte", label, point, 1, "kept").values["teacher"]["cache"]

    teacher = {"fine_tuned": "models/bert-{task}"}
    grid = {"method.temperature": [2, 5], "task.max_length": [16, 32]}
    study = study_of(teacher=teacher, methods={"kd": {"grid": grid}})
    cache = Plan(study, tmp_path).cache_job("glue/rte")
    assert used(study, **{"task.max_length": 16}) == "auto"
    cache.run()
    for temperature in (2, 5):
        assert used(study, **{"method.temperature": temperature, "task.max_length": 16}) == cache.folder
    assert used(study, **{"method.temperature": 2, "task.max_length": 32}) == "auto"
    # the study's file may be changed between two starts
    assert used(study_of(teacher=teacher, methods={"kd": {"task.max_length": 16}})) == cache.folder
    assert used(study_of(teacher=teacher, methods={"kd": {"task.max_length": 64}})) == "auto"
    other = {"kd": {"method.name": "metadistil", "task.max_length": 16}}
    assert used(study_of(teacher=teacher, methods=other)) == "auto"
    assert (
        used(study_of(teacher=teacher | {"cache_dtype": "float16"}, methods={"kd": {"task.max_length": 16}})) == "auto"
    )


def test_a_method_that_is_added_later_is_cached_too(study_of, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "limbeck.study.jobs.cache_for_runs", lambda recipes, folder: made.append(list(recipes)) or made[-1]
    )
    teacher = {"fine_tuned": "models/bert-{task}"}

    def cached(**methods):
        """Return which of these methods a study reads from its cache, after the job is done where it is not."""
        plan = Plan(study_of(teacher=teacher, methods=methods), tmp_path)
        cache = plan.cache_job("glue/rte")
        if not cache.finished():
            cache.run()
        runs = {label: plan.train_job("glue/rte", label, {}, 1, "kept") for label in methods}
        return [label for label, job in runs.items() if job.values["teacher"]["cache"] == cache.folder]

    assert cached(kd=None) == ["kd"] and cached(kd=None) == ["kd"] and len(made) == 1
    assert cached(kd=None, fcd=None) == ["kd", "fcd"] and len(made) == 2
    assert cached(ics=None) == ["ics"] and len(made) == 3
    # those of before are still there, and are not asked about again
    assert cached(fcd=None, kd=None) == ["fcd", "kd"] and cached(ics=None) == ["ics"] and len(made) == 3
    # as written before methods were remembered one by one
    (marker,) = (tmp_path / "caches").glob("*rte*.json")
    marker.write_text('{"serves": ["kd"]}')
    assert cached(kd=None) == ["kd"] and len(made) == 4
    # the same name, but other texts
    assert cached(kd={"task.max_length": 64}) == ["kd"] and len(made) == 5


def test_runs_that_are_left_are_counted_by_their_settings(study_of, tmp_path):
    def left(**changes):
        plan = Plan(study_of(tasks=["glue/rte"], **changes), tmp_path / "out")
        return sum(
            plan.count_runs("glue/rte", label) - len(plan.finished_runs("glue/rte", label))
            for label in changes["methods"]
        )

    kd = {"kd": {"grid": {"method.temperature": [2, 5]}}}
    seeds = {"seeds": [1, 2, 3], "select_seeds": [0]}
    assert left(methods=kd, **seeds) == 2 + 3  # those that choose, the reported ones
    (entry,) = run(study_of(tasks=["glue/rte"], methods=kd, **seeds), tmp_path / "out")["entries"]
    assert left(methods=kd, **seeds) == 0
    assert left(methods=kd, seeds=[1, 2, 3, 4], select_seeds=[0]) == 1
    # runs of other settings are there, but are none of these
    chosen = entry["chosen"]["method.temperature"]
    assert left(methods={"kd": {"grid": {"method.temperature": [chosen, 7]}}}, **seeds) == 1
    assert left(methods={"kd": {"grid": {"method.temperature": [7, 8]}}}, **seeds) == 2 + 3
    # the seed that chose is none of a method that has nothing to choose
    fixed = {"kd": {"method.temperature": chosen}}
    assert left(methods=fixed, **seeds) == 0 and left(methods=fixed, seeds=[1, 2, 3, 4], select_seeds=[0]) == 1
    # what TPE will propose is not known: all runs of the method count
    search = {"sampler": "tpe", "trials": 2}
    assert left(methods=kd, search=search, **seeds) == 0
    assert left(methods={"pkd": {"grid": {"method.beta": {"low": 1, "high": 9}}}}, search=search, **seeds) == 2 + 3


def test_weights_of_earlier_stages_go_with_the_student(tmp_path, monkeypatch):
    def execute(recipe, folder, **more):
        for place in ("student", "stage-1/student"):
            (folder / place).mkdir(parents=True)
        (folder / "stage-1" / "metrics.json").write_text("{}")
        if folder.name != "unfinished":
            (folder / "metrics.json").write_text("{}")

    monkeypatch.setattr("limbeck.study.jobs.execute", execute)
    monkeypatch.setattr("limbeck.study.jobs.load_recipe", lambda values: None)
    # an unfinished run goes on with the student of its first stage
    for name, fate, left in (("done", "removed", 0), ("reported", "kept", 2), ("unfinished", "removed", 2)):
        TrainJob(name, name, str(tmp_path), {}, str(tmp_path / name), fate).run()
        assert len(list((tmp_path / name).rglob("student"))) == left
        assert (tmp_path / name / "stage-1" / "metrics.json").is_file()


def test_a_failure_that_cannot_be_written_down_is_still_one(study_of, tmp_path):
    def work(job):
        if isinstance(job, TrainJob) and job.values["method"]["name"] == "kd":
            (Path(job.study) / "failures").touch()  # a file: nothing can be written there
            raise OSError(5, "Input/output error")
        fake_work.quick(job)

    entries = run(study_of(methods=["ft", "kd"], tasks=["glue/rte"]), tmp_path / "out", work)["entries"]
    assert [entry["missing"] for entry in entries] == [0, 3] and "Input/output error" in entries[1]["why"]


def test_a_study_killed_before_its_file_was_written_goes_on(study_of, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()
    assert run(study_of(), tmp_path / "out")["entries"]


@pytest.mark.chaos
def test_a_worker_that_died_while_it_waited_is_replaced(tmp_path):
    engine = Workers(1, 1, fake_work.quick)
    jobs = [TrainJob(key, key, str(tmp_path), {"seed": 1}, str(tmp_path / "runs" / key)) for key in "ab"]
    try:
        engine.submit(jobs[0])
        assert engine.next_outcome().error == ""
        process = engine._workers[0]._process
        process.kill()
        process.join()
        engine.submit(jobs[1])
        assert "SIGKILL" in engine.next_outcome().error
        engine.submit(jobs[1])
        assert engine.next_outcome().error == ""
    finally:
        engine.close()


@pytest.mark.distributed
def test_a_workers_job_may_have_processes_of_its_own(tmp_path):
    engine = Workers(1, 1, fake_work.has_a_child)
    try:
        engine.submit(TrainJob("a", "a", str(tmp_path), {"seed": 1}, str(tmp_path / "runs" / "a")))
        assert engine.next_outcome().error == ""
    finally:
        engine.close()


def test_seeds_that_choose_and_are_partly_reported_are_told(study_of):
    assert "on seeds 1, 7, some of which are reported too (1, 2, 3)" in study_of(select_seeds=[1, 7]).selection_note()
    assert "on seed 1, which is reported too (1, 2, 3)" in study_of(select_seeds=[1]).selection_note()


def test_blocks_that_yaml_repeats_are_changed_apart(study_of):
    train = {"epochs": 2}  # written once, with an anchor
    study = study_of("train.epochs=7", train=train, teacher={"model": "big", "train": train})
    assert study.train == {"epochs": 7} and study.teacher.train == {"epochs": 2}


def test_numbers_that_yaml_reads_as_text_are_estimated(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "_student_size", lambda block, source: estimate._Size(10, 10))
    monkeypatch.setattr(estimate, "_count_tokens", lambda task, source, max_length: (1000.0, 100))
    found = [
        estimate._cost({"student": {}, "task": {}, "train": train}, "big")
        for train in ({"epochs": 10.0}, {"epochs": "1e1"}, {"max_steps": "100", "batch_size": "10"})
    ]
    assert found[0] == found[1] == found[2] and found[0][0] > 0

"""Check searches that rest on each other: what is tried, what is taken, what is chosen, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers import fake_training

from limbeck._internal.files import write_text
from limbeck.compare.comparison import compare_paths
from limbeck.errors import RecipeError
from limbeck.study import estimate
from limbeck.study.chains import first_point, possible_values, waits_for
from limbeck.study.engines import InProcess, Workers
from limbeck.study.jobs import TrainJob
from limbeck.study.loading import load_study
from limbeck.study.plan import Plan
from limbeck.study.runner import run_study

TAKEN = {
    "method.alpha": {"best": "method.alpha", "of": "VKD"},
    "train.epochs": {"best": "train.epochs", "of": "VKD"},
}
STUDY = {
    "tasks": ["glue/rte"],
    "task": {"data_dir": "glue"},
    "teacher": {"model": "big", "train": {"epochs": 2}},
    "student": {"from": "teacher", "keep": "first:3"},
    "methods": {
        "VKD": {
            "method": {"name": "kd", "alpha": 0.5},
            "grid": {"method.alpha": [0.2, 0.5, 0.7], "train.epochs": [3, 5]},
        },
        "intra": {**TAKEN, "method.name": "fsd_i", "row": False, "grid": {"method.beta": [1, 3, 4]}},
        "FSD": {
            **TAKEN,
            "method.name": "fsd",
            "grid": [
                {"method.gamma_i": [0.1, 1, {"best": "method.beta", "of": "intra"}], "method.gamma_g": [0.01, 0.1]},
                {"method.gamma_g": [0.02, 0.2]},
            ],
        },
    },
    "select_seeds": [0],
    "seeds": [1, 2],
    "rivals": False,
}


@pytest.fixture()
def study_of(tmp_path):
    def load(*overrides, **changes):
        file = tmp_path / "my.yaml"
        file.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
        return load_study(file, overrides)

    return load


def score_by_settings(job):
    """Write a run whose score says how near its settings are to a point that the test knows."""
    fake_training.quick(job)
    if not isinstance(job, TrainJob):
        return
    method, train = job.values["method"], job.values["train"]
    score = 1.0 - abs(method.get("alpha", 0.7) - 0.7) - abs(train["epochs"] - 5) / 100
    score -= abs(method.get("beta", 3) - 3) / 100 if method["name"] == "fsd_i" else 0
    score -= abs(method.get("gamma_i", 3) - 3) / 100 + abs(method.get("gamma_g", 0.2) - 0.2)
    score -= abs(train.get("learning_rate", 2e-5) - 2e-5) * 1000
    metrics = json.loads((Path(job.folder) / "metrics.json").read_text())
    scores = {"score": score, "metrics": {"accuracy": score}, "task": "glue/rte", "method": method["name"]}
    write_text(Path(job.folder) / "metrics.json", json.dumps(metrics | scores))
    if not (Path(job.folder) / "recipe.yaml").is_file():
        write_text(Path(job.folder) / "recipe.yaml", yaml.safe_dump(job.values))


def run(study, folder):
    return run_study(study, folder, InProcess(work=score_by_settings))


def work(folder):
    return sorted((folder / "work.txt").read_text().split())


def test_what_one_search_chose_another_takes(study_of, tmp_path):
    study = study_of()
    assert waits_for(study, "glue/rte", "FSD") == ["VKD", "intra"]
    assert waits_for(study, "glue/rte", "intra") == ["VKD"]
    results = run(study, tmp_path / "out")
    rows = {entry["label"]: entry for entry in results["entries"]}
    assert list(rows) == ["VKD", "FSD"]  # intra has no row
    assert rows["VKD"]["chosen"] == {"method.alpha": 0.7, "train.epochs": 5}
    (intra,) = results["searches"]
    assert intra["label"] == "intra"
    assert intra["chosen"] == {"method.alpha": 0.7, "train.epochs": 5, "method.beta": 3}
    fsd = rows["FSD"]
    # the first step tries 0.1, 1 and the beta of intra; the second starts from the best and finds a better gamma_g
    expected = {"method.alpha": 0.7, "train.epochs": 5, "method.gamma_i": 3, "method.gamma_g": 0.2}
    assert fsd["chosen"] == expected
    tried = [(trial["point"]["method.gamma_i"], trial["point"]["method.gamma_g"]) for trial in fsd["searched"]]
    assert tried == [(0.1, 0.01), (0.1, 0.1), (1, 0.01), (1, 0.1), (3, 0.01), (3, 0.1), (3, 0.02), (3, 0.2)]
    # teacher; 6 + 2 of VKD, 3 of intra, 8 + 2 of FSD: each once, although three workflows ask for VKD's
    assert len(work(tmp_path / "out")) == len(set(work(tmp_path / "out"))) == 1 + 8 + 3 + 10
    # runs of the second seed only reported: VKD's students stay, those of searches do not
    assert not list((tmp_path / "out/runs").glob("*fsd_i*/student"))
    notes = " ".join(compare_paths([tmp_path / "out"]).table.notes)
    assert "intra: alpha 0.7, epochs 5, beta 3; VKD: alpha 0.7, epochs 5" in notes


def test_a_step_that_finds_nothing_better_changes_nothing(study_of, tmp_path):
    methods = {"FSD": {"method.name": "fsd", "grid": [{"method.gamma_g": [0.1, 0.2]}, {"method.gamma_g": [0.3, 0.5]}]}}
    results = run(study_of(methods=methods, train={"epochs": 5}), tmp_path / "out")
    assert results["entries"][0]["chosen"] == {"method.gamma_g": 0.2}
    assert len(results["entries"][0]["searched"]) == 4


def test_workers_and_a_second_start_come_to_the_same(study_of, tmp_path):
    first = run(study_of(), tmp_path / "a")
    again = run(study_of(), tmp_path / "a")
    both = run_study(study_of(), tmp_path / "b", Workers(2, 1, score_by_settings))
    assert first == again and first["entries"] == both["entries"]
    assert work(tmp_path / "a") == work(tmp_path / "b")


def test_the_teachers_settings_are_searched(study_of, tmp_path):
    teacher = {
        "model": "big",
        "train": {"epochs": 5},
        "grid": {"train.learning_rate": [1e-5, 2e-5, 5e-5], "train.epochs": [3, 5]},
    }
    methods = {"ft": None, "kd": {"method.alpha": 0.5}}
    study = study_of(teacher=teacher, methods=methods, train={"epochs": 5})
    results = run(study, tmp_path / "out")
    (found,) = results["searches"]
    assert found["label"] == "teacher" and found["chosen"] == {"train.learning_rate": 2e-5, "train.epochs": 5}
    assert [trial["score"] for trial in found["searched"]] == pytest.approx([0.97, 0.99, 0.98, 1.0, 0.95, 0.97])
    chosen = tmp_path / "out" / results["teachers"]["glue/rte"]
    kept = [folder for folder in (tmp_path / "out/teachers").iterdir() if (folder / "student").is_dir()]
    assert kept == [chosen]  # those that lost have their scores only
    taught = {
        yaml.safe_load(file.read_text())["teacher"]["model"] for file in (tmp_path / "out/runs").glob("*/r*.yaml")
    }
    assert taught == {str(chosen)}
    assert len(work(tmp_path / "out")) == 6 + 2 * 2
    assert run(study, tmp_path / "out") == results and len(work(tmp_path / "out")) == 10
    notes = " ".join(compare_paths([tmp_path / "out"]).table.notes)
    assert "teacher: learning_rate 2e-05, epochs 5" in notes


def test_the_plan_counts_the_chain_and_expects_the_mean_of_its_epochs(study_of, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "_student_size", lambda *_: estimate._Size(10, 10))
    monkeypatch.setattr(estimate, "_count_tokens", lambda *_: (100.0, 10))
    monkeypatch.setattr(estimate, "flops", lambda: 60.0)
    study = study_of()
    lines = {line.label: line for line in estimate.estimate_costs(Plan(study, tmp_path / "out"))}
    assert {label: (line.settings, line.after, line.runs) for label, line in lines.items()} == {
        "teacher": ((1,), (), 1),
        "VKD": ((6,), (), 8),
        "intra": ((3,), ("VKD",), 3),
        "FSD": ((6, 2), ("VKD", "intra"), 10),
    }
    # an epoch takes 100 tokens x 6 x 10 parameters / 60 per second; runs are of 3 or 5 epochs, 4 in the mean
    assert lines["VKD"].seconds == pytest.approx(8 * 4 * 100)
    assert lines["FSD"].seconds == pytest.approx(10 * 4 * 100)
    assert lines["teacher"].seconds == pytest.approx(2 * 100)


def test_values_that_may_be_taken(study_of):
    study = study_of()
    assert possible_values(study, "glue/rte", "FSD", "method.gamma_i") == [0.1, 1, 3, 4]
    assert possible_values(study, "glue/rte", "FSD", "train.epochs") == [3, 5]
    assert possible_values(study, "glue/rte", "FSD", "method.nothing") == []
    assert first_point(study, "glue/rte", "FSD") == {
        **{"method.alpha": 0.2, "train.epochs": 3},
        **{"method.gamma_i": 0.1, "method.gamma_g": 0.01},
    }


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"method.alpha": {"best": "method.alpha", "of": "VKDD"}}, "Did you mean 'VKD'"),
        ({"method.alpha": {"best": "method.alpha", "of": "FSD"}}, "wait for each other: FSD"),
        ({"method.beta": {"best": "method.gamma_x", "of": "VKD"}}, "VKD has no method.gamma_x"),
        ({"method.alpha": {"best": "train.epochs", "of": "VKD"}}, r"method.alpha.*3"),
        ({"grid": [{"method.gamma_g": [0.1]}, 3]}, "a list of such"),
        ({"row": "no"}, "true or false"),
    ],
)
def test_mistakes_in_chains_are_named(study_of, method, message):
    methods = {"VKD": STUDY["methods"]["VKD"], "FSD": {"method.name": "fsd"} | method}
    with pytest.raises(RecipeError, match=message):
        study_of(methods=methods)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": {"model": "a", "grid": {"method.alpha": [1]}}}, "settings of train"),
        ({"teacher": {"model": "a", "grid": {"train.epoch": [1]}}}, "Did you mean 'epochs'"),
        ({"teacher": {"fine_tuned": "a", "grid": {"train.epochs": [1]}}}, "has no settings to search"),
        ({"baselines": ["intra"]}, "intra has no row"),
        ({"methods": {"ft": {"row": False}}}, "none has a row"),
    ],
)
def test_mistakes_around_chains_are_named(study_of, changes, message):
    with pytest.raises(RecipeError, match=message):
        study_of(**changes)

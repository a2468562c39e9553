"""Check which settings Optuna proposes and which trials it gives up: functions of what was tried, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers import fake_training as fake_work

from limbeck._internal.files import write_text
from limbeck.errors import LimbeckError
from limbeck.runs.directory import RunDirectory
from limbeck.study import search
from limbeck.study.engines import InProcess
from limbeck.study.jobs import CacheJob
from limbeck.study.loading import load_study
from limbeck.study.runner import run_study
from limbeck.study.search import Trial, falls_behind, propose

SPACE = {
    "method.layers": [[[1, 2]], [[1, 2], [2, 4]], "uniform"],
    "train.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
    "method.k": {"low": 1, "high": 9},
}


def search_on(score, trials, seed=0, maximise=True):
    tried = []
    for _ in range(trials):
        point = propose(SPACE, tried, seed, maximise)
        tried.append(Trial(point, score(point)))
    return tried


def test_proposals_lie_in_the_space():
    tried = search_on(lambda point: 0.0, 30)
    assert {str(trial.point["method.layers"]) for trial in tried} == {str(choice) for choice in SPACE["method.layers"]}
    assert all(1e-5 <= trial.point["train.learning_rate"] <= 1e-3 for trial in tried)
    assert all(isinstance(trial.point["method.k"], int) and 1 <= trial.point["method.k"] <= 9 for trial in tried)


def test_the_same_history_gives_the_same_proposal():
    assert search_on(len_of_k, 15) == search_on(len_of_k, 15)
    assert search_on(len_of_k, 15) != search_on(len_of_k, 15, seed=1)


@pytest.mark.parametrize("maximise", [True, False])
def test_proposals_move_towards_what_was_good(maximise):
    tried = search_on(len_of_k, 60, maximise=maximise)
    late = [trial.score for trial in tried[30:]]
    assert sum(late) / len(late) > 7 if maximise else sum(late) / len(late) < 3


def len_of_k(point):
    return float(point["method.k"])


def test_failed_trials_are_no_obstacle():
    tried = [Trial(propose(SPACE, [], 0), None)]
    assert propose(SPACE, tried, 0)["method.k"] >= 1


@pytest.mark.parametrize(
    ("own", "maximise", "behind"),
    [
        ([0.1], True, True),
        ([0.9], True, False),
        ([0.1], False, False),
        ([0.9], False, True),
        ([0.9, 0.1], True, False),  # its best so far counts
        ([0.5, 0.65], True, True),
    ],
)
def test_a_trial_below_the_median_is_given_up(own, maximise, behind):
    earlier = [[0.3, 0.6], [0.4, 0.7], [0.5, 0.8], [0.6, 0.9]]
    assert falls_behind(earlier, own, maximise) is behind


def test_earlier_trials_may_have_diverged_at_the_end_or_have_no_scores():
    earlier = [[0.5, float("nan")], [0.6, 0.7], [0.7, 0.8], [0.8, 0.9], []]
    assert falls_behind(earlier, [0.1]) and not falls_behind(earlier, [0.9])


def test_the_first_trials_are_always_finished():
    assert not falls_behind([[0.9], [0.9], [0.9]], [0.1])
    assert not falls_behind([], [0.1])


def test_a_missing_optuna_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(LimbeckError, match=r"pip install 'limbeck\[search\]'"):
        search.require_optuna()


def study(tmp_path, **changes):
    values = {
        "tasks": ["glue/rte"],
        "teacher": {"model": "big"},
        "student": {"from": "teacher", "keep": "first:3"},
        "methods": {"ft": {}, "kd": {"grid": {"method.temperature": {"low": 1.0, "high": 20.0}}}},
        "seeds": [1, 2],
        "select_seeds": [9],
        "search": {"sampler": "tpe", "trials": 8},
    }
    file = tmp_path / "my.yaml"
    file.write_text(yaml.safe_dump(values | changes))
    return load_study(file)


def test_a_study_searches_with_optuna_and_goes_on_where_it_stopped(tmp_path):

    left = [6]

    def five_jobs(job):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        fake_work.quick(job)

    with pytest.raises(KeyboardInterrupt):
        run_study(study(tmp_path), tmp_path / "out", InProcess(work=five_jobs))
    results = run_study(study(tmp_path), tmp_path / "out", InProcess(work=fake_work.quick))
    other = run_study(study(tmp_path), tmp_path / "other" / "out", InProcess(work=fake_work.quick))
    assert results == other
    kd = results["entries"][1]
    assert len(kd["searched"]) == 8
    best = max(kd["searched"], key=lambda found: found["score"])
    assert kd["chosen"] == best["point"] and len({str(found["point"]) for found in kd["searched"]}) == 8
    done = (tmp_path / "out" / "work.txt").read_text().split()
    assert len(done) == len(set(done)) == 1 + 2 + 8 + 2


def test_pruned_trials_are_not_chosen_and_not_results(tmp_path):
    seen = []

    def work(job):
        if isinstance(job, CacheJob) or job.earlier is None:
            return fake_work.quick(job)
        seen.append(len(job.earlier))
        score = fake_work.score_of(job)
        if falls_behind(job.earlier, [score]):
            Path(job.folder).mkdir(parents=True)
            return write_text(RunDirectory(Path(job.folder)).pruned, "{}")
        return fake_work.quick(job)

    results = run_study(
        study(tmp_path, search={"sampler": "tpe", "trials": 12, "prune": True}), tmp_path / "out", InProcess(work=work)
    )
    kd = results["entries"][1]
    scores = [found["score"] for found in kd["searched"]]
    assert None in scores and scores.index(None) >= 4
    assert kd["chosen"] == max((f for f in kd["searched"] if f["score"] is not None), key=lambda f: f["score"])["point"]
    # only trials that were finished count as earlier ones
    assert seen == [sum(score is not None for score in scores[:number]) for number in range(12)]
    for folder in (tmp_path / "out" / "runs").iterdir():
        assert RunDirectory(folder).pruned.is_file() != RunDirectory(folder).finished
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results


def test_a_run_is_given_up_for_its_setting_and_not_for_its_seed(tmp_path):
    seen = {}

    def work(job):
        fake_work.quick(job)
        if not isinstance(job, CacheJob) and job.earlier is not None:
            seed, number = job.values["seed"], len(job.earlier)
            assert list(job.earlier) == seen.setdefault(seed, []) and number < 6
            seen[seed].append((fake_work.score_of(job),))

    search = {"sampler": "tpe", "trials": 6, "prune": True}
    run_study(study(tmp_path, search=search, select_seeds=[8, 9]), tmp_path / "out", InProcess(work=work))
    assert set(seen) == {8, 9} and all(len(scores) == 6 for scores in seen.values())

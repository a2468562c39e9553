"""Pause trainings after a share of their steps: what is resumed is, to the bit, what was never interrupted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.saved_runs import assert_same_run, history
from helpers.tiny_recipes import recipe_values

import limbeck.training.trainer
from limbeck import execute, load_recipe
from limbeck.study.halving import race, rung_shares
from limbeck.study.jobs import TrainJob

# dropout is on and the rate falls, so that a step or a random number more or less would show
TRAIN = {"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, "eval_strategy": "no", "save_steps": 0.5}
STEPS = 12  # 96 rows


@pytest.fixture(scope="module")
def values(table_files, teacher_folder):
    student = {"from": "teacher", "keep": [2, 4], "head": "fitted"}
    return recipe_values(table_files, teacher_folder, "fcd", student=student, train=TRAIN)


@pytest.fixture(scope="module")
def whole(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    execute(load_recipe(values=values), folder, show_data=False)
    return folder


def scores_of(run):
    return [(entry["step"], entry["eval_accuracy"]) for entry in history(run) if "eval_accuracy" in entry]


def test_a_run_that_waited_is_one_that_did_not(values, whole, tmp_path):
    for number, share in enumerate(rung_shares(4)[:-1], start=1):
        run = execute(load_recipe(values=values), tmp_path, resume=True, pause_after=share, show_data=False)
        assert not run.finished and [step for step, _ in scores_of(tmp_path)] == [3, 6][:number]
    execute(load_recipe(values=values), tmp_path, resume=True, show_data=False)
    assert_same_run(tmp_path, whole)


def test_jobs_wait_and_go_on(values, whole, tmp_path):
    """Ask for a job's parts in turn: each does its steps only, and what it scored stays what it scored."""
    whole_job = TrainJob("run", "run", str(tmp_path), values, str(tmp_path / "run"), metric="accuracy")
    jobs = [replace(whole_job, until=share) for share in (1 / 3, 0.5, 1.0)]
    seen = []
    for number, job in enumerate(jobs):
        assert not job.finished() and job.score_so_far() is None
        job.run()
        assert job.finished() and all(other.finished() for other in jobs[:number])
        seen.append(job.score_so_far())
    at = dict(scores_of(tmp_path / "run"))
    assert list(at) == [math.ceil(STEPS / 3), STEPS // 2] and seen[:2] == list(at.values())
    assert seen[2] == jobs[2].directory.metrics()["score"]
    # a finished run is still judged by what it had scored when it waited
    assert [job.score_so_far() for job in jobs] == seen
    assert_same_run(tmp_path / "run", whole)


def test_a_score_without_its_checkpoint_does_not_count(values, whole, tmp_path, monkeypatch):
    """Kill the run between its evaluation and the checkpoint: its history has the score, but it cannot go on there."""
    job = TrainJob("run", "run", str(tmp_path), values, str(tmp_path / "run"), until=0.75, metric="accuracy")

    def killed(self, *_, **__):
        if self.state.global_step == 9:
            raise KeyboardInterrupt
        return save(self, *_, **__)

    save = limbeck.training.trainer.RunTrainer._save_checkpoint
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(limbeck.training.trainer.RunTrainer, "_save_checkpoint", killed)
        job.run()
    assert [step for step, _ in scores_of(tmp_path / "run")] == [9]
    assert not job.finished() and job.score_so_far() is None
    job.run()
    assert job.finished() and job.score_so_far() == scores_of(tmp_path / "run")[0][1]
    TrainJob("run", "run", str(tmp_path), values, str(tmp_path / "run")).run()
    assert_same_run(tmp_path / "run", whole)


def test_a_race_that_was_run_is_decided_the_same_again(values, tmp_path):
    """Ask a finished race again, whose winner has come to a worse score than it had when it was chosen."""
    jobs = [
        TrainJob(
            name, name, str(tmp_path), values | {"method": {"name": name}}, str(tmp_path / name), metric="accuracy"
        )
        for name in ("ft", "kd")
    ]

    def run():
        workflow, reply = race(jobs, larger_is_better=True), None
        while True:
            try:
                wanted = workflow.send(reply)
            except StopIteration as end:
                return end.value
            for job in wanted:
                if not job.finished():
                    job.run()
            reply = {}

    first = run()
    assert len(first.rungs) == 2
    file = first.winner.directory.results
    file.write_text(file.read_text().replace(f'"score": {first.rungs[-1].scores[first.winner.key]}', '"score": 0.0'))
    again = run()
    assert again.decisions()[0] == first.decisions()[0] and again.winner.key == first.winner.key
    assert again.rungs[-1].scores == {first.winner.key: 0.0}

"""Check what is shown while a study runs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from limbeck._internal.progress import QUIET
from limbeck.study import watch
from limbeck.study.jobs import CacheJob, TrainJob


@pytest.fixture()
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def run(tmp_path, name, folder="runs", score=0.5):
    place = tmp_path / folder / name
    place.mkdir(parents=True)
    (place / "metrics.json").write_text(json.dumps({"metric": "accuracy", "score": score}))
    return TrainJob(name, f"glue/rte {name}", str(tmp_path), {}, str(place))


def test_lines_tell_the_outcome_and_the_time_left(tmp_path, clock):
    said = io.StringIO()
    lines = watch._LineProgress(5, Console(file=said, width=200))
    jobs = [run(tmp_path, "teacher", "teachers"), CacheJob("c", "features", str(tmp_path), {}, str(tmp_path / "c"))]
    jobs += [run(tmp_path, "kd"), run(tmp_path, "ft", score=0.25)]
    for job, seconds, error in zip(jobs, (600, 60, 30, 90), ("", "", "", "no luck\nat all"), strict=True):
        lines.started(job)
        clock[0] += seconds
        lines.ended(job, error)
    assert said.getvalue().splitlines() == [
        "1/5 glue/rte teacher: accuracy 50.00, 10 min",
        "2/5 features: done, 60 s",
        "3/5 glue/rte kd: accuracy 50.00, 30 s (about 60 s left)",
        "4/5 glue/rte ft: failed (no luck), 90 s (about 60 s left)",
    ]


def test_more_runs_than_were_expected_are_counted_too(tmp_path, clock):
    said = io.StringIO()
    lines = watch._LineProgress(1, Console(file=said, width=200))
    for name in ("kd", "ft"):
        lines.ended(run(tmp_path, name), "")
    assert [line.partition(" ")[0] for line in said.getvalue().splitlines()] == ["1/1", "2/2"]


def test_a_pruned_run_has_no_score(tmp_path, clock):
    job = run(tmp_path, "kd")
    (tmp_path / "runs" / "kd" / "metrics.json").unlink()
    assert watch._outcome(job, "") == "not worth finishing"


def test_the_live_table_shows_what_runs(tmp_path, clock):
    said = io.StringIO()
    console = Console(file=said, width=100)
    table = watch._LiveProgress(3, console)
    table.started(run(tmp_path, "kd"))
    clock[0] += 7200
    console.print(table)
    assert "glue/rte kd" in said.getvalue() and "2.0 h" in said.getvalue() and "0 of 3 jobs" in said.getvalue()


def test_quiet_is_quiet(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(QUIET, "1")
    with watch.watching(3) as watcher:
        watcher.ended(run(tmp_path, "kd"), "")
    assert capsys.readouterr() == ("", "")

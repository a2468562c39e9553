"""Check that models are timed together: each architecture once, in one session, and not beside another session's."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from helpers.saved_runs import read_json

from limbeck.analysis import latency
from limbeck.analysis.analyze import Settings, analyze
from limbeck.analysis.latency import time_runs
from limbeck.analysis.record import read_record
from limbeck.compare.entries import read_entries
from limbeck.errors import RunError
from limbeck.report.data import gather
from limbeck.report.tables import all_tables

pytestmark = pytest.mark.usefixtures("quick_collection")
SHORT = Settings(examples=8)


@pytest.fixture()
def sessions(monkeypatch):
    """Stand in for the clock: list how many models each session timed; the first takes 1 ms, the next one 2 ms, ..."""
    seen = []

    def in_turns(calls, seconds):
        for call in calls:
            call()
        seen.append(len(calls))
        return [[0.001 * number] for number in range(1, len(calls) + 1)]

    monkeypatch.setattr(latency, "time_in_turns", in_turns)
    return seen


def costs(*runs):
    return [read_record(run).values["cost"] for run in runs]


def test_each_architecture_is_timed_once_and_its_runs_share_the_number(run, sessions):
    kd, fsd, narrow, same = (run(name) for name in ("kd", "fsd", "narrow", "same"))
    records = analyze([kd, fsd, narrow, same], SHORT)
    assert sessions == [3]  # two layers, the teacher with four, and two narrow ones
    assert [record.values["cost"]["milliseconds"] for record in records] == [1.0, 1.0, 3.0, 2.0]
    assert [record.values["cost"]["speedup"] for record in records] == pytest.approx([2.0, 2.0, 2 / 3, 1.0])
    assert {record.values["cost"]["teacher_milliseconds"] for record in records} == {2.0}
    assert len({json.dumps(record.values["cost"]["session"]) for record in records}) == 1
    assert costs(kd, fsd, narrow, same) == [record.values["cost"] for record in records]
    analyze([narrow, kd], SHORT)
    assert sessions == [3]  # one session had both


def test_runs_of_two_sessions_are_timed_again_together(run, sessions, command, monkeypatch):
    monkeypatch.setattr("limbeck.report.page.write_report", lambda *paths: None)  # takes longer than all the rest
    kd, fsd = run("kd"), run("fsd")
    analyze([kd], SHORT)
    analyze([fsd], SHORT)
    assert sessions == [2, 2]
    first, second = costs(kd, fsd)
    assert first["session"] != second["session"]
    arrays = (kd / "analysis" / "arrays.npz").stat().st_mtime_ns
    status, _ = command("report", kd, fsd)
    assert status == 0 and sessions == [2, 2, 2]
    again = costs(kd, fsd)
    assert again[0]["session"] == again[1]["session"] not in (first["session"], second["session"])
    assert (kd / "analysis" / "arrays.npz").stat().st_mtime_ns == arrays  # nothing else was measured again
    assert command("report", kd, fsd)[0] == 0 and sessions == [2, 2, 2]


def test_a_latency_from_before_there_were_sessions_is_measured_again(run, sessions):
    kd = run("kd")
    analyze([kd], SHORT)
    file = kd / "analysis" / "analysis.json"
    values = read_json(file)
    old = {"milliseconds": 0.08, "teacher_milliseconds": 6.63, "speedup": 83.0, "inference": 1.9, "parameters": 10}
    file.write_text(json.dumps(values | {"cost": old}))
    time_runs([kd])  # as a report does: it is left as it is, and not shown
    assert read_json(file)["cost"] == old and sessions == [2]
    (table,) = [table for table in all_tables(gather(read_entries([kd]))) if table.title == "Cost"]
    assert "not measured in turns with the others: kd." in table.notes[1]
    (record,) = analyze([kd], SHORT)
    assert sessions == [2, 2] and record.values["cost"]["milliseconds"] == 1.0 == record.values["cost"]["inference"]


def test_what_cannot_be_timed_is_refused_or_left_out(run, sessions, tmp_path, caplog):
    kd, same = run("kd"), run("same")
    analyze([kd, same], SHORT)
    analyze([same], SHORT, force=True)
    before = costs(kd)
    config = kd / "student" / "config.json"
    config.write_text(json.dumps(read_json(config) | {"num_hidden_layers": 3}))
    with pytest.raises(RunError, match=r"another model than the one .* limbeck analyze --force"):
        time_runs([kd, same])
    with caplog.at_level(logging.WARNING):
        time_runs([kd, same], keep_going=True)
    assert "kd is not timed beside the others" in caplog.text
    assert costs(kd) == before and costs(same)[0]["session"] != before[0]["session"]


def test_without_cost_nothing_is_timed(run, sessions):
    kd = run("kd")
    analyze([kd], Settings(examples=8, cost=False))
    time_runs([kd])
    assert sessions == [] and "cost" not in read_record(kd).values


def test_weights_are_not_needed(run, sessions, tmp_path):
    kd, fsd = run("kd"), run("fsd")
    analyze([kd], SHORT)
    analyze([fsd], SHORT)
    for weights in (kd / "student").glob("*.safetensors"):
        weights.unlink()
    time_runs([kd, fsd])
    first, second = costs(kd, fsd)
    assert first["session"] == second["session"]


def test_other_work_on_the_machine_changes_no_latency(run, monkeypatch, caplog):
    """Let most calls take ten times as long: those of the quiet moments count, and a warning says so."""
    threads = []

    def in_turns(calls, seconds):
        threads.append(torch.get_num_threads())
        return [[0.01 * number] * 80 + [0.001 * number] * 20 for number in range(1, len(calls) + 1)]

    monkeypatch.setattr(latency, "time_in_turns", in_turns)
    before = torch.get_num_threads()
    (record,) = analyze([run("kd")], SHORT)
    assert record.values["cost"]["milliseconds"] == pytest.approx(1.0) and record.values["cost"]["speedup"] == 2.0
    assert "is busy with other work" in caplog.text
    assert threads == [1] == [record.values["cost"]["session"]["threads"]] and torch.get_num_threads() == before

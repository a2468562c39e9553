"""Check successive halving with made-up scores: who goes on, who wins, and what is written down."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from limbeck.study.halving import race, rung_shares
from limbeck.study.jobs import TrainJob


@dataclass(frozen=True)
class Made(TrainJob):
    """Score what a table says for this run after a share of its training."""

    table: object = None

    def score_so_far(self):
        return self.table[self.key](self.until)


def run(table, larger=True, failing=()):
    jobs = [Made(key, key, "s", {}, f"s/{key}", table=table) for key in table]
    workflow, asked, reply = race(jobs, larger), [], None
    while True:
        try:
            wanted = workflow.send(reply)
        except StopIteration as end:
            return end.value, asked
        asked.append([(job.key, round(job.until, 3)) for job in wanted])
        reply = {job.key: "no luck" for job in wanted if job.key in failing}


def growing(rate):
    return lambda until: rate * until


TABLE = {"a": growing(0.5), "b": growing(0.9), "c": growing(0.7), "d": growing(0.8)}


def test_the_better_half_goes_on_until_one_is_left():
    result, asked = run(TABLE)
    assert asked == [
        [("a", 0.25), ("b", 0.25), ("c", 0.25), ("d", 0.25)],
        [("b", 0.5), ("d", 0.5)],
        [("b", 1.0)],
    ]
    assert result.winner.key == "b" and not result.failed
    assert [rung["go on"] for rung in result.decisions()] == [["b", "d"], ["b"], ["b"]]
    assert result.decisions()[0]["scores"] == pytest.approx({"a": 0.125, "b": 0.225, "c": 0.175, "d": 0.2})


def test_less_may_be_better_and_ties_go_to_the_first():
    assert run(TABLE, larger=False)[0].winner.key == "a"
    equal = {name: growing(0.5) for name in "xyz"}
    assert run(equal)[0].winner.key == "x"


def test_one_that_leads_early_may_lose_later():
    result, _ = run({"early": lambda until: 0.6, "late": growing(0.9)})
    assert result.winner.key == "early"  # decided after a third
    result, asked = run(
        {"early": lambda until: 0.5, "late": lambda until: 0.4 + until, "x": growing(0), "y": growing(0)}
    )
    assert result.winner.key == "late" and asked[1] == [("late", 0.5), ("early", 0.5)]


def test_what_fails_is_left_out_and_told():
    result, asked = run(TABLE, failing={"b"})
    assert result.winner.key == "d" and result.failed == {"b": "no luck"}
    assert [key for key, _ in asked[1]] == ["d", "c"]
    nobody, _ = run(TABLE, failing=set(TABLE))
    assert nobody.winner is None and set(nobody.failed) == set(TABLE)


def test_a_single_candidate_runs_to_its_end_at_once():
    _, asked = run({"only": growing(1)})
    assert asked == [[("only", 1.0)]]
    assert rung_shares(1) == [1.0]

"""Print what a command answers as JSON: valid whatever the values are, and alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from limbeck.cli.options import with_json
from limbeck.cli.render import answer, only_json, out
from limbeck.tasks.profile import SplitProfile


def test_values_that_json_does_not_have(capsys):
    values = {"path": Path("a/b"), "none": None, "yes": True, "nan": float("nan"), "far": np.float32("inf")}
    values |= {"count": np.int64(3), "half": np.float64(0.5), "pair": (1, "ü")}
    with only_json():
        answer(**values, split=SplitProfile(1, {}, 0.25, {"a": 1}, {}), **{"by label": {0: [np.float32(0.25)]}})
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == {
        **{"path": "a/b", "none": None, "yes": True, "nan": None, "far": None, "count": 3, "half": 0.5},
        **{"pair": [1, "ü"], "by label": {"0": [0.25]}},
        "split": {"rows": 1, "lengths": {}, "too_long": 0.25, "counts": {"a": 1}, "numbers": {}},
    }


def test_nothing_else_is_on_stdout(capsys):
    with only_json():
        out.print("a table")
        print("a library's own words")
        answer(score=1)
    said = capsys.readouterr()
    assert json.loads(said.out) == {"score": 1} and said.err == "a library's own words\n"


def test_without_the_option_only_the_table_is_there(capsys):
    def command():
        answer(score=1)
        out.print("a table")

    with_json(command)()
    assert capsys.readouterr().out == "a table\n"
    with_json(command)(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"score": 1}
    with_json(command)()
    assert capsys.readouterr().out == "a table\n"


def test_a_process_that_is_not_the_first_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(out, "quiet", True)
    with only_json():
        answer(score=1)
    assert capsys.readouterr().out == "" and out.quiet
